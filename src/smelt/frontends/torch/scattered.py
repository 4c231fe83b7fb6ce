"""Rows that are added at positions, as torch does it fastest.

The gradient of a value read at positions adds with `index_put`, element by element.  Where a
position takes a row, `index_add` adds the row at once: less than half the time.  Positions along
several dimensions, each along its own, are several such sums.

Such a gradient starts from zeros, and is added to other gradients of the same value (a table that
is read twice, or by a product too).  It is added into them instead: an array of zeros is made,
added to and read for nothing.

    a + index_put(zeros, at, x, accumulate)  ->  index_put(a, at, x, accumulate)

>>> x, at = torch.zeros(4, 64), torch.tensor([1, -1] * 400)
>>> put(x, [at], torch.ones(800, 64), True)[:, 0].tolist()
[0.0, 400.0, 0.0, 400.0]
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.frontends.torch.in_place import nodes
from smelt.frontends.torch.layout import memory_order
from smelt.frontends.torch.row import Row

__all__ = ["accumulated", "put", "put_there", "there"]

_LEAST = 32768
"""Elements from which it pays to look at the positions first: they may be negative.  A quarter for
each further dimension: `index_put` then works out every element's place from all positions."""
_ROW = 32
"""Elements that a position must take at least, for its sum to start cheaply."""


def put(
    x: torch.Tensor,
    positions: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """`aten.index_put`, with the same result but for the order of sums."""
    return _put(False, x, positions, values, accumulate)


def put_there(
    x: torch.Tensor,
    positions: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """The same, written into `x`, which nobody else reads.

    >>> x = torch.zeros(3)
    >>> put_there(x, [torch.tensor([1, 1])], torch.ones(2), True) is x, x.tolist()
    (True, [0.0, 2.0, 0.0])
    """
    return _put(True, x, positions, values, accumulate)


def _put(
    inside: bool,
    x: torch.Tensor,
    positions: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool,
) -> torch.Tensor:
    first = next((d for d, p in enumerate(positions) if p is not None), 0)
    found: list[torch.Tensor] = []
    if accumulate and values.numel() * 4 ** len(positions[first + 1 :]) >= _LEAST:
        found = _rows(x, first, positions[first:], values)
    if found:
        return _added(inside, x, first, found, values)
    aten = torch.ops.aten
    function = aten.index_put_.default if inside else aten.index_put.default
    return function(x, positions, values, accumulate)


def _rows(
    x: torch.Tensor, first: int, positions: Sequence[torch.Tensor | None], values: torch.Tensor
) -> list[torch.Tensor]:
    """The positions along each dimension from the first; none where they do not vary along a
    dimension of their own, or each takes too few elements."""
    found: list[torch.Tensor] = []
    for k, at in enumerate(positions):
        own = len(positions) - k  # the positions' dimensions from the one that is this one's
        if at is None or at.dtype != torch.int64 or at.dim() < own:
            return []
        if at.numel() != at.shape[-own] or at.numel() * _ROW > values.numel():
            return []
        found.append(at.reshape(-1))
    counts = [at.numel() for at in found]
    whole = [*x.shape[:first], *counts, *x.shape[first + len(found) :]]
    alike = values.dtype == x.dtype and x.is_floating_point()
    return found if alike and list(values.shape) == whole else []


def _added(
    inside: bool, x: torch.Tensor, first: int, rows: Sequence[torch.Tensor], values: torch.Tensor
) -> torch.Tensor:
    """Adds dimension by dimension, from the last."""
    for d in reversed(range(first, first + len(rows))):
        size = x.shape[d]
        at = rows[d - first]
        into = (
            x if d == first else values.new_zeros([*values.shape[:d], size, *values.shape[d + 1 :]])
        )
        at = torch.where(at < 0, at + size, at)
        if d == first and not inside:
            values = torch.index_add(into, d, at, values)
        else:
            values = into.index_add_(d, at, values)
    return values


# ---- in a traced program -------------------------------------------------------------------------

_ATEN = torch.ops.aten
_PUTS = (_ATEN.index_put.default, _ATEN._unsafe_index_put.default)
_THERE: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(_PUTS, put_there),
    _ATEN.index_add.default: _ATEN.index_add_.default,
    _ATEN.index_copy.default: _ATEN.index_copy_.default,
    _ATEN.scatter.src: _ATEN.scatter_.src,
    _ATEN.scatter.value: _ATEN.scatter_.value,
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,
    _ATEN.scatter_reduce.two: _ATEN.scatter_reduce_.two,
}
"""What writes into its first operand, by the operator that copies it first."""
_PRECISE = (torch.float32, torch.float64)
"""Types in which a sum may start from what it is added to: in half types small terms would be
lost beside it."""


def accumulated(graph: torch.fx.Graph) -> None:
    """Sums of a value and of what is added to zeros, in a traced program, add to that value; what
    is written into an array of one number has one of its own."""
    for node in list(graph.nodes):
        if node.target is _ATEN.add.Tensor and len(node.args) == 2 and not node.kwargs:
            _merge(graph, node)
    for node in graph.nodes:
        if node.target in _THERE and _is_filled(base := node.args[0]) and len(base.users) > 1:
            with graph.inserting_before(node):
                own = graph.node_copy(base)
            node.replace_input_with(base, own)


def _merge(graph: torch.fx.Graph, node: Any) -> None:
    """Puts a sum in the place of what it would be added to."""
    for a, b in (node.args, node.args[::-1]):
        if not all(isinstance(x, torch.fx.Node) for x in (a, b)) or a is b:
            continue
        of_zeros = _is_sum(b) and len(b.users) == 1 and _is_filled(b.args[0], with_zeros=True)
        if not of_zeros or not _alike(a, b, node) or (_is_filled(a) and len(a.users) > 1):
            continue
        with graph.inserting_before(node):
            made = graph.call_function(b.target, (a, *b.args[1:]))
        made.meta = node.meta
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        graph.erase_node(b)
        return


def _is_sum(node: Any) -> bool:
    return node.target in _PUTS and node.args[3:4] == (True,)


def _is_filled(node: Any, *, with_zeros: bool = False) -> bool:
    """Whether a node gives an array of one number."""
    if not isinstance(node, torch.fx.Node) or node.target is not _ATEN.full.default:
        return False
    number = node.args[1]
    return not with_zeros or (isinstance(number, (int, float)) and number == 0)


def _alike(*values: Any) -> bool:
    """Whether values have one type and one shape, and the last lies in memory as the first."""
    known = [n.meta.get("val") for n in values]
    if not all(isinstance(x, torch.Tensor) and x.dtype in _PRECISE for x in known):
        return False
    # Sizes are compared as they are written: asking whether two are equal would be a guard.
    first, *_, last = known
    alike = len({(x.dtype, str(x.shape)) for x in known}) == 1
    return alike and str(first.stride()) == str(last.stride())


def there(node: Any, row_of: Callable[[Any], Row | None]) -> Callable[..., Any] | None:
    """What writes into an operator's first operand, if that is a value of the program's own making
    that nothing else reads, each element of which has a place of its own; else None."""
    if node.target not in _THERE or nodes(node.args).count(node.args[0]) != 1:
        return None
    base = node.args[0]
    if not isinstance(fake := base.meta.get("val"), torch.Tensor) or memory_order(fake) is None:
        return None
    while base.op == "call_function" and len(base.users) == 1:
        row = row_of(base)
        if _is_filled(base) or (row is not None and not row.alias and not row.source):
            return _THERE[node.target]
        if row is None or not row.alias:
            return None
        base = base.args[0]
    return None
