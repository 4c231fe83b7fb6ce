"""Count the bytes that a kernel moves, each touched element once, without running it.

Each load and store names the elements it visits by index expressions over axes. With numbers for
the sizes these sets are products of arithmetic progressions, whose union can be counted without
enumerating it. Other sets are enumerated if they are small and bounded from above otherwise; then
`exact` is False, as it is for data-dependent indices.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel ends(x: f32[n]) -> y: f32[n - 1]
...   axis i in n - 1
...   grid i
...   y[i] = x[i + 1] - x[i]
... ''')
>>> moved = traffic(kernel, {"n": 1000})
>>> moved.loads["x"].elements, moved.nbytes, moved.exact
(1000, 7996, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

import numpy as np

from smelt.kernel import ir
from smelt.kernel.env import Env
from smelt.kernel.walk import Axes, children, values_of
from smelt.python.dataclass import dataclass
from smelt.types.expr import (
    Atom,
    Expr,
    atoms,
    axes_of,
    axis,
    bounds,
    coefficient,
    evaluate,
    map_variables,
)

LISTED = 1 << 22
"""Maximum elements that are enumerated where no formula counts them."""
PERIOD = 64
"""Maximum common period of strides for which a union is counted by residues."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Distinct elements of a parameter that a kernel reads (or writes), and their bytes."""

    elements: int
    nbytes: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Traffic:
    """Memory traffic by parameter, if every element is transferred once."""

    loads: Mapping[str, Touched]
    stores: Mapping[str, Touched]

    @property
    def read(self) -> int:
        """Bytes read."""
        return sum(t.nbytes for t in self.loads.values())

    @property
    def written(self) -> int:
        """Bytes written."""
        return sum(t.nbytes for t in self.stores.values())

    @property
    def nbytes(self) -> int:
        return self.read + self.written

    @property
    def exact(self) -> bool:
        """Whether all numbers are exact, not upper bounds."""
        return all(t.exact for t in (*self.loads.values(), *self.stores.values()))


def traffic(kernel: ir.Kernel, sizes: Mapping[str, int]) -> Traffic:
    """Return the elements and bytes that a launch touches; raise KeyError for a missing size."""
    visit = _Visit(kernel, sizes)
    visit.run()
    loads = {p.name: visit.count(p, visit.loads.get(p.name, [])) for p in kernel.inputs}
    stores = {p.name: visit.count(p, visit.stores.get(p.name, [])) for p in kernel.outputs}
    return Traffic(loads, stores)


@dataclass(frozen=True, slots=True)
class _Access:
    """A load or store: index expressions over axes, with numbers for sizes.

    `sure` if every position in them is certainly touched.
    """

    index: tuple[ir.Index, ...]
    sure: bool


