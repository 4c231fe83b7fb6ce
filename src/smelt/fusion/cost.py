"""Nanoseconds of a region on a target: a roofline with one line for each term.

    total = launches + overlap(arithmetic, memory) with
    arithmetic = work of every unit at every place, in every sweep, over the cores that have tasks
    memory     = first touch of each array at the level where it rests
               + sweeps: what is read again, at the level that holds it between two sweeps
               + scratch: dear values kept for a later sweep
               + partials: what a split fold leaves for its merge
               + streams: what walking too many arrays at once costs

Rates come from the `Target`, sizes are the hints'.  The constants below are the model's own and say
where they come from; those of the schedule are in `smelt.fusion.schedule_model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from smelt.blocks import BLOCK, SHORT_ROW
from smelt.dataclass import dataclass
from smelt.fusion.bitsets import Hints, at_hints, bits
from smelt.fusion.contraction_cost import unfilled
from smelt.fusion.gather_cost import GATHERED_NS, is_gathered
from smelt.fusion.packing_cost import region_packing_ns
from smelt.fusion.range_outputs import shares_of_ranges
from smelt.fusion.region import Place, Region
from smelt.fusion.scatter import joined_work
from smelt.fusion.schedule_model import Sweeps
from smelt.fusion.trace import Term
from smelt.fusion.units import STILL, Unit, Units
from smelt.target import Kind, Level, Target
from smelt.types.affine import without_constant
from smelt.types.expr import Expr, Index, axis

OVERLAP = 0.95
"""Part of the shorter of arithmetic and memory time that hides behind the longer (the constant
that XLA uses, ALGORITHMS 2.2)."""
CHARGED = 0.5
"""The same when kernels are compared: arithmetic done again and bytes moved for nothing count in
part even where they hide."""
INLINE_NS = 8_000.0
"""Work below which a kernel runs in the calling thread (the runtime's limit)."""
INLINE_LAUNCH_NS = 400.0
"""What a plan is charged for a kernel that starts in the calling thread: its code has to come into
the cache, and a plan made for the small sizes of a first call serves all others."""
INLINE_START_NS = 80.0
"""What starting one more kernel of a call takes where that call is repeated."""
REACH = 3
"""Between writing an intermediate and reading it again, about this many times its bytes move."""
STREAMS = 20
"""Arrays walked at once beyond which the prefetchers lose track (ALGORITHMS 2.2)."""
ACROSS = 1.5
"""Cost of reading an array across its rows, in blocks, relative to along them."""
FAR_NS = 1.5
"""Nanoseconds for each element that lanes take from lines of their own, or put there, where folds
leave no squares to turn: in every sweep (measured: 0.5 where the lines stay in L2, 4 to 8 where
rows lie a power of two apart)."""
STEP_NS = 0.03
"""Nanoseconds for each element that lanes take from short rows, one each: whole lines are read and
sorted (measured)."""
FEW_NS = 20.0
"""Nanoseconds for each row of a product that is folded along a few columns: what follows waits for
a vector that is not full (measured for softmax, two folds: 45 of 2 columns, 80 of 16)."""
FEW = 2 * SHORT_ROW
"""Columns up to which that is so."""
NEAR = 16
"""Positions that two reads may be apart to find the same lines in the first cache."""
SERIAL = 32
"""Time of a step of a scan along a row, relative to one of many positions at once: each step waits
for the one before (measured)."""
ONE = (False,)
"""A single place, which has none beside it."""
PARTIAL_BYTES = 8
"""Partial results are kept in double precision."""

_TERMS = ("launch", "arithmetic", "touch", "sweeps", "scratch", "partials", "streams")


@dataclass(slots=True)
class Cost:
    """Predicted nanoseconds of a kernel by term, and what they were computed from."""

    total: float = 0.0
    burden: float = 0.0
    """The total with half of what hides behind something else: what a plan is charged.  Time that
    hides now stands in the way of the next join."""
    launch: float = 0.0
    arithmetic: float = 0.0
    touch: float = 0.0
    sweeps: float = 0.0
    scratch: float = 0.0
    partials: float = 0.0
    streams: float = 0.0
    read: int = 0
    written: int = 0
    tasks: int = 1
    row_bytes: int = 0
    """Working set of one task."""
    kept_bytes: int = 0
    """The part of it that is values kept between sweeps."""
    times: int = 1
    """How often a task sweeps over its row."""
    split: bool = False
    stream: int = -1
    """The axis of the region whose folds are carried from block to block; -1 for none."""
    packing: float = 0.0
    """The part of the arithmetic that packs operands of products again."""

    @property
    def moved(self) -> int:
        """Bytes read and written in main memory."""
        return self.read + self.written

    def terms(self) -> dict[str, float]:
        """The terms in nanoseconds, for a report."""
        return {name: round(getattr(self, name), 1) for name in _TERMS}


class Model:
    """The units of a graph with their numbers: bytes, elements and work at the hints' sizes.
    A call may touch bytes that are no inputs nor outputs of the graph, `beside` them."""

    def __init__(self, units: Units, target: Target, hints: Hints, beside: int = 0) -> None:
        self.units, self.target, self.hints = units, target, hints
        self.cores = max(1, target.cores)
        self.lanes = max(target.vector_bytes // 4, 1)
        self.extents = [max(at_hints(e, hints), 1) for e in units.extents]
        self.itemsize = [node.type.dtype.itemsize for node in units.values]
        self.elements = [
            max(prod([at_hints(e, hints) for e in node.type.shape]), 0) for node in units.values
        ]
        self.nbytes = [n * b for n, b in zip(self.elements, self.itemsize, strict=True)]
        outside = beside + sum(self.nbytes[: len(units.inputs)])
        outside += sum(self.nbytes[u] for u in bits(units.outputs))
        self.home: list[Level] = []
        """Where each value rests before a kernel reads it."""
        for v, n in enumerate(self.nbytes):
            ours = v >= len(units.inputs) and not units.outputs >> v & 1
            reach = min(REACH * n, max(outside, n)) if ours else outside
            self.home.append(target.level(reach, self.cores))
        self.step_ns = [0.0] * len(units.inputs)
        self.step_ns += [self._step(unit) for unit in units.units]
        self._rates: dict[tuple[Level, Kind, int], float] = {}

    def _step(self, unit: Unit) -> float:
        """Nanoseconds of one element (or of one step of a fold) on one core."""
        width = unit.node.type.dtype.compute.itemsize
        for e in unit.edges:
            width = max(width, self.units.values[e.producer].type.dtype.compute.itemsize)
        step = self.target.compute_ns(unit.trace.cost, 1.0, min(width, 8))
        return step * SERIAL if 0 <= unit.along == unit.rank - 1 else step

    # ---- parts ---------------------------------------------------------------------------------

    def ns_per_byte(self, level: Level, kind: Kind, threads: int) -> float:
        """The inverse of a bandwidth; writes to main memory may go past the caches."""
        key = level, kind, threads
        found = self._rates.get(key)
        if found is None:
            rate = self.target.bandwidth(level, kind, threads)
            if level == "dram" and kind == "write":
                rate = max(rate, self.target.nt_store_gbs)
            found = self._rates[key] = 1.0 / rate
        return found

    def read_ns(self, v: int, nbytes: float, threads: int) -> float:
        """First touch of bytes of a value."""
        return nbytes * self.ns_per_byte(self.home[v], "read", threads)

    def write_ns(self, v: int, threads: int) -> float:
        """Writing a value whole."""
        return self.nbytes[v] * self.ns_per_byte(self.home[v], "write", threads)

    def call(self, unit: Unit) -> Cost:
        """A library call: its traffic and its start; the rest is the same in every plan."""
        read = sum(self.nbytes[e.producer] for e in unit.edges)
        touch = sum(
            self.read_ns(e.producer, self.nbytes[e.producer], self.cores) for e in unit.edges
        )
        touch += self.write_ns(unit.number, self.cores)
        launch = self.target.dispatch_ns
        return Cost(
            launch + touch,
            launch + touch,
            launch=launch,
            touch=touch,
            tasks=self.cores,
            read=read,
            written=self.nbytes[unit.number],
        )

    def map(self, unit: Unit) -> Cost:
        """An operator that maps whole values of its own shape, and does nothing else."""
        u = unit.number
        operands = list(bits(self.units.operands[u]))
        work = self.step_ns[u] * self.elements[u]
        read = sum(self.nbytes[v] for v in operands)
        one = sum(self.read_ns(v, self.nbytes[v], 1) for v in operands) + self.write_ns(u, 1)
        tasks = -(-self.elements[u] // BLOCK)
        threads = 1 if work + one < INLINE_NS else max(min(tasks, self.cores), 1)
        launch = INLINE_LAUNCH_NS
        touch = one
        if threads > 1:
            launch, work = self.target.launch_ns, work / threads
            touch = sum(self.read_ns(v, self.nbytes[v], threads) for v in operands)
            touch += self.write_ns(u, threads)
        hidden = min(work, touch)
        total = launch + work + touch - OVERLAP * hidden
        return Cost(
            total,
            total + (OVERLAP - CHARGED) * hidden,
            launch,
            work,
            touch,
            read=read,
            written=self.nbytes[u],
            tasks=tasks,
        )

    def joining(self, region: Region) -> Cost:
        """A kernel that writes at places which depend on data, one update after another."""
        region.work, tasks, random = joined_work(self, region)
        inline = region.work < INLINE_NS
        threads = 1 if inline else min(tasks, self.cores)
        read, touch = 0, 0.0
        for v, masks in region.load_masks.items():
            volumes = [prod([self.extents[region.axes[a]] for a in bits(m)]) for m in masks]
            nbytes = min(self.elements[v], sum(volumes)) * self.itemsize[v]
            read += nbytes
            touch += self.read_ns(v, nbytes, threads)
        u = region.stored.bit_length() - 1
        touch += self.write_ns(u, threads)
        sweeps = random * self.ns_per_byte(self.target.level(self.nbytes[u], 1), "copy", threads)
        launch = self.target.launch_ns if threads > 1 else INLINE_LAUNCH_NS
        arithmetic, memory = region.work / threads, touch + sweeps
        hidden = min(arithmetic, memory)
        total = launch + arithmetic + memory - OVERLAP * hidden
        burden = total + (OVERLAP - CHARGED) * hidden
        return Cost(
            total,
            burden,
            launch,
            arithmetic,
            touch,
            sweeps,
            read=read,
            written=self.nbytes[u],
            tasks=tasks,
        )

    # ---- the sum -------------------------------------------------------------------------------

    def cost(self, region: Region) -> Cost:
        """The time of a region, by term.  Sets its `work`, unless a join knows it already."""
        if region.members & self.units.calls:
            return self.call(self.units.unit(region.members.bit_length() - 1))
        if region.members & self.units.joined:
            return self.joining(region)
        sweeps = Sweeps(self.units, region, self.extents)
        sweeps.arrange()
        if region.work < 0:
            region.work = sweeps.work(self._steps(region)) * sweeps.emptiness(self.lanes)
            if sweeps.packs:
                fixed = region.grid & ~sweeps.cut_axes
                region.packing = region_packing_ns(
                    self.target,
                    self.units,
                    region,
                    sweeps.sizes,
                    fixed,
                    sweeps.evaluations,
                    hosted=sweeps.hosted,
                )
                region.work += region.packing
                region.work += unfilled(
                    self.units,
                    region,
                    sweeps.sizes,
                    self.target.vector_bytes,
                    lambda u, axes: self.step_ns[u] * sweeps.evaluations(axes),
                )
        tasks = sweeps.tasks()
        inline = region.work < INLINE_NS and region.work + self._floor(region) < INLINE_NS
        threads = 1 if inline else min(tasks, self.cores)
        traffic = _Traffic(self, region, sweeps, threads)
        partials = self._partials(region, sweeps)
        launch = self.target.launch_ns if threads > 1 else INLINE_LAUNCH_NS
        launch *= 2 if sweeps.split else 1
        count = len(region.loads) + region.stored.bit_count()
        streams = max(0.0, count / STREAMS - 1.0) * traffic.touch
        memory = traffic.touch + traffic.sweeps + traffic.scratch + partials + streams
        arithmetic = (region.work + traffic.lanes_ns + FEW_NS * _rows_of_few(sweeps)) / threads
        hidden = min(arithmetic, memory)
        total = launch + arithmetic + memory - OVERLAP * hidden
        burden = total + (OVERLAP - CHARGED) * hidden
        return Cost(
            total,
            burden,
            launch,
            arithmetic,
            traffic.touch,
            traffic.sweeps,
            traffic.scratch,
            partials,
            streams,
            traffic.read,
            traffic.written,
            tasks,
            traffic.row,
            traffic.kept,
            max(map(max, sweeps.sweeps.values()), default=1),
            bool(sweeps.split),
            packing=region.packing / threads,
        )

    def _steps(self, region: Region) -> Sequence[float]:
        """Nanoseconds of one step of each unit: of what is computed for results that are ranges
        alone, on an average of all its positions."""
        if not region.parts:
            return self.step_ns
        found = list(self.step_ns)
        shares = shares_of_ranges(
            self.units, region.members, region.stored, region.parts, self.extents
        )
        for u, share in shares.items():
            found[u] *= share
        return found

    def _floor(self, region: Region) -> float:
        """Nanoseconds that one core needs at least for the arrays."""
        read = sum(self.read_ns(v, self.nbytes[v], 1) for v in region.loads)
        return read + sum(self.write_ns(u, 1) for u in bits(region.stored))

    def _partials(self, region: Region, sweeps: Sweeps) -> float:
        """Writing and reading the partial results of a split fold."""
        total = 0.0
        for u, ended in region.ended.items():
            if ended & sweeps.split:
                total += sweeps.parts * sweeps.volume(region.masks[u][0]) * PARTIAL_BYTES
        return 2 * total * self.ns_per_byte("l2", "copy", 1)


class _Traffic:
    """Bytes that a region moves, and the nanoseconds of moving them."""

    def __init__(self, model: Model, region: Region, sweeps: Sweeps, threads: int) -> None:
        self.touch = self.sweeps = self.lanes_ns = rows = around = 0.0
        """Bandwidth's nanoseconds, and one core's of elements that lanes move one by one."""
        self.read = self.row = 0
        turned = not region.ended or sweeps.packs
        every = region.all_axes if not sweeps.sweeps else -1
        axis = sweeps.vector.bit_length() - 1
        for v, places in region.loads.items():
            masks = region.load_masks[v]
            itemsize = model.itemsize[v]
            if every and masks == [every] and places[0][-1] == axis:
                nbytes = model.nbytes[v]  # each element once, in the order of memory
                self.read += nbytes
                self.touch += model.read_ns(v, nbytes, threads)
                self.row += sweeps.row(every) * itemsize
                continue
            distinct = min(model.elements[v], sum(map(sweeps.volume, masks)))
            nbytes = distinct * itemsize
            self.read += nbytes
            across = ACROSS if sweeps.is_across(places) else 1.0
            self.touch += model.read_ns(v, nbytes, threads) * across
            self.row += sum([sweeps.row(m) for m in masks]) * itemsize
            sweep = sweeps.sweeps.get(v)
            beside = _beside(places) if len(places) > 1 else ONE
            for k, (place, mask) in enumerate(zip(places, masks, strict=True)):
                walked = sweeps.evaluations(mask)
                if walked > distinct and any(not isinstance(t, int) for t in place):
                    walked = min(walked, model.elements[v])  # lanes outside are masked off
                if k == 0 and walked > distinct:
                    level = model.target.level(nbytes, 1)
                    if level != "l1":  # what stays there is as good as in registers
                        rate = model.ns_per_byte(level, "read", threads)
                        around += (walked - distinct) * itemsize * rate
                times = 1 if sweep is None else sweep[k]
                far = _lane_ns(sweeps, place, mask, walked, packs=turned, alone=model.cores == 1)
                self.lanes_ns += times * far
                if times == 1 and beside[k]:
                    continue
                rows += max(times - (k == 0), 0) * walked * itemsize
        held = [(region.masks[u][0], max(model.itemsize[u], 4)) for u in bits(sweeps.kept)]
        sizes = {
            u: sweeps.row(axes) * itemsize
            for u, (axes, itemsize) in zip(bits(sweeps.kept), held, strict=True)
        }
        beside = [n for u, n in sizes.items() if sweeps.beside >> u & 1]
        self.kept = sum(sizes.values()) - sum(beside) + max(beside, default=0)
        self.row += self.kept
        self.scratch = 0.0
        if rows > 0 or held:
            resting = model.target.level(self.row * threads, threads)
            self.sweeps = rows * model.ns_per_byte(resting, "read", threads)
            moved = sum(sweeps.evaluations(axes) * itemsize for axes, itemsize in held)
            self.scratch = 2 * moved * model.ns_per_byte(resting, "copy", threads)
        self.written = 0
        for u in bits(region.stored):
            self.written += model.nbytes[u]
            self.touch += model.write_ns(u, threads)
            if not turned and sweeps.is_far(region.places[u][0]):
                self.lanes_ns += model.elements[u] * FAR_NS
        self.sweeps += max(0.0, around - OVERLAP * self.touch)


def _lane_ns(
    sweeps: Sweeps, place: Place, mask: int, walked: float, *, packs: bool, alone: bool
) -> float:
    """Nanoseconds of one sweep over what lanes take element by element at a place; short rows are
    charged where one core is alone.  With two a kernel that stores nothing instead keeps fewer of
    them busy (measured of regressions by distance: 1.15 to 1.8 of the time of two kernels)."""
    picks = sweeps.region.picks
    if alone and sweeps.apart and sweeps.apart.bit_length() - 1 in place[:-1]:
        return sweeps.evaluations(mask) * STEP_NS
    if not packs and sweeps.is_far(place):
        return walked * FAR_NS
    return walked * GATHERED_NS if picks and is_gathered(place, picks, mask) else 0.0


@lru_cache(maxsize=1024)
def _rows_of_few(sweeps: Sweeps) -> int:
    """Rows that are folded along all of a few columns in which a product lies, for each fold: alone
    they are written out, and vectors run along rows."""
    if not sweeps.packs or sweeps.split or not 1 < sweeps.volume(sweeps.vector) <= FEW:
        return 0
    region = sweeps.region
    folds = [
        u
        for u, over in region.ended.items()
        if over == sweeps.vector and not sweeps.units.unit(u).trace.dots
    ]
    return sum(sweeps.volume(region.masks[u][0]) for u in folds)


def _axis(t: int) -> Index:
    return axis(f"a{t}", 0)


def _index(term: Term) -> Index:
    """A term of a place as an expression over axes."""
    if isinstance(term, Expr):
        return term
    return 0 if term == STILL else _axis(term)


@lru_cache(maxsize=4096)
def _apart(place: Place) -> tuple[tuple[object, ...], tuple[int, ...]]:
    """The terms of a place without the numbers in them, and these."""
    parts = [without_constant(_index(t)) for t in place]
    return tuple(terms for terms, _ in parts), tuple(number for _, number in parts)


def _beside(places: Sequence[Place]) -> list[bool]:
    """Whether a place is a few positions apart from one before it: what reads it finds it in L1."""
    found: list[bool] = []
    known: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for place in places:
        terms, at = _apart(place)
        others = known.setdefault(terms, [])
        found.append(
            any(
                all(abs(a - b) <= NEAR for a, b in zip(at, other, strict=True))
                for other in reversed(others)
            )
        )  # most come in order
        others.append(at)
    return found
