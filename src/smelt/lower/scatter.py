"""Kernels that write at places which depend on data: first values, then what joins them in order.

Updates are visited one by one, in the order of their axes, and computed where they are added.  A
result does not depend on who writes which part of it: each part of its rows is given to one block
of the grid, which looks at all places and takes up those that lie in its part.  Rows of few
elements are all of one block: looking at a place takes as long as adding to one.

    y[n,d] = x[n,d]
    stream m where (ids[m] >= first(n)) & (ids[m] <= last(n))
      at = position(ids[m], size(n))
      y[at,d] add= u[m,d]

A place that is nothing but an axis of the updates, counted from 0, is that axis of the result: both
go on together, in blocks of their own where they stand before computed places, all at once behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from smelt.blocks import JOINED_PARTS, JOINED_WIDTH
from smelt.kernel.ir import (
    LAST,
    Apply,
    Axis,
    Block,
    Cast,
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
)
from smelt.kernel.walk import refs, substitute
from smelt.lower.assign_axes import analyse, value_axes
from smelt.lower.define import Definition, Joined
from smelt.ops.contract import bare_axis
from smelt.types.dtype import i64
from smelt.types.expr import Index, floordiv, maximum, minimum, product, sub
from smelt.types.expr import value as position_index


def joining(name: str, d: Definition, joined: Joined) -> Kernel:
    """The kernel of a definition whose one result is joined by values at computed places."""
    (first,), (output,) = (s for s in d.body if isinstance(s, Store)), d.outputs
    lets = [s for s in d.body if isinstance(s, (Let, Position))]
    given = _needed(lets, [first.value], first.index)
    along = _along(d, joined, lets, first.index)
    lets, joined = _renamed(d, joined, lets, along)
    taken = {*d.axes, *(s.name for s in lets), *(p.name for p in (*d.inputs, *d.outputs))}
    known: Mapping[str, Value] = {s.name: s.value for s in lets if isinstance(s, Let)}
    bound = {s.name for s in given}
    wanted = _needed(lets, [joined.value, *(v for v, _ in joined.places)], ())
    steps: list[Statement] = [s for s in wanted if s.name not in bound]
    index = list(first.index)
    computed: list[tuple[int, Value]] = []
    for k, (at, extent) in enumerate(joined.places):
        if extent != 1 and bare_axis(first.index[k]) not in along.values():
            own_name = _free("at", taken)
            steps.append(Position(own_name, at, extent))
            index[k] = position_index(own_name, extent)
            computed.append((k, _whole(at, known)))
    front = [
        a
        for e in first.index[: computed[0][0] if computed else 0]
        if (a := bare_axis(e)) in along.values() and a is not None
    ]
    held = {*front, *joined.over}
    statements: list[Statement] = [*lets]
    names = analyse(statements).axes
    varies = any(value_axes(at, names) - held or _looked_up(at, lets) for _, at in computed)
    parts: Index = 1
    if computed and not (varies or front):
        parts = _parts([n for n, e in zip(output.shape, index, strict=True) if bare_axis(e)])
    rows = None if parts == 1 else bare_axis(first.index[computed[0][0]])
    tests: list[Value] = []
    for k, at in computed:
        part_of = d.axes[rows] if rows is not None and k == computed[0][0] else None
        tests += _inside(at, output.shape[k], part_of)
    inside = _all(tests)
    steps.append(
        Store(output.name, tuple(index), joined.value, inside if varies else None, joined.how)
    )
    if joined.over:
        blocks = tuple(Block(a, 1) for a in joined.over)
        steps = [Stream(blocks, (), tuple(steps), None if varies else inside)]
    elif not varies:
        steps[-1] = replace(steps[-1], where=inside)
    body: tuple[Statement, ...] = (*given, first, *steps)
    if not joined.over and not computed:  # one value joins each element, in the order of neither
        last = joined.value
        if joined.how != LAST:
            last = Apply(joined.how, (first.value, last))
        body = (*given, *steps[:-1], replace(first, value=last))
    grid: list[Block | Split] = [Block(a, 1) for a in front]
    if rows is not None:
        part = _free("q", taken)
        grid.append(Split(part, rows, parts))
        body = (Stream((Block(rows, None, None, part),), (), body),)
    axes = tuple(a for a in d.axes.values() if a.name not in along)
    return Kernel(name, tuple(d.inputs), tuple(d.outputs), axes, tuple(grid), body)


def _renamed(
    d: Definition, joined: Joined, lets: list[Let | Position], along: Mapping[str, str]
) -> tuple[list[Let | Position], Joined]:
    """Updates whose axes that are axes of the result are called so."""
    if not along:
        return lets, joined
    own = {a: d.axes[b].index for a, b in along.items()}
    lets = [replace(s, value=substitute(s.value, axes=own)) for s in lets]
    places = tuple((substitute(at, axes=own), n) for at, n in joined.places)
    over = tuple(a for a in joined.over if a not in along)
    value = substitute(joined.value, axes=own)
    return lets, replace(joined, over=over, places=places, value=value)


def _along(
    d: Definition, joined: Joined, lets: Sequence[Let | Position], index: Sequence[Index]
) -> dict[str, str]:
    """Axes of the updates that are axes of the result: places that count them from 0."""
    known = {s.name: s.value for s in lets if isinstance(s, Let)}
    found: dict[str, str] = {}
    for (at, extent), own in zip(joined.places, index, strict=False):
        value, axis = _whole(at, known), bare_axis(own)
        value = value.arg if isinstance(value, Cast) else value
        counted = isinstance(value, IndexValue) and value.dtype == i64
        name = bare_axis(value.index) if counted else None  # type: ignore[union-attr]
        counts = name is not None and name in joined.over and d.axes[name].extent == extent
        if name is not None and counts and axis is not None and name not in found:
            found[name] = axis
    return found


def _parts(width: Iterable[Index]) -> Index:
    """How many parts the rows of a result are taken in: more where each has more elements."""
    return maximum(minimum(floordiv(product(width), JOINED_WIDTH), JOINED_PARTS), 1)


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


def _looked_up(value: Value, lets: Sequence[Let | Position]) -> bool:
    """Whether a value is read at computed positions, which are known inside a visit only."""
    computed = {s.name for s in lets if isinstance(s, Position)}
    return not computed.isdisjoint(refs(Store("", (), value)))


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
