"""Programs give the values of NumPy with `smelt.numpy` in its place."""

from __future__ import annotations

import warnings
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest
from tests.frontends.numpy.programs import PROGRAMS

import smelt.numpy


def close(actual: Any, expected: Any) -> None:
    """Compare nested results; floats within the rounding of long sums."""
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for f, e in zip(actual, expected, strict=True):
            close(f, e)
    elif isinstance(expected, (str, bool)):
        assert actual == expected
    else:
        f, e = numpy.asarray(actual), numpy.asarray(expected)
        assert f.shape == e.shape
        assert f.dtype == e.dtype
        loose = 1e-4 if e.dtype == numpy.float32 else 1e-9
        numpy.testing.assert_allclose(f, e, rtol=loose, atol=loose)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_values_are_those_of_numpy(program: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = program(numpy)
        actual = program(smelt.numpy)
    close(actual, expected)
