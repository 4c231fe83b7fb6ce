"""What whole numbers are at least and at most, as the operators that give them tell.

The place of an extreme lies inside of the axis, a remainder below what was divided by, what was cut
off at two ends between these.  Only what holds for every size and all data counts; most numbers are
unknown.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[m,n]) {
...   v0 = reduce.argmax(x) {axes=(1,)}
...   v1 = add(v0, 1:i64)
...   return v1
... }''')
>>> is_inside(graph.outputs[0].inputs[0], size("n")), is_inside(graph.outputs[0], size("n"))
(True, False)
"""

from __future__ import annotations

from smelt.graph.ir import Node
from smelt.ops.create import Constant, Iota, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.extern import Extern
from smelt.ops.index import Gather
from smelt.ops.reduce import Reduce
from smelt.ops.view import Concat, Expand, Flip, Permute, Reshape, Slice
from smelt.types.dtype import DType, i64
from smelt.types.expr import (
    Index,
    add,
    floordiv,
    mul,
    nonnegative,
    product,
    size,
    sub,
    terms_of,
)

__all__ = ["Span", "is_inside", "number_of", "size", "span"]

Span = tuple[Index | None, Index | None]
"""What a number is at least and at most; None where that is unknown."""

_UNKNOWN: Span = (None, None)
_DEPTH = 24
"""So many operators back."""
_SURE = 32
"""Numbers of so many bits count along any axis; sums are followed in those of twice as many, with
terms of fewer, so that none wraps around."""
_TIMES = 12
"""Bits of what sizes are multiplied by: sizes, and those of two axes together, are below 2**48."""
_TERMS = 6


def is_inside(at: Node, extent: Index) -> bool:
    """Whether all elements are positions of an axis of a length, whatever the data."""
    low, high = span(at)
    if low is None or high is None or not nonnegative(sub(sub(extent, 1), high)):
        return False
    return nonnegative(low)


def span(at: Node, depth: int = _DEPTH) -> Span:
    """What all elements of a value are at least and at most."""
    known = number_of(at)
    if known is not None:
        return known, known
    if depth == 0 or not (at.type.dtype.is_integer or at.type.dtype.kind == "bool"):
        return _UNKNOWN
    op = at.op
    extreme = isinstance(op, Reduce) and op.combine in ("max", "min")
    if extreme or isinstance(op, (Expand, Reshape, Permute, Flip, Slice, Gather)):
        return span(at.inputs[0], depth - 1)
    if isinstance(op, Iota) and op.dtype.bits >= _SURE:
        return 0, sub(op.shape[op.axis], 1)
    if isinstance(op, Concat):
        found = span(at.inputs[0], depth - 1)
        for x in at.inputs[1:]:
            found = _either(found, span(x, depth - 1))
        return found
    if isinstance(op, Reduce) and op.combine == "sum":
        return _counted(at, op, depth - 1)
    if isinstance(op, Reduce) and op.combine.startswith("arg") and len(op.axes) == 1:
        return 0, sub(at.inputs[0].type.shape[op.axes[0]], 1)
    if isinstance(op, Extern) and op.call == "argsort":
        return 0, sub(at.type.shape[dict(op.options)["axis"]], 1)
    if isinstance(op, Extern) and op.call == "searchsorted":
        return 0, at.inputs[0].type.shape[0]
    if isinstance(op, Cast):
        return _held(span(at.inputs[0], depth - 1), at.inputs[0].type.dtype, at.type.dtype)
    if isinstance(op, Map):
        return _of_map(op.scalar, at, depth - 1)
    return _range(at.type.dtype)


def number_of(node: Node) -> Index | None:
    """The number that a value is."""
    if isinstance(node.op, SizeOf):
        return node.op.expr
    if isinstance(node.op, Constant) and isinstance(node.op.value, int):
        return int(node.op.value)
    return None


def _counted(at: Node, op: Reduce, depth: int) -> Span:
    """Of a sum of numbers none of which is negative."""
    (x,) = at.inputs
    low, high = span(x, depth)
    if low is None or high is None or not nonnegative(low) or at.type.dtype != i64:
        return _range(at.type.dtype)
    if not isinstance(high, int) or high >> _SURE:
        return 0, None
    return 0, mul(product(x.type.shape[a] for a in op.axes), high)


def _range(dtype: DType) -> Span:
    """The ends of a short type's range."""
    if dtype.kind == "bool":
        return 0, 1
    if dtype.kind == "uint" and dtype.bits < 64:
        return 0, 2**dtype.bits - 1
    return _UNKNOWN


