"""A region whose folds over one axis are carried from block to block: may it be, and at what price?

Where rows do not stay in fast memory, every further sweep over them reads main memory again, and
what a later sweep needs cannot be kept.  The cascade (`smelt.fusion.cascade`) says in how many
sweeps the folds can be done at all; arithmetic is counted term by term for each of them, memory as
in `smelt.fusion.cost`.  Blocks are those that `smelt.lower.stream` will choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from smelt.blocks import (
    COLUMN_BLOCK,
    LEAST_TASKS,
    MADE,
    PARTS,
    SPLIT_ABOVE,
    STREAM_COLUMNS,
    TAKEN,
    THIN,
    has_parts,
    rows_axis,
    rows_taken,
    rows_visited,
)
from smelt.fusion.bitsets import bits
from smelt.fusion.cascade.block_sparsity import Visible, visible
from smelt.fusion.cascade.collect import NotCollected
from smelt.fusion.cascade.columns import columns
from smelt.fusion.cascade.finite_masks import faint
from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, width
from smelt.fusion.contraction_cost import WALKED_COST, walked
from smelt.fusion.cost import CHARGED, INLINE_LAUNCH_NS, INLINE_NS, OVERLAP, Cost, Model
from smelt.fusion.derived_stream import Derived, derived
from smelt.fusion.gather_cost import GATHERED_NS, gathered
from smelt.fusion.lane_utilization import Visits
from smelt.fusion.mask_coverage import TOLD, Shares
from smelt.fusion.packing_cost import summed, term_packing_ns
from smelt.fusion.region import Region
from smelt.fusion.streamable_axes import has_products, is_masked, streamable
from smelt.fusion.trace import MOVE_COST, STEP_COST
from smelt.fusion.vectorization_cost import parts_for
from smelt.fusion.window_recompute import slides
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.target import Level
from smelt.types.affine import overlaps
from smelt.types.expr import Expr, axes_of

COMPILED = True
"""Whether the back end can compile carried states."""
MASKING = 0.1
"""Part of the cost of masks and positions that remains: blocks that they rule out are not visited,
in others they are not computed.  What does not even vary along the rows costs nothing."""
WIDE_COST = 3.0
"""Row cost of folding an element of single precision in double: conversions, and twice as many
steps.  Charged for the folds that an unstreamed kernel does not have."""
SHORT = 512
"""Elements of an axis that one or two visits of a product take anyway."""
SHORT_TAKEN = 112
"""The same where another product takes what was made along the axis: one visit keeps that at hand
as well.  Rows of so few elements are folded sooner than states are carried, and what outgrows fast
memory beside them still does."""
MARGIN = 1.04
"""What streaming a contraction has to win: blocks are packed and rescaled one by one."""
SLOW_COLUMNS = 4.0
"""How much slower elements in double precision are than their size tells where columns keep their
sums in memory."""
STATE_SHARE = 0.5
"""Part of the second-level cache that states of some rows of the grid may fill."""


def streamed(model: Model, region: Region, *, beyond: bool) -> Cost | None:
    """The least cost of a region with one of its folded axes streamed; None if none can be, or if
    one visit is all, but where a row is `beyond` fast memory, a mask ends the visit early or a
    product takes what is made in it, in one sweep."""
    best: Cost | None = None
    if region.scanned or region.peeked:
        return None
    cut = [t for t in _products_terms(model, region) if slides(t)]
    if any(map(overlaps, cut)) or (cut and not beyond):
        return None  # windows are blocked by tasks, and short rows of what was cut are kept
    masked, products = is_masked(model, region), has_products(model, region)
    for a in streamable(model, region):
        n = model.extents[region.axes[a]]
        long = not products or n > SHORT
        taken = n > SHORT_TAKEN and _is_taken(model, region, a)
        helps = beyond and (not products or n > SHORT_TAKEN)
        swept = any(region.masks[u][0] >> a & 1 for u in bits(region.stored))
        cuts = masked and not swept  # results along the axis are written everywhere
        if not (helps or cuts or long or taken):
            continue
        try:
            price = _price(model, region, a)
        except NotCollected:
            continue
        several = helps or (long and price.visits > 1) or (cuts and price.is_cut())
        cost = price.cost() if several or taken else None
        if cost is not None and not several and cost.times > 1:
            continue  # a row is visited again and again as it is without a stream
        if cost is not None and (best is None or cost.burden < best.burden):
            best = cost
    return best


def _is_taken(model: Model, region: Region, a: int) -> bool:
    """Whether a contraction over an axis takes what other folds have made."""
    return any(
        model.units.unit(u).trace.dots and ends >> a & 1 and region.levels[u] > 1
        for u, ends in region.ended.items()
    )


def streamed_along(model: Model, region: Region, a: int) -> Cost | None:
    """The cost of a region with its axis number `a` streamed, None where its states do not fit."""
    return _price(model, region, a).cost()


def _price(model: Model, region: Region, a: int) -> _Price:
    return _Price(model, region, a, derived(model.units, region, a))


def _products_terms(model: Model, region: Region) -> Iterator[int | Expr]:
    """Where the products of a region read their operands."""
    for u in region.ended:
        unit = model.units.unit(u)
        if unit.trace.dots:
            yield from (t for edge in unit.edges for t in edge.terms)


class _Price:
    """The cost of one streamed axis."""

    def __init__(self, model: Model, region: Region, a: int, made: Derived) -> None:
        self.model, self.region, self.a, self.made = model, region, a, made
        self.found, self.cascade = found, cascade = made.found, made.cascade
        self.name = f"a{a}"
        self.sizes = {f"a{k}": model.extents[e] for k, e in enumerate(region.axes)}
        inside = columns(cascade.states, found.roots.values(), self.name, self.sizes)
        self.grid = {f"a{k}" for k in bits(region.grid & ~(1 << a))} - inside
        self.cut: dict[str, int] = {}
        """Grid axes that tasks take in blocks."""
        self.is_single = all(t.dtype.itemsize < 8 for t in found.loads if t.dtype.is_float)
        self.extra = self._extra()
        self.block = self._blocks()
        self.visits = -(-self.sizes[self.name] // self.block)
        self.lanes = Visits(model, region, a, self.block)
        self.parts = self._parts()
        self.is_columns = bool(self.cut) and self.block == COLUMN_BLOCK and self.parts == 1
        self.held = self._held_axes()
        self.still = frozenset(self.grid) - frozenset(self.cut) | self.held
        self.slow = self._slow()
        held = self.lanes.along in self.sizes and self.lanes.along not in {*self.grid, *self.cut}
        self.empty = self.lanes.emptiness(self._held([self.lanes.along])) if held else 1.0
        self.shares = Shares(self.sizes, {**self.cut, self.name: self.block}, model.hints)

    def cost(self) -> Cost | None:
        """The price, or None where the states do not fit."""
        model, region = self.model, self.region
        states = self._state_bytes()
        resting = model.target.level(states)
        if self.cut and states > model.target.l2_bytes * STATE_SHARE:
            return None  # whole rows of a result are carried, which might as well be written
        if resting not in ("l1", "l2"):
            resting = model.target.level(states * model.cores)  # each core has its own
        if resting == "dram":
            return None
        parts, self.packing = list(self._sweeps()), 0.0
        shares = list(map(self._share, parts))
        around = self._around(parts)
        seen_parts = list(map(self._seen, parts))
        work = sum(map(self._work, parts, shares, seen_parts)) + self._work(around, 1.0, {}, 1)
        work += sum(map(self._evaluations, gathered(region))) * len(parts) * GATHERED_NS
        work += self.lanes.far_ns(len(parts))
        tasks = self._tasks(len(parts)) * self.parts
        read = 0
        floor = sum(model.read_ns(v, model.nbytes[v], 1) for v in region.loads)
        inline = work < INLINE_NS and work + floor < INLINE_NS
        threads = 1 if inline else min(tasks, model.cores)
        touch = sweeps = 0.0
        seen: set[int] = set()
        for part, share in zip((*parts, around), (*shares, 1.0), strict=True):
            for t in part:
                if t in self.found.loads:
                    v = self.found.loads[t][0]
                    first, again = self._read(t, v, threads, v not in seen)
                    touch, sweeps = touch + first, sweeps + again * share
                    read += 0 if v in seen else self._distinct(t, v)
                    seen.add(v)
        sweeps += self._carrying(resting, states, tasks, threads)
        written = sum(model.nbytes[u] for u in bits(region.stored))
        touch += sum(model.write_ns(u, threads) for u in bits(region.stored))
        launch = model.target.launch_ns if threads > 1 else INLINE_LAUNCH_NS
        launch *= 2 if self.parts > 1 else 1
        memory, arithmetic = touch + sweeps, work / threads
        hidden = min(arithmetic, memory)
        total = launch + arithmetic + memory - OVERLAP * hidden
        packed = any(self.sizes[a] > THIN for a in self.cut) and any(
            model.units.unit(u).trace.dots for u in region.ended
        )
        return Cost(
            total,
            (MARGIN if packed else 1.0) * (total + (OVERLAP - CHARGED) * hidden),
            launch,
            arithmetic,
            touch,
            sweeps,
            read=read,
            written=written,
            tasks=tasks,
            row_bytes=states,
            kept_bytes=states,
            times=len(parts),
            split=self.parts > 1,
            stream=self.a,
            packing=self.packing / threads,
        )

    def is_cut(self) -> bool:
        """Whether masks tell where visits start or stop, where no result lies along the axis: then
        even one visit may be less."""
        states = self.cascade.states
        if not states or any(s.sweep for s in states):
            return False
        seen = self._visible(states)
        return any(t is not None for t in (seen.start, seen.stop, seen.seen))

    def _visible(self, states: Sequence[State]) -> Visible:
        """What the sweep of some states visits."""
        key = tuple(s.block for s in states), self.still, bool(self.held)
        found = self.made.looked.get(key)
        if found is None:
            terms, sweep = self.found.terms, states[0].sweep
            found = visible(terms, states, self.name, self.still)
            tried = faint(terms, self.cascade.states, sweep, found, self.name, self.still)
            if tried is not None and not self.held:
                found = tried.seen  # few rows have nothing visible
            self.made.looked[key] = found
        return found

    def _extra(self) -> set[Term]:
        """Folds in double precision beyond one for each fold of the region."""
        known: set[Term] = set()
        found: set[Term] = set()
        for s in self.cascade.states:
            if s.of in known and s.dtype.bits > s.block.args[0].dtype.bits:
                found.add(s.block)
            known.add(s.of)
        return found

    def _parts(self) -> int:
        """Into how many parts the axis is split over tasks, as `smelt.lower.stream` will: one sweep
        of folds that do not wait for one another, and few tasks otherwise."""
        states, size = self.cascade.states, self.sizes[self.name]
        if not states or any(s.sweep != states[0].sweep or not s.joins(self.name) for s in states):
            return 1
        if any(self.model.units.unit(u).trace.dots for u in self.region.ended):
            return 1
        if any(self.name in t.axes for t in self.found.roots.values()):
            return 1
        work = prod(self.sizes.values())
        if self._tasks(1) >= LEAST_TASKS or size < PARTS or work < SPLIT_ABOVE:
            return 1
        return parts_for(self.lanes.order, self.a)

    # ---- blocks --------------------------------------------------------------------------------

    def _blocks(self) -> int:
        """Cuts the grid; gives how many elements of the streamed axis one visit takes."""
        units = self.model.units
        rows = rows_axis(self._rows(), [n for n in self.sizes if n in self.grid], self.sizes)
        if rows is not None:
            taken = any(
                self.model.units.unit(u).trace.dots and self.a in ends
                for u, ends in self.region.ends.items()
            )
            self.cut[rows], block = TAKEN if taken else MADE
            return block
        local = {n: s for n, s in self.sizes.items() if n not in self.grid}
        wide = width(self.made.own, self.name, local)
        if any(units.unit(u).trace.dots for u in self.region.ended):
            return rows_taken(TAKEN[1], wide)
        most = max((len(p) for found in self.region.loads.values() for p in found), default=0)
        lasts = {
            f"a{p[-1]}"
            for found in self.region.loads.values()
            for p in found
            if p and len(p) == most
        }
        last = max(self.grid, key=lambda n: int(n[1:]), default="")
        if self.name in lasts or last not in lasts:
            return rows_visited(wide)
        self.cut[last] = STREAM_COLUMNS
        return COLUMN_BLOCK

    def _rows(self) -> Iterator[set[str]]:
        """Axes that one operand has alone in contractions along the streamed axis."""
        region, units = self.region, self.model.units
        for u in region.ended:
            unit = units.unit(u)
            if not unit.trace.dots or len(unit.edges) != 2:
                continue
            full = (*region.places[u][0], *region.ends.get(u, ()))
            sides: list[set[str]] = []
            for edge in unit.edges:
                names = [
                    t if isinstance(t, int) else int(x[1:])
                    for t in edge.terms
                    for x in (axes_of(t) if not isinstance(t, int) else "_")
                ]
                sides.append({f"a{full[k]}" for k in names if k >= 0})
            ends = self.a in region.ends.get(u, ())
            for one, other in (sides, sides[::-1]):
                if self.name in one | other and (ends or self.name not in one):
                    yield one - other - {self.name}

    def _held(self, axes: Iterable[str]) -> int:
        """Elements along axes that one task holds at once."""
        found = 1
        for n in axes:
            if n in self.cut:
                found *= min(self.sizes[n], self.cut[n])
            elif n == self.name:
                found *= min(self.sizes[n], self.block)
            elif n not in self.grid:
                found *= self.sizes[n]
        return found

    def _evaluations(self, axes: frozenset[str]) -> float:
        """How often something along axes is computed by all tasks together."""
        found = 1.0
        for n in axes | self.grid:
            if n in axes or n not in self.cut:
                found *= self.sizes[n]
            else:
                found *= -(-self.sizes[n] // self.cut[n])
        return found

    def _tasks(self, sweeps: int) -> int:
        tasks = int(self._evaluations(frozenset()))
        dots = any(state.block.kind == "dot" for state in self.cascade.states)
        split = dots and sweeps == 1 and has_parts((tasks,), self.visits)
        return tasks * self.visits if split else tasks

    def _carrying(self, resting: Level, states: int, tasks: int, threads: int) -> float:
        """Nanoseconds of what states of a task move that outgrow a core's own caches: in each visit
        they are brought to it and back, and so is what is added to them; around they are set and
        read."""
        if resting in ("l1", "l2"):
            return 0.0
        moved = states * (4.0 * self.visits + 2.0) * tasks
        return moved * self.model.ns_per_byte(resting, "copy", threads)

    def _state_bytes(self) -> int:
        states = self.cascade.states
        return sum(self._held(s.block.axes) * s.dtype.itemsize for s in states)

    # ---- what each sweep does ------------------------------------------------------------------

    def _sweeps(self) -> Iterator[list[Term]]:
        """The terms that each sweep evaluates, blocks' folds included."""
        when = {
            u: self.cascade.sweep_of(t) for u, t in self.found.roots.items() if self.name in t.axes
        }
        for sweep in sorted({s.sweep for s in self.cascade.states} | set(when.values())):
            roots = [self.found.roots[u] for u, k in when.items() if k == sweep]
            states = [s for s in self.cascade.states if s.sweep == sweep]
            asked = [s for s in states if self.parts > 1 and s.best is not None]
            blocks = [s.of if s in asked else s.block for s in states]
            carries = [s.carry for s in states if s.carry and s not in asked]
            seen = dict.fromkeys([*blocks, *carries, *roots])
            pending = [*(a for b in blocks for a in b.args), *carries, *roots]
            while pending:
                t = pending.pop()
                if not t.is_fold:  # others are finished
                    seen[t] = None
                    pending += [a for a in t.args if a not in seen]
            yield list(seen)

    def _around(self, parts: Iterable[list[Term]]) -> list[Term]:
        """The terms that no sweep evaluates: what is made of its folds, once, before or after."""
        swept = {t for part in parts for t in part}
        seen: dict[Term, None] = {}
        pending = list(self.found.roots.values())
        while pending:
            t = pending.pop()
            if t in seen:
                continue
            seen[t] = None
            pending += (self.cascade.finals[t],) if t.is_fold else t.args
        return [t for t in seen if t not in swept and not t.is_fold]

    def _share(self, part: list[Term]) -> float:
        """How much of the axis one sweep visits: the mean over some of the tasks."""
        states = [s for s in self.cascade.states if s.block in part]
        if not states or any(t in part for t in self.found.roots.values()):
            return 1.0
        seen = self._visible(states)
        if seen.start is None and seen.stop is None and seen.seen is not None:
            return TOLD
        return self.shares.between(seen.start, seen.stop, self.name)

    def _seen(self, part: list[Term]) -> dict[str, float]:
        """How much the blocks of one sweep see of other axes."""
        others = [n for n in self.sizes if n not in self.grid and n != self.name]
        return self.shares.seen(
            self.found.terms,
            dict.fromkeys(part),
            self.cascade.states,
            self.found.roots.values(),
            self.name,
            others,
            self.still,
        )

    def _work(
        self, terms: list[Term], share: float, seen: dict[str, float], visits: int = 0
    ) -> float:
        """Nanoseconds of one sweep on one core that visits a share of the axis, and sees shares of
        others; what stands still is done in each of its `visits`, by default one for each block."""

        def times(axes: frozenset[str]) -> float:
            found = self._evaluations(axes) * (self.empty if self.lanes.along in axes else 1.0)
            if self.name not in axes:
                return found * (visits or self.visits)
            return found * prod(p for n, p in seen.items() if n in axes)

        found = 0.0
        for t in terms:
            axes, cost = t.axes, 0.0
            if t not in self.slow:
                target, loads = self.model.target, self.found.loads
                packing = term_packing_ns(target, t, self.sizes, self.still, loads, times)
                self.packing, found = self.packing + packing, found + packing
            match t.kind:
                case "apply":
                    cost = SCALARS[t.op].cost
                case "cast":
                    cost = MOVE_COST if t.dtype.bits < 64 else WIDE_COST / 2
                case "fold":
                    axes, cost = axes | set(t.over), SCALARS[COMBINES[t.op].scalar].cost
                    cost += WIDE_COST if t in self.extra else 0.0
                case "dot":
                    axes = axes | set(t.over)
                    cost = WALKED_COST if t in self.slow else STEP_COST
                case "opaque" if isinstance(t.value, tuple) and t.value[0] == "fold":
                    row, axes = COMBINES.get(t.value[1]), axes | set(t.value[2])
                    step = WALKED_COST if t in self.slow else STEP_COST
                    cost = step if row is None else SCALARS[row.scalar].cost
                case _:
                    pass
            if cost:
                width = max(a.dtype.itemsize for a in (t.args or (t,)))
                # Sums of integers are work; positions, which a fold keeps, are what masks are.
                own = t.args if t.kind in ("apply", "cast") else t.args[1:] * (t.kind == "fold")
                if not all(a.dtype.is_float for a in own):
                    cost *= MASKING if axes & set(self.cut) else 0.0
                if width == 8 and t.dtype.is_float and self.is_single and self.is_columns:
                    cost *= SLOW_COLUMNS
                found += self.model.target.compute_ns(cost, times(axes), width)
        return found * share

    def _slow(self) -> set[Term]:
        """Products that are walked rather than blocked."""
        found: dict[Term, tuple[frozenset[str], frozenset[str]]] = {}
        for t in self.made.own:
            if (over := summed(t)) and len(t.args) == 2:
                one, other = (a.axes - {*over} for a in t.args)
                found[t] = one, other
        alone = self.still | {self.name} if self.block == 1 else self.still
        order = [f"a{k}" for k in range(len(self.region.axes))]
        numbers = walked([*found.values()], self.grid, self.grid | alone, order)
        return {t for k, t in enumerate(found) if k in numbers}

    def _held_axes(self) -> frozenset[str]:
        """Shorter axes of which each position is visited apart (`smelt.lower.mask_bounds`)."""
        states, name = self.cascade.states, self.name
        plain = all(s.carry is None and s.sweep == 0 for s in states)
        if not states or not plain or not any(s.block.kind == "dot" for s in states):
            return frozenset()
        written = [t.axes for t in self.found.roots.values() if name in t.axes]
        return frozenset(
            n
            for n, size in self.sizes.items()
            if n not in (name, *self.grid)
            and size <= self.sizes[name]
            and all({n, name} <= {*s.block.over} for s in states)
            and all(n in axes for axes in written)
        )

    # ---- memory --------------------------------------------------------------------------------

    def _distinct(self, t: Term, v: int) -> int:
        elements = prod(self.sizes[n] for n in t.axes)
        return min(elements, self.model.elements[v]) * self.model.itemsize[v]

    def _read(self, t: Term, v: int, threads: int, first: bool) -> tuple[float, float]:
        """Nanoseconds of reading a value in one sweep: at first touch, and again."""
        model = self.model
        nbytes = self._distinct(t, v)
        row = model.itemsize[v]
        for n in t.axes - self.grid:
            row *= self.sizes[n]
        resting = model.target.level(row * threads, threads)
        again = 0.0
        walked = self._evaluations(t.axes) * model.itemsize[v] if t.axes else 0.0
        if walked > nbytes and resting != "l1":
            again = (walked - nbytes) * model.ns_per_byte(resting, "read", threads)
        if first:
            touch = model.read_ns(v, nbytes, threads)
            return touch, max(0.0, again - OVERLAP * touch)
        if resting == "dram":
            return 0.0, again + model.read_ns(v, nbytes, threads)
        return 0.0, again + nbytes * model.ns_per_byte(resting, "read", threads)
