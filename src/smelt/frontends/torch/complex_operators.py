"""Decompose complex operators into real operators on pairs.

Kernels compute real numbers. `view_as_real` shows the same memory as pairs, so a product of complex
tensors is made of products of their parts; what is left to torch (a Fourier transform) takes
`view_as_complex` of what we computed. Between two decomposed operators these views cancel
(`complex_views.py`), and rotary positions, magnitudes of a spectrum or a filter of it fuse as real
programs do.

    view_as_complex(stack((a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re), -1))

What moves or adds elements does so with pairs (`moved_pairs.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch

from smelt.frontends.torch import moved_pairs
from smelt.frontends.torch.complex_parts import (
    COMPLEX_DTYPES,
    as_complex,
    as_real_pairs,
    complex_rule,
    from_parts,
    has_data_dependent_size,
    is_complex,
    parts_of,
)
from smelt.ops import complex_pairs

ATEN: Any = torch.ops.aten


def _number_of(of: Callable[..., Any]) -> Callable[..., Any]:
    """Let the first operand, or the second, be a Python number."""

    def function(x: Any, y: Any) -> Any:
        like = x if isinstance(x, torch.Tensor) else y
        return of(*(p if isinstance(p, torch.Tensor) else torch.full_like(like, p) for p in (x, y)))

    return function


def _where(condition: Any, x: Any, y: Any) -> Any:
    return (x if condition else y) if isinstance(condition, bool) else torch.where(condition, x, y)


_REALS = complex_pairs.namespace(
    torch,
    abs=abs,
    copysign=_number_of(torch.copysign),
    maximum=_number_of(torch.maximum),
    minimum=_number_of(torch.minimum),
    signbit=lambda x: torch.copysign(torch.ones_like(x), x) < 0,
    where=_where,
)
"""Functions of real tensors that rules of complex numbers are written with."""


def _both_parts(x: Any) -> tuple[Any, Any]:
    """Return both parts; a real operand has an imaginary part of zero.

    Eager code does the same, so infinities times that zero give NaN.
    """
    a, b = parts_of(x)
    return a, 0.0 if b is None else b


def _function(name: str) -> Callable[..., Any]:
    @complex_rule
    def rule(x: Any) -> Any:
        return from_parts(*complex_pairs.FUNCTIONS[name](_REALS, parts_of(x)))

    return rule


def _real_function(name: str) -> Callable[..., Any]:
    @complex_rule
    def rule(x: Any) -> Any:
        return complex_pairs.REAL_FUNCTIONS[name](_REALS, parts_of(x))

    return rule


@complex_rule
def _mul(x: Any, y: Any) -> Any:
    return from_parts(*complex_pairs.multiply(_both_parts(x), _both_parts(y)))


@complex_rule
def _div(x: Any, y: Any) -> Any:
    """Divide by Smith's algorithm, as eager code does."""
    c, d = divisor = _both_parts(y)
    if not isinstance(c, torch.Tensor) and not (isfinite(c) and isfinite(d) and (c or d)):
        return NotImplemented
    return from_parts(*complex_pairs.divide(_REALS, _both_parts(x), divisor))