def _held(found: Span, source: DType, target: DType) -> Span:
    """What is known of a number in another type that holds all of its own."""
    if source.kind not in ("bool", "int", "uint"):
        return _range(target)
    wider = target.bits >= (source.bits if source.kind == target.kind else source.bits + 1)
    if target.kind == "uint" and source.kind == "int":
        wider = False
    low, high = found
    room = _range(source)
    held = (room[0] if low is None else low, room[1] if high is None else high)
    return held if wider or source.kind == "bool" else _range(target)


def _of_map(scalar: str, at: Node, depth: int) -> Span:
    """The same of a scalar operator."""
    if scalar == "select":
        test, a, b = at.inputs
        return _chosen(test, a, b, depth)
    if at.type.dtype.kind == "bool":
        return 0, 1
    if len(at.inputs) != 2:
        return _range(at.type.dtype)
    a, b = (span(x, depth) for x in at.inputs)
    if scalar == "max":
        return _greater(a, b)
    if scalar == "min":
        low, high = _greater(_minus(a), _minus(b))
        return _minus((low, high))
    if scalar == "and":
        tops = [high for low, high in (a, b) if low is not None and nonnegative(low)]
        top = next((t for t in tops if t is not None), None)
        return (0, top) if tops else _range(at.type.dtype)
    divisor = number_of(at.inputs[1])
    if divisor is not None and nonnegative(sub(divisor, 1)):
        if scalar == "mod":
            return 0, sub(divisor, 1)
        if scalar == "floordiv" and a[0] is not None and nonnegative(a[0]):
            return 0, None if a[1] is None else floordiv(a[1], divisor)
    if at.type.dtype != i64 or not all(_small(n) for n in (*a, *b)):
        return _range(at.type.dtype)
    found = _UNKNOWN
    if scalar == "mul" and divisor is not None and nonnegative(divisor):
        low, high = a
        found = (
            None if low is None else mul(low, divisor),
            None if high is None else mul(high, divisor),
        )
    elif scalar == "add":
        found = _sum(a, b)
    elif scalar == "sub":
        found = _sum(a, _minus(b))
    low, high = found
    return found if _small(low) and _small(high) else _UNKNOWN


def _small(n: Index | None) -> bool:
    """Whether what is made of a number next does not wrap around: one of few bits, or a few sizes
    and products of two.  Nothing is said of what is unknown."""
    terms = () if n is None else terms_of(n)
    return len(terms) <= _TERMS and all(
        abs(c) >> (_TIMES if m else _SURE) == 0 and len(m) <= 2 for m, c in terms
    )


def _chosen(test: Node, a: Node, b: Node, depth: int) -> Span:
    """One of two; of what is counted from the end where it is negative, that which is not."""
    plain, moved = span(b, depth), span(a, depth)
    wraps = isinstance(test.op, Map) and test.op.scalar == "lt" and test.inputs[0] is b
    if wraps and number_of(test.inputs[1]) == 0:
        if plain[0] is not None and nonnegative(plain[0]):
            return plain
        if isinstance(a.op, Map) and a.op.scalar == "add" and a.inputs[0] is b:
            more = number_of(a.inputs[1])
            low = plain[0]
            if more is not None and low is not None and nonnegative(add(low, more)):
                return _either((0, sub(more, 1)), (0, plain[1]))
    return _either(plain, moved)


def _sum(a: Span, b: Span) -> Span:
    low = None if a[0] is None or b[0] is None else add(a[0], b[0])
    return low, None if a[1] is None or b[1] is None else add(a[1], b[1])


def _minus(a: Span) -> Span:
    low, high = a
    return None if high is None else mul(high, -1), None if low is None else mul(low, -1)


def _greater(a: Span, b: Span) -> Span:
    """Of the greater of two: what either is at least, and what both are at most."""
    low = b[0] if a[0] is None or (b[0] is not None and nonnegative(sub(b[0], a[0]))) else a[0]
    return low, _either(a, b)[1]


def _either(a: Span, b: Span) -> Span:
    """Of one of two, whichever it is."""
    low = high = None
    if a[0] is not None and b[0] is not None:
        low = a[0] if nonnegative(sub(b[0], a[0])) else b[0]
        low = low if nonnegative(sub(a[0], low)) else None
    if a[1] is not None and b[1] is not None:
        high = a[1] if nonnegative(sub(a[1], b[1])) else b[1]
        high = high if nonnegative(sub(high, a[1])) else None
    return low, high
