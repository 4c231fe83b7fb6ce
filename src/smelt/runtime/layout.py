"""Where a call of known sizes keeps what lies between its kernels.

The offsets of a plan hold for all sizes, and a plan does not know what its kernels want beside its
values: partial results, operands packed for one call.  For sizes that are told, values stand closer
together, and what a kernel wants for itself lies where nothing else lives during its launch.
Values that are dead when a large result is written stand in that result's memory, as far as they
fit for these sizes.

    kernel 0: x -> a, packs w            arena   a | b
    kernel 1: a -> b, packs v                      w's panels above a, v's above both
    kernel 2: b -> y                     y       a, too, if it fits and y is large
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

from smelt.dataclass import dataclass
from smelt.offsets import pack
from smelt.runtime.steps import CallStep, Step, Value
from smelt.types.expr import Index, evaluate

__all__ = ["Layout", "layout", "touched"]

LINE = 64
"""Bytes of a cache line: everything starts at multiples of it."""
LEAST_GAIN = 1 << 18
"""Bytes that must be saved for the plan's offsets to be given up: looking costs a millisecond."""

Place: TypeAlias = tuple[int, int]
"""The output in whose memory something stands, -1 for the arena; its offset."""


class Layout(NamedTuple):
    """Places of values and of what kernels want for themselves, for given sizes."""

    values: Mapping[int, Place]
    """By number, of those that are no inputs and no results."""
    partials: Mapping[tuple[int, int, int], int]
    """Offsets in the arena, by group, step and number among the step's."""
    nbytes: int
    """Of the arena."""


@dataclass(slots=True, eq=False)
class _Piece:
    """Memory of one value, of several one over the other, or of a kernel."""

    hint: int
    filled: int
    """Its bytes, of which `hint` are whole cache lines."""
    first: int
    last: int
    values: list[int] = field(default_factory=list[int])
    partial: tuple[int, int, int] | None = None
    at: int = 0
    host: int = -1


def layout(
    values: Sequence[Value],
    launches: Sequence[Sequence[Step]],
    arena: Sequence[Index],
    sizes: Mapping[str, int],
) -> Layout:
    """The places at `sizes`; `arena` lists where values of the plan's arena end, in bytes."""
    partials = list(_partials(launches, sizes))
    top = _lines(max((int(evaluate(end, sizes)) for end in arena), default=0))
    plain = top + sum(p.hint for p in partials)
    if plain > LEAST_GAIN:
        pieces, written = _pieces(values, launches, sizes)
        results = {n: _nbytes(values[n], sizes) for n in written}
        if plain - _least([*pieces, *partials], written, results) > LEAST_GAIN:
            left = _hosted(pieces, written, results)
            found = pack([*left, *partials])
            if plain - found > LEAST_GAIN:
                hosts = {n: values[n].number for n in written}
                placed = {n: (hosts.get(p.host, -1), p.at) for p in pieces for n in p.values}
                return Layout(placed, {p.partial: p.at for p in partials if p.partial}, found)
    for p in partials:
        p.at, top = top, top + p.hint
    placed = {
        n: (v.number if v.place == "within" else -1, int(evaluate(v.offset, sizes)))
        for n, v in enumerate(values)
        if v.place in ("arena", "within")
    }
    return Layout(placed, {p.partial: p.at for p in partials if p.partial}, top)


def _lines(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE


def _nbytes(value: Value, sizes: Mapping[str, int]) -> int:
    return math.prod(int(evaluate(d, sizes)) for d in value.shape) * value.dtype.itemsize


def _partials(launches: Sequence[Sequence[Step]], sizes: Mapping[str, int]) -> Iterator[_Piece]:
    """What kernels want for themselves: it lives for their launch."""
    for time, group in enumerate(launches):
        for k, step in enumerate(group):
            if isinstance(step, CallStep) or not step.partials:
                continue
            own = step.sizes(sizes)
            for j, size in enumerate(step.partials):
                nbytes = int(evaluate(size, own))
                yield _Piece(_lines(nbytes), nbytes, time, time, partial=(time, k, j))


def _pieces(
    values: Sequence[Value], launches: Sequence[Sequence[Step]], sizes: Mapping[str, int]
) -> tuple[list[_Piece], dict[int, int]]:
    """Those of values, with their times, and when each result is written that has memory of its
    own.  Where the plan has one value take over another's memory, both are one piece."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for time, group in enumerate(launches):
        for step in group:
            for n in touched(step):
                first.setdefault(n, time)
                last[n] = time
    standing: dict[Any, _Piece] = {}
    pieces: list[_Piece] = []
    written: dict[int, int] = {}
    for n, begin in first.items():
        v = values[n]
        if v.place == "output" and v.over < 0:
            written[n] = begin
        if v.place not in ("arena", "within"):
            continue
        nbytes, spot = _nbytes(v, sizes), (v.place, v.number, v.offset)
        before = standing.get(spot)
        if before is not None and begin <= before.last:
            before.filled = max(before.filled, nbytes)
            before.hint, before.last = _lines(before.filled), max(before.last, last[n])
            before.values.append(n)
            continue
        standing[spot] = piece = _Piece(_lines(nbytes), nbytes, begin, last[n], [n])
        pieces.append(piece)
    return pieces, written


def touched(step: Step) -> Iterator[int]:
    """The values that a step reads or writes."""
    if isinstance(step, CallStep):
        yield from step.inputs
        yield from step.outputs
    else:
        yield from (what for kind, what in step.words if kind == "value")


def _least(pieces: Sequence[_Piece], written: Mapping[int, int], results: Mapping[int, int]) -> int:
    """Bytes that no arena is smaller than: what is alive together and fits into no result."""
    changes: dict[int, int] = {}
    for p in pieces:
        changes[p.first] = changes.get(p.first, 0) + p.hint
        changes[p.last + 1] = changes.get(p.last + 1, 0) - p.hint
    for n, time in written.items():
        changes[time] = changes.get(time, 0) + results[n]
    live = most = 0
    for time in sorted(changes):
        live += changes[time]
        most = max(most, live)
    return max(most - sum(results.values()), 0)


def _hosted(
    pieces: list[_Piece], written: Mapping[int, int], results: Mapping[int, int]
) -> list[_Piece]:
    """Finds places in results, the largest first, for what is dead by then; gives those left."""
    for host in sorted(written, key=lambda n: -results[n]):
        guests = [p for p in pieces if p.last < written[host] and p.filled <= results[host]]
        while guests:
            pack(guests)
            fits = [p for p in guests if p.at + p.filled <= results[host]]
            if len(fits) == len(guests):
                break
            guests = fits
        for p in guests:
            p.host = host
        pieces = [p for p in pieces if p.host < 0]
    return pieces
