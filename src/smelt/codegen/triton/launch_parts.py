"""Cut a launch into parts: some of its results, with what they need.

part = part_of(launch, frozenset(stores))
is_free(part.body, "c")     # whether each position of an axis is computed apart
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.codegen.triton.free_axes import Axes, axes_of_body, axes_of_index, axes_of_value
from smelt.kernel.ir import (
    Dot,
    Extreme,
    Kernel,
    Let,
    Partial,
    Position,
    Reduce,
    Scan,
    Statement,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.kernel.walk import axes_used, refs, statements, values_of, visit


def part_of(launch: Kernel, kept: frozenset[Store]) -> Kernel:
    """Return the launch with some of its stores alone, and what these need."""
    body = tuple(_needed(launch.body, kept, frozenset()))
    stored = {s.param for s in kept}
    outputs = tuple(p for p in launch.outputs if p.name in stored)
    return without_unused_axes(replace(launch, outputs=outputs, body=body))


def without_unused_axes(kernel: Kernel) -> Kernel:
    """Return the kernel with the axes that it mentions alone."""
    used = axes_used(kernel)
    return replace(kernel, axes=tuple(a for a in kernel.axes if a.name in used))


def _needed(
    body: Sequence[Statement], kept: frozenset[Store], names: frozenset[str]
) -> list[Statement]:
    """Return the statements of a body that some stores and names need."""
    wanted, result = set(names), list[Statement]()
    for s in reversed(body):
        new: Statement | None = s
        match s:
            case Stream():
                new = _needed_stream(s, kept, wanted)
            case Store():
                new = s if s in kept else None
            case Let(name=name) | Position(name=name) | Update(state=name):
                new = s if name in wanted else None
            case _:
                pass
        if new is not None:
            result.insert(0, new)
            wanted |= set(refs(new))
    return result


def _needed_stream(s: Stream, kept: frozenset[Store], wanted: set[str]) -> Stream | None:
    """Return a stream with the states that are wanted, or that its own steps need."""
    states = frozenset(t.name for t in s.states)
    needed: frozenset[str] = states & wanted
    inside = _needed(s.body, kept, needed)
    while not states.intersection(n for x in inside for n in refs(x)) <= needed:
        needed |= states.intersection(n for x in inside for n in refs(x))
        inside = _needed(s.body, kept, needed)
    if not inside:
        return None
    return replace(s, states=tuple(t for t in s.states if t.name in needed), body=tuple(inside))


def is_free(body: Sequence[Statement], axis: str) -> bool:
    """Return whether every position of an axis is computed and stored apart from all others."""
    names = axes_of_body(body)
    for s in statements(body):
        values = [v for root in values_of(s) for v in visit(root)]
        if any(isinstance(v, Partial | Extreme) or axis in joined_axes(v) for v in values):
            return False
        if isinstance(s, Store):
            indexed = Axes().union(*(axes_of_index(e, names) for e in s.index))
            if s.join or axis not in indexed:
                return False
        if isinstance(s, Stream) and axis in _control_axes(s, names):
            return False
    return True


def _control_axes(s: Stream, names: dict[str, Axes]) -> Axes:
    """Return the axes that a stream visits, and those of its ends and conditions."""
    blocks = (*s.blocks, *s.bounds)
    ends = [e for b in blocks for e in (b.start, b.stop) if e is not None]
    ends += [] if s.where is None else [s.where]
    return Axes(b.axis for b in blocks).union(*(axes_of_value(e, names) for e in ends))


def joined_axes(v: Value) -> tuple[str, ...]:
    """Return the axes along which a value combines elements."""
    match v:
        case Reduce(over=over) | Dot(over=over):
            return over
        case Scan(along=along):
            return (along,)
        case _:
            return ()
