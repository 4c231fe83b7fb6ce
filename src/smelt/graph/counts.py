"""Recognise constants that equal a dimension: element counts, axis ends and distances.

A mean divides by a count, negative indices are offset by an extent, and relative positions start at
minus an extent.  A tracer records these as plain numbers.  If such a number had the value of a size
in the traced call, it is replaced by that size.
"""

from __future__ import annotations

from typing import Protocol

from smelt.graph.bounds import constant_value
from smelt.graph.ir import Node
from smelt.graph.unify import Sizes
from smelt.ops.create import Constant, Iota, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce
from smelt.ops.spec import TensorOp
from smelt.ops.view import Expand, Permute, Reshape
from smelt.types.expr import Expr, Index, add, mul, product, size, sizes_of

__all__ = [
    "QUOTIENT",
    "Walk",
    "is_sum",
    "unify_distance_bound",
    "unify_mean_count",
    "unify_positions",
]

PRODUCT, QUOTIENT, SUM = (1, 1), (1, -1), (1, 1)
"""Exponents of the operands of products and divisions, and coefficients of a sum."""


class Walk(Protocol):
    """Facts about a graph that is being generalised."""

    sizes: Sizes
    ops: dict[Node, TensorOp]
    """Operators whose attributes have changed."""
    counting: bool
    """Whether index arrays have the extent of the axis that they index."""
    guessing: bool
    """Whether dimensions without constraints may be identified by their number alone."""

    def of(self, node: Node) -> list[Index]:
        """Return the dimensions of a node as known now."""
        ...


def unify_distance_bound(w: Walk, at: Node, number: Node) -> None:
    """Match an `iota` that is shifted to negative numbers, as for relative positions.

    Both its extent (about twice a size) and the shift (minus that size) then depend on the size;
    only the numbers show it.
    """
    shift = constant_value(number)
    while isinstance(at.op, Cast) or (_is_product(at) and constant_value(at.inputs[1]) in (1, -1)):
        at = at.inputs[0]
    if not (isinstance(at.op, Iota) and isinstance(number.op, Constant) and isinstance(shift, int)):
        return
    extent = w.of(at)[at.op.axis]
    sizes = [*map(size, sizes_of(extent))]
    for n in w.sizes.free_sizes() if w.guessing and w.sizes.is_unknown(extent) else sizes:
        extent_value, length = w.sizes.value(extent), w.sizes.value(n)
        doubled = add(mul(n, 2), extent_value - 2 * length)
        if abs(extent_value - 2 * length) <= 1 and abs(abs(shift) - length) <= 1 < length:
            if w.sizes.equal(extent, doubled) == doubled:
                sign = 1 if shift > 0 else -1
                end = add(mul(n, sign), shift - sign * length)
                w.ops[number] = SizeOf(end, number.op.dtype)
            break


def unify_mean_count(w: Walk, total: Node, count: Node) -> None:
    """Replace a divisor that counts the elements summed or repeated by their number."""
    while isinstance(count.op, (Expand, Reshape, Permute, Cast)):
        (count,) = count.inputs
    while isinstance(total.op, (Reshape, Permute, Cast)) or (
        isinstance(total.op, Expand) and total.inputs[0].type.rank
    ):
        (total,) = total.inputs
    if not isinstance(count.op, (Constant, SizeOf)) or not isinstance(total.op, (Reduce, Expand)):
        return
    if isinstance(total.op, Reduce):
        dims = w.of(total.inputs[0])
        elements = product([dims[a] for a in total.op.axes])
    else:
        elements = product(w.of(total))
    divisor = count.op.value if isinstance(count.op, Constant) else count.op.expr
    if isinstance(elements, Expr) and w.sizes.traced(elements) == divisor:
        w.ops[count] = SizeOf(elements, count.op.dtype)


def unify_positions(w: Walk, at: Node, d: Index) -> None:
    """Match indices along a dimension: a full `iota` has its extent, wrapping adds its extent.

    Along one element there is surely one index.
    """
    while True:
        if isinstance(at.op, (Expand, Reshape, Permute, Cast)):
            (at,) = at.inputs
        elif (end := _wrap_offset(at)) is not None and constant_value(end) == w.sizes.traced(d):
            if isinstance(d, Expr):
                w.ops[end] = SizeOf(w.sizes.resolve(d), end.type.dtype)
            at = at.inputs[2]
        elif is_sum(at) and constant_value(at.inputs[1]) == 0:
            at = at.inputs[0]
        else:
            break
    if isinstance(at.op, Iota) and (w.counting or d == 1):
        count = w.of(at)[at.op.axis]
        unknown = w.sizes.is_unknown(count) or w.sizes.is_unknown(d)
        if unknown and w.sizes.traced(count) == w.sizes.traced(d):
            w.sizes.equal(count, d)


def _wrap_offset(at: Node) -> Node | None:
    """Return the number that is added to negative indices, if any."""
    if not isinstance(at.op, Map) or not at.op.row.is_select:
        return None
    test, wrapped, unwrapped = at.inputs
    tests_sign = isinstance(test.op, Map) and len(test.inputs) == 2 and test.inputs[0] is unwrapped
    if not (tests_sign and constant_value(test.inputs[1]) == 0):
        return None
    return wrapped.inputs[1] if is_sum(wrapped) and wrapped.inputs[0] is unwrapped else None


def is_sum(node: Node) -> bool:
    """Whether a node adds its operands."""
    return isinstance(node.op, Map) and node.op.row.linear == SUM


def _is_product(node: Node) -> bool:
    return isinstance(node.op, Map) and node.op.row.powers == PRODUCT