def _sum(of: Any) -> Callable[..., Any]:
    rule = complex_pairs.add if of is ATEN.add.Tensor else complex_pairs.subtract

    @complex_rule
    def total(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        if isinstance(alpha, complex):
            return NotImplemented
        if is_complex(x) and is_complex(y) and not x.is_conj() and not y.is_conj():
            return as_complex(of(as_real_pairs(x), as_real_pairs(y), alpha=alpha))
        y = tuple(p if alpha == 1 else p * alpha for p in _both_parts(y))
        return from_parts(*rule(_both_parts(x), y))

    return total


@complex_rule
def _sgn(x: Any) -> Any:
    """Divide by the magnitude, as eager code does: infinite numbers have no direction."""
    magnitude = torch.hypot(*parts_of(x))
    magnitude = torch.where(magnitude == 0, 1.0, magnitude)
    return as_complex(as_real_pairs(x) / magnitude.unsqueeze(-1))


def _complex(a: Any, b: Any) -> Any:
    """Build complex numbers from two real tensors."""
    if any(
        x.dtype.to_complex() not in COMPLEX_DTYPES or x.is_neg() or has_data_dependent_size(x)
        for x in (a, b)
    ):
        return NotImplemented
    return from_parts(*torch.broadcast_tensors(a, b))


def _polar(size: Any, angle: Any) -> Any:
    return _complex(size * torch.cos(angle), size * torch.sin(angle))


_POWERS = (2, 3, -1, -2, 0.5, -0.5)
"""Exponents for which eager code multiplies or takes a root."""


@complex_rule
def _power(x: Any, exponent: Any) -> Any:
    if not is_complex(x) or exponent not in _POWERS:
        return NotImplemented
    exponent = exponent if exponent % 1 else int(exponent)
    result = complex_pairs.power(_REALS, parts_of(x), abs(exponent))
    assert result is not None
    return from_parts(*(result if exponent > 0 else _RECIPROCAL(_REALS, result)))


_RECIPROCAL = complex_pairs.FUNCTIONS["reciprocal"]


@complex_rule
def _equal(x: Any, y: Any) -> Any:
    """Whether both parts are equal."""
    (a, b), (c, d) = _both_parts(x), _both_parts(y)
    return (a == c) & ((b == d) if isinstance(b, torch.Tensor) else (d == b))


def _differs(x: Any, y: Any) -> Any:
    equal = _equal(x, y)
    return equal if equal is NotImplemented else ~equal


@complex_rule
def _addcmul(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return x + (y * z if value == 1 else value * y * z)


# ---- products ------------------------------------------------------------------------------------


@complex_rule
def _matmul(x: Any, y: Any) -> Any:
    """Multiply complex matrices as one product of real matrices.

    Both forms do the same arithmetic; one writes an expanded operand, the other an expanded result:
    the smaller is chosen.
    """
    m, k, n = _size_hint(x.shape[-2]), _size_hint(y.shape[-2]), _size_hint(y.shape[-1])
    return _product_by_rows(x, y) if m * (k + 3 * n) < 2 * k * n else _product_by_columns(x, y)


def _product_by_columns(x: Any, y: Any) -> Any:
    """Double the reduction and the columns: [a b] times [[c d], [-d c]].

    The rows of `x` are read in place; each row of `y` is written twice, plain and times i.
    """
    c, d = parts_of(y)
    both = torch.stack((torch.stack((c, d), -1), torch.stack((-d, c), -1)), -3)
    both = both.flatten(-2).flatten(-3, -2)
    return as_complex((as_real_pairs(x).flatten(-2) @ both).unflatten(-1, (y.shape[-1], 2)))


def _product_by_rows(x: Any, y: Any) -> Any:
    """Double the rows and columns: real and imaginary rows of `x` times `y`.

    For few rows of `x` and many weights in `y`, which is read in place; half of the product is then
    multiplied by i.
    """
    conjugated = y.is_conj()
    pairs = ATEN.view_as_real.default(ATEN._conj.default(y) if conjugated else y).flatten(-2)
    parts = torch.stack(parts_of(x), -3).flatten(-3, -2) @ pairs
    parts = parts.unflatten(-1, (y.shape[-1], 2)).unflatten(-3, (2, x.shape[-2]))
    a, b = parts.select(-4, 0).unbind(-1), parts.select(-4, 1).unbind(-1)
    if conjugated:
        return from_parts(a[0] + b[1], b[0] - a[1])
    return from_parts(a[0] - b[1], a[1] + b[0])


def _size_hint(n: Any) -> int:
    """Return a size in the traced call, without adding a guard."""
    return n if isinstance(n, int) else n.node.hint or 1


def _addmm(x: Any, y: Any, z: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _matmul(y, z) if beta == alpha == 1 and is_complex(x) else NotImplemented
    return product if product is NotImplemented else x + product


_FUNCTIONS = """
    cos cosh exp expm1 log log10 log1p log2 reciprocal sin sinh sqrt tan tanh
"""
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = (
    moved_pairs.DECOMPOSITIONS
    | {getattr(ATEN, name).default: _function(name) for name in _FUNCTIONS.split()}
    | {getattr(ATEN, n).default: _real_function(n) for n in ("abs", "angle", "isinf", "isnan")}
    | {
        ATEN.mul.Tensor: _mul, ATEN.mul.Scalar: _mul, ATEN.div.Tensor: _div,
        ATEN.add.Tensor: _sum(ATEN.add.Tensor), ATEN.sub.Tensor: _sum(ATEN.sub.Tensor),
        ATEN.sgn.default: _sgn, ATEN.complex.default: _complex, ATEN.polar.default: _polar,
        ATEN.pow.Tensor_Scalar: _power, ATEN._conj_physical.default: _function("conj"),
        ATEN.conj_physical.default: _function("conj"), ATEN.eq.Tensor: _equal,
        ATEN.eq.Scalar: _equal, ATEN.ne.Tensor: _differs, ATEN.ne.Scalar: _differs,
        ATEN.addcmul.default: _addcmul, ATEN.bmm.default: _matmul, ATEN.mm.default: _matmul,
        ATEN.addmm.default: _addmm, ATEN.baddbmm.default: _addmm,
    }
)  # fmt: skip
"""Decompositions by operator."""
