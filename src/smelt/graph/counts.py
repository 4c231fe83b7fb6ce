"""Numbers that are dimensions: what counts elements, or positions, is said by no operator.

A mean divides by a number, negative positions count from one, and distances begin at one.  Where
such a number is what a size was in the call that was traced, it is taken for that size.
"""

from __future__ import annotations

from typing import Protocol

from smelt.graph.bounds import number_of
from smelt.graph.ir import Node
from smelt.graph.unify import Sizes
from smelt.ops.create import Constant, Iota, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce
from smelt.ops.spec import TensorOp
from smelt.ops.view import Expand, Permute, Reshape
from smelt.types.expr import Expr, Index, add, mul, product, size, sizes_of

__all__ = ["QUOTIENT", "Walk", "ends", "is_sum", "mean", "positions"]

PRODUCT, QUOTIENT, SUM = (1, 1), (1, -1), (1, 1)
"""Powers of the operands that products and divisions are, and what a sum is linear in."""


class Walk(Protocol):
    """What is known of a graph that is made general."""

    sizes: Sizes
    ops: dict[Node, TensorOp]
    counting: bool
    guessing: bool

    def of(self, node: Node) -> list[Index]:
        """The dimensions of a node as they are known now."""
        ...


def ends(w: Walk, at: Node, number: Node) -> None:
    """Positions that are counted from a size to the other side of zero, as how far words are apart
    is: nothing but the numbers tells that."""
    first = number_of(number)
    while isinstance(at.op, Cast) or (_is_product(at) and number_of(at.inputs[1]) in (1, -1)):
        at = at.inputs[0]
    if not (isinstance(at.op, Iota) and isinstance(number.op, Constant) and isinstance(first, int)):
        return
    count = w.of(at)[at.op.axis]
    known = [*map(size, sizes_of(count))]
    for n in w.sizes.varying() if w.guessing and w.sizes.is_unknown(count) else known:
        many, length = w.sizes.value(count), w.sizes.value(n)
        both = add(mul(n, 2), many - 2 * length)
        if abs(many - 2 * length) <= 1 and abs(abs(first) - length) <= 1 < length:
            if w.sizes.equal(count, both) == both:
                sign = 1 if first > 0 else -1
                end = add(mul(n, sign), first - sign * length)
                w.ops[number] = SizeOf(end, number.op.dtype)
            break


def mean(w: Walk, total: Node, count: Node) -> None:
    """What is summed over, or repeated, as often as the number says that it is divided by: that
    counts it."""
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
        many = product([dims[a] for a in total.op.axes])
    else:
        many = product(w.of(total))
    told = count.op.value if isinstance(count.op, Constant) else count.op.expr
    if isinstance(many, Expr) and w.sizes.traced(many) == told:
        w.ops[count] = SizeOf(many, count.op.dtype)


def positions(w: Walk, at: Node, d: Index) -> None:
    """Positions along a dimension: those that count all of it are as many, and what negative ones
    count from is its end.  Along one element there is one position for sure."""
    while True:
        if isinstance(at.op, (Expand, Reshape, Permute, Cast)):
            (at,) = at.inputs
        elif (end := _from_end(at)) is not None and number_of(end) == w.sizes.traced(d):
            if isinstance(d, Expr):
                w.ops[end] = SizeOf(w.sizes.now(d), end.type.dtype)
            at = at.inputs[2]
        elif is_sum(at) and number_of(at.inputs[1]) == 0:
            at = at.inputs[0]
        else:
            break
    if isinstance(at.op, Iota) and (w.counting or d == 1):
        count = w.of(at)[at.op.axis]
        unknown = w.sizes.is_unknown(count) or w.sizes.is_unknown(d)
        if unknown and w.sizes.traced(count) == w.sizes.traced(d):
            w.sizes.equal(count, d)


def _from_end(at: Node) -> Node | None:
    """The number that is added to negative positions, if one is."""
    if not isinstance(at.op, Map) or not at.op.row.chooses:
        return None
    test, moved, plain = at.inputs
    compared = isinstance(test.op, Map) and len(test.inputs) == 2 and test.inputs[0] is plain
    if not (compared and number_of(test.inputs[1]) == 0):
        return None
    return moved.inputs[1] if is_sum(moved) and moved.inputs[0] is plain else None


def is_sum(node: Node) -> bool:
    """Whether it adds its operands."""
    return isinstance(node.op, Map) and node.op.row.linear == SUM


def _is_product(node: Node) -> bool:
    return isinstance(node.op, Map) and node.op.row.powers == PRODUCT
