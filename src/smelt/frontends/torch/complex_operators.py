"""Decompose complex operators into real operators on pairs.

Kernels compute real numbers. `view_as_real` shows the same memory as pairs, so a product of complex
tensors is made of products of their parts; what is left to torch (a Fourier transform) takes
`view_as_complex` of what we computed. Between two decomposed operators these views cancel
(`complex_views.py`), and rotary positions, magnitudes of a spectrum or a filter of it fuse as real
programs do.

    view_as_complex(stack((a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re), -1))

What moves or adds elements does so with pairs (`complex_pairs.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any

import torch

from smelt.frontends.torch import complex_pairs
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

ATEN: Any = torch.ops.aten


def _both_parts(x: Any) -> tuple[Any, Any]:
    """Return both parts; a real operand has an imaginary part of zero.

    Eager code does the same, so infinities times that zero give NaN.
    """
    a, b = parts_of(x)
    return a, 0.0 if b is None else b


@complex_rule
def _mul(x: Any, y: Any) -> Any:
    (a, b), (c, d) = _both_parts(x), _both_parts(y)
    return from_parts(a * c - b * d, a * d + b * c)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return (x if condition else y) if isinstance(condition, bool) else torch.where(condition, x, y)


@complex_rule
def _div(x: Any, y: Any) -> Any:
    """Divide by Smith's algorithm, as eager code does.

    Both parts are divided by the larger part of the divisor, so that no square overflows.
    """
    (a, b), (c, d) = _both_parts(x), _both_parts(y)
    if not isinstance(c, torch.Tensor) and not (isfinite(c) and isfinite(d) and (c or d)):
        return NotImplemented
    real_is_larger = abs(c) >= abs(d)
    larger, smaller = _where(real_is_larger, c, d), _where(real_is_larger, d, c)
    ratio = smaller / larger
    inverse = 1 / (larger + smaller * ratio)
    p, q = _where(real_is_larger, a, b), _where(real_is_larger, b, a)
    real, imaginary = (
        (p + q * ratio) * inverse,
        _where(real_is_larger, q - p * ratio, p * ratio - q) * inverse,
    )
    if isinstance(c, torch.Tensor):
        is_zero = real_is_larger & (larger == 0)
        real = torch.where(is_zero, a / larger.abs(), real)
        imaginary = torch.where(is_zero, b / larger.abs(), imaginary)
    return from_parts(real, imaginary)


@complex_rule
def _reciprocal(x: Any) -> Any:
    return _div(torch.ones_like(parts_of(x)[0]), x)


def _sum(of: Any) -> Callable[..., Any]:
    @complex_rule
    def rule(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        (a, b), (c, d) = parts_of(x), parts_of(y)
        if isinstance(alpha, complex):
            return NotImplemented
        if is_complex(x) and is_complex(y) and not x.is_conj() and not y.is_conj():
            return as_complex(of(as_real_pairs(x), as_real_pairs(y), alpha=alpha))
        real = of(a, c, alpha=alpha)
        if b is None:
            return (
                NotImplemented
                if d is None
                else from_parts(real, of(torch.zeros_like(real), d, alpha=alpha))
            )
        if d is None:
            return from_parts(real, b.expand(real.shape))
        return from_parts(real, of(b, d, alpha=alpha))

    return rule


@complex_rule
def _abs(x: Any) -> Any:
    return torch.hypot(*parts_of(x))


@complex_rule
def _sgn(x: Any) -> Any:
    magnitude = torch.hypot(*parts_of(x))
    magnitude = torch.where(magnitude == 0, 1.0, magnitude)
    return as_complex(as_real_pairs(x) / magnitude.unsqueeze(-1))


@complex_rule
def _exp(x: Any) -> Any:
    """Exponential with the special cases of C's `cexp`: infinities, and imaginary parts of zero."""
    a, b = parts_of(x)
    size = torch.exp(a)
    real = torch.where(b == 0, size, size * torch.cos(b))
    imaginary = torch.where(b == 0, b, size * torch.sin(b))
    special = (a.abs() == inf) & ~torch.isfinite(b)
    return from_parts(
        torch.where(special, size, real),
        torch.where(special & (a < 0), 0.0, imaginary),
    )


@complex_rule
def _log(x: Any) -> Any:
    """Logarithm; near magnitude 1 through `log1p` of its excess, to stay accurate."""
    a, b = parts_of(x)
    magnitude = torch.hypot(a, b)
    larger, smaller = torch.maximum(a.abs(), b.abs()), torch.minimum(a.abs(), b.abs())
    near_one = torch.log1p((larger - 1) * (larger + 1) + smaller * smaller) / 2
    is_near_one = (magnitude > 0.5) & (magnitude < 2)
    return from_parts(torch.where(is_near_one, near_one, torch.log(magnitude)), torch.atan2(b, a))


@complex_rule
def _angle(x: Any) -> Any:
    a, b = parts_of(x)
    return torch.atan2(b, a)


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


def _power(x: Any, exponent: Any) -> Any:
    return _mul(x, x) if exponent == 2 and is_complex(x) else NotImplemented


@complex_rule
def _conjugate(x: Any) -> Any:
    a, b = parts_of(x)
    return from_parts(a, -b)


@complex_rule
def _equal(x: Any, y: Any) -> Any:
    """Whether both parts are equal."""
    (a, b), (c, d) = _both_parts(x), _both_parts(y)
    return (a == c) & ((b == d) if isinstance(b, torch.Tensor) else (d == b))


def _differs(x: Any, y: Any) -> Any:
    equal = _equal(x, y)
    return equal if equal is NotImplemented else ~equal


def _any_part(of: Any) -> Any:
    @complex_rule
    def rule(x: Any) -> Any:
        a, b = parts_of(x)
        return of(a) | of(b)

    return rule


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


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = complex_pairs.DECOMPOSITIONS | {
    ATEN.mul.Tensor: _mul, ATEN.mul.Scalar: _mul, ATEN.div.Tensor: _div,
    ATEN.add.Tensor: _sum(ATEN.add.Tensor), ATEN.sub.Tensor: _sum(ATEN.sub.Tensor),
    ATEN.abs.default: _abs, ATEN.sgn.default: _sgn, ATEN.exp.default: _exp, ATEN.log.default: _log,
    ATEN.angle.default: _angle, ATEN.complex.default: _complex, ATEN.polar.default: _polar,
    ATEN.reciprocal.default: _reciprocal, ATEN.pow.Tensor_Scalar: _power,
    ATEN._conj_physical.default: _conjugate, ATEN.conj_physical.default: _conjugate,
    ATEN.eq.Tensor: _equal, ATEN.eq.Scalar: _equal, ATEN.ne.Tensor: _differs,
    ATEN.ne.Scalar: _differs, ATEN.isnan.default: _any_part(torch.isnan),
    ATEN.isinf.default: _any_part(torch.isinf), ATEN.addcmul.default: _addcmul,
    ATEN.bmm.default: _matmul, ATEN.mm.default: _matmul,
    ATEN.addmm.default: _addmm, ATEN.baddbmm.default: _addmm,
}  # fmt: skip
"""Decompositions by operator."""
