"""Replace slow `index_put` accumulation in calls of torch by `index_add`.

The gradient of a gather accumulates with `index_put`, element by element. If a position takes a
row, `index_add` adds the row at once and is faster. Positions along several dimensions, each along
its own, are several such sums.

Such a gradient starts from zeros, and is added to other gradients of the same value (a table that
is read twice, or by a product too). It is accumulated into them instead, which saves the array of
zeros:

    a + index_put(zeros, at, x, accumulate)  ->  index_put(a, at, x, accumulate)

>>> x, at = torch.zeros(4, 64), torch.tensor([1, -1] * 400)
>>> fast_index_put(x, [at], torch.ones(800, 64), True)[:, 0].tolist()
[0.0, 400.0, 0.0, 400.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.frontends.torch.in_place import nodes_in
from smelt.frontends.torch.layout import memory_order
from smelt.frontends.torch.row import Row

_MIN_ELEMENTS = 32768
"""Minimum elements for which normalising negative positions first pays. A quarter for each further
dimension: `index_put` then computes every element's offset from all positions."""
_MIN_ROW = 32
"""Elements that each position must take at least, for an `index_add` to pay."""


def fast_index_put(
    x: torch.Tensor,
    positions: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """`aten.index_put`, with the same result up to the order of sums."""
    return _index_put(False, x, positions, values, accumulate)


def fast_index_put_in_place(
    x: torch.Tensor,
    positions: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """`aten.index_put_`: write into `x`, which nothing else reads.

    >>> x = torch.zeros(3)
    >>> fast_index_put_in_place(x, [torch.tensor([1, 1])], torch.ones(2), True) is x, x.tolist()
    (True, [0.0, 2.0, 0.0])
    """
    return _index_put(True, x, positions, values, accumulate)


def _index_put(
    in_place: bool,
    x: torch.Tensor,
    positions: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool,
) -> torch.Tensor:
    first = next((d for d, p in enumerate(positions) if p is not None), 0)
    rows: list[torch.Tensor] = []
    if accumulate and values.numel() * 4 ** len(positions[first + 1 :]) >= _MIN_ELEMENTS:
        rows = _row_positions(x, first, positions[first:], values)
    if rows:
        return _add_rows(in_place, x, first, rows, values)
    aten = torch.ops.aten
    function = aten.index_put_.default if in_place else aten.index_put.default
    return function(x, positions, values, accumulate)


def _row_positions(
    x: torch.Tensor, first: int, positions: Sequence[torch.Tensor | None], values: torch.Tensor
) -> list[torch.Tensor]:
    """Return the positions along each dimension from `first` on.

    Empty if they do not vary along a dimension of their own, or each takes too few elements.
    """
    rows: list[torch.Tensor] = []
    for k, index in enumerate(positions):
        own_dims = len(positions) - k  # dimensions of `index` from its own one on
        if index is None or index.dtype != torch.int64 or index.dim() < own_dims:
            return []
        if index.numel() != index.shape[-own_dims] or index.numel() * _MIN_ROW > values.numel():
            return []
        rows.append(index.reshape(-1))
    counts = [index.numel() for index in rows]
    shape = [*x.shape[:first], *counts, *x.shape[first + len(rows) :]]
    is_supported = values.dtype == x.dtype and x.is_floating_point()
    return rows if is_supported and list(values.shape) == shape else []


def _add_rows(
    in_place: bool, x: torch.Tensor, first: int, rows: Sequence[torch.Tensor], values: torch.Tensor
) -> torch.Tensor:
    """Add dimension by dimension, from the last."""
    for d in reversed(range(first, first + len(rows))):
        size = x.shape[d]
        index = rows[d - first]
        target = (
            x if d == first else values.new_zeros([*values.shape[:d], size, *values.shape[d + 1 :]])
        )
        index = torch.where(index < 0, index + size, index)
        if d == first and not in_place:
            values = torch.index_add(target, d, index, values)
        else:
            values = target.index_add_(d, index, values)
    return values


# ---- in a traced program -------------------------------------------------------------------------

_ATEN = torch.ops.aten
_PUTS = (_ATEN.index_put.default, _ATEN._unsafe_index_put.default)
_IN_PLACE: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(_PUTS, fast_index_put_in_place),
    _ATEN.index_add.default: _ATEN.index_add_.default,
    _ATEN.index_copy.default: _ATEN.index_copy_.default,
    _ATEN.scatter.src: _ATEN.scatter_.src,
    _ATEN.scatter.value: _ATEN.scatter_.value,
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,
    _ATEN.scatter_reduce.two: _ATEN.scatter_reduce_.two,
}
"""Operator that copies its first operand -> function that writes into it."""
_FULL_PRECISION = (torch.float32, torch.float64)
"""Types in which a sum may start from the other gradient: in half types small terms would be lost.
"""


def accumulate_in_place(graph: torch.fx.Graph) -> None:
    """Accumulate into a value what was added to zeros and then to that value.

    Also gives each scatter into a constant array its own copy of the array.
    """
    for node in list(graph.nodes):
        if node.target is _ATEN.add.Tensor and len(node.args) == 2 and not node.kwargs:
            _merge_add(graph, node)
    for node in graph.nodes:
        if node.target in _IN_PLACE and _is_filled(base := node.args[0]) and len(base.users) > 1:
            with graph.inserting_before(node):
                copy = graph.node_copy(base)
            node.replace_input_with(base, copy)


def _merge_add(graph: torch.fx.Graph, node: Any) -> None:
    """Replace a + scatter(zeros, ..) by scatter(a, ..)."""
    for a, b in (node.args, node.args[::-1]):
        if not all(isinstance(x, torch.fx.Node) for x in (a, b)) or a is b:
            continue
        of_zeros = (
            _is_accumulation(b) and len(b.users) == 1 and _is_filled(b.args[0], with_zeros=True)
        )
        if not of_zeros or not _same_layout(a, b, node) or (_is_filled(a) and len(a.users) > 1):
            continue
        with graph.inserting_before(node):
            scatter = graph.call_function(b.target, (a, *b.args[1:]))
        scatter.meta = node.meta
        node.replace_all_uses_with(scatter)
        graph.erase_node(node)
        graph.erase_node(b)
        return


def _is_accumulation(node: Any) -> bool:
    return node.target in _PUTS and node.args[3:4] == (True,)


def _is_filled(node: Any, *, with_zeros: bool = False) -> bool:
    """Whether a node gives an array of one number."""
    if not isinstance(node, torch.fx.Node) or node.target is not _ATEN.full.default:
        return False
    number = node.args[1]
    return not with_zeros or (isinstance(number, (int, float)) and number == 0)


def _same_layout(*values: Any) -> bool:
    """Whether values have one type and shape, and first and last equal strides."""
    fakes = [n.meta.get("val") for n in values]
    if not all(isinstance(x, torch.Tensor) and x.dtype in _FULL_PRECISION for x in fakes):
        return False
    # Sizes are compared as text: comparing symbols would add a guard.
    first, *_, last = fakes
    equal = len({(x.dtype, str(x.shape)) for x in fakes}) == 1
    return equal and str(first.stride()) == str(last.stride())


def in_place_function(node: Any, row_of: Callable[[Any], Row | None]) -> Callable[..., Any] | None:
    """Return the function that writes an operator's result into its first operand.

    None unless that is a dense value of the program's own that nothing else reads.
    """
    if node.target not in _IN_PLACE or nodes_in(node.args).count(node.args[0]) != 1:
        return None
    base = node.args[0]
    if not isinstance(fake := base.meta.get("val"), torch.Tensor) or memory_order(fake) is None:
        return None
    while base.op == "call_function" and len(base.users) == 1:
        row = row_of(base)
        if _is_filled(base) or (row is not None and not row.alias and not row.source):
            return _IN_PLACE[node.target]
        if row is None or not row.alias:
            return None
        base = base.args[0]
    return None
