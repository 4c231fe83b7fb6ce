"""Nanoseconds of a region on a target: a roofline with one line for each term.

    total = launches + overlap(arithmetic, memory) with
    arithmetic = work of every unit at every place, in every sweep, over the cores that have tasks
    memory     = first touch of each array at the level where it rests
               + sweeps: what is read again, at the level that holds it between two sweeps
               + scratch: dear values kept for a later sweep
               + partials: what a split fold leaves for its merge
               , more where too many arrays are walked at once

The schedule is that of the code generator (one loop nest for each level of folds, cheap values
computed again, dear ones kept), foreseen by `_Sweeps`.  Rates come from the `Target`; sizes are the
hints'.  Constants below are the model's own and say where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

from smelt.fusion.region import Place, Region
from smelt.fusion.sets import Hints, at_hints, bits
from smelt.fusion.trace import MOVE_COST
from smelt.fusion.units import Unit, Units
from smelt.target import Level, Target

OVERLAP = 0.95
"""Part of the shorter of arithmetic and memory time that hides behind the longer (the constant
that XLA uses, ALGORITHMS 2.2)."""
BLOCK = 2048
"""Elements of the innermost grid axis that one task visits (the code generator's block)."""
KEEP_ABOVE = 4.0
"""Row cost above which a value that a later sweep needs is kept (the code generator's limit)."""
PARTS = 64
"""Parts of a split fold (lowering's number)."""
COLUMNS = 512
"""The same where each position of that axis is folded over another (the code generator's)."""
SPLIT_TASKS = 8
"""A grid with fewer tasks than this is split, if its folds allow it (lowering's number)."""
SPLIT_ABOVE = 1 << 15
"""Elements of a fold below which it is not split (lowering's number)."""
INLINE_NS = 8_000.0
"""Work below which a kernel runs in the calling thread (the runtime's limit)."""
INLINE_LAUNCH_NS = 150.0
"""Starting a kernel in the calling thread."""
REACH = 3
"""Between writing an intermediate and reading it again, about this many times its bytes move."""
STREAMS = 20
"""Arrays walked at once beyond which the prefetchers lose track (ALGORITHMS 2.2)."""
ACROSS = 1.5
"""Cost of reading an array across its rows, in blocks, relative to along them."""
PARTIAL_BYTES = 8
"""Partial results are kept in double precision."""


Nest: TypeAlias = tuple[int, int]
"""A loop nest: the level of folds that it waits for, and the axes that one task walks in it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted nanoseconds of a kernel by term, and what they were computed from."""

    launch: float = 0.0
    arithmetic: float = 0.0
    touch: float = 0.0
    sweeps: float = 0.0
    scratch: float = 0.0
    partials: float = 0.0
    streams: float = 0.0
    total: float = 0.0
    tasks: int = 1
    row_bytes: int = 0
    """Working set of one task."""
    kept_bytes: int = 0
    """The part of it that is values kept between sweeps."""
    read: int = 0
    written: int = 0
    split: bool = False
    times: int = 1
    """How often a task sweeps over its row."""

    def terms(self) -> dict[str, float]:
        """The terms in nanoseconds, for a report."""
        names = ("launch", "arithmetic", "touch", "sweeps", "scratch", "partials", "streams")
        return {f.name: round(getattr(self, f.name), 1) for f in fields(self) if f.name in names}


class Model:
    """The units of a graph with their numbers: bytes, elements and work at the hints' sizes."""

    def __init__(self, units: Units, target: Target, hints: Hints) -> None:
        self.units, self.target = units, target
        self.cores = max(1, target.cores)
        self.extents = [max(at_hints(e, hints), 1) for e in units.extents]
        self.itemsize = [node.type.dtype.itemsize for node in units.values]
        self.elements = [max(at_hints(node.type.elements, hints), 0) for node in units.values]
        self.nbytes = [n * b for n, b in zip(self.elements, self.itemsize, strict=True)]
        outside = sum(self.nbytes[: len(units.inputs)])
        outside += sum(self.nbytes[u] for u in bits(units.outputs))
        self.home: list[Level] = [
            target.level(
                outside if v < len(units.inputs) or units.outputs >> v & 1
                else min(REACH * n, max(outside, n)),
                self.cores,
            )
            for v, n in enumerate(self.nbytes)
        ]  # fmt: skip
        self.step_ns = [0.0] * len(units.inputs)
        self.step_ns += [self._step(unit) for unit in units.units]

    def _step(self, unit: Unit) -> float:
        """Nanoseconds of one element (or of one step of a fold) on one core."""
        widths = [unit.node.type.dtype.compute.itemsize]
        widths += [self.units.values[e.producer].type.dtype.compute.itemsize for e in unit.edges]
        return self.target.compute_ns(unit.trace.cost, 1.0, min(max(widths), 8))

    def call(self, unit: Unit) -> Cost:
        """A library call: its traffic and its start; the rest is the same in every plan."""
        read = sum(self.nbytes[e.producer] for e in unit.edges)
        touch = sum(self.read_ns(e.producer, self.nbytes[e.producer], self.cores)
                    for e in unit.edges)  # fmt: skip
        touch += self.write_ns(unit.number, self.cores)
        launch = self.target.dispatch_ns
        return Cost(launch=launch, touch=touch, total=launch + touch, tasks=self.cores,
                    read=read, written=self.nbytes[unit.number])  # fmt: skip

    def read_ns(self, v: int, nbytes: float, threads: int) -> float:
        """First touch of bytes of a value."""
        return nbytes / self.target.bandwidth(self.home[v], "read", threads)

    def write_ns(self, v: int, threads: int) -> float:
        """Writing a value whole."""
        rate = self.target.bandwidth(self.home[v], "write", threads)
        if self.home[v] == "dram":
            rate = max(rate, self.target.nt_store_gbs)
        return self.nbytes[v] / rate

    def cost(self, region: Region) -> Cost:
        """The time of a region, by term."""
        if region.members & (region.members - 1) == 0:
            unit = self.units.unit(region.members.bit_length() - 1)
            if unit.is_library:
                return self.call(unit)
        return _Sweeps(self, region).cost()


class _Sweeps:
    """The loop nests of one region, as the code generator will arrange them."""

    def __init__(self, model: Model, region: Region) -> None:
        self.model, self.region, self.units = model, region, model.units
        self.sizes = [model.extents[e] for e in region.axes]
        self.volumes: dict[int, int] = {0: 1}
        self.block = COLUMNS if region.ended else BLOCK
        self.vector = self._vector()
        self.local = region.all_axes & ~region.grid
        self.split = self._split()
        self.kept = 0
        self.needs: dict[Nest, int] = {}
        """The units that each nest computes."""
        self.sweeps: dict[int, int] = {}
        """How many nests read a value."""
        self.nest_loads = 0
        self.costs: dict[int, float] = {}

    def volume(self, axes: int) -> int:
        """Positions of a set of axes."""
        found = self.volumes.get(axes)
        if found is None:
            found = 1
            for a in bits(axes):
                found *= self.sizes[a]
            self.volumes[axes] = found
        return found

    def _vector(self) -> int:
        """The axis along which most memory is walked in unit steps, as a mask."""
        region = self.region
        score = [0.0] * len(region.axes)
        for v, places in region.loads.items():
            for place, mask in zip(places, region.load_masks[v], strict=True):
                _vote(score, place, mask, 1.0)
        for u in bits(region.stored):
            _vote(score, region.places[u][0], region.masks[u][0], 1.5)
        if not score:
            return 0
        return 1 << max(range(len(score)), key=lambda a: (score[a], a))

    # ---- parallelism ---------------------------------------------------------------------------

    def _split(self) -> int:
        """The folded axis that is split over the grid, as a mask; 0 if none is."""
        region = self.region
        if not region.ended or region.scanned:
            return 0
        positions = self.volume(region.grid)
        if self.volume(self.local) * positions < SPLIT_ABOVE or self._columns() >= SPLIT_TASKS:
            return 0
        able = [a for a in bits(region.folded) if self._one_sweep(a)]
        long = [a for a in able if self.sizes[a] >= PARTS]
        if long:
            return 1 << min(long, key=self._depth)
        return 1 << max(able, key=lambda a: self.sizes[a]) if able else 0

    def _columns(self) -> int:
        """Tasks of the grid, where neighbouring positions in memory go together."""
        runs = 0
        for places in self.region.loads.values():
            for place in places:
                if place and isinstance(place[-1], int) and place[-1] >= 0:
                    runs |= 1 << place[-1]
        found = self.volume(self.region.grid & ~runs)
        for a in bits(self.region.grid & runs):
            found *= -(-self.sizes[a] // COLUMNS)
        return found

    def _depth(self, a: int) -> int:
        """How far in an axis stands in the arrays that it walks; the slowest is 0."""
        places = [p for found in self.region.loads.values() for p in found]
        return min((p.index(a) for p in places if a in p), default=0)

    def _one_sweep(self, a: int) -> bool:
        """Whether nothing along axis `a` waits for a fold over `a`."""
        late = 0
        region = self.region
        for u in reversed(region.masks):  # operands before readers
            unit = self.units.unit(u)
            waits = any(late >> e.producer & 1 for e in unit.edges)
            over = region.ended.get(u, 0) >> a & 1
            along = any(mask >> a & 1 for mask in region.masks[u])
            if over and (waits or unit.trace.positional):
                return False
            if waits and along:
                return False
            if over or waits:
                late |= 1 << u
        return True

    def tasks(self) -> int:
        """Independent pieces of work."""
        grid = self.region.grid
        found = self.volume(grid & ~self.vector)
        if self.vector & grid:
            found *= self.blocks()
        if not self.local and found < self.model.cores:
            found = max(found, -(-self.volume(grid) // self.block))
        return found * PARTS if self.split else max(found, 1)

    def blocks(self) -> int:
        """Blocks of the vector axis, where it belongs to the grid."""
        if not self.vector & self.region.grid:
            return 1
        return -(-self.volume(self.vector) // self.block)

    # ---- nests ---------------------------------------------------------------------------------

    def inner(self, axes: int) -> int:
        """The axes that one task walks itself."""
        return axes & (self.local | self.vector)

    def arrange(self) -> None:
        """Which units each nest computes, and what is kept for later nests."""
        region = self.region
        self.roots: dict[Nest, int] = {}
        for u, ended in region.ended.items():
            self._root(u, region.levels[u] - 1, ended | region.masks[u][0])
        for u in bits(region.stored):
            self._root(u, region.levels[u], region.masks[u][0])
        top = max((level for level, _ in self.roots), default=0)
        for level in range(top, -1, -1):
            for nest in [k for k in self.roots if k[0] == level]:
                self.needs[nest] = self.nest_loads = 0
                for u in bits(self.roots[nest]):
                    if region.ended.get(u) and region.levels[u] > level:
                        self.needs[nest] |= 1 << u
                        self._operands(u, nest)
                    else:
                        self._need(u, nest)
                for v in bits(self.nest_loads):
                    self.sweeps[v] = self.sweeps.get(v, 0) + 1

    def _root(self, u: int, level: int, axes: int) -> None:
        nest = level, self.inner(axes)
        self.roots[nest] = self.roots.get(nest, 0) | 1 << u

    def _need(self, u: int, nest: Nest) -> None:
        if self.needs[nest] >> u & 1:
            return
        region = self.region
        inner = self.inner(region.masks[u][0])
        if region.ended.get(u):
            if inner:
                self.kept |= 1 << u
            return
        if region.levels[u] < nest[0] and inner:
            if not self.kept >> u & 1 and self._again(u) > KEEP_ABOVE:
                self.kept |= 1 << u
                self._root(u, region.levels[u], inner)
            if self.kept >> u & 1:
                return
        self.needs[nest] |= 1 << u
        self._operands(u, nest)

    def _operands(self, u: int, nest: Nest) -> None:
        for edge in self.units.unit(u).edges:
            if self.region.members >> edge.producer & 1:
                self._need(edge.producer, nest)
            else:
                self.nest_loads |= 1 << edge.producer

    def _again(self, u: int) -> float:
        """Row cost of computing a value from memory and finished folds."""
        region = self.region
        if self.kept >> u & 1 or region.ended.get(u) or not self.inner(region.masks[u][0]):
            return 0.0
        known = self.costs.get(u)
        if known is None:
            unit = self.units.unit(u)
            known = float("inf") if unit.along >= 0 else unit.trace.cost
            for edge in unit.edges:
                inside = region.members >> edge.producer & 1
                known += self._again(edge.producer) if inside else MOVE_COST
            self.costs[u] = known
        return known

    # ---- the sum -------------------------------------------------------------------------------

    def evaluations(self, axes: int) -> float:
        """How often something along `axes` is computed by all tasks together."""
        grid = self.region.grid
        found = self.volume((grid & ~self.vector) | self.inner(axes))
        return float(found * (1 if self.vector & axes else self.blocks()))

    def cost(self) -> Cost:
        """All terms."""
        self.arrange()
        region, step = self.region, self.model.step_ns
        work = 0.0
        for members in self.needs.values():
            for u in bits(members):
                over = region.ended.get(u, 0)
                for mask in region.masks[u]:
                    work += step[u] * self.evaluations(mask | over)
        return self._sum(work)

    def _sum(self, work: float) -> Cost:
        model, region, target = self.model, self.region, self.model.target
        tasks = self.tasks()
        threads = min(tasks, model.cores)
        if work + self._floor() < INLINE_NS:
            threads = 1
        read, touch, row, repeats = self._traffic(threads)
        held = [(region.masks[u][0], max(model.itemsize[u], 4)) for u in bits(self.kept)]
        kept = sum(self._row(axes, itemsize) for axes, itemsize in held)
        row += kept
        resting = target.level(row, 1)
        again = around = 0.0
        for level, n in repeats:
            if level is None:
                again += n / target.bandwidth(resting, "read", threads)
            elif level != "l1":  # what stays in L1 is as good as in registers
                around += n / target.bandwidth(level, "read", threads)
        around = max(0.0, around - OVERLAP * touch)
        moved = sum(self.evaluations(axes) * itemsize for axes, itemsize in held)
        scratch = 2 * moved / target.bandwidth(resting, "copy", threads)
        written = sum(model.nbytes[u] for u in bits(region.stored))
        touch += sum(model.write_ns(u, threads) for u in bits(region.stored))
        partials = self._partials() if self.split else 0.0
        launch = (target.launch_ns if threads > 1 else INLINE_LAUNCH_NS) * (2 if self.split else 1)
        count = len(region.loads) + region.stored.bit_count()
        crowd = max(0.0, count / STREAMS - 1.0) * touch
        again += around
        memory = touch + again + scratch + partials + crowd
        compute = work / threads
        total = launch + compute + memory - OVERLAP * min(compute, memory)
        return Cost(launch, compute, touch, again, scratch, partials, crowd, total, tasks, row,
                    kept, read, written, bool(self.split), self.most_sweeps())  # fmt: skip

    def _floor(self) -> float:
        """Nanoseconds that one core needs at least for the arrays."""
        model = self.model
        read = sum(model.read_ns(v, model.nbytes[v], 1) for v in self.region.loads)
        return read + sum(model.write_ns(u, 1) for u in bits(self.region.stored))

    def _traffic(self, threads: int) -> tuple[int, float, int, list[tuple[Level | None, float]]]:
        """Bytes read from memory, ns of touching them, bytes of a task's row, and what is read
        again: at a level of its own, or (None) where the row rests."""
        model, region = self.model, self.region
        touch = 0.0
        read = row = 0
        repeats: list[tuple[Level | None, float]] = []
        for v, places in region.loads.items():
            masks = region.load_masks[v]
            itemsize = model.itemsize[v]
            nbytes = min(model.elements[v], sum(map(self.volume, masks))) * itemsize
            read += nbytes
            touch += model.read_ns(v, nbytes, threads) * (ACROSS if self._across(places) else 1.0)
            row += sum(self._row(m, itemsize) for m in masks)
            sweep = sum(
                self.evaluations(m) if all(isinstance(t, int) for t in p)
                else min(self.evaluations(m), model.elements[v])  # lanes outside are masked off
                for p, m in zip(places, masks, strict=True)
            ) * itemsize  # fmt: skip
            if sweep > nbytes:
                repeats.append((model.target.level(nbytes, 1), sweep - nbytes))
            if self.sweeps.get(v, 1) > 1:
                repeats.append((None, (self.sweeps[v] - 1) * sweep))
        return read, touch, row, repeats

    def _row(self, axes: int, itemsize: int) -> int:
        """Bytes of something that one task holds."""
        inner = self.inner(axes)
        found = self.volume(inner & ~self.vector) * itemsize
        if inner & self.vector:
            whole = self.volume(self.vector)
            found *= min(whole, self.block) if self.vector & self.region.grid else whole
        return -(-found // PARTS) if self.split & inner else found

    def _across(self, places: list[Place]) -> bool:
        """Whether a load walks its rows across the vector axis."""
        if not self.vector:
            return False
        a = self.vector.bit_length() - 1
        return any(a in place[:-1] and place[-1] != a for place in places)

    def most_sweeps(self) -> int:
        """How often the array that is read most often is swept."""
        return max(self.sweeps.values(), default=1)

    def _partials(self) -> float:
        """Writing and reading the partial results of a split fold."""
        total = 0.0
        for u, ended in self.region.ended.items():
            if ended & self.split:
                axes = self.region.masks[u][0]
                total += PARTS * self.volume(axes) * PARTIAL_BYTES
        return 2 * total / self.model.target.bandwidth("l2", "copy", 1)


def _vote(score: list[float], place: Place, mask: int, weight: float) -> None:
    """Counts an access for the axis it walks in unit steps, against the others it walks."""
    last = place[-1] if place else -1
    weight *= 4.0 ** mask.bit_count()
    for a in bits(mask):
        score[a] += 2 * weight if last == a else -weight
