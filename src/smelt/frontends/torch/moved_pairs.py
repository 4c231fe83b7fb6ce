"""Apply operators that move or add complex numbers to pairs of reals.

A complex tensor is seen as a real tensor with one more, innermost dimension of size 2: what selects
or orders elements does so with pairs, and what adds elements adds both parts. One rule serves all
such operators, since the names of their arguments say what becomes of each:

    flip(z, [0, -1])           ->  view_as_complex(flip(view_as_real(z), [0, 1]))
    where(condition, z, w)     ->  view_as_complex(where(condition[..., None], ..))

Fills and sums that are not of this kind have rules of their own here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import torch

from smelt.frontends.torch.complex_parts import (
    COMPLEX_DTYPES,
    are_supported,
    as_complex,
    as_real_pairs,
    complex_rule,
    from_parts,
    has_data_dependent_size,
    is_complex,
    parts_of,
)

ATEN: Any = torch.ops.aten
_MEMORY_FORMATS = (None, torch.preserve_format, torch.contiguous_format)
_MASKS = (torch.bool, torch.uint8)
"""Types of positions that leave the size of a result to data."""
_POSITIONS = ("index", "indices")
_CONDITIONS = ("condition", "mask")
"""Arguments that are bools for whole numbers, not for each part."""


def _of_pairs(name: str, x: Any, rank: int) -> Any:
    """Return the argument for pairs of an operator's argument; `rank` counts without pairs."""
    if name in _CONDITIONS:
        return x.unsqueeze(-1)
    if is_complex(x):
        return as_real_pairs(x)
    if name == "tensors":
        return [as_real_pairs(t) for t in x]
    if name in ("dim", "dims"):
        if name == "dim" and not x and x != 0:
            return [*range(rank)]
        return x % rank if isinstance(x, int) else [d % rank for d in x]
    return [0, 0, *x] if name == "pad" else [*x, 1] if name == "repeats" else x


def _pairwise(op: Any, new_dims: int = 0) -> Callable[..., Any]:
    """Return the rule of an operator that moves or adds elements.

    A new dimension counts for what its argument `dim` may be.
    """
    names = [argument.name for argument in op._schema.arguments]

    @wraps(op)
    def rule(*args: Any, dtype: Any = None, **options: Any) -> Any:
        named = [*zip(names, args, strict=False), *options.items()]
        flat = [(n, y) for n, x in named for y in (x if isinstance(x, (list, tuple)) else (x,))]
        tensors = [(n, x) for n, x in flat if isinstance(x, torch.Tensor)]
        numbers = [x for _, x in tensors if x.is_complex()]
        others = [(n, x.dtype) for n, x in tensors if not x.is_complex()]
        if (
            not are_supported(*numbers)
            or dtype not in (None, numbers[0].dtype)
            or any(isinstance(x, complex) for _, x in flat)
            or any(n not in (*_CONDITIONS, *_POSITIONS) for n, _ in others)
            or any(n in _POSITIONS and t in _MASKS for n, t in others)
            or any(x.is_neg() or not x.dim() for _, x in tensors)
            or len({x.dim() for n, x in tensors if n == "tensors"}) > 1
        ):
            return NotImplemented
        rank = numbers[0].dim() + new_dims
        pairs = [_of_pairs(n, x, rank) for n, x in zip(names, args, strict=False)]
        return as_complex(op(*pairs, **options))

    return rule


def _roll(x: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    return _pairwise(ATEN.roll.default)(x, shifts, dims) if dims else NotImplemented


def _pad(x: Any, pad: Sequence[Any], value: Any = 0) -> Any:
    return _pairwise(ATEN.constant_pad_nd.default)(x, pad) if value == 0 else NotImplemented


_SUM, _WHERE = _pairwise(ATEN.sum.dim_IntList), _pairwise(ATEN.where.self)


def _sum_all(x: Any, *, dtype: Any = None) -> Any:
    return _SUM(x, None, dtype=dtype)


@complex_rule
def _mean(x: Any, dims: Any = None, keep: bool = False, *, dtype: Any = None) -> Any:
    total = _SUM(x, dims, keep, dtype=dtype)
    if total is NotImplemented:
        return total
    count = 1
    for d in {d % x.dim() for d in dims} if dims else range(x.dim()):
        count = count * x.shape[d]
    a, b = parts_of(total)
    # Divides by count + 0j as complex division does: infinities give NaN.
    return from_parts((a + b * 0.0) / count, (b - a * 0.0) / count)


@complex_rule
def _norm(x: Any, order: Any = 2, *more: Any, dtype: Any = None) -> Any:
    if dtype is not None:
        return NotImplemented
    return ATEN.linalg_vector_norm.default(torch.hypot(*parts_of(x)), order, *more)


@complex_rule
def _clone(x: Any, *, memory_format: Any = None) -> Any:
    if memory_format not in _MEMORY_FORMATS:
        return NotImplemented
    if x.is_conj():  # a lazy conjugation: materialize it
        return from_parts(*parts_of(x))
    return as_complex(ATEN.clone.default(as_real_pairs(x), memory_format=memory_format))


@complex_rule
def _triangle(keep: Any, x: Any, k: int = 0) -> Any:
    inside = keep(torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device), k)
    return as_complex(torch.where(inside.unsqueeze(-1), as_real_pairs(x), 0.0))


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    if not is_complex(x):
        return NotImplemented
    fill = _full(x.shape, value, dtype=x.dtype, device=x.device)
    return NotImplemented if fill is NotImplemented else _WHERE(mask, fill, x)


