"""Decompose complex views, fills, indexing and sums into operations on pairs of reals.

A complex tensor is seen as a real tensor with one more, innermost dimension of size 2 (`pairs.py`):
what selects or orders elements does so with pairs, and what sums elements sums both parts.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from smelt.frontends.torch.pairs_parts import (
    COMPLEX_DTYPES,
    are_supported,
    as_complex,
    as_real_pairs,
    axis_order_rule,
    from_parts,
    has_data_dependent_size,
    is_complex,
    parts_of,
    same_type_rule,
    stride_order,
)

__all__ = ["DECOMPOSITIONS"]

ATEN: Any = torch.ops.aten


@same_type_rule
def _clone(x: Any, *, memory_format: Any = None) -> Any:
    if memory_format not in _MEMORY_FORMATS or not x.dim():
        return NotImplemented
    if x.is_conj():  # a lazy conjugation: materialize it
        in_order = memory_format is torch.contiguous_format or stride_order(x) == list(
            range(x.dim())
        )
        return as_complex(torch.stack(parts_of(x), -1)) if in_order else NotImplemented
    return as_complex(ATEN.clone.default(as_real_pairs(x), memory_format=memory_format))


_MEMORY_FORMATS = (None, torch.preserve_format, torch.contiguous_format)


@same_type_rule
def _copy(x: Any, y: Any, non_blocking: bool = False) -> Any:
    return as_complex(ATEN.copy.default(as_real_pairs(x), as_real_pairs(y)))


@same_type_rule
def _slice_scatter(x: Any, y: Any, dim: int = 0, *position: Any) -> Any:
    return as_complex(
        ATEN.slice_scatter.default(as_real_pairs(x), as_real_pairs(y), dim % x.dim(), *position)
    )


@same_type_rule
def _select_scatter(x: Any, y: Any, dim: int, position: Any) -> Any:
    return as_complex(
        ATEN.select_scatter.default(as_real_pairs(x), as_real_pairs(y), dim % x.dim(), position)
    )


@same_type_rule
def _pad(x: Any, pad: Sequence[Any], value: Any = 0) -> Any:
    return (
        as_complex(ATEN.constant_pad_nd.default(as_real_pairs(x), [0, 0, *pad], value))
        if value == 0
        else NotImplemented
    )


@same_type_rule
def _sum(x: Any, dims: Any, keep: bool = False, *, dtype: Any = None) -> Any:
    if dtype not in (None, x.dtype):
        return NotImplemented
    axes = [d % x.dim() for d in dims] if dims else list(range(x.dim()))
    return as_complex(ATEN.sum.dim_IntList(as_real_pairs(x), axes, keep))


def _sum_all(x: Any, *, dtype: Any = None) -> Any:
    return _sum(x, None, dtype=dtype)


def _cat(parts: Sequence[Any], dim: int = 0) -> Any:
    plain = all(is_complex(x) and x.dim() == parts[0].dim() for x in parts) and are_supported(
        *parts
    )
    return (
        as_complex(ATEN.cat.default([as_real_pairs(x) for x in parts], dim % parts[0].dim()))
        if plain and parts[0].dim()
        else NotImplemented
    )


def _zeros(size: Sequence[Any], *, dtype: Any = None, **options: Any) -> Any:
    if dtype not in COMPLEX_DTYPES or options.get("layout") not in (None, torch.strided):
        return NotImplemented
    return as_complex(torch.zeros([*size, 2], dtype=dtype.to_real(), device=options.get("device")))


def _new_zeros(x: Any, size: Sequence[Any], *, dtype: Any = None, **options: Any) -> Any:
    return _zeros(size, dtype=dtype or x.dtype, **{"device": x.device} | options)


def _can_fill_like(x: Any, dtype: Any, memory_format: Any) -> bool:
    """Whether a new complex tensor like `x` is stored in the order of its axes."""
    if (
        (dtype or x.dtype) not in COMPLEX_DTYPES
        or memory_format not in _MEMORY_FORMATS
        or has_data_dependent_size(x)
    ):
        return False
    return memory_format is torch.contiguous_format or stride_order(x) == list(range(x.dim()))


def _zeros_like(x: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any) -> Any:
    if not _can_fill_like(x, dtype, memory_format):
        return NotImplemented
    return _zeros(x.shape, dtype=dtype or x.dtype, **{"device": x.device} | options)


# ---- by index ------------------------------------------------------------------------------------


@axis_order_rule
def _flip(x: Any, dims: Sequence[int]) -> Any:
    return as_complex(ATEN.flip.default(as_real_pairs(x), [d % x.dim() for d in dims]))


@axis_order_rule
def _roll(x: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return NotImplemented
    return as_complex(ATEN.roll.default(as_real_pairs(x), shifts, [d % x.dim() for d in dims]))


@axis_order_rule
def _repeat(x: Any, times: Sequence[Any]) -> Any:
    return as_complex(ATEN.repeat.default(as_real_pairs(x), [*times, 1]))


@axis_order_rule
def _stack(parts: Sequence[Any], dim: int = 0) -> Any:
    if not are_supported(*parts) or not all(map(is_complex, parts)):
        return NotImplemented
    position = dim % (parts[0].dim() + 1)
    return as_complex(torch.cat([as_real_pairs(x).unsqueeze(position) for x in parts], position))


@axis_order_rule
def _where(condition: Any, x: Any, y: Any) -> Any:
    if not (is_complex(x) and is_complex(y) and are_supported(x, y)):
        return NotImplemented
    return as_complex(torch.where(condition.unsqueeze(-1), as_real_pairs(x), as_real_pairs(y)))


@axis_order_rule
def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    if not is_complex(x) or isinstance(value, torch.Tensor):
        return NotImplemented
    a, b = parts_of(x)
    real, imaginary = parts_of(complex(value))
    return from_parts(torch.where(mask, real, a), torch.where(mask, imaginary, b))


@axis_order_rule
def _triangle(keep: Any, x: Any, k: int = 0) -> Any:
    inside = keep(torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device), k)
    return as_complex(torch.where(inside.unsqueeze(-1), as_real_pairs(x), 0.0))


@axis_order_rule
def _index(x: Any, index: Sequence[Any]) -> Any:
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in index):
        return NotImplemented  # the size of the result depends on data
    return as_complex(ATEN.index.Tensor(as_real_pairs(x), index))


@axis_order_rule
def _index_select(x: Any, dim: int, index: Any) -> Any:
    return (
        as_complex(ATEN.index_select.default(as_real_pairs(x), dim % x.dim(), index))
        if x.dim()
        else NotImplemented
    )


@axis_order_rule
def _index_put(x: Any, index: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    masks = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in index)
    if masks or not (is_complex(x) and is_complex(values) and are_supported(x, values)):
        return NotImplemented
    return as_complex(
        ATEN.index_put.default(as_real_pairs(x), index, as_real_pairs(values), accumulate)
    )


@axis_order_rule
def _index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    plain = is_complex(x) and is_complex(source) and are_supported(x, source) and x.dim()
    if not plain or isinstance(alpha, complex):
        return NotImplemented
    pairs = as_real_pairs(x), dim % x.dim(), index, as_real_pairs(source)
    return as_complex(ATEN.index_add.default(*pairs, alpha=alpha))


# ---- creation ------------------------------------------------------------------------------------


def _full(size: Sequence[Any], value: Any, *, dtype: Any = None, **options: Any) -> Any:
    number = isinstance(value, (bool, int, float, complex))
    if (
        not number
        or dtype not in COMPLEX_DTYPES
        or options.get("layout") not in (None, torch.strided)
    ):
        return NotImplemented
    parts = (complex(value).real, complex(value).imag)
    real = {"dtype": dtype.to_real(), "device": options.get("device")}
    return from_parts(*(torch.full(size, part, **real) for part in parts))


def _full_like(
    x: Any, value: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any
) -> Any:
    if not _can_fill_like(x, dtype, memory_format):
        return NotImplemented
    return _full(x.shape, value, dtype=dtype or x.dtype, **{"device": x.device} | options)


def _ones_like(x: Any, **options: Any) -> Any:
    return _full_like(x, 1, **options)


@axis_order_rule
def _to(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    if dtype not in COMPLEX_DTYPES or any(
        y is not None and y is not False for y in options.values()
    ):
        return NotImplemented
    return as_complex(as_real_pairs(x).to(dtype.to_real()))


def _copied_to(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    """Convert to another complex type; a real operand gets imaginary parts of zero."""
    if is_complex(x):
        return _to(x, dtype=dtype, **options)
    plain = not any(y is not None and y is not False for y in options.values())
    if dtype not in COMPLEX_DTYPES or not plain or x.is_neg() or has_data_dependent_size(x):
        return NotImplemented
    if stride_order(x) != list(range(x.dim())):
        return NotImplemented
    return from_parts(x.to(dtype.to_real()), None)


# ---- sums ----------------------------------------------------------------------------------------


@axis_order_rule
def _cumsum(x: Any, dim: int, *, dtype: Any = None) -> Any:
    if dtype not in (None, x.dtype) or not x.dim():
        return NotImplemented
    return as_complex(ATEN.cumsum.default(as_real_pairs(x), dim % x.dim()))


@same_type_rule
def _mean(x: Any, dims: Any = None, keep: bool = False, *, dtype: Any = None) -> Any:
    total = _sum(x, dims, keep, dtype=dtype)
    if total is NotImplemented:
        return total
    count = 1
    for d in {d % x.dim() for d in dims} if dims else range(x.dim()):
        count = count * x.shape[d]
    a, b = parts_of(total)
    # Divides by count + 0j as complex division does: infinities give NaN.
    return from_parts((a + b * 0.0) / count, (b - a * 0.0) / count)


@axis_order_rule
def _norm(x: Any, order: Any = 2, *more: Any, dtype: Any = None) -> Any:
    if dtype is not None:
        return NotImplemented
    return ATEN.linalg_vector_norm.default(torch.hypot(*parts_of(x)), order, *more)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    ATEN.clone.default: _clone,
    ATEN.copy.default: _copy,
    ATEN.cat.default: _cat,
    ATEN.slice_scatter.default: _slice_scatter,
    ATEN.select_scatter.default: _select_scatter,
    ATEN.constant_pad_nd.default: _pad,
    ATEN.sum.dim_IntList: _sum,
    ATEN.sum.default: _sum_all,
    ATEN.zeros.default: _zeros,
    ATEN.new_zeros.default: _new_zeros,
    ATEN.zeros_like.default: _zeros_like,
    ATEN.full.default: _full,
    ATEN.full_like.default: _full_like,
    ATEN.ones_like.default: _ones_like,
    ATEN._to_copy.default: _copied_to,
    ATEN.flip.default: _flip,
    ATEN.roll.default: _roll,
    ATEN.repeat.default: _repeat,
    ATEN.stack.default: _stack,
    ATEN.where.self: _where,
    ATEN.masked_fill.Scalar: _masked_fill,
    ATEN.index.Tensor: _index,
    ATEN.tril.default: partial(_triangle, torch.tril),
    ATEN.triu.default: partial(_triangle, torch.triu),
    ATEN.index_select.default: _index_select,
    ATEN.index_put.default: _index_put,
    ATEN.index_add.default: _index_add,
    ATEN.cumsum.default: _cumsum,
    ATEN.mean.default: _mean,
    ATEN.mean.dim: _mean,
    ATEN.linalg_vector_norm.default: _norm,
}
"""Decompositions by operator."""
