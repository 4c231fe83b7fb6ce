"""Decompose complex operators into real operators on pairs.

Kernels compute real numbers. `view_as_real` shows the same memory as pairs, so a product of complex
tensors is made of products of their parts; what is left to torch (a Fourier transform) takes
`view_as_complex` of what we computed. Between two decomposed operators these views cancel
(`complex_views.py`), and rotary positions, magnitudes of a spectrum or a filter of it fuse as real
programs do.

    view_as_complex(stack((a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re), -1))

Operands with different memory orders are left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from math import inf, isfinite
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from smelt.frontends.torch import complex_views

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false


ATEN: Any = torch.ops.aten
COMPLEX_DTYPES = (torch.complex64, torch.complex128)


def is_complex(x: Any) -> bool:
    """Whether it is a complex tensor."""
    return isinstance(x, torch.Tensor) and x.is_complex()


def parts_of(x: Any) -> tuple[Any, Any]:
    """Return real and imaginary part of a tensor or number.

    None for an imaginary part of zero.
    """
    if isinstance(x, complex):
        return x.real, x.imag
    if not is_complex(x):
        return x, None
    pair = ATEN.view_as_real.default(ATEN._conj.default(x) if x.is_conj() else x)
    a, b = ATEN.select.int(pair, -1, 0), ATEN.select.int(pair, -1, 1)
    return a, -b if x.is_conj() else b


def as_real_pairs(x: Any) -> Any:
    """View both parts as an innermost dimension of 2; a lazy conjugate is materialized."""
    return torch.stack(parts_of(x), -1) if x.is_conj() else ATEN.view_as_real.default(x)


def as_complex(pair: Any) -> Any:
    """View pairs of reals as complex numbers."""
    return ATEN.view_as_complex.default(pair)


def from_parts(a: Any, b: Any) -> Any:
    """Stack two parts to complex numbers; None stands for zeros."""
    return as_complex(torch.stack((a, torch.zeros_like(a) if b is None else b), -1))


def has_data_dependent_size(x: Any) -> bool:
    """Whether a size of the tensor depends on data.

    Its strides are then not known in advance.
    """
    return any(isinstance(n, torch.SymInt) and free_unbacked_symbols(n) for n in x.shape)


def are_supported(*operands: Any) -> bool:
    """Whether operands have one supported complex type, and reals the matching real type."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    kinds = {x.dtype for x in tensors if x.is_complex()}
    if not kinds and any(isinstance(x, complex) for x in operands):
        kinds = {x.dtype.to_complex() for x in tensors if x.dtype.is_floating_point}
    if len(kinds) != 1 or any(x.is_neg() or has_data_dependent_size(x) for x in tensors):
        return False
    (kind,) = kinds
    return kind in COMPLEX_DTYPES and all(x.dtype in (kind, kind.to_real()) for x in tensors)


# ---- element by element --------------------------------------------------------------------------


def stride_order(x: Any) -> list[int]:
    """Return the dimensions from slowest to fastest.

    Dimensions of one element or stride 0 keep their position.
    """
    steps = x.stride()
    strided = [a for a in range(x.dim()) if x.shape[a] != 1 and steps[a] != 0]
    if all(steps[a] >= steps[b] for a, b in pairwise(strided)):
        return list(range(x.dim()))
    by_stride = iter(sorted(strided, key=lambda a: -steps[a]))
    return [next(by_stride) if a in strided else a for a in range(x.dim())]


def _leader(tensors: Sequence[Any]) -> Any | None:
    """Return the tensor that has the broadcast shape and repeats nothing, if there is one."""
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    return next((x for x in tensors if x.shape == shape and 0 not in x.stride()), None)


def _aligned(x: Any, rank: int) -> Any:
    """Return a tensor with leading dimensions added up to `rank`."""
    return x[(None,) * (rank - x.dim())] if isinstance(x, torch.Tensor) and x.dim() < rank else x


def elementwise_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a rule to operands permuted to memory order, and permute its result back.

    Eager code's results have the memory order of their operands.
    """

    @wraps(rule)
    def checked(*operands: Any, **options: Any) -> Any:
        tensors = [x for x in operands if isinstance(x, torch.Tensor)]
        if not are_supported(*operands, *options.values()) or any(not x.dim() for x in tensors):
            return NotImplemented
        orders = [stride_order(x) for x in tensors]
        identities = [list(range(x.dim())) for x in tensors]
        if orders == identities:
            return rule(*operands, **options)
        order = orders[0]
        if any(
            o != order or x.shape != tensors[0].shape for o, x in zip(orders, tensors, strict=True)
        ):
            leader = _leader(tensors)
            if leader is None:
                return NotImplemented
            order = stride_order(leader)
            operands = tuple(_aligned(x, leader.dim()) for x in operands)
            if any(
                stride_order(x.permute(order)) != list(range(x.dim()))
                for x in operands
                if isinstance(x, torch.Tensor)
            ):
                return NotImplemented
        permuted = (x.permute(order) if isinstance(x, torch.Tensor) else x for x in operands)
        result = rule(*permuted, **options)
        if result is NotImplemented:
            return result
        return result.permute([order.index(a) for a in range(len(order))])

    return checked


def same_type_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict a rule to complex tensors of one type."""

    @wraps(rule)
    def checked(x: Any, *operands: Any, **options: Any) -> Any:
        flat = [*operands, *options.values()]
        if not is_complex(x) or not are_supported(x, *flat):
            return NotImplemented
        if any(
            isinstance(y, complex) or (isinstance(y, torch.Tensor) and y.dtype != x.dtype)
            for y in flat
        ):
            return NotImplemented
        return rule(x, *operands, **options)

    return checked


