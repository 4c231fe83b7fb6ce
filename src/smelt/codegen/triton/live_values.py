"""Find the values that a program needs at the same time.

    registers_of(live_sets(launch), {"r": 8, "c": 1024}, 256)

Divisions and exponentials of whole rows are computed one operator after another, so that every row
that a later operator reads takes registers until then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from smelt.kernel import ir
from smelt.kernel.env import Env
from smelt.kernel.walk import Axes, axes_of_body, refs, statements, values_of, visit

LiveSet = Mapping[Axes, int]
"""Bytes of an element of all values with the same axes."""
WORD_BYTES = 4
NEW = "'"
"""Marks the new value of a state behind its name."""


def live_sets(launch: ir.Kernel) -> tuple[LiveSet, ...]:
    """Return the largest sets of values and states that are needed at a time."""
    axes, nbytes = axes_of_body(launch.body), _bytes(launch)
    points: list[frozenset[str]] = []
    _before(launch.body, frozenset(), points)
    totals: dict[frozenset[tuple[Axes, int]], LiveSet] = {}
    for before, live, after in zip([None, *points], points, [*points[1:], None], strict=False):
        if (before is None or not live <= before) and (after is None or not live < after):
            total: dict[Axes, int] = {}
            for name in (n.removesuffix(NEW) for n in live):
                total[axes[name]] = total.get(axes[name], 0) + nbytes[name]
            totals[frozenset(total.items())] = total
    return tuple(totals.values())


def registers_of(sets: Iterable[LiveSet], lanes: Mapping[str, int], threads: int) -> int:
    """Return the registers of a thread that hold the largest set; scalars take none."""

    def elements(axes: Axes) -> int:
        count = math.prod(lanes.get(a, 1) for a in axes)
        return math.ceil(count / threads) if count > 1 else 0

    most = max((sum(elements(a) * n for a, n in s.items()) for s in sets), default=0)
    return math.ceil(most / WORD_BYTES)


def _bytes(launch: ir.Kernel) -> dict[str, int]:
    """Return the bytes of registers that an element of each name takes.

    Positions take none, they are computed where they are read, and so are conversions of what
    memory has in fewer bytes.
    """
    env = Env.after(launch)
    result = {name: max(b.dtype.itemsize, WORD_BYTES) for name, b in env.names.items()}
    for s in statements(launch):
        if isinstance(s, ir.Let):
            match s.value:
                case ir.IndexValue():
                    result[s.name] = 0
                case ir.Load(param=param):
                    result[s.name] = env.param(param).dtype.itemsize
                case ir.Cast(arg=ir.Ref(name=name)):
                    result[s.name] = min(result[s.name], result[name])
                case _:
                    pass
    return result


def _before(
    body: Sequence[ir.Statement], live: frozenset[str], points: list[frozenset[str]]
) -> frozenset[str]:
    """Return the names that are live before a body, and add those between its statements."""
    points.append(live)
    for s in reversed(body):
        if isinstance(s, ir.Stream):
            live = _before_stream(s, live, points)
        else:
            live = live - _bound(s) | _read(values_of(s))
        points.append(live)
    return live


def _before_stream(
    s: ir.Stream, live: frozenset[str], points: list[frozenset[str]]
) -> frozenset[str]:
    """Return the same for a loop: what a block reads from outside is live in all of them."""
    states = {t.name for t in s.states}
    updated = {u.state for u in s.body if isinstance(u, ir.Update)}
    after = live - states | {t + NEW if t in updated else t for t in states}
    outside = _before(s.body, after, []) - states
    first = _before(s.body, after | outside, points)
    return first - states | live - states | _read(values_of(s))


def _bound(s: ir.Statement) -> frozenset[str]:
    match s:
        case ir.Let(name=name) | ir.Position(name=name):
            return frozenset({name})
        case ir.Update(state=name):
            return frozenset({name + NEW})
        case _:
            return frozenset()


def _read(values: Iterable[ir.Value]) -> frozenset[str]:
    return frozenset(_names(values))


def _names(values: Iterable[ir.Value]) -> Iterator[str]:
    for v in (v for root in values for v in visit(root)):
        if isinstance(v, ir.Ref):
            yield v.name + NEW if v.next else v.name
        else:
            yield from refs(v)
