"""Unknown names suggest the nearest in every namespace; derived functions say what they are."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
import smelt.numpy as snp
from smelt.errors import nearest
from smelt.errors.missing import nearest_hint

MISSPELT: list[tuple[Callable[[], Any], str]] = [
    (lambda: sm.maxmum, "maximum"),
    (lambda: sm.nn.relux, "relu"),
    (lambda: sm.random.normel, "normal"),
    (lambda: sm.optim.adamm, "adam"),
    (lambda: sm.linalg.choleski, "cholesky"),
    (lambda: sm.errors.ShapError, "ShapeError"),
    (lambda: snp.cumsun, "cumsum"),
    (lambda: snp.linalg.nrm, "norm"),
    (lambda: snp.random.normall, "normal"),
    (lambda: snp.fft.ffft, "fft"),
    (lambda: snp.lib.strid_tricks, "stride_tricks"),
    (lambda: sm.ones(3).meen, "mean"),
    (lambda: sm.ones(3).at[0].ad, "add"),
    (lambda: sm.jit(np.sin).lowr, "lower"),
    (lambda: sm.spec("f32[n]").shap, "shape"),
]


@pytest.mark.parametrize(("read", "nearest"), MISSPELT, ids=[n for _, n in MISSPELT])
def test_a_misspelt_name_suggests_the_nearest(read: Callable[[], Any], nearest: str) -> None:
    with pytest.raises(AttributeError, match=f"did you mean '{nearest}'"):
        read()


def test_probes_of_protocols_get_no_suggestion() -> None:
    for x in (sm.nn, sm.ones(3).at[0], sm.jit(np.sin), sm.spec("f32[n]")):
        assert not hasattr(x, "__cuda_array_interface__")
        with pytest.raises(AttributeError) as caught:
            _ = x.__lenn__
        assert "did you mean" not in str(caught.value)


def test_no_suggestion_is_searched_before_it_is_shown() -> None:
    x = sm.ones(3)
    owners = (sm, sm.nn, sm.random, sm.optim, sm.linalg, sm.errors, snp, snp.linalg, snp.random)
    owners += (snp.fft, snp.lib, x, x.at[0], sm.jit(np.sin), sm.spec("f32[n]"))
    calls = []
    watched = {f.__code__ for f in (nearest, nearest_hint)}
    sys.setprofile(lambda frame, event, _: calls.append(event) if frame.f_code in watched else None)
    try:
        results = [hasattr(owner, "unknown") for owner in owners]
    finally:
        sys.setprofile(None)
    assert not any(results) and not calls
    for owner in owners:
        with pytest.raises(AttributeError) as caught:
            _ = owner.unknown
        error = caught.value
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.name, str(again)) == (AttributeError, "unknown", str(error))
        assert traceback.format_exception_only(error)[0].startswith("AttributeError: ")


def loss(x):
    """Sum of squares."""
    return sm.sum(x**2)


@pytest.mark.parametrize("name", ["grad", "value_and_grad"])
def test_a_derivative_says_what_it_is(name: str) -> None:
    derived = getattr(sm, name)(loss)
    assert repr(derived).startswith(f"<smelt.{name} of loss at test_missing_names.py:")
    assert repr(sm.jit(derived)).startswith(f"<smelt.jit of <smelt.{name} of loss at ")
    assert derived.__name__ == "loss" and inspect.getdoc(derived) == "Sum of squares."
    assert inspect.signature(derived) == inspect.signature(loss)
    assert copy.deepcopy(derived) is derived


def test_a_derivative_is_a_method() -> None:
    class Model:
        scale = 3.0

        def cost(self, x):
            return self.scale * sm.sum(x)

        slope = sm.grad(cost, argnums=1)

    assert np.array_equal(Model().slope(np.ones(2)), [3.0, 3.0])
