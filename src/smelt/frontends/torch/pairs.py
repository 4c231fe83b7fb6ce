"""Complex numbers as pairs of real ones.

Kernels know real numbers.  `view_as_real` shows the same memory as pairs, so that a product of
complex tensors is made of products of their parts; what is left to torch (a Fourier transform)
takes `view_as_complex` of what we computed.  Between two operators here those views cancel
(`pairs_views.py`), and rotary positions, the magnitudes of a spectrum or a filter of one are fused
as other programs are.

    view_as_complex(stack((a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re), -1))

Operands whose axes lie in different orders in memory are left to torch.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any

import torch

from smelt.frontends.torch import complex_views
from smelt.frontends.torch.pairs_parts import (
    KINDS,
    by_parts,
    depends,
    is_complex,
    joined,
    moved,
    order_of,
    pair_of,
    parts_of,
    whole,
)

__all__ = ["PARTS"]

ATEN: Any = torch.ops.aten

# ---- element by element --------------------------------------------------------------------------


def _filled(x: Any) -> tuple[Any, Any]:
    """Both parts: what is real has an imaginary part of zero.  So eager code takes it, and infinite
    numbers times that are none."""
    a, b = parts_of(x)
    return a, 0.0 if b is None else b


@by_parts
def _mul(x: Any, y: Any) -> Any:
    (a, b), (c, d) = _filled(x), _filled(y)
    return joined(a * c - b * d, a * d + b * c)


def _if(condition: Any, x: Any, y: Any) -> Any:
    return (x if condition else y) if isinstance(condition, bool) else torch.where(condition, x, y)


@by_parts
def _div(x: Any, y: Any) -> Any:
    """Smith's algorithm, which is eager code's: both parts of the divisor are divided by the
    greater one, and nothing is squared that could overflow."""
    (a, b), (c, d) = _filled(x), _filled(y)
    if not isinstance(c, torch.Tensor) and not (isfinite(c) and isfinite(d) and (c or d)):
        return NotImplemented
    wide = abs(c) >= abs(d)
    most, least = _if(wide, c, d), _if(wide, d, c)
    ratio = least / most
    over = 1 / (most + least * ratio)
    p, q = _if(wide, a, b), _if(wide, b, a)
    real, imaginary = (p + q * ratio) * over, _if(wide, q - p * ratio, p * ratio - q) * over
    if isinstance(c, torch.Tensor):
        none = wide & (most == 0)
        real = torch.where(none, a / most.abs(), real)
        imaginary = torch.where(none, b / most.abs(), imaginary)
    return joined(real, imaginary)


@by_parts
def _reciprocal(x: Any) -> Any:
    return _div(torch.ones_like(parts_of(x)[0]), x)


def _sum(of: Any) -> Callable[..., Any]:
    @by_parts
    def rule(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        (a, b), (c, d) = parts_of(x), parts_of(y)
        if isinstance(alpha, complex):
            return NotImplemented
        if is_complex(x) and is_complex(y) and not x.is_conj() and not y.is_conj():
            return whole(of(pair_of(x), pair_of(y), alpha=alpha))
        real = of(a, c, alpha=alpha)
        if b is None:
            return (
                NotImplemented
                if d is None
                else joined(real, of(torch.zeros_like(real), d, alpha=alpha))
            )
        if d is None:
            return joined(real, b.expand(real.shape))
        return joined(real, of(b, d, alpha=alpha))

    return rule


@by_parts
def _neg(x: Any) -> Any:
    return whole(-pair_of(x))


@by_parts
def _abs(x: Any) -> Any:
    return torch.hypot(*parts_of(x))


@by_parts
def _sgn(x: Any) -> Any:
    length = torch.hypot(*parts_of(x))
    length = torch.where(length == 0, 1.0, length)
    return whole(pair_of(x) / length.unsqueeze(-1))


@by_parts
def _exp(x: Any) -> Any:
    """As C's `cexp` where something is infinite, or an imaginary part zero."""
    a, b = parts_of(x)
    size = torch.exp(a)
    real = torch.where(b == 0, size, size * torch.cos(b))
    imaginary = torch.where(b == 0, b, size * torch.sin(b))
    endless = (a.abs() == inf) & ~torch.isfinite(b)
    return joined(
        torch.where(endless, size, real),
        torch.where(endless & (a < 0), 0.0, imaginary),
    )


@by_parts
def _log(x: Any) -> Any:
    """Near a length of 1 from what it has more than that: its logarithm is no less exact there."""
    a, b = parts_of(x)
    length = torch.hypot(a, b)
    most, least = torch.maximum(a.abs(), b.abs()), torch.minimum(a.abs(), b.abs())
    near = torch.log1p((most - 1) * (most + 1) + least * least) / 2
    is_near = (length > 0.5) & (length < 2)
    return joined(torch.where(is_near, near, torch.log(length)), torch.atan2(b, a))


@by_parts
def _angle(x: Any) -> Any:
    a, b = parts_of(x)
    return torch.atan2(b, a)


