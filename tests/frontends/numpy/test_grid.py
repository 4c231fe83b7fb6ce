"""Shapes, types and values of NumPy's functions over a grid of element types and shapes."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest
from tests.frontends.numpy.grid import CASES, Case, outcome
from tests.strategies.effort import NIGHT, NIGHTLY, start

import smelt.numpy as snp
from smelt.errors import SmeltError
from smelt.frontends.array.array import Array

pytestmark = NIGHT
NAMES = sorted({case.name for case in CASES})
SAMPLED = 6
"""One in this many cases is compared by `make test`, all at night."""
READ = 60
"""Cases whose values `make test` compares."""

LENIENT = {
    # NumPy refuses these, the results here are those of wider types or of no elements.
    **dict.fromkeys(("around", "round", "gradient"), "bools are numbers"),
    **dict.fromkeys(
        ("percentile", "quantile", "nanpercentile", "nanquantile"), "bools are numbers"
    ),
    **dict.fromkeys(("nanmean", "nanstd", "nanvar"), "the axis of a number is 0"),
    **dict.fromkeys(("nanargmax", "nanargmin"), "a slice of NaN has position 0"),
    **dict.fromkeys(("pow", "power"), "integers to negative powers, which elements decide"),
    "average": "weights that sum to zero give NaN",
    "ediff1d": "elements before and after are cast",
    "insert": "a position beyond the end is the end",
    "ldexp": "exponents may be floats",
}
"""Functions that take more than NumPy's -> what they give."""
DIFFERENT = {
    "bincount": "weights give float64 where there is nothing to count",
    "nanpercentile": "NumPy drops the axis of the quantiles where nothing is left",
}
"""Functions with other shapes or types than NumPy's, where they are listed in docs/numpy.md."""


def described(x: Any) -> Any:
    """Shapes and types of a result, without its elements."""
    if isinstance(x, (tuple, list)):
        return tuple(map(described, x))
    if isinstance(x, Array):
        return str(x.dtype), tuple(x.shape)
    if isinstance(x, (numpy.ndarray, numpy.generic, bool, int, float, complex)):
        array = numpy.asarray(x)
        return str(array.dtype), array.shape
    return type(x).__name__


def read(x: Any) -> Any:
    """The elements of a result, or the error of reading them."""
    try:
        return [read(i) for i in x] if isinstance(x, (tuple, list)) else numpy.asarray(x)
    except (SmeltError, ValueError, TypeError, IndexError) as error:
        return error


def check_type(case: Case) -> tuple[Any, Any]:
    """Compare shapes and types of a case; return both results."""
    expected, actual = outcome(numpy, case), outcome(snp, case)
    if isinstance(expected, Exception):
        if case.name not in LENIENT and not isinstance(actual, Exception):
            actual = read(actual)
            assert isinstance(actual, Exception), f"{case}: NumPy raises {expected!r}"
        typed = not isinstance(actual, Exception) or isinstance(actual, SmeltError)
        assert typed or type(actual) is type(expected), f"{case}: {actual!r}"
    elif case.name not in DIFFERENT:
        assert not isinstance(actual, Exception), f"{case}: {actual!r}"
        assert described(actual) == described(expected), case
    return expected, actual


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_types_are_numpys(name: str) -> None:
    cases = [case for case in CASES if case.name == name]
    if not NIGHTLY:
        cases = random.Random(name).sample(cases, -(-len(cases) // SAMPLED))
    for case in cases:
        check_type(case)


def _values() -> list[Case]:
    cases = [c for c in CASES if c.name not in {*LENIENT, *DIFFERENT, *UNCERTAIN}]
    return random.Random(start(1)).sample(cases, READ * 25 if NIGHTLY else READ)


UNCERTAIN = {
    *("empty", "empty_like", "resize", "partition", "argpartition"),  # any values, any order
    *("argsort", "unique_values", "unique_all"),
    "reciprocal",  # of the integer 0
}
"""Functions whose values are not compared here."""
TOLERANCE = {"float16": 4e-3, "float32": 2e-5}


@pytest.mark.parametrize("case", _values(), ids=lambda c: "-".join(map(str, c)))
def test_values_are_numpys(case: Case) -> None:
    expected, actual = check_type(case)
    if isinstance(expected, Exception) or case.name in DIFFERENT:
        return
    pairs = zip(actual, expected) if isinstance(expected, (tuple, list)) else [(actual, expected)]
    tolerance = TOLERANCE.get(case.dtype, 1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mine, theirs in pairs:
            a, e = numpy.asarray(mine), numpy.asarray(theirs)
            if e.dtype.kind in "fc":
                tolerance = max(tolerance, TOLERANCE.get(str(e.dtype), 0))
                numpy.testing.assert_allclose(a, e, tolerance, tolerance)
            else:
                numpy.testing.assert_array_equal(a, e)
