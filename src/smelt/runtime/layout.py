"""Place a call's intermediates in memory for known sizes.

A plan's offsets hold for all sizes and do not include its kernels' workspaces: partial results
and operands packed per call. For known sizes values can be packed more tightly, and a kernel's
workspace goes where no value lives during its launch. Values that are dead when a large result is
written are placed inside that result's memory, as far as they fit.

    kernel 0: x -> a, packs w            arena   a | b
    kernel 1: a -> b, packs v                      w's panels above a, v's above both
    kernel 2: b -> y                     y       a, too, if it fits and y is large
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

from smelt.kernel.offsets import pack
from smelt.python.dataclass import dataclass
from smelt.runtime.steps import CallStep, Step, Value
from smelt.types.expr import Index, evaluate

CACHE_LINE_BYTES = 64
"""Cache line in bytes; all offsets are multiples of it."""
MIN_SAVED_BYTES = 1 << 18
"""Bytes that must be saved to replace the plan's offsets; searching takes about a millisecond."""

Place: TypeAlias = tuple[int, int]
"""Output whose memory holds the value (-1: the arena), and the byte offset."""


class Layout(NamedTuple):
    """Placement of values and kernel workspaces at given sizes."""

    values: Mapping[int, Place]
    """Locations of values that are neither inputs nor results, by number."""
    partials: Mapping[tuple[int, int, int], int]
    """Arena offsets of workspaces, by group, step and number in the step."""
    nbytes: int
    """Arena size in bytes."""


@dataclass(slots=True, eq=False)
class _Piece:
    """Memory of one value, of values sharing one location, or of a kernel's workspace."""

    hint: int
    filled: int
    """Bytes used; `hint` is that rounded up to cache lines."""
    first: int
    last: int
    values: list[int] = field(default_factory=list[int])
    partial: tuple[int, int, int] | None = None
    at: int = 0
    host: int = -1


def place_values(
    values: Sequence[Value],
    launches: Sequence[Sequence[Step]],
    arena: Sequence[Index],
    sizes: Mapping[str, int],
) -> Layout:
    """Place values at `sizes`; `arena` lists where the plan's arena values end, in bytes."""
    partials = list(_workspaces(launches, sizes))
    top = _round_to_lines(max((int(evaluate(end, sizes)) for end in arena), default=0))
    plan_bytes = top + sum(p.hint for p in partials)
    if plan_bytes > MIN_SAVED_BYTES:
        pieces, written = _value_pieces(values, launches, sizes)
        results = {n: _nbytes(values[n], sizes) for n in written}
        if plan_bytes - _lower_bound([*pieces, *partials], written, results) > MIN_SAVED_BYTES:
            unplaced = _place_in_results(pieces, written, results)
            nbytes = pack([*unplaced, *partials])
            if plan_bytes - nbytes > MIN_SAVED_BYTES:
                hosts = {n: values[n].number for n in written}
                placed = {n: (hosts.get(p.host, -1), p.at) for p in pieces for n in p.values}
                return Layout(placed, {p.partial: p.at for p in partials if p.partial}, nbytes)
    for p in partials:
        p.at, top = top, top + p.hint
    placed = {
        n: (v.number if v.place == "within" else -1, int(evaluate(v.offset, sizes)))
        for n, v in enumerate(values)
        if v.place in ("arena", "within")
    }
    return Layout(placed, {p.partial: p.at for p in partials if p.partial}, top)


def _round_to_lines(nbytes: int) -> int:
    return -(-nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


def _nbytes(value: Value, sizes: Mapping[str, int]) -> int:
    return math.prod(int(evaluate(d, sizes)) for d in value.shape) * value.dtype.itemsize


def _workspaces(launches: Sequence[Sequence[Step]], sizes: Mapping[str, int]) -> Iterator[_Piece]:
    """Yield the kernels' workspaces, which live for one launch."""
    for time, group in enumerate(launches):
        for k, step in enumerate(group):
            if isinstance(step, CallStep) or not step.partials:
                continue
            code_sizes = step.sizes(sizes)
            for j, size in enumerate(step.partials):
                nbytes = int(evaluate(size, code_sizes))
                yield _Piece(_round_to_lines(nbytes), nbytes, time, time, partial=(time, k, j))


def _value_pieces(
    values: Sequence[Value], launches: Sequence[Sequence[Step]], sizes: Mapping[str, int]
) -> tuple[list[_Piece], dict[int, int]]:
    """Return the pieces of values with their lifetimes, and when each result is first written.

    Values that take over another value's memory in the plan share a piece with it. Results
    written over inputs are left out.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for time, group in enumerate(launches):
        for step in group:
            for n in step_values(step):
                first.setdefault(n, time)
                last[n] = time
    current: dict[Any, _Piece] = {}
    pieces: list[_Piece] = []
    written: dict[int, int] = {}
    for n, begin in first.items():
        v = values[n]
        if v.place == "output" and v.overwrites < 0:
            written[n] = begin
        if v.place not in ("arena", "within"):
            continue
        nbytes, location = _nbytes(v, sizes), (v.place, v.number, v.offset)
        previous = current.get(location)
        if previous is not None and begin <= previous.last:
            previous.filled = max(previous.filled, nbytes)
            previous.hint, previous.last = (
                _round_to_lines(previous.filled),
                max(previous.last, last[n]),
            )
            previous.values.append(n)
            continue
        current[location] = piece = _Piece(_round_to_lines(nbytes), nbytes, begin, last[n], [n])
        pieces.append(piece)
    return pieces, written


def step_values(step: Step) -> Iterator[int]:
    """Yield the values that a step reads or writes."""
    if isinstance(step, CallStep):
        yield from step.inputs
        yield from step.outputs
    else:
        yield from (operand for kind, operand in step.words if kind == "value")


def _lower_bound(
    pieces: Sequence[_Piece], written: Mapping[int, int], results: Mapping[int, int]
) -> int:
    """Return a lower bound of the arena: peak live bytes that fit into no result."""
    changes: dict[int, int] = {}
    for p in pieces:
        changes[p.first] = changes.get(p.first, 0) + p.hint
        changes[p.last + 1] = changes.get(p.last + 1, 0) - p.hint
    for n, time in written.items():
        changes[time] = changes.get(time, 0) + results[n]
    live = peak = 0
    for time in sorted(changes):
        live += changes[time]
        peak = max(peak, live)
    return max(peak - sum(results.values()), 0)


def _place_in_results(
    pieces: list[_Piece], written: Mapping[int, int], results: Mapping[int, int]
) -> list[_Piece]:
    """Place pieces that are dead before a result is written inside that result.

    Results are tried from the largest down. Returns the pieces that still need arena space.
    """
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
