"""Cancel views between complex tensors and pairs of reals.

A slice of a complex tensor is a view that torch makes of an existing tensor.  A kernel that reads
the parts of the slice can as well read a slice of the parts, which is an index map, so
`view_as_real` is pushed through other views:

    view_as_real(slice(z, 1, 0, 8))  ->  slice(view_as_real(z), 1, 0, 8)

If `z` in turn was made of parts, nothing complex is left: the views cancel.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.node import map_arg

from smelt.frontends.torch.complex_operators import view_arguments

ATEN: Any = torch.ops.aten
_REAL, _WHOLE, _CONJ = (ATEN.view_as_real.default, ATEN.view_as_complex.default, ATEN._conj.default)
_INVERSE: dict[Any, Any] = {_REAL: _WHOLE, _WHOLE: _REAL, _CONJ: _CONJ}


_SINGLE: Any = frozenset(
    (
        *(ATEN.alias.default, ATEN.detach.default, ATEN.slice.Tensor, ATEN.select.int),
        *(ATEN.squeeze.dim, ATEN.squeeze.dims, ATEN.transpose.int, ATEN.unsqueeze.default),
        *(ATEN.permute.default, ATEN.view.default, ATEN._unsafe_view.default, ATEN.expand.default),
    )
)
"""Views of complex numbers that are views of pairs too."""
_MULTIPLE: Any = frozenset((ATEN.split.Tensor, ATEN.split_with_sizes.default, ATEN.unbind.int))
"""Operators that give several views."""
_VIEWS = {*_INVERSE, *_SINGLE, *_MULTIPLE, operator.getitem}


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


def _push_through_views(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Move a `view_as_real` or lazy conjugation in front of the views that it reads."""
    while True:
        shown: Any = node.args[0]
        is_item = isinstance(shown, torch.fx.Node) and shown.target is operator.getitem
        view: Any = shown.args[0] if is_item else shown
        views = _MULTIPLE if is_item else _SINGLE
        if not isinstance(view, torch.fx.Node) or view.target not in views or view.kwargs:
            return
        source: Any = view.args[0]
        fake = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
        if not isinstance(fake, torch.Tensor) or not fake.is_complex() or fake.is_neg():
            return
        arguments = view.args[1:]
        if node.target is _REAL:
            if fake.is_conj() or any(isinstance(a, torch.fx.Node) for a in arguments[:1]):
                return
            arguments = view_arguments(view.target, arguments, fake.dim())
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