def _complex(a: Any, b: Any) -> Any:
    """From parts that are real tensors."""
    if any(x.dtype.to_complex() not in KINDS or x.is_neg() or depends(x) for x in (a, b)):
        return NotImplemented
    alike = order_of(a) == order_of(b) == list(range(a.dim()))
    return joined(*torch.broadcast_tensors(a, b)) if alike or a.shape != b.shape else NotImplemented


def _polar(size: Any, angle: Any) -> Any:
    return _complex(size * torch.cos(angle), size * torch.sin(angle))


def _power(x: Any, exponent: Any) -> Any:
    return _mul(x, x) if exponent == 2 and is_complex(x) else NotImplemented


@by_parts
def _turned(x: Any) -> Any:
    a, b = parts_of(x)
    return joined(a, -b)


@by_parts
def _equal(x: Any, y: Any) -> Any:
    """Whether both parts are."""
    (a, b), (c, d) = _filled(x), _filled(y)
    return (a == c) & ((b == d) if isinstance(b, torch.Tensor) else (d == b))


def _differs(x: Any, y: Any) -> Any:
    found = _equal(x, y)
    return found if found is NotImplemented else ~found


def _either(of: Any) -> Any:
    @by_parts
    def rule(x: Any) -> Any:
        a, b = parts_of(x)
        return of(a) | of(b)

    return rule


@by_parts
def _plus_times(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return x + (y * z if value == 1 else value * y * z)


@moved
def _without_nan(x: Any, *numbers: Any) -> Any:
    """Numbers in place of what is none, and of infinite ones, in each part."""
    return whole(ATEN.nan_to_num.default(pair_of(x), *numbers))


# ---- products ------------------------------------------------------------------------------------


@moved
def _product(x: Any, y: Any) -> Any:
    """A product of complex matrices is one of real ones: as many sums of products, and an operand
    or the result written once more, whichever is less."""
    m, k, n = _told(x.shape[-2]), _told(y.shape[-2]), _told(y.shape[-1])
    return _in_rows(x, y) if m * (k + 3 * n) < 2 * k * n else _in_columns(x, y)


def _in_columns(x: Any, y: Any) -> Any:
    """Twice as long in the sum and in columns: rows of `x` as they lie, and of `y` each row twice,
    as it lies and times the imaginary unit."""
    c, d = parts_of(y)
    both = torch.stack((torch.stack((c, d), -1), torch.stack((-d, c), -1)), -3)
    both = both.flatten(-2).flatten(-3, -2)
    return whole((pair_of(x).flatten(-2) @ both).unflatten(-1, (y.shape[-1], 2)))


def _in_rows(x: Any, y: Any) -> Any:
    """Twice as long in rows and in columns: of `x` the real and the imaginary parts, `y` as it lies
    (many weights meet a few rows), and of what comes out one half times the imaginary unit."""
    turned = y.is_conj()
    pairs = ATEN.view_as_real.default(ATEN._conj.default(y) if turned else y).flatten(-2)
    parts = torch.stack(parts_of(x), -3).flatten(-3, -2) @ pairs
    parts = parts.unflatten(-1, (y.shape[-1], 2)).unflatten(-3, (2, x.shape[-2]))
    a, b = parts.select(-4, 0).unbind(-1), parts.select(-4, 1).unbind(-1)
    if turned:
        return joined(a[0] + b[1], b[0] - a[1])
    return joined(a[0] - b[1], a[1] + b[0])


def _told(n: Any) -> int:
    """A size as it is in the call that is traced, without asking that it stays so."""
    return n if isinstance(n, int) else n.node.hint or 1


def _plus_product(x: Any, y: Any, z: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    found = _product(y, z) if beta == alpha == 1 and is_complex(x) else NotImplemented
    return found if found is NotImplemented else x + found


PARTS: dict[Any, Callable[..., Any]] = complex_views.PARTS | {
    ATEN.mul.Tensor: _mul, ATEN.mul.Scalar: _mul, ATEN.div.Tensor: _div, ATEN.neg.default: _neg,
    ATEN.add.Tensor: _sum(ATEN.add.Tensor), ATEN.sub.Tensor: _sum(ATEN.sub.Tensor),
    ATEN.abs.default: _abs, ATEN.sgn.default: _sgn, ATEN.exp.default: _exp, ATEN.log.default: _log,
    ATEN.angle.default: _angle, ATEN.complex.default: _complex, ATEN.polar.default: _polar,
    ATEN.reciprocal.default: _reciprocal, ATEN.pow.Tensor_Scalar: _power,
    ATEN._conj_physical.default: _turned, ATEN.conj_physical.default: _turned,
    ATEN.eq.Tensor: _equal, ATEN.eq.Scalar: _equal, ATEN.ne.Tensor: _differs,
    ATEN.ne.Scalar: _differs, ATEN.isnan.default: _either(torch.isnan),
    ATEN.isinf.default: _either(torch.isinf), ATEN.addcmul.default: _plus_times,
    ATEN.nan_to_num.default: _without_nan,
    ATEN.bmm.default: _product, ATEN.mm.default: _product,
    ATEN.addmm.default: _plus_product, ATEN.baddbmm.default: _plus_product,
}  # fmt: skip
"""Decompositions by operator."""
