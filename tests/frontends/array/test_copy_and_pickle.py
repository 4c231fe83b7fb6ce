"""Compiled functions are copied and pickled as functions are, also after calls."""

from __future__ import annotations

import copy
import functools
import pickle

import numpy as np

import smelt as sm

X = np.ones((3, 3), np.float32)


@sm.jit
def named(x, k=2):
    return x * k + 1


def plain(x):
    return sm.sum(x)


class Model:
    @sm.jit
    def step(self):
        return self * 3

    def __init__(self):
        self.loss = sm.jit(plain)


def called(function, x=X):
    for _ in range(3):  # the last one by native code, whose records nobody can copy
        result = np.asarray(function(x))
    return result


def test_a_copy_of_what_holds_a_compiled_function_runs_it():
    model = Model()
    called(model.loss)
    other = copy.deepcopy(model)
    assert other.loss is model.loss and copy.copy(named) is named
    assert called(other.loss) == 9


def test_a_decorated_function_is_pickled_by_name():
    called(named)
    assert pickle.loads(pickle.dumps(named)) is named
    assert pickle.loads(pickle.dumps(Model.step)) is Model.step


def test_under_another_name_it_is_rebuilt():
    for built in (sm.jit(plain, never=True), sm.jit(functools.partial(plain))):
        called(built)
        again = pickle.loads(pickle.dumps(built))
        assert type(again) is type(built) and called(again) == 9
