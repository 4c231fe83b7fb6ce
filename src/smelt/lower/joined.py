"""Kernels that write at places which depend on data: first values, then what joins them in order.

Updates are visited one by one, in the order of their axes, and computed where they are added.  A
result does not depend on who writes which part of it: each part of its rows is given to one block
of the grid, which looks at all places and takes up those that lie in its part.  Rows of few
elements are all of one block: looking at a place takes as long as adding to one.

    y[n,d] = x[n,d]
    stream m where (ids[m] >= first(n)) & (ids[m] <= last(n))
      at = position(ids[m], size(n))
      y[at,d] add= u[m,d]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from smelt.blocks import JOINED_PARTS, JOINED_WIDTH
from smelt.kernel.ir import (
    Apply,
    Axis,
    Block,
    Const,
    Extreme,
    IndexValue,
    Kernel,
    Let,
    Position,
    Split,
    Statement,
    Store,
    Stream,
    Value,
)  # fmt: skip
from smelt.kernel.walk import refs, substitute
from smelt.lower.define import Definition, Joined
from smelt.ops.contract import bare_axis
from smelt.types.dtype import i64
from smelt.types.expr import Index, floordiv, maximum, minimum, product, sub
from smelt.types.expr import value as position_index


def joining(name: str, d: Definition, joined: Joined) -> Kernel:
    """The kernel of a definition whose one result is joined by values at computed places."""
    (first,) = (s for s in d.body if isinstance(s, Store))
    (output,) = d.outputs
    lets = [s for s in d.body if isinstance(s, (Let, Position))]
    before = [*_needed(lets, [first.value], first.index), first]
    count = len(joined.places)
    parts = _parts(output.shape, count)
    rows = bare_axis(first.index[0]) if parts != 1 else None
    taken = {*d.axes, *(s.name for s in lets), *(p.name for p in (*d.inputs, *d.outputs))}
    index: list[Index] = []
    steps: list[Statement] = [*_needed(lets, [joined.value, *(v for v, _ in joined.places)], ())]
    for k, (at, extent) in enumerate(joined.places):
        if extent == 1:
            index.append(0)
            continue
        own = _free(f"at{k}" if count > 1 else "at", taken)
        steps.append(Position(own, at, extent))
        index.append(position_index(own, extent))
    index += first.index[count:]
    steps.append(Store(output.name, tuple(index), joined.value, None, joined.how))
    known: Mapping[str, Value] = {s.name: s.value for s in lets if isinstance(s, Let)}
    where: list[Value] = []
    for k, (at, extent) in enumerate(joined.places):
        if extent != 1:
            own_rows = d.axes[rows] if rows is not None and k == 0 else None
            where += _inside(_whole(at, known), extent, own_rows)
    visits = Stream(tuple(Block(a, 1) for a in joined.over), (), tuple(steps), _all(where))
    body: tuple[Statement, ...] = (*before, visits)
    grid: tuple[Split, ...] = ()
    if rows is not None:
        part = _free("q", taken)
        grid = (Split(part, rows, parts),)
        body = (Stream((Block(rows, None, None, part),), (), body),)
    axes = tuple(d.axes.values())
    return Kernel(name, tuple(d.inputs), tuple(d.outputs), axes, grid, body)


def _parts(shape: Sequence[Index], count: int) -> Index:
    """How many parts the rows of a result are taken in: more where each has more elements."""
    if shape[0] == 1:
        return 1
    width = floordiv(product(shape[count:]), JOINED_WIDTH)
    return maximum(minimum(width, JOINED_PARTS), 1)


def _inside(at: Value, extent: Index, rows: Axis | None) -> tuple[Value, Value]:
    """The two tests that a place lies in an extent, or in the present block of its rows."""
    if rows is None:
        last = IndexValue(sub(extent, 1), i64)
        return Apply("ge", (at, Const(0, i64))), Apply("le", (at, last))
    here = IndexValue(rows.index, i64)
    return Apply("ge", (at, Extreme(here, False))), Apply("le", (at, Extreme(here, True)))


def _all(tests: Sequence[Value]) -> Value | None:
    """Whether all of them hold, if there are any."""
    return reduce(lambda a, b: Apply("and", (a, b)), tests) if tests else None


def _whole(value: Value, known: Mapping[str, Value]) -> Value:
    """A value without names."""
    while (found := substitute(value, names=known)) != value:
        value = found
    return value


def _needed(
    lets: Sequence[Let | Position], values: Iterable[Value], index: Iterable[Index]
) -> list[Let | Position]:
    """The statements that some values read, in order."""
    probe = Store("", tuple(index), Const(0, i64))
    wanted = {*refs(probe), *(n for v in values for n in refs(v))}
    found: list[Let | Position] = []
    for s in reversed(lets):
        if s.name in wanted:
            found.append(s)
            wanted.update(refs(s))
    return found[::-1]


def _free(wanted: str, taken: set[str]) -> str:
    """A name that nothing has yet."""
    names = (wanted, *(f"{wanted}{k}" for k in range(2, len(taken) + 3)))
    found = next(name for name in names if name not in taken)
    taken.add(found)
    return found