# ---- creation ------------------------------------------------------------------------------------


def _full(size: Sequence[Any], value: Any, *, dtype: Any = None, **options: Any) -> Any:
    number = isinstance(value, (bool, int, float, complex))
    is_strided = options.get("layout") in (None, torch.strided)
    if not number or dtype not in COMPLEX_DTYPES or not is_strided:
        return NotImplemented
    real = {"dtype": dtype.to_real(), "device": options.get("device")}
    if value == 0:
        return as_complex(torch.zeros([*size, 2], **real))
    parts = (complex(value).real, complex(value).imag)
    return from_parts(*(torch.full(size, part, **real) for part in parts))


def _full_like(
    x: Any, value: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any
) -> Any:
    if memory_format not in _MEMORY_FORMATS or has_data_dependent_size(x):
        return NotImplemented
    return _full(x.shape, value, dtype=dtype or x.dtype, **{"device": x.device} | options)


def _zeros(size: Sequence[Any], **options: Any) -> Any:
    return _full(size, 0, **options)


def _new_zeros(x: Any, size: Sequence[Any], *, dtype: Any = None, **options: Any) -> Any:
    return _full(size, 0, dtype=dtype or x.dtype, **{"device": x.device} | options)


def _zeros_like(x: Any, **options: Any) -> Any:
    return _full_like(x, 0, **options)


def _ones_like(x: Any, **options: Any) -> Any:
    return _full_like(x, 1, **options)


def _copied_to(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    """Convert to another complex type; a real operand gets imaginary parts of zero."""
    is_plain = not any(y is not None and y is not False for y in options.values())
    if dtype not in COMPLEX_DTYPES or not is_plain or x.is_neg() or has_data_dependent_size(x):
        return NotImplemented
    if not is_complex(x):
        return from_parts(x.to(dtype.to_real()), None)
    if not x.dim() or x.dtype not in COMPLEX_DTYPES:
        return NotImplemented
    return as_complex(as_real_pairs(x).to(dtype.to_real()))


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    op: _pairwise(op)
    for op in (
        ATEN.copy.default,
        ATEN.cat.default,
        ATEN.slice_scatter.default,
        ATEN.select_scatter.default,
        ATEN.sum.dim_IntList,
        ATEN.flip.default,
        ATEN.repeat.default,
        ATEN.where.self,
        ATEN.index.Tensor,
        ATEN.index_select.default,
        ATEN.index_put.default,
        ATEN.index_add.default,
        ATEN.cumsum.default,
        ATEN.nan_to_num.default,
        ATEN.neg.default,
    )
} | {
    ATEN.clone.default: _clone,
    ATEN.constant_pad_nd.default: _pad,
    ATEN.sum.default: _sum_all,
    ATEN.zeros.default: _zeros,
    ATEN.new_zeros.default: _new_zeros,
    ATEN.zeros_like.default: _zeros_like,
    ATEN.full.default: _full,
    ATEN.full_like.default: _full_like,
    ATEN.ones_like.default: _ones_like,
    ATEN._to_copy.default: _copied_to,
    ATEN.roll.default: _roll,
    ATEN.stack.default: _pairwise(ATEN.stack.default, new_dims=1),
    ATEN.masked_fill.Scalar: _masked_fill,
    ATEN.tril.default: partial(_triangle, torch.tril),
    ATEN.triu.default: partial(_triangle, torch.triu),
    ATEN.mean.default: _mean,
    ATEN.mean.dim: _mean,
    ATEN.linalg_vector_norm.default: _norm,
}
"""Decompositions by operator."""
