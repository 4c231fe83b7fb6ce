"""Positions that a graph reads or writes, and what tells whether all of them are inside.

Kernels keep every position inside its axis, so that none ever reads outside of an array; NumPy and
PyTorch raise an error for one outside, and so do we.  Positions that count along a size are a
question about sizes, asked before the graph runs.  Those that depend on data are asked by the graph
itself, with one more result: whether any is outside.  What is inside for sure, as positions that
were found as the place of an extreme, cut off at the ends, or taken as a remainder, costs nothing.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n], i: i64[m]) {\\n v0 = gather(x, i) {first=0}\\n return v0\\n}")
>>> looked_at(graph.outputs).flag
<reduce.any bool[]>
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import reduce
from typing import NoReturn

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.errors import OutsideError
from smelt.graph import build
from smelt.graph.bounds import is_inside, number_of
from smelt.graph.ir import Graph, Node
from smelt.ops.create import Input, Iota, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather, Scatter
from smelt.ops.reduce import Reduce
from smelt.ops.view import Expand, Flip, Permute, Reshape, Slice
from smelt.origin import Origin
from smelt.types.dtype import DType, i64
from smelt.types.expr import Index, add, mul, nonnegative, product, sizes_of, sub

__all__ = ["Looks", "Read", "Reader", "looked_at", "reader", "refused"]


Trust = Callable[[Node, Node], bool]
Reader = tuple[str, "Origin | None"]
"""What an operator does, in words, and where it comes from."""
Read = tuple[Node, Index, Reader]
"""Positions, the length of the axis that they count along, and who reads there."""


@dataclass(frozen=True, slots=True)
class Looks:
    """What must hold for the positions that a graph reads."""

    flag: Node | None = None
    """Whether any is outside, as the data says."""
    sizes: tuple[Index, ...] = ()
    """Which may not be negative: how far the least position is from the front of its axis, and how
    far the greatest is from its end."""
    readers: tuple[Reader, ...] = ()
    """Operators that read at positions that are not inside for sure."""
    asked: tuple[tuple[Node, Index, Index, Reader], ...] = ()
    """What the flag asks: positions, the least that one may be, the length of the axis, and who
    reads there first."""


def looked_at(
    outputs: Sequence[Node],
    promised: Collection[Node] = (),
    signed: Collection[str] = (),
    more: Sequence[Read] = (),
    trusted: Trust | None = None,
) -> Looks:
    """What has to be looked at for these results, and for `more` reads.  `promised` read inside by
    their own rule, the sizes `signed` are numbers that may be negative, and `trusted` says of
    positions, and of what they were before negative ones were counted from the end, whether they
    have been looked at."""
    nodes = Graph("looks", (), (*outputs, *(at for at, _, _ in more))).nodes()
    reads = [*((*r, True) for r in _reads(nodes, promised)), *((*r, False) for r in more)]
    depends: set[Node] = set()
    for node in nodes if reads else ():
        if isinstance(node.op, Input) or any(x in depends for x in node.inputs):
            depends.add(node)
    flags: dict[tuple[Index, ...], dict[tuple[Node, Index, Index], Node]] = {}
    sizes: dict[Index, None] = {}
    readers: dict[Reader, None] = {}
    asked: list[tuple[Node, Index, Index, Reader]] = []
    data = knobs.CHECK_POSITIONS.get()
    for at, extent, who, own in reads:
        if trusted is not None and trusted(_core(at), _core(_from_the_end(_base(at), extent)[0])):
            continue
        base, low = _from_the_end(_base(at), extent)
        span = _span(base)
        room = () if span is None else (sub(span[0], low), sub(sub(extent, 1), span[1]))
        unsure = [
            _where_any(n, at.type.shape)
            for n in room
            if not nonnegative(n) or {*sizes_of(n)} & {*signed}
        ]
        if at not in depends and (span is not None or (own and low == 0)):
            # what is unknown then is a rule's own arithmetic, as for margins: those of a caller
            # may be negative, or are among `more`
            sizes |= dict.fromkeys(unsure)
            readers |= {who: None} if unsure else {}
        elif data and (span is None or unsure) and (signed or not is_inside(at, extent)):
            found = flags.setdefault(base.type.shape, {})
            if (base, low, extent) not in found:
                found[base, low, extent] = _outside(base, low, extent)
                readers[who] = None
                asked.append((base, low, extent, who))
    return Looks(
        _any([[*group.values()] for group in flags.values()]),
        tuple(sizes),
        tuple(readers),
        tuple(asked),
    )


def _where_any(room: Index, shape: Sequence[Index]) -> Index:
    """The room, or 0 for positions of which there are none."""
    return mul(room, product(d for d in shape if d == 0 or not isinstance(d, int)))


def _reads(nodes: Sequence[Node], promised: Collection[Node]) -> Iterator[Read]:
    for node in nodes:
        if node in promised:
            continue
        if isinstance(node.op, Gather):
            x, *index = node.inputs
            for k, at in enumerate(index):
                yield at, x.type.shape[node.op.first + k], reader(node)
        elif isinstance(node.op, Scatter):
            x, _, *index = node.inputs
            for k, at in enumerate(index):
                yield at, x.type.shape[k], reader(node)


def _any(groups: Sequence[Sequence[Node]]) -> Node | None:
    """Whether any element is true, of values that have equal shapes in a group."""
    whole: Node | None = None
    for group in groups:
        each = reduce(_or, group)
        if each.type.rank:
            each = build.apply(Reduce("any", tuple(range(each.type.rank))), each)
        whole = each if whole is None else _or(whole, each)
    return whole


def _or(a: Node, b: Node) -> Node:
    return build.map("or", a, b)


def _outside(at: Node, low: Index, extent: Index) -> Node:
    """Whether each position is below `low`, or at `extent` or above."""
    dtype = at.type.dtype
    above = build.map("ge", at, _number(extent, dtype))
    if dtype.kind == "uint":
        return above
    return build.map("or", build.map("lt", at, _number(low, dtype)), above)


def _number(n: Index, dtype: DType) -> Node:
    return build.constant(n, dtype) if isinstance(n, int) else build.apply(SizeOf(n, dtype))


def _core(at: Node) -> Node:
    """The positions behind views and changes of their type."""
    at = _base(at)
    while isinstance(at.op, Cast) and at.inputs[0].type.dtype.is_integer:
        at = _base(at.inputs[0])
    return at


def _base(at: Node) -> Node:
    """The positions behind views that only arrange or repeat them."""
    while isinstance(at.op, (Expand, Reshape, Permute, Flip)):
        (at,) = at.inputs
    return at


def _from_the_end(at: Node, extent: Index) -> tuple[Node, Index]:
    """Positions of which negative ones count from the end, as they were given, and the least that
    may be; others as they are, and 0."""
    if isinstance(at.op, Map) and at.op.scalar == "select":
        test, moved, plain = at.inputs
        if (
            isinstance(test.op, Map)
            and test.op.scalar == "lt"
            and test.inputs[0] is plain
            and number_of(test.inputs[1]) == 0
            and isinstance(moved.op, Map)
            and moved.op.scalar == "add"
            and moved.inputs[0] is plain
            and number_of(moved.inputs[1]) == extent
        ):
            return _base(plain), mul(extent, -1)
    return at, 0


def _span(at: Node) -> tuple[Index, Index] | None:
    """The least and the greatest position, both of which there are; None where that is unknown."""
    at = _base(at)
    known = number_of(at)
    if known is not None:
        return known, known
    if isinstance(at.op, Iota):
        return 0, sub(at.op.shape[at.op.axis], 1)
    if isinstance(at.op, Slice):
        (x,) = at.inputs
        if not isinstance(x.op, Iota):
            return None
        a = x.op.axis
        first, step = at.op.starts[a], at.op.steps[a]
        return (first, add(first, mul(sub(at.op.sizes[a], 1), step))) if step > 0 else None
    if isinstance(at.op, Cast):
        (x,) = at.inputs
        return _span(x) if x.type.dtype.kind in ("int", "uint") and at.op.dtype == i64 else None
    if not isinstance(at.op, Map):
        return None
    if at.op.scalar == "select":
        plain = _span(at.inputs[2])
        wrapped = isinstance(at.inputs[0].op, Map) and at.inputs[0].op.scalar == "lt"
        below = wrapped and at.inputs[0].inputs[0] is at.inputs[2]
        return plain if below and plain is not None and nonnegative(plain[0]) else None
    if at.op.scalar in ("add", "sub", "mul") and len(at.inputs) == 2:
        x, c = at.inputs
        if number_of(c) is None and at.op.scalar != "sub":
            x, c = c, x
        span, n = _span(x), number_of(c)
        if span is None or n is None:
            return None
        if at.op.scalar == "mul":
            return (mul(span[0], n), mul(span[1], n)) if nonnegative(n) else None
        change = add if at.op.scalar == "add" else sub
        return change(span[0], n), change(span[1], n)
    return None


def reader(node: Node) -> Reader:
    """An operator as who may have read outside."""
    return getattr(node.origin, "operator", "") or f"a {node.op.doc}", node.origin


def refused(readers: Sequence[Reader]) -> NoReturn:
    """Raises OutsideError, which names those who may have read outside."""
    told = dict.fromkeys(_told(*r, alone=len(readers) == 1) for r in readers)
    first = next((o for _, o in readers if o is not None and o.known), None)
    raise OutsideError(reader=" or ".join(told), origin=first)


def _told(what: str, origin: Origin | None, *, alone: bool) -> str:
    """An operator with its module or, where there are several, its line."""
    module = getattr(origin, "module", None)
    if module is None and not alone and origin is not None and origin.known:
        return f"{what} ({origin})"
    return f"{what} {module or ''}".strip()
