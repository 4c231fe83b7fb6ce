"""What a user is told of typical mistakes: the own line, what came, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import LeakError, ShapeError, SmeltError, TracerError


def told(error: type[SmeltError], f: Callable[[], Any]) -> SmeltError:
    """What is raised, at a line of this file."""
    with pytest.raises(error) as found:
        f()
    assert found.value.origin.file == __file__, found.value
    return found.value


@pytest.mark.parametrize("f", [np.exp, np.sum, np.mean, np.asarray, np.linalg.norm, np.median])
def test_functions_of_numpy_name_the_line_that_calls_them(f: Callable[[Any], Any]) -> None:
    error = told(TracerError, lambda: sm.jit(lambda x: f(x) + 1)(np.ones((3, 4))))
    assert "lambda x: f(x) + 1" in error.origin.text
    assert "sm.exp(x) in place of np.exp(x)" in error.help


def test_values_that_outlived_their_recording_say_so_to_numpy_too() -> None:
    kept: list[Any] = []
    sm.jit(lambda x: kept.append(x + 1) or x)(np.ones(3))
    for read in (np.asarray, float, bool, np.sum):
        told(LeakError, lambda read=read: read(kept[0]))


def test_stacks_tell_the_shapes_that_came() -> None:
    error = told(ShapeError, lambda: sm.stack([sm.ones(3), sm.ones(4)]))
    assert "stack(f64[3], f64[4]): their shapes differ" in error.message
    told(ShapeError, lambda: sm.stack([sm.ones(3), sm.ones((3, 4))]))
