"""Decompose complex views, fills, indexing and sums into operations on pairs of reals.

A complex tensor is seen as a real tensor with one more, innermost dimension of size 2
(`complex_operators.py`):
what selects or orders elements does so with pairs, and what sums elements sums both parts.

A slice of a complex tensor is a view that torch makes of an existing tensor.  A kernel that reads
the parts of the slice can as well read a slice of the parts, which is an index map, so
`view_as_real` is pushed through other views:

    view_as_real(slice(z, 1, 0, 8))  ->  slice(view_as_real(z), 1, 0, 8)

If `z` in turn was made of parts, nothing complex is left: the views cancel.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx.node import map_arg

from smelt.frontends.torch.complex_parts import (
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

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false


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


# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false


_REAL, _WHOLE, _CONJ = (ATEN.view_as_real.default, ATEN.view_as_complex.default, ATEN._conj.default)
_INVERSE: dict[Any, Any] = {_REAL: _WHOLE, _WHOLE: _REAL, _CONJ: _CONJ}


def _unchanged(rank: int, *args: Any) -> tuple[Any, ...]:
    return args


def _dims(count: int) -> Callable[..., tuple[Any, ...]]:
    """The first `count` arguments are dimensions, counted from either end."""
    return lambda rank, *args: (*(d % max(rank, 1) for d in args[:count]), *args[count:])


def _with_pair_size(rank: int, shape: Any) -> tuple[Any, ...]:
    return ([*shape, 2],)


def _with_dim(rank: int, sizes: Any, dim: int = 0) -> tuple[Any, ...]:
    return sizes, dim % rank


_PAIRS: dict[Any, Callable[..., tuple[Any, ...]]] = {
    ATEN.alias.default: _unchanged,
    ATEN.detach.default: _unchanged,
    ATEN.slice.Tensor: _dims(1),
    ATEN.select.int: _dims(1),
    ATEN.squeeze.dim: _dims(1),
    ATEN.transpose.int: _dims(2),
    ATEN.unsqueeze.default: lambda rank, d: (d % (rank + 1),),
    ATEN.squeeze.dims: lambda rank, dims: ([d % max(rank, 1) for d in dims],),
    ATEN.permute.default: lambda rank, dims: ([*(d % rank for d in dims), rank],),
    ATEN.view.default: _with_pair_size,
    ATEN._unsafe_view.default: _with_pair_size,
    ATEN.expand.default: _with_pair_size,
}
"""View of complex numbers -> rule for the arguments, after the first, of the same view of pairs."""
_MULTIPLE: dict[Any, Callable[..., tuple[Any, ...]]] = {
    ATEN.split.Tensor: _with_dim,
    ATEN.split_with_sizes.default: _with_dim,
    ATEN.unbind.int: _dims(1),
}
"""Rules of operators that give several views."""


def cancel_views(graph: torch.fx.Graph) -> None:
    """Make kernels read pairs through views, and drop pairs of inverse views."""
    for node in reversed(list(graph.nodes)):
        if node.target in (_REAL, _CONJ) and node.users:
            _push_through_views(graph, node)
    for node in list(graph.nodes):
        inverse = _INVERSE.get(node.target)
        shown: Any = node.args[0] if inverse is not None else None
        if isinstance(shown, torch.fx.Node) and shown.target is inverse:
            if isinstance(shown.args[0], torch.fx.Node):
                node.replace_all_uses_with(shown.args[0])
    for node in reversed(list(graph.nodes)):
        if node.target in _VIEWS and not node.users:
            graph.erase_node(node)


_VIEWS = {*_INVERSE, *_PAIRS, *_MULTIPLE, operator.getitem}


def _push_through_views(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Move a `view_as_real` or lazy conjugation in front of the views that it reads."""
    while True:
        shown: Any = node.args[0]
        is_item = isinstance(shown, torch.fx.Node) and shown.target is operator.getitem
        view: Any = shown.args[0] if is_item else shown
        rules = _MULTIPLE if is_item else _PAIRS
        if not isinstance(view, torch.fx.Node) or view.target not in rules or view.kwargs:
            return
        source: Any = view.args[0]
        fake = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
        if not isinstance(fake, torch.Tensor) or not fake.is_complex() or fake.is_neg():
            return
        arguments = view.args[1:]
        if node.target is _REAL:
            if fake.is_conj() or any(isinstance(a, torch.fx.Node) for a in arguments[:1]):
                return
            arguments = rules[view.target](fake.dim(), *arguments)
        elif not fake.is_conj():
            return
        with graph.inserting_before(node):
            pairs = _insert_call(graph, node, node.target, (source,))
            view_of_pairs = _insert_call(graph, node, view.target, (pairs, *arguments))
            if is_item:
                view_of_pairs = _insert_call(
                    graph, node, operator.getitem, (view_of_pairs, shown.args[1])
                )
        node.replace_all_uses_with(view_of_pairs)
        graph.erase_node(node)
        node = pairs


def _insert_call(
    graph: torch.fx.Graph, like: torch.fx.Node, target: Any, args: Any
) -> torch.fx.Node:
    """Insert a call with the metadata of `like` and its own example value."""
    node = graph.call_function(target, args)
    node.meta = dict(like.meta)
    node.meta["val"] = target(*map_arg(args, lambda n: n.meta["val"]))
    return node
