"""Cancel views between complex tensors and pairs of reals.

A slice of a complex tensor is a view that torch makes of an existing tensor.  A kernel that reads
the parts of the slice can as well read a slice of the parts, which is an index map, so
`view_as_real` is pushed through other views:

    view_as_real(slice(z, 1, 0, 8))  ->  slice(view_as_real(z), 1, 0, 8)

If `z` in turn was made of parts, nothing complex is left: the views cancel.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import map_arg

ATEN: Any = torch.ops.aten
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
