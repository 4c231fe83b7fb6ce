"""Count the elements that the stores of a kernel write.

No two stores may write the same element.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel k(x: f32[8]) -> y: f32[8]
...   axis i in 8
...   y[i] = x[i] where (i < 3) | (i > 5)
... ''')
>>> count_stored(kernel, "y")
5
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, Final

import numpy as np

from smelt.kernel import ir
from smelt.kernel.bounds import as_index, resolve
from smelt.types.expr import Atom, Index, atoms, evaluate

MAX_POINTS: Final = 1 << 22
"""Maximum positions at which one condition is evaluated."""
_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_COMBINE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}

Lets = Mapping[str, ir.Value]


class _Unknown(Exception):
    """A number of positions that depends on data, or is too expensive to count."""


def count_stored(kernel: ir.Kernel, param: str) -> int | None:
    """Return how many elements of an output are stored, None if that depends on data.

    The kernel has numbers for all sizes, and its stores write every element once at most.
    Scatter-reduce stores do not count: a plain store was there before.
    """
    extents = {a.name: _integer(a.extent) for a in kernel.axes}
    grid = {b.axis: extents[b.axis] for b in kernel.grid if isinstance(b, ir.Block)}
    try:
        return sum(
            _count(s, visited, lets, extents)
            for s, visited, lets in _stores(kernel.body, grid, {}, extents)
            if s.param == param and not s.join
        )
    except _Unknown:
        return None


def _integer(e: Index) -> int:
    if not isinstance(e, int):
        raise _Unknown
    return e


def _stores(
    body: tuple[ir.Statement, ...],
    visited: dict[str, int],
    lets: dict[str, ir.Value],
    extents: Mapping[str, int],
) -> Iterator[tuple[ir.Store, dict[str, int], Lets]]:
    """Yield each store with the number of visited positions of the axes around it.

    A negative number stands for visits that depend on data.
    """
    for s in body:
        if isinstance(s, ir.Store):
            yield s, visited, lets
        elif isinstance(s, ir.Let | ir.Position):
            lets[s.name] = s.value
        elif isinstance(s, ir.Stream):
            inner = visited | {b.axis: _visited(b, s, lets, extents) for b in s.blocks}
            yield from _stores(s.body, inner, dict(lets), extents)


def _visited(block: ir.Block, stream: ir.Stream, lets: Lets, extents: Mapping[str, int]) -> int:
    """Return how many positions of an axis a stream visits.

    -1 if that depends on data.
    """
    if stream.where is not None:
        return -1
    extent = extents[block.axis]
    ends = [
        default if v is None else as_index(v, lets)
        for v, default in ((block.start, 0), (block.stop, extent))
    ]
    start, stop = (min(max(e, 0), extent) if isinstance(e, int) else None for e in ends)
    return -1 if start is None or stop is None else max(stop - start, 0)


def _count(s: ir.Store, visited: Mapping[str, int], lets: Lets, extents: Mapping[str, int]) -> int:
    """Return how many positions one store writes."""
    lengths = dict(visited)
    for atom in (a for e in s.index for a in atoms(e) if a.kind == "axis"):
        lengths.setdefault(atom.name, _integer(atom.extent))
    if 0 in lengths.values():
        return 0
    if min(lengths.values(), default=0) < 0:
        raise _Unknown
    total = 1
    for axes, conditions in _groups([] if s.where is None else _conjuncts(s.where, lets), lets):
        if any(lengths.get(a, n) != n for a, n in axes.items()):
            raise _Unknown  # a condition inside a stream that visits a part of the axis
        if prod(axes.values()) > MAX_POINTS:
            raise _Unknown
        positions = np.indices([*axes.values()], np.int64, sparse=True)
        named = dict(zip(axes, positions, strict=True))
        holds = np.ones([*axes.values()], bool)
        for condition in conditions:
            holds &= _evaluate(condition, named, lets)
        total *= int(np.count_nonzero(holds))
        for a in axes:
            lengths[a] = 1
    return total * prod(lengths.values())


def _conjuncts(condition: ir.Value, lets: Lets) -> list[ir.Value]:
    resolved = resolve(condition, lets)
    if isinstance(resolved, ir.Apply) and resolved.op == "and":
        return [c for arg in resolved.args for c in _conjuncts(arg, lets)]
    return [resolved]


def _groups(conditions: list[ir.Value], lets: Lets) -> list[tuple[dict[str, int], list[ir.Value]]]:
    """Group conditions that share axes; each group with the extents of its axes."""
    groups: list[tuple[dict[str, int], list[ir.Value]]] = []
    for condition in conditions:
        axes = {a.name: _integer(a.extent) for a in _axes(condition, lets)}
        members = [condition]
        for group in [g for g in groups if g[0].keys() & axes.keys()]:
            groups.remove(group)
            axes, members = group[0] | axes, [*group[1], *members]
        groups.append((axes, members))
    return groups


def _axes(condition: ir.Value, lets: Lets) -> Iterator[Atom]:
    """Yield the axes of a condition over positions; raise _Unknown for one over data."""
    v = resolve(condition, lets)
    if isinstance(v, ir.Const):
        return
    if isinstance(v, ir.Apply) and (v.op in _COMBINE or v.op == "not"):
        for arg in v.args:
            yield from _axes(arg, lets)
        return
    if not isinstance(v, ir.Apply) or v.op not in _COMPARE:
        raise _Unknown
    for arg in v.args:
        e = as_index(arg, lets)
        if e is None:
            raise _Unknown
        for atom in atoms(e):
            if atom.kind == "axis":
                yield atom
            elif atom.kind == "value":
                raise _Unknown


def _evaluate(condition: ir.Value, positions: Mapping[str, Any], lets: Lets) -> Any:
    v = resolve(condition, lets)
    if isinstance(v, ir.Const):
        return bool(v.value)
    assert isinstance(v, ir.Apply)
    if v.op == "not":
        return ~np.asarray(_evaluate(v.args[0], positions, lets))
    left, right = v.args
    if v.op in _COMBINE:
        sides = (np.asarray(_evaluate(x, positions, lets)) for x in v.args)
        return _COMBINE[v.op](*sides)
    a, b = as_index(left, lets), as_index(right, lets)
    assert a is not None and b is not None
    return np.asarray(_COMPARE[v.op](evaluate(a, {}, positions), evaluate(b, {}, positions)))
