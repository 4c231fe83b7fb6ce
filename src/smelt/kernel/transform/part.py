"""Cut a kernel into parts: some of its results, with what they need.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel both(x: f32[r,c]) -> y: f32[r,c], z: f32[r]
...   grid r
...   a = exp(x[r,c])
...   y[r,c] = a
...   z[r] = sum(x[r,c] over c)
... ''')
>>> print(text(part_of(kernel, kernel.body[-1:])))
kernel both(x: f32[r,c]) -> z: f32[r]
  grid r
  z[r] = sum(x[r,c] over c)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from smelt.kernel.ir import Kernel, Let, Merge, Position, Statement, Store, Stream, Update
from smelt.kernel.walk import axes_used, refs, stores


def part_of(kernel: Kernel, kept: Collection[Store]) -> Kernel:
    """Return the kernel with some of its stores alone, and what these need."""
    return without_unused(replace(kernel, body=tuple(_needed(kernel.body, {*kept}, frozenset()))))


def without_unused(kernel: Kernel) -> Kernel:
    """Return the kernel without the axes and results that nothing mentions."""
    used, stored = axes_used(kernel), {s.param for s in stores(kernel)}
    axes = tuple(a for a in kernel.axes if a.name in used)
    return replace(kernel, axes=axes, outputs=tuple(p for p in kernel.outputs if p.name in stored))


def _needed(
    body: Sequence[Statement], kept: Collection[Store], names: frozenset[str]
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
            case Merge(states=states):
                wanted |= {*states}
        if new is not None:
            result.insert(0, new)
            wanted |= set(refs(new))
    return result


def _needed_stream(s: Stream, kept: Collection[Store], wanted: set[str]) -> Stream | None:
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
