"""Bring each operator into a canonical form, so that later passes match one spelling only.

Constants become right operands of commutative operators, spelled with the fewest digits their type
allows; nested and trivial views are composed (`smelt.passes.compose`); a broadcast operand of an
elementwise operator is read unbroadcast, or the result is broadcast instead where that computes
fewer elements; reductions and contractions absorb permutations of their operands into their axes; a
gather from an `iota` becomes its index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from smelt.errors import ShapeError
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.contract import Contract
from smelt.ops.create import Constant, Iota, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.spec import TensorOp
from smelt.ops.view import Expand, Permute, Reshape
from smelt.passes.compose import VIEWS, adds_leading_ones, simplify_view
from smelt.types.dtype import DType, i32
from smelt.types.expr import Index
from smelt.types.tensor import Shape, broadcast_shapes


def canonicalize(graph: Graph) -> Graph:
    """Compose views, drop broadcasts, and put constants on the right in their shortest spelling.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         canonicalize(
    ...             parse('''graph f(x: f32[n,4], b: f32[4]) {
    ...   b2 = expand(b) {shape=(n, 4)}
    ...   y = add(2.0:f32, x)
    ...   z = mul(y, b2)
    ...   t = permute(z) {perm=(1, 0)}
    ...   u = permute(t) {perm=(1, 0)}
    ...   return u
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,4], b: f32[4]) {
      v0 = add(x, 2.0:f32) : f32[n,4]
      v1 = mul(v0, b) : f32[n,4]
      return v1
    }
    """
    return rebuild(graph, canonical)


def canonical(node: Node) -> Node:
    """Return the canonical form of one operator whose operands are canonical."""
    for _ in range(_MAX_STEPS):
        rule = _RULES.get(type(node.op))
        if rule is None:
            return node
        changed = rule(node)
        if changed is node:
            return node
        node = changed
    return node


_MAX_STEPS = 32
"""Maximum rewrites of one node: the bound guards against rules that undo each other."""


def _apply(node: Node, op: TensorOp, *inputs: Node) -> Node:
    return canonical(build.apply(op, *inputs, origin=node.origin))


# ---- numbers ---------------------------------------------------------------------------------


def _constant(node: Node) -> Node:
    assert isinstance(node.op, Constant)
    op = shortest(node.op)
    return node if op is node.op else Node(op, (), node.type, node.origin)


@lru_cache(maxsize=512)
def shortest(op: Constant) -> Constant:
    """Return the constant with the fewest digits that still denote it in its type.

    >>> shortest(Constant(0.10000000149011612, build.f32)).value
    0.1
    """
    with np.errstate(over="ignore"):  # overflow gives infinity, as it does at run time
        exact = np.asarray(op.value).astype(op.dtype.numpy)
    value: float | int | bool
    if op.dtype.kind == "bool":
        value = bool(exact)
    elif op.dtype.is_integer:
        value = int(exact)
    else:
        value = float(str(exact[()]))
        if np.asarray(value).astype(op.dtype.numpy).tobytes() != exact.tobytes():
            value = float(exact)
    shortened = Constant(value, op.dtype)
    return op if shortened == op and type(value) is type(op.value) else shortened


def _size(node: Node) -> Node:
    """Replace a size that is an integer by a constant."""
    op = node.op
    assert isinstance(op, SizeOf)
    if not isinstance(op.expr, int):
        return node
    return _constant(build.constant(op.expr, op.dtype, node.origin))


# ---- elementwise -----------------------------------------------------------------------------


def _map(node: Node) -> Node:
    assert isinstance(node.op, Map)
    a = node.inputs
    if len(a) == 2 and type(a[0].op) is Constant and type(a[1].op) is not Constant:
        if node.op.row.commutative and not zero_sign_depends_on_order(node.op, node, a[0].op.value):
            return Node(node.op, (a[1], a[0]), node.type, node.origin)
    return _unbroadcast(node)


def zero_sign_depends_on_order(op: Map, node: Node, number: float = 0.0) -> bool:
    """Whether swapping the operands may change the sign of a zero result.

    Of +0 and -0, max and min return one or the other depending on the order.
    """
    return number == 0 and op.row.idempotent and node.type.dtype.is_float


def _unbroadcast(node: Node) -> Node:
    """Read operands unbroadcast; if all of them were broadcast, broadcast the result instead."""
    if not any(type(x.op) is Expand or type(x.op) is Reshape for x in node.inputs):
        return node
    shape = node.type.shape
    operands = tuple([_before_broadcast(x, reshapes=True) for x in node.inputs])
    if _common(operands) != shape:
        operands = tuple([_before_broadcast(x, reshapes=False) for x in node.inputs])
    if operands == node.inputs:
        return node
    common = _common(operands)
    if common is None:
        return node
    result = build.apply(node.op, *operands, origin=node.origin)
    return result if common == shape else _apply(node, Expand(shape), canonical(result))


def _before_broadcast(x: Node, *, reshapes: bool) -> Node:
    while isinstance(x.op, Expand) or (reshapes and adds_leading_ones(x)):
        x = x.inputs[0]
    return x


def _common(nodes: tuple[Node, ...]) -> Shape | None:
    try:
        return broadcast_shapes(*[x.type.shape for x in nodes])
    except ShapeError:
        return None


def _cast(node: Node) -> Node:
    (x,) = node.inputs
    if x.type.dtype == node.type.dtype:
        return x
    if isinstance(x.op, Cast) and casts_compose(
        x.inputs[0].type.dtype, x.type.dtype, node.type.dtype
    ):
        return _apply(node, node.op, x.inputs[0])
    return _unbroadcast(node)


def casts_compose(first: DType, middle: DType, last: DType) -> bool:
    """Return whether casts through `middle` have the result of one cast.

    Integers wrap where they do not fit; floats do not (`smelt.ops.cast`).
    """
    if middle.is_float and first.is_integer and last.is_integer:
        if not (can_represent(i32, first) or can_represent(last, first)):
            return False
    return can_represent(middle, first)


_DIGITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_EXPONENT = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11}


def can_represent(wide: DType, narrow: DType) -> bool:
    """Return whether a cast from `narrow` to `wide` and back is lossless.

    Every value of `narrow` is a value of `wide` then.

    >>> from smelt.types.dtype import bf16, f16, f32, i8, i32
    >>> (
    ...     can_represent(f32, bf16),
    ...     can_represent(bf16, f16),
    ...     can_represent(f16, i8),
    ...     can_represent(f32, i32),
    ... )
    (True, False, True, False)
    """
    if wide == narrow or narrow.kind == "bool":
        return True
    if wide.is_float and narrow.is_float:
        a, b = wide.name, narrow.name
        return _DIGITS[a] >= _DIGITS[b] and _EXPONENT[a] >= _EXPONENT[b]
    if wide.is_float and narrow.is_integer:
        return narrow.bits - (narrow.kind == "int") <= _DIGITS[wide.name]
    if wide.is_integer and narrow.is_integer:
        if wide.kind == narrow.kind:
            return wide.bits >= narrow.bits
        return wide.kind == "int" and wide.bits > narrow.bits
    return False


# ---- reductions and contractions -------------------------------------------------------------


def _reduce(node: Node) -> Node:
    op = node.op
    assert isinstance(op, Reduce)
    (x,) = node.inputs
    single = [a for a in op.axes if x.type.shape[a] == 1]
    if single and not op.row.positional:
        return _drop_unit_axes(node, op, x, single)
    if not op.axes and not op.row.positional:
        return _reduce_nothing(node, op, x)
    if isinstance(x.op, Permute) and _is_order_free(op, x):
        return _reduce_permuted(node, op, x.op, x.inputs[0])
    return node


def _drop_unit_axes(node: Node, op: Reduce, x: Node, single: list[int]) -> Node:
    """Drop reduction axes of extent 1.

    With no axis left, one step from the identity remains.
    """
    shape = tuple(n for a, n in enumerate(x.type.shape) if a not in single)
    axes = tuple(a - sum(s < a for s in single) for a in op.axes if a not in single)
    return _apply(node, Reduce(op.combine, axes), _apply(node, Reshape(shape), x))


def _reduce_nothing(node: Node, op: Reduce, x: Node) -> Node:
    """Reduce over no axes: return x, except that a float sum turns -0 into 0."""
    dtype = node.type.dtype
    value = _apply(node, Cast(dtype), x)
    if op.row.idempotent or not dtype.is_float:
        return value
    identity = build.constant(op.row.identity(dtype), dtype)
    return _apply(node, Map(op.row.scalar), value, canonical(identity))


def _is_order_free(op: Reduce, x: Node) -> bool:
    """Whether reducing in another order gives the same bits."""
    if op.row.positional:
        return len(op.axes) == 1
    return op.row.idempotent or not x.type.dtype.is_float


def _reduce_permuted(node: Node, op: Reduce, view: Permute, x: Node) -> Node:
    axes = tuple(sorted(view.perm[a] for a in op.axes))
    remaining = [a for a in range(len(view.perm)) if a not in axes]
    order = tuple(remaining.index(p) for a, p in enumerate(view.perm) if a not in op.axes)
    return _apply(node, Permute(order), _apply(node, Reduce(op.combine, axes), x))


def _scan(node: Node) -> Node:
    """Replace a scan along an axis of extent 1 by its operand."""
    op = node.op
    assert isinstance(op, Scan)
    (x,) = node.inputs
    if x.type.shape[op.axis] != 1:
        return node
    return _apply(node, Cast(node.type.dtype), x)


def _contract(node: Node) -> Node:
    """Absorb permutations of the operands into the index notation."""
    op = node.op
    assert isinstance(op, Contract)
    if not any(isinstance(x.op, Permute) for x in node.inputs):
        return node
    sides: list[tuple[Node, tuple[Index, ...]]] = []
    for x, terms in zip(node.inputs, (op.left, op.right), strict=True):
        if isinstance(x.op, Permute):
            perm = x.op.perm
            terms = tuple(terms[perm.index(a)] for a in range(len(perm)))
            x = x.inputs[0]
        sides.append((x, terms))
    (x, left), (y, right) = sides
    new = replace(op, left=left, right=right)
    if new.reduction_axes() != op.reduction_axes():  # another summation order would change the bits
        return node
    return _apply(node, new, x, y)


def _gather(node: Node) -> Node:
    """Replace a gather from an `iota` by its index.

    Bounds of the index were checked when the graph was built.
    """
    table, *index = node.inputs
    if not isinstance(table.op, Iota) or table.type.rank != 1:
        return node
    return _apply(node, Cast(table.type.dtype), *index)


_RULES: dict[type[TensorOp], Callable[[Node], Node]] = {
    Cast: _cast,
    Constant: _constant,
    Contract: _contract,
    Gather: _gather,
    Map: _map,
    Reduce: _reduce,
    Scan: _scan,
    SizeOf: _size,
    **dict.fromkeys(VIEWS, simplify_view),
}
