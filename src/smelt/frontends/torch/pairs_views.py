"""Views of complex numbers as views of pairs: what `view_as_real` shows behind other views.

A slice of a complex tensor is a view that torch makes, of a tensor that torch must have.  Where a
kernel reads the slice's parts it can as well read a slice of the parts, which is an index map:

    view_as_real(slice(z, 1, 0, 8))  ->  slice(view_as_real(z), 1, 0, 8)

If `z` in turn was made of parts, nothing complex is left: the views cancel.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import map_arg

__all__ = ["cancel"]

ATEN: Any = torch.ops.aten
_REAL, _WHOLE, _CONJ = (ATEN.view_as_real.default, ATEN.view_as_complex.default, ATEN._conj.default)
_INVERSE: dict[Any, Any] = {_REAL: _WHOLE, _WHOLE: _REAL, _CONJ: _CONJ}


def _same(rank: int, *args: Any) -> tuple[Any, ...]:
    return args


def _dims(count: int) -> Callable[..., tuple[Any, ...]]:
    """The first `count` arguments are dimensions, counted from either end."""
    return lambda rank, *args: (*(d % max(rank, 1) for d in args[:count]), *args[count:])


def _sized(rank: int, shape: Any) -> tuple[Any, ...]:
    return ([*shape, 2],)


def _last(rank: int, sizes: Any, dim: int = 0) -> tuple[Any, ...]:
    return sizes, dim % rank


_PAIRS: dict[Any, Callable[..., tuple[Any, ...]]] = {
    ATEN.alias.default: _same,
    ATEN.detach.default: _same,
    ATEN.slice.Tensor: _dims(1),
    ATEN.select.int: _dims(1),
    ATEN.squeeze.dim: _dims(1),
    ATEN.transpose.int: _dims(2),
    ATEN.unsqueeze.default: lambda rank, d: (d % (rank + 1),),
    ATEN.squeeze.dims: lambda rank, dims: ([d % max(rank, 1) for d in dims],),
    ATEN.permute.default: lambda rank, dims: ([*(d % rank for d in dims), rank],),
    ATEN.view.default: _sized,
    ATEN._unsafe_view.default: _sized,
    ATEN.expand.default: _sized,
}
"""The arguments, after the first, of a view of pairs, from the rank and those of the view."""
_PARTED: dict[Any, Callable[..., tuple[Any, ...]]] = {
    ATEN.split.Tensor: _last,
    ATEN.split_with_sizes.default: _last,
    ATEN.unbind.int: _dims(1),
}
"""The same of operators that give several views."""


def cancel(graph: torch.fx.Graph) -> None:
    """Has kernels read pairs behind views, and drops views of views that are the tensor itself."""
    for node in reversed(list(graph.nodes)):
        if node.target in (_REAL, _CONJ) and node.users:
            _pushed(graph, node)
    for node in list(graph.nodes):
        inverse = _INVERSE.get(node.target)
        shown: Any = node.args[0] if inverse is not None else None
        if isinstance(shown, torch.fx.Node) and shown.target is inverse:
            if isinstance(shown.args[0], torch.fx.Node):
                node.replace_all_uses_with(shown.args[0])
    for node in reversed(list(graph.nodes)):
        if node.target in _VIEWS and not node.users:
            graph.erase_node(node)


_VIEWS = {*_INVERSE, *_PAIRS, *_PARTED, operator.getitem}


def _pushed(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Puts what shows parts, or takes a note of conjugation away, in front of the views of what it
    shows, as far as there are any."""
    while True:
        shown: Any = node.args[0]
        one = isinstance(shown, torch.fx.Node) and shown.target is operator.getitem
        view: Any = shown.args[0] if one else shown
        rules = _PARTED if one else _PAIRS
        if not isinstance(view, torch.fx.Node) or view.target not in rules or view.kwargs:
            return
        source: Any = view.args[0]
        known = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
        if not isinstance(known, torch.Tensor) or not known.is_complex() or known.is_neg():
            return
        given = view.args[1:]
        if node.target is _REAL:
            if known.is_conj() or any(isinstance(a, torch.fx.Node) for a in given[:1]):
                return
            given = rules[view.target](known.dim(), *given)
        elif not known.is_conj():
            return
        with graph.inserting_before(node):
            pairs = _call(graph, node, node.target, (source,))
            moved = _call(graph, node, view.target, (pairs, *given))
            if one:
                moved = _call(graph, node, operator.getitem, (moved, shown.args[1]))
        node.replace_all_uses_with(moved)
        graph.erase_node(node)
        node = pairs


def _call(graph: torch.fx.Graph, like: torch.fx.Node, target: Any, args: Any) -> torch.fx.Node:
    """A call that stands for another one's line, with the tensor that it gives the tracer."""
    made = graph.call_function(target, args)
    made.meta = dict(like.meta)
    made.meta["val"] = target(*map_arg(args, lambda n: n.meta["val"]))
    return made
