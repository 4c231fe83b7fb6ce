"""Results have NumPy's dtypes and values for every pair of dtypes, recorded or computed at once."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest

import smelt as sm
import smelt.numpy as np
from smelt.errors import DTypeError, UnsupportedError
from smelt.frontends.array.at_once import Account

DTYPES = ("bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
NUMBERS = (True, 2, 2.5, 1j)
Function = Callable[..., Any]

OPERATORS = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.pow, operator.and_, operator.xor, operator.lshift, operator.eq),
    operator.lt,
)
IN_PLACE = (operator.iadd, operator.imul, operator.itruediv, operator.ior, operator.ifloordiv)
PAIRS = tuple(
    name
    for line in (
        "add subtract multiply divide maximum fmin less logical_or arctan2 hypot copysign",
        "float_power fmod heaviside matmul dot inner outer convolve cross append",
    )
    for name in line.split()
)
REDUCTIONS = tuple(
    name
    for line in (
        "sum prod mean var std max argmin any cumsum median ptp nansum nanmean average diff sort",
        "sqrt exp sin floor absolute sign square isnan negative round trapezoid",
    )
    for name in line.split()
)
ORDERED = {operator.lt, "less"}
"""Comparisons that complex numbers do not have here."""


def _where(xp: Any, a: Any, b: Any) -> Any:
    return xp.where(xp.array([True, False, True]), a, b)


def _concatenate(xp: Any, a: Any, b: Any) -> Any:
    return xp.concatenate([a, b])


def _stack(xp: Any, a: Any, b: Any) -> Any:
    return xp.stack([a, b])


def _write(xp: Any, a: Any, b: Any) -> Any:
    a[1:] = b[1:]
    return a


def _select_scalar(xp: Any, a: Any, b: Any) -> Any:
    return xp.where(a != 1, a, numpy.float64(2)) if "float" in str(b.dtype) else a


def _clip(xp: Any, a: Any, b: Any) -> Any:
    return xp.clip(a, b, b)


ARRAYS = (_where, _concatenate, _stack, _write, _select_scalar, _clip)


def outcome(function: Function, *args: Any) -> Any:
    """Return a result, or the exception that NumPy or ours raises."""
    try:
        return function(*args)
    except (TypeError, ValueError, UnsupportedError, OverflowError) as error:
        return error


def check(theirs: Any, mine: Any, what: Any) -> None:
    """Compare values and dtypes of two results, or that both are errors."""
    if isinstance(theirs, Exception) or isinstance(mine, Exception):
        assert isinstance(theirs, Exception) and isinstance(mine, Exception), (what, theirs, mine)
        return
    assert str(mine.dtype) == str(theirs.dtype), what
    loose = 1e-3 if theirs.dtype == "float16" else 1e-5
    numpy.testing.assert_allclose(
        numpy.asarray(mine), theirs, rtol=loose, atol=loose, err_msg=str(what)
    )


def both(first: str, other: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return operands of NumPy and ours: an array, and an array of a dtype or a number."""
    a = numpy.array([1, 2, 3]).astype(first)
    if not isinstance(other, str):
        return (a, other), (np.array(a), other)
    b = numpy.array([3, 1, 2]).astype(other)
    return (a, b), (np.array(a), np.array(b))


def is_refused(function: Any, *dtypes: Any) -> bool:
    """Return whether ours raises an error: orders of complex numbers, uint64 with signed."""
    texts = [str(d) if isinstance(d, str) else type(d).__name__ for d in dtypes]
    if function in ORDERED and any("complex" in text for text in texts):
        return True
    signed = any(text.startswith("int") and text != "int" for text in texts)
    return function in (operator.eq, operator.lt, "less") and "uint64" in texts and signed


@pytest.fixture(params=[False, True], ids=["at_once", "recorded"])
def _recorded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(Account, "is_recorded", True)


@pytest.mark.usefixtures("_recorded")
@pytest.mark.parametrize("first", DTYPES + COMPLEX)
@pytest.mark.filterwarnings("ignore")
def test_results_have_numpys_dtypes(first: str) -> None:
    theirs, mine = both(first, first)
    for name in REDUCTIONS:
        check(outcome(getattr(numpy, name), theirs[0]), outcome(getattr(np, name), mine[0]), name)
    scalars = [numpy.dtype(d).type(2) for d in ("int8", "float32", "float64", "complex128")]
    for other in (*DTYPES, *COMPLEX, *NUMBERS, *scalars):
        theirs, mine = both(first, other)
        for function in OPERATORS:
            if is_refused(function, first, other) or (function, first) == (operator.pow, "bool"):
                continue  # NumPy's bool ** 2 is int8, for no other number
            check(outcome(function, *theirs), outcome(function, *mine), (function, other))
            check(
                outcome(function, *theirs[::-1]), outcome(function, *mine[::-1]), (other, function)
            )
        is_array = isinstance(other, str)
        for name in PAIRS if is_array else PAIRS[:12]:
            if not is_refused(name, first, other):
                pair = outcome(getattr(numpy, name), *theirs), outcome(getattr(np, name), *mine)
                check(*pair, (name, other))
        for function in ARRAYS if is_array else ARRAYS[:1]:
            theirs, mine = both(first, other)
            pair = outcome(function, numpy, *theirs), outcome(function, np, *mine)
            check(*pair, (function, other))
        for function in IN_PLACE:
            theirs, mine = both(first, other)
            check(outcome(function, *theirs), outcome(function, *mine), (function, other))


def test_modules_have_their_rules_for_integers_with_floats() -> None:
    """Whatever the other one has recorded before."""
    code = "def f(x, y): return x + y, xp.matmul(x, y), xp.where(x > 1, x, y)"
    results = []
    for name, module in (("numpys", np), ("standard", sm), ("again", np)):
        names: dict[str, Any] = {"__name__": name, "xp": module}
        exec(code, names)
        for _ in range(3):
            x, y = sm.asarray(numpy.ones(3, "int64")), sm.asarray(numpy.ones(3, "float32"))
            results.append([str(r.dtype) for r in names["f"](x, y)])
    assert results == [["float64"] * 3] * 3 + [["float32"] * 3] * 3 + [["float64"] * 3] * 3
    with pytest.raises(DTypeError, match="uint64"):
        operator.eq(np.array([1], "uint64"), np.array([1], "int64"))


@pytest.mark.parametrize("dtype", ["float64", "int16", "bool"])
def test_writes_of_complex_elements_store_their_real_parts(dtype: str) -> None:
    def write(xp: Any, value: Any) -> Any:
        x = xp.zeros(4, dtype)
        x[1:3] = value
        x.flat[3:] = value[:1] if value.ndim else value
        return x.tolist(), xp.asarray(value).astype(dtype).tolist()

    z = numpy.array([2.5 - 1j, 3j])
    for value in (z, np.array(z), numpy.complex64(1 + 2j)):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            mine = write(np, value)
        lossy = [w for w in seen if w.category is numpy.exceptions.ComplexWarning]
        assert len(lossy) == 3 * (dtype != "bool")
        assert all(w.filename == __file__ for w in lossy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert mine == write(numpy, numpy.asarray(value))
    if dtype != "bool":
        with pytest.raises(UnsupportedError, match="complex"):
            np.zeros(2, dtype)[0] = 1j
