"""Elementwise functions of complex arrays, by the rules of `ops.complex_pairs`.

A real operand is not extended by an imaginary part, so that the product with a real infinity has
no NaN.  NumPy computes inverse circular functions and general powers: those are library calls.

>>> z = complex_array([3 + 4j, -1.0])
>>> COMPLEX["abs"](z), COMPLEX["sqrt"](z), multiply(z, z)
(Array([5., 1.]), Array([2.+1.j, 0.+1.j]), Array([-7.+24.j,  1. -0.j]))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from smelt.errors import DTypeError
from smelt.frontends.array import creation, dtypes
from smelt.frontends.array import elementwise as el
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.complex_array import (
    ComplexArray,
    complex_array,
    is_complex_like,
    pair,
)
from smelt.frontends.array.complex_calls import COMPLEX
from smelt.frontends.array.complex_library import call_stacked
from smelt.frontends.array.manipulation import broadcast_arrays
from smelt.frontends.array.number import Number
from smelt.frontends.array.promote import cast, has_numpys_rules, number
from smelt.ops import complex_pairs
from smelt.types.dtype import f32, f64

Part = Any
"""Real array or number."""
_REALS: Final = complex_pairs.namespace(el, creation, dtypes)


def _parts(x: Any) -> tuple[Part, Part]:
    """Return both parts of an operand, None as the imaginary one if it is real."""
    if isinstance(x, complex) and not _has_dtype(x):
        return x.real, x.imag
    return complex_array(x).parts if is_complex_like(x) else (_real(x), None)


def _has_dtype(x: Any) -> bool:
    """Return whether a number has NumPy's dtype by the rules of the user's module."""
    return isinstance(x, np.generic) and has_numpys_rules()


def _real(x: Any) -> Part:
    if isinstance(x, (int, float)) and not _has_dtype(x):
        return float(x)
    if isinstance(x, Number):
        return x
    node = value(x, "complex")
    if node.type.dtype.is_float and node.type.dtype.bits < f32.bits:
        return Array.of(cast(node, f32))  # the result has float32 parts
    return x if isinstance(x, Array) else Array.of(node)


def _rule(name: str) -> Callable[[Any], ComplexArray]:
    rule = complex_pairs.FUNCTIONS[name]
    return lambda x: pair(*rule(_REALS, complex_array(x).parts))


def _real_rule(name: str) -> Callable[[Any], Array]:
    rule = complex_pairs.REAL_FUNCTIONS[name]
    return lambda x: rule(_REALS, complex_array(x).parts)


def _linear_rule(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], ComplexArray]:
    return lambda x, y: pair(*rule(_parts(x), _parts(y)))


conj, multiply, add = (
    _rule("conj"),
    _linear_rule(complex_pairs.multiply),
    _linear_rule(complex_pairs.add),
)


def divide(x: Any, y: Any) -> ComplexArray:
    """Return x / y, without overflow of intermediate results."""
    (a, b), (c, d) = _parts(x), _parts(y)
    if d is not None and not isinstance(c, Array):
        dtype = a.dtype if a.dtype.is_float else f64
        c, d = (Array.of(number(p, dtype, "divide")) for p in (c, d))
    return pair(*complex_pairs.divide(_REALS, (a, b), (c, d)))


def positive(x: Any) -> ComplexArray:
    """Return x itself."""
    return complex_array(x)


def _part(k: int) -> Callable[[Any], Array]:
    return lambda x: complex_array(x).parts[k].__copy__()


def round_(x: Any, decimals: int = 0) -> ComplexArray:
    """Round both parts, halves to even."""
    return pair(*(el.round(part, decimals) for part in complex_array(x).parts))


def equal(x: Any, y: Any) -> Array:
    """Return whether both parts are equal."""
    (a, b), (c, d) = _parts(x), _parts(y)
    return el.equal(a, c) & el.equal(0.0 if b is None else b, 0.0 if d is None else d)


def not_equal(x: Any, y: Any) -> Array:
    """Return whether either part differs."""
    return ~equal(x, y)


def where(condition: Any, x1: Any, x2: Any) -> ComplexArray:
    """Select both parts of `x1` where the condition is true, of `x2` elsewhere.

    Raises DTypeError for a complex condition.
    """
    if is_complex_like(condition):
        mask = complex_array(condition).type_text
        raise DTypeError(f"where: the condition is {mask}, not bool", hint="Compare it: x != 0.")
    (a, b), (c, d) = _parts(x1), _parts(x2)
    re = el.where(condition, a, c)
    im = el.where(condition, 0.0 if b is None else b, 0.0 if d is None else d)
    if not isinstance(b, Array) and not isinstance(d, Array) and re.dtype.is_float:
        im = Array.of(cast(im.node, re.dtype))  # two numbers, which have no dtype of their own
    return pair(re, im)


def power(x: Any, y: Any) -> ComplexArray:
    """Return x to the power y; small whole exponents are products, 0.5 is a root."""
    result = complex_pairs.power(_REALS, complex_array(x).parts, y)
    if result is not None:
        return pair(*result)
    dtype = add(x, y).dtype
    operands = (_to(complex_array(p), dtype) for p in (x, y))
    (a, b), (c, d) = (z.parts for z in operands)
    a, b, c, d = broadcast_arrays(a, b, c, d)
    return call_stacked("complex_power", a, b, c, d)


def _to(z: ComplexArray, dtype: Any) -> ComplexArray:
    return COMPLEX["astype"](z, dtype)


_LIBRARY: Final = ("asin", "acos", "atan", "asinh", "acosh", "atanh")
"""Functions that NumPy computes."""


def _library(name: str) -> Callable[[Any], ComplexArray]:
    options = {"function": f"arc{name[1:]}"}
    return lambda x: call_stacked("complex_unary", *complex_array(x).parts, **options)


COMPLEX.update(
    {
        **{name: _rule(name) for name in complex_pairs.FUNCTIONS},
        **{name: _real_rule(name) for name in complex_pairs.REAL_FUNCTIONS},
        **{name: _library(name) for name in _LIBRARY},
        "add": add,
        "subtract": _linear_rule(complex_pairs.subtract),
        "multiply": multiply,
        "divide": divide,
        "positive": positive,
        "real": _part(0),
        "imag": _part(1),
        "round": round_,
        "equal": equal,
        "not_equal": not_equal,
        "where": where,
        "pow": power,
        "broadcast_real": broadcast_arrays,
    }
)