@dataclass
class _Visit:
    """Collects the accesses of all statements that are executed."""

    kernel: ir.Kernel
    sizes: Mapping[str, int]
    loads: dict[str, list[_Access]] = field(default_factory=dict[str, list[_Access]])
    stores: dict[str, list[_Access]] = field(default_factory=dict[str, list[_Access]])
    positions: dict[str, Axes] = field(default_factory=dict[str, Axes])
    """The axes that a computed index varies along."""

    def __post_init__(self) -> None:
        self.env = Env.after(self.kernel)
        self.extents = {a.name: int(evaluate(a.extent, self.sizes)) for a in self.kernel.axes}

    def run(self) -> None:
        grid = [b for b in self.kernel.grid if isinstance(b, ir.Block)]
        if all(self.extents[b.axis] for b in grid):
            self._statements(self.kernel.body, all(b.stop is None for b in grid))

    def _statements(self, body: Iterable[ir.Statement], sure: bool) -> None:
        for s in body:
            for value in values_of(s):
                self._value(value, sure)
            match s:
                case ir.Position(name=name):
                    self.positions[name] = self.env.lookup(name).axes
                case ir.Store(param=param, index=index, where=where, join="") if self._points(
                    index
                ):
                    access = self._access(index, sure and where is None)
                    self.stores.setdefault(param, []).append(access)
                case ir.Stream(blocks=blocks, body=inner, where=where, bounds=sees):
                    if all(self.extents[b.axis] for b in blocks):
                        unmasked = (
                            where is None and not sees and all(b.stop is None for b in blocks)
                        )
                        self._statements(inner, sure and unmasked)
                case _:
                    pass

    def _value(self, value: ir.Value, sure: bool) -> None:
        if isinstance(value, ir.Load) and self._points(value.index):
            accesses = self.loads.setdefault(value.param, [])
            accesses.append(self._access(value.index, sure))
        for child in children(value):
            self._value(child, sure and not isinstance(value, ir.If))

    def _access(self, index: tuple[ir.Index, ...], sure: bool) -> _Access:
        return _Access(tuple(map_variables(e, self._leaf) for e in index), sure)

    def _leaf(self, atom: Atom) -> ir.Index:
        if atom.kind == "size":
            return self.sizes[atom.name]
        if atom.kind == "axis":
            extent = self.extents[atom.name]
            return 0 if extent == 1 else axis(atom.name, extent)
        return Expr((((atom,), 1),))

    # ---- counting ------------------------------------------------------------------------------

    def count(self, param: ir.Param, accesses: Sequence[_Access]) -> Touched:
        """Count the union of the elements that the accesses of a parameter touch."""
        shape = tuple(int(evaluate(d, self.sizes)) for d in param.shape)
        distinct = list(dict.fromkeys(a for a in accesses if self._points(a.index)))
        if not distinct or 0 in shape:
            return Touched(0, 0)
        elements, exact = self._union(shape, distinct)
        size = param.dtype.itemsize * max(param.each, 1)
        return Touched(elements, elements * size, exact and not param.each)

    def _points(self, index: tuple[ir.Index, ...]) -> int:
        """Return the number of positions of an index's axes, computed indices included."""
        names: set[str] = set()
        for e in index:
            names.update(axes_of(e))
            for a in atoms(e):
                if a.kind == "value":
                    names.update(self.positions.get(a.name, frozenset()))
        return math.prod(self.extents[n] for n in names)

    def _union(self, shape: tuple[int, ...], accesses: list[_Access]) -> tuple[int, bool]:
        all_elements = math.prod(shape)
        if any(a.kind == "value" for x in accesses for e in x.index for a in atoms(e)):
            return min(all_elements, sum(self._points(x.index) for x in accesses)), False
        exact = all(x.sure for x in accesses)
        boxes = [_as_box(x.index, shape) for x in accesses]
        counted_boxes = [b for b in boxes if b is not None]
        if any(b.elements == all_elements for b in counted_boxes):
            return all_elements, exact
        if len(counted_boxes) == len(boxes):
            elements = (
                counted_boxes[0].elements if len(counted_boxes) == 1 else _union_size(counted_boxes)
            )
            if elements is not None:
                return elements, exact
        points = [self._points(x.index) for x in accesses]
        if all_elements <= LISTED and sum(points) <= LISTED:
            return self._enumerate(shape, accesses), exact
        return min(all_elements, sum(points)), False

    def _enumerate(self, shape: tuple[int, ...], accesses: list[_Access]) -> int:
        seen = np.zeros(shape, bool)
        for x in accesses:
            names = list(dict.fromkeys(a for e in x.index for a in axes_of(e)))
            grid = np.ogrid[tuple(slice(self.extents[n]) for n in names)]
            places = dict(zip(names, grid, strict=True))
            at: list[Any] = [np.asarray(evaluate(e, {}, places)) for e in x.index]
            at = list(np.broadcast_arrays(*at))
            inside = np.ones(at[0].shape if at else (), bool)
            for i, n in zip(at, shape, strict=True):
                inside &= (i >= 0) & (i < n)
            seen[tuple(i[inside] for i in at)] = True
        return int(seen.sum())