def axis_order_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict a rule to tensors stored in the order of their axes."""

    @wraps(rule)
    def checked(*operands: Any, **options: Any) -> Any:
        flat = [y for x in operands for y in (x if isinstance(x, (list, tuple)) else (x,))]
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        kinds = [x for x in tensors if x.is_complex()]
        if not kinds or not are_supported(*kinds) or any(x.is_neg() for x in tensors):
            return NotImplemented
        permuted = any(stride_order(x) != list(range(x.dim())) or not x.dim() for x in tensors)
        return NotImplemented if permuted else rule(*operands, **options)

    return checked


# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false


# ---- element by element --------------------------------------------------------------------------


def _both_parts(x: Any) -> tuple[Any, Any]:
    """Return both parts; a real operand has an imaginary part of zero.

    Eager code does the same, so infinities times that zero give NaN.
    """
    a, b = parts_of(x)
    return a, 0.0 if b is None else b


@elementwise_rule
def _mul(x: Any, y: Any) -> Any:
    (a, b), (c, d) = _both_parts(x), _both_parts(y)
    return from_parts(a * c - b * d, a * d + b * c)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return (x if condition else y) if isinstance(condition, bool) else torch.where(condition, x, y)


@elementwise_rule
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


@elementwise_rule
def _reciprocal(x: Any) -> Any:
    return _div(torch.ones_like(parts_of(x)[0]), x)


def _sum(of: Any) -> Callable[..., Any]:
    @elementwise_rule
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


@elementwise_rule
def _neg(x: Any) -> Any:
    return as_complex(-as_real_pairs(x))


@elementwise_rule
def _abs(x: Any) -> Any:
    return torch.hypot(*parts_of(x))


@elementwise_rule
def _sgn(x: Any) -> Any:
    magnitude = torch.hypot(*parts_of(x))
    magnitude = torch.where(magnitude == 0, 1.0, magnitude)
    return as_complex(as_real_pairs(x) / magnitude.unsqueeze(-1))


@elementwise_rule
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


@elementwise_rule
def _log(x: Any) -> Any:
    """Logarithm; near magnitude 1 through `log1p` of its excess, to stay accurate."""
    a, b = parts_of(x)
    magnitude = torch.hypot(a, b)
    larger, smaller = torch.maximum(a.abs(), b.abs()), torch.minimum(a.abs(), b.abs())
    near_one = torch.log1p((larger - 1) * (larger + 1) + smaller * smaller) / 2
    is_near_one = (magnitude > 0.5) & (magnitude < 2)
    return from_parts(torch.where(is_near_one, near_one, torch.log(magnitude)), torch.atan2(b, a))


@elementwise_rule
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
    in_order = stride_order(a) == stride_order(b) == list(range(a.dim()))
    return (
        from_parts(*torch.broadcast_tensors(a, b))
        if in_order or a.shape != b.shape
        else NotImplemented
    )


def _polar(size: Any, angle: Any) -> Any:
    return _complex(size * torch.cos(angle), size * torch.sin(angle))


def _power(x: Any, exponent: Any) -> Any:
    return _mul(x, x) if exponent == 2 and is_complex(x) else NotImplemented


@elementwise_rule
def _conjugate(x: Any) -> Any:
    a, b = parts_of(x)
    return from_parts(a, -b)


@elementwise_rule
def _equal(x: Any, y: Any) -> Any:
    """Whether both parts are equal."""
    (a, b), (c, d) = _both_parts(x), _both_parts(y)
    return (a == c) & ((b == d) if isinstance(b, torch.Tensor) else (d == b))


def _differs(x: Any, y: Any) -> Any:
    equal = _equal(x, y)
    return equal if equal is NotImplemented else ~equal


def _any_part(of: Any) -> Any:
    @elementwise_rule
    def rule(x: Any) -> Any:
        a, b = parts_of(x)
        return of(a) | of(b)

    return rule


@elementwise_rule
def _addcmul(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return x + (y * z if value == 1 else value * y * z)


@same_type_rule
def _nan_to_num(x: Any, *numbers: Any) -> Any:
    """Replace NaN and infinities in each part."""
    return as_complex(ATEN.nan_to_num.default(as_real_pairs(x), *numbers))


# ---- products ------------------------------------------------------------------------------------


@same_type_rule
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


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = complex_views.DECOMPOSITIONS | {
    ATEN.mul.Tensor: _mul, ATEN.mul.Scalar: _mul, ATEN.div.Tensor: _div, ATEN.neg.default: _neg,
    ATEN.add.Tensor: _sum(ATEN.add.Tensor), ATEN.sub.Tensor: _sum(ATEN.sub.Tensor),
    ATEN.abs.default: _abs, ATEN.sgn.default: _sgn, ATEN.exp.default: _exp, ATEN.log.default: _log,
    ATEN.angle.default: _angle, ATEN.complex.default: _complex, ATEN.polar.default: _polar,
    ATEN.reciprocal.default: _reciprocal, ATEN.pow.Tensor_Scalar: _power,
    ATEN._conj_physical.default: _conjugate, ATEN.conj_physical.default: _conjugate,
    ATEN.eq.Tensor: _equal, ATEN.eq.Scalar: _equal, ATEN.ne.Tensor: _differs,
    ATEN.ne.Scalar: _differs, ATEN.isnan.default: _any_part(torch.isnan),
    ATEN.isinf.default: _any_part(torch.isinf), ATEN.addcmul.default: _addcmul,
    ATEN.nan_to_num.default: _nan_to_num,
    ATEN.bmm.default: _matmul, ATEN.mm.default: _matmul,
    ATEN.addmm.default: _addmm, ATEN.baddbmm.default: _addmm,
}  # fmt: skip
"""Decompositions by operator."""
