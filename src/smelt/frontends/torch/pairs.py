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

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any

import torch

__all__ = ["PARTS"]

ATEN: Any = torch.ops.aten
_KINDS = (torch.complex64, torch.complex128)


def _is_complex(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_complex()


def _parts(x: Any) -> tuple[Any, Any]:
    """Real and imaginary parts of a tensor or a number; None for an imaginary part of zeros."""
    if isinstance(x, complex):
        return x.real, x.imag
    if not _is_complex(x):
        return x, None
    pair = ATEN.view_as_real.default(ATEN._conj.default(x) if x.is_conj() else x)
    a, b = ATEN.select.int(pair, -1, 0), ATEN.select.int(pair, -1, 1)
    return a, -b if x.is_conj() else b


def _pair(x: Any) -> Any:
    """Both parts side by side, as they lie in memory."""
    return torch.stack(_parts(x), -1) if x.is_conj() else ATEN.view_as_real.default(x)


def _whole(pair: Any) -> Any:
    return ATEN.view_as_complex.default(pair)


def _joined(a: Any, b: Any) -> Any:
    """Numbers from their parts; None for those of which all are zero."""
    return _whole(torch.stack((a, torch.zeros_like(a) if b is None else b), -1))


def _known(*operands: Any) -> bool:
    """Whether complex operands are of one type whose parts we compute, and real ones alike."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    kinds = {x.dtype for x in tensors if x.is_complex()}
    if not kinds and any(isinstance(x, complex) for x in operands):
        kinds = {x.dtype.to_complex() for x in tensors if x.dtype.is_floating_point}
    if len(kinds) != 1 or any(x.is_neg() for x in tensors):
        return False
    (kind,) = kinds
    return kind in _KINDS and all(x.dtype in (kind, kind.to_real()) for x in tensors)


# ---- element by element --------------------------------------------------------------------------


def _order(x: Any) -> list[int]:
    """The dimensions from the slowest to the fastest, those of one element where they are."""
    steps = x.stride()
    found = [a for a in range(x.dim()) if x.shape[a] != 1 and steps[a] != 0]
    if all(steps[a] >= steps[b] for a, b in pairwise(found)):
        return list(range(x.dim()))
    turned = iter(sorted(found, key=lambda a: -steps[a]))
    return [next(turned) if a in found else a for a in range(x.dim())]


def _by_parts(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule on operands turned so that they lie in the order of their axes, and what it gives
    turned back: eager code's results lie as their operands do."""

    @wraps(rule)
    def apart(*operands: Any, **options: Any) -> Any:
        tensors = [x for x in operands if isinstance(x, torch.Tensor)]
        if not _known(*operands, *options.values()) or any(not x.dim() for x in tensors):
            return NotImplemented
        orders = [_order(x) for x in tensors]
        straight = [list(range(x.dim())) for x in tensors]
        if orders == straight:
            return rule(*operands, **options)
        order = orders[0]
        if any(o != order or x.shape != tensors[0].shape
               for o, x in zip(orders, tensors, strict=True)):  # fmt: skip
            return NotImplemented
        turned = (x.permute(order) if isinstance(x, torch.Tensor) else x for x in operands)
        found = rule(*turned, **options)
        if found is NotImplemented:
            return found
        return found.permute([order.index(a) for a in range(len(order))])

    return apart


def _times(x: Any, y: Any) -> Any:
    return None if x is None or y is None else x * y


def _plus(x: Any, y: Any) -> Any:
    return y if x is None else x if y is None else x + y


def _minus(x: Any, y: Any) -> Any:
    return x if y is None else -y if x is None else x - y


@_by_parts
def _mul(x: Any, y: Any) -> Any:
    if not _is_complex(x):
        x, y = y, x
    if _is_complex(x) and not x.is_conj() and not _is_complex(y) and not isinstance(y, complex):
        return _whole(_pair(x) * (y.unsqueeze(-1) if isinstance(y, torch.Tensor) else y))
    (a, b), (c, d) = _parts(x), _parts(y)
    return _joined(_minus(_times(a, c), _times(b, d)), _plus(_times(a, d), _times(b, c)))


@_by_parts
def _div(x: Any, y: Any) -> Any:
    """Parts of the divisor are divided by the greater of them first, as eager code's are."""
    if not _is_complex(y):
        if isinstance(y, complex) or x.is_conj():
            return NotImplemented
        return _whole(_pair(x) / (y.unsqueeze(-1) if isinstance(y, torch.Tensor) else y))
    (a, b), (c, d) = _parts(x), _parts(y)
    most = torch.maximum(c.abs(), d.abs())
    c, d = c / most, d / most
    square = (c * c + d * d) * most
    over = _plus(_times(a, c), _times(b, d)), _minus(_times(b, c), _times(a, d))
    return _joined(*(z / square for z in over))


def _sum(of: Any) -> Callable[..., Any]:
    @_by_parts
    def rule(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        (a, b), (c, d) = _parts(x), _parts(y)
        if isinstance(alpha, complex):
            return NotImplemented
        if _is_complex(x) and _is_complex(y) and not x.is_conj() and not y.is_conj():
            return _whole(of(_pair(x), _pair(y), alpha=alpha))
        real = of(a, c, alpha=alpha)
        if b is None:
            return (
                NotImplemented
                if d is None
                else _joined(real, of(torch.zeros_like(real), d, alpha=alpha))
            )
        if d is None:
            return _joined(real, b.expand(real.shape))
        return _joined(real, of(b, d, alpha=alpha))

    return rule


@_by_parts
def _neg(x: Any) -> Any:
    return _whole(-_pair(x))


@_by_parts
def _abs(x: Any) -> Any:
    return torch.hypot(*_parts(x))


@_by_parts
def _sgn(x: Any) -> Any:
    length = torch.hypot(*_parts(x))
    length = torch.where(length == 0, 1.0, length)
    return _whole(_pair(x) / length.unsqueeze(-1))


@_by_parts
def _exp(x: Any) -> Any:
    a, b = _parts(x)
    size = torch.exp(a)
    return _joined(size * torch.cos(b), size * torch.sin(b))


# ---- what is moved -------------------------------------------------------------------------------


def _moved(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule, for complex tensors of one type."""

    @wraps(rule)
    def apart(x: Any, *operands: Any, **options: Any) -> Any:
        flat = [*operands, *options.values()]
        if not _is_complex(x) or not _known(x, *flat):
            return NotImplemented
        if any(isinstance(y, complex) or (isinstance(y, torch.Tensor) and y.dtype != x.dtype)
               for y in flat):  # fmt: skip
            return NotImplemented
        return rule(x, *operands, **options)

    return apart


@_moved
def _clone(x: Any, *, memory_format: Any = None) -> Any:
    if memory_format not in _LAID_OUT or not x.dim():
        return NotImplemented
    if x.is_conj():  # by a note at the tensor alone: written out
        kept = memory_format is torch.contiguous_format or _order(x) == list(range(x.dim()))
        return _whole(torch.stack(_parts(x), -1)) if kept else NotImplemented
    return _whole(ATEN.clone.default(_pair(x), memory_format=memory_format))


_LAID_OUT = (None, torch.preserve_format, torch.contiguous_format)


@_moved
def _copy(x: Any, y: Any, non_blocking: bool = False) -> Any:
    return _whole(ATEN.copy.default(_pair(x), _pair(y)))


@_moved
def _slice_scatter(x: Any, y: Any, dim: int = 0, *place: Any) -> Any:
    return _whole(ATEN.slice_scatter.default(_pair(x), _pair(y), dim % x.dim(), *place))


@_moved
def _select_scatter(x: Any, y: Any, dim: int, place: Any) -> Any:
    return _whole(ATEN.select_scatter.default(_pair(x), _pair(y), dim % x.dim(), place))


@_moved
def _pad(x: Any, pad: Sequence[Any], value: Any = 0) -> Any:
    return _whole(ATEN.constant_pad_nd.default(_pair(x), [0, 0, *pad], value)) \
        if value == 0 else NotImplemented  # fmt: skip


@_moved
def _total(x: Any, dims: Any, keep: bool = False, *, dtype: Any = None) -> Any:
    if dtype not in (None, x.dtype):
        return NotImplemented
    axes = [d % x.dim() for d in dims] if dims else list(range(x.dim()))
    return _whole(ATEN.sum.dim_IntList(_pair(x), axes, keep))


def _all(x: Any, *, dtype: Any = None) -> Any:
    return _total(x, None, dtype=dtype)


def _cat(parts: Sequence[Any], dim: int = 0) -> Any:
    alike = all(_is_complex(x) and x.dim() == parts[0].dim() for x in parts) and _known(*parts)
    return _whole(ATEN.cat.default([_pair(x) for x in parts], dim % parts[0].dim())) \
        if alike and parts[0].dim() else NotImplemented  # fmt: skip


def _zeros(size: Sequence[Any], *, dtype: Any = None, **options: Any) -> Any:
    if dtype not in _KINDS or options.get("layout") not in (None, torch.strided):
        return NotImplemented
    return _whole(torch.zeros([*size, 2], dtype=dtype.to_real(), device=options.get("device")))


def _new_zeros(x: Any, size: Sequence[Any], *, dtype: Any = None, **options: Any) -> Any:
    return _zeros(size, dtype=dtype or x.dtype, **{"device": x.device} | options)


def _zeros_like(x: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any) -> Any:
    kept = memory_format is torch.contiguous_format or _order(x) == list(range(x.dim()))
    if not kept or memory_format not in _LAID_OUT:
        return NotImplemented
    return _zeros(x.shape, dtype=dtype or x.dtype, **{"device": x.device} | options)


# ---- products ------------------------------------------------------------------------------------


@_moved
def _product(x: Any, y: Any) -> Any:
    """A product of complex matrices is one of real ones: as many sums of products, and an operand
    or the result written once more, whichever is less."""
    m, k, n = _told(x.shape[-2]), _told(y.shape[-2]), _told(y.shape[-1])
    return _in_rows(x, y) if m * (k + 3 * n) < 2 * k * n else _in_columns(x, y)


def _in_columns(x: Any, y: Any) -> Any:
    """Twice as long in the sum and in columns: rows of `x` as they lie, and of `y` each row twice,
    as it lies and times the imaginary unit."""
    c, d = _parts(y)
    both = torch.stack((torch.stack((c, d), -1), torch.stack((-d, c), -1)), -3)
    both = both.flatten(-2).flatten(-3, -2)
    return _whole((_pair(x).flatten(-2) @ both).unflatten(-1, (y.shape[-1], 2)))


def _in_rows(x: Any, y: Any) -> Any:
    """Twice as long in rows and in columns: of `x` the real and the imaginary parts, `y` as it lies
    (many weights meet a few rows), and of what comes out one half times the imaginary unit."""
    turned = y.is_conj()
    pairs = ATEN.view_as_real.default(ATEN._conj.default(y) if turned else y).flatten(-2)
    parts = torch.stack(_parts(x), -3).flatten(-3, -2) @ pairs
    parts = parts.unflatten(-1, (y.shape[-1], 2)).unflatten(-3, (2, x.shape[-2]))
    a, b = parts.select(-4, 0).unbind(-1), parts.select(-4, 1).unbind(-1)
    if turned:
        return _joined(a[0] + b[1], b[0] - a[1])
    return _joined(a[0] - b[1], a[1] + b[0])


def _told(n: Any) -> int:
    """A size as it is in the call that is traced, without asking that it stays so."""
    return n if isinstance(n, int) else n.node.hint or 1


def _plus_product(x: Any, y: Any, z: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    found = _product(y, z) if beta == alpha == 1 and _is_complex(x) else NotImplemented
    return found if found is NotImplemented else x + found


PARTS: dict[Any, Callable[..., Any]] = {
    ATEN.mul.Tensor: _mul, ATEN.mul.Scalar: _mul, ATEN.div.Tensor: _div, ATEN.neg.default: _neg,
    ATEN.add.Tensor: _sum(ATEN.add.Tensor), ATEN.sub.Tensor: _sum(ATEN.sub.Tensor),
    ATEN.abs.default: _abs, ATEN.sgn.default: _sgn, ATEN.exp.default: _exp,
    ATEN.clone.default: _clone, ATEN.copy.default: _copy, ATEN.cat.default: _cat,
    ATEN.slice_scatter.default: _slice_scatter, ATEN.select_scatter.default: _select_scatter,
    ATEN.constant_pad_nd.default: _pad, ATEN.sum.dim_IntList: _total, ATEN.sum.default: _all,
    ATEN.zeros.default: _zeros, ATEN.new_zeros.default: _new_zeros,
    ATEN.zeros_like.default: _zeros_like, ATEN.bmm.default: _product, ATEN.mm.default: _product,
    ATEN.addmm.default: _plus_product, ATEN.baddbmm.default: _plus_product,
}  # fmt: skip
"""Decompositions by operator."""