# ---- products of arithmetic progressions -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Steps:
    """The progression first, first + step, ... below `stop`, among `extent` positions."""

    first: int
    stop: int
    step: int
    extent: int

    @property
    def count(self) -> int:
        return max(0, -((self.first - self.stop) // self.step))


@dataclass(frozen=True, slots=True)
class _Box:
    """A product of progressions over runs of dimensions, each run flattened into one.

    `dims` are the lengths of the runs.
    """

    dims: tuple[int, ...]
    sides: tuple[_Steps, ...]

    @property
    def elements(self) -> int:
        return math.prod(s.count for s in self.sides)


def _as_box(index: tuple[ir.Index, ...], shape: tuple[int, ...]) -> _Box | None:
    """Return the positions of an index as a box, or None if impossible."""
    dims: list[int] = []
    sides: list[_Steps] = []
    for first, stop in _dimension_runs(index):
        side = _as_progression(index[first:stop], shape[first:stop])
        if side is None:
            return None
        dims.append(stop - first)
        sides.append(side)
    return _Box(tuple(dims), tuple(sides))


def _dimension_runs(index: tuple[ir.Index, ...]) -> list[tuple[int, int]]:
    """Return the shortest runs of dimensions such that no two share an axis."""
    last: dict[str, int] = {}
    for d, e in enumerate(index):
        last.update(dict.fromkeys(axes_of(e), d))
    runs: list[tuple[int, int]] = []
    d = 0
    while d < len(index):
        stop = d + 1
        k = d
        while k < stop:
            stop = max(stop, *(last[a] + 1 for a in axes_of(index[k])), k + 1)
            k += 1
        runs.append((d, stop))
        d = stop
    return runs


def _as_progression(index: tuple[ir.Index, ...], shape: tuple[int, ...]) -> _Steps | None:
    """Return the flat positions of a run as one progression, or None."""
    extent = math.prod(shape)
    if len(index) > 1 and not all(_inside(e, n) for e, n in zip(index, shape, strict=True)):
        return None
    flat: ir.Index = 0
    for e, n in zip(index, shape, strict=True):
        flat = flat * n + e
    if isinstance(flat, int):
        return _clip(_Steps(flat, flat + 1, 1, extent))
    parts: list[tuple[int, int]] = []
    rest: ir.Index = flat
    low = 0
    for name in axes_of(flat):
        c = coefficient(flat, name)
        atom = next(a for a in atoms(flat) if a.kind == "axis" and a.name == name)
        if not isinstance(c, int) or not isinstance(atom.extent, int):
            return None
        rest = rest - axis_index(atom) * c
        low += min(0, c * (atom.extent - 1))
        if c:
            parts.append((abs(c), atom.extent))
    if not isinstance(rest, int):
        return None
    summed = _sum_progressions(sorted(parts))
    if summed is None:
        return None
    step, count = summed
    start = rest + low
    return _clip(_Steps(start, start + (count - 1) * step + 1, step, extent))


def axis_index(atom: Atom) -> Expr:
    """Return an axis as an index expression."""
    return Expr((((atom,), 1),))


def _inside(e: ir.Index, limit: int) -> bool:
    span = bounds(e)
    return span is not None and all(isinstance(x, int) and 0 <= x < limit for x in span)


def _sum_progressions(parts: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return {c*i + d*j + ..} as (step, count), given (c, extent) by increasing c."""
    if not parts:
        return 1, 1
    step, count = parts[0]
    for c, n in parts[1:]:
        if c % step or c > count * step:
            return None
        count += c * (n - 1) // step
    return step, count


def _clip(s: _Steps) -> _Steps:
    """Return the part of a progression inside 0 .. extent-1."""
    first = s.first if s.first >= 0 else s.first % s.step
    return _Steps(first, max(first, min(s.stop, s.extent)), s.step, s.extent)


def _union_size(boxes: list[_Box]) -> int | None:
    """Return the elements of a union of boxes, or None if it cannot be counted.

    That is where boxes flatten different dimensions or their strides have a long common period.
    """
    if len({b.dims for b in boxes}) > 1:
        return None
    everywhere = (1 << len(boxes)) - 1
    cells_of_prefix: dict[int, int] = {everywhere: 1}
    for k in range(len(boxes[0].dims)):
        cells_of_side = _cells([b.sides[k] for b in boxes])
        if cells_of_side is None:
            return None
        combined: dict[int, int] = {}
        for a, m in cells_of_prefix.items():
            for b, n in cells_of_side.items():
                if a & b:
                    combined[a & b] = combined.get(a & b, 0) + m * n
        cells_of_prefix = combined
    return sum(cells_of_prefix.values())


def _cells(sides: list[_Steps]) -> dict[int, int] | None:
    """Count positions by the set of progressions that contain them (a bit for each)."""
    period = math.lcm(*(s.step for s in sides))
    if period > PERIOD:
        return None
    cuts = sorted({x for s in sides for x in (s.first, s.stop)})
    cells: dict[int, int] = {}
    for low, high in pairwise(cuts):
        for r in range(period):
            members = 0
            for k, s in enumerate(sides):
                if s.first <= low and high <= s.stop and (r - s.first) % s.step == 0:
                    members |= 1 << k
            count = (high - 1 - r) // period - (low - 1 - r) // period
            if members and count:
                cells[members] = cells.get(members, 0) + count
    return cells
