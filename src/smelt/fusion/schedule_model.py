"""The schedule that the code generator will give a region, foreseen: tasks, nests, what is kept.

A fold is a barrier: what reads its result belongs to a later level, hence to a later loop nest.  A
value that a later nest needs is computed again there when that is cheap, and kept in scratch memory
otherwise.  When too few positions are independent, a folded axis is split.  Each rule has its
counterpart in `smelt.lower.assign_axes` or `smelt.codegen.llvm.schedule.build_nests`; the numbers
are in `smelt.blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from smelt.blocks import (
    BLOCK,
    COLUMNS,
    CUT_SCORE,
    LEAST_TASKS,
    PARTS,
    SPLIT_ABOVE,
    THIN,
    THIN_COLUMNS,
    WINDOW_ROWS,
    WRITTEN_OUT,
    beside_rows,
    fold_columns,
    product_rows,
    rows_together,
    whole_rows,
    window_columns,
)
from smelt.fusion.bitsets import bits
from smelt.fusion.contraction_cost import (
    WALKED_COST,
    in_lines,
    packing,
    short_axes,
    side_of,
    term_at,
    walked_units,
)
from smelt.fusion.depthwise_separable import hosted, lines_of
from smelt.fusion.parts import awaited, joining
from smelt.fusion.region import Place, Region, axis_numbers
from smelt.fusion.trace import MOVE_COST, STEP_COST
from smelt.fusion.units import STILL, Units
from smelt.fusion.vectorization_cost import lanes_axis, parts_for, vote, written_out
from smelt.fusion.window_recompute import bands, places_for_each, slides
from smelt.types.dtype import f64
from smelt.types.expr import evaluate

KEEP_ABOVE = 4.0
"""Row cost above which a value that a later nest needs is kept."""

HALO = 1.25
"""Places of an image that are packed for the windows of one task, relative to its own."""

SEVERAL = -4
"""What stands beside an axis that has one axis there in one array and another one in others."""

Nest: TypeAlias = tuple[int, int]
"""A loop nest: the level of folds that it waits for, and the axes that one task walks in it."""


class Sweeps:
    """The loop nests of one region.  Sets of axes are bit masks."""

    def __init__(self, units: Units, region: Region, extents: list[int]) -> None:
        self.units, self.region = units, region
        self.extents = extents
        self.sizes = [extents[e] for e in region.axes]
        self.volumes: dict[int, int] = {0: 1}
        self.block = fold_columns(len(region.ended)) if region.ended else BLOCK
        self.local = region.all_axes & ~region.grid
        products = [u for u in region.ended if units.unit(u).trace.dots]
        self.split = self._split() if region.ended and not products else 0
        self.parts = parts_for(self, self.split.bit_length() - 1) if self.split else 1
        self.vector = self._vector()
        self.apart = 0 if products else lanes_axis(self)
        """The grid axis that vectors run along because rows are short, as a mask."""
        self.vector = self.apart or self.vector
        self.spread = written_out(self)
        self.packs = bool(products)
        self.host, self.hosted = hosted(units, region) if len(products) > 1 else (-1, 0)
        self.held = self.split if self.split and self._is_rowwise() else 0
        """The split axis where a part is walked row by row, as a mask."""
        if not region.even and len(region.axes) > 2:
            self._collapse()
        self.cut: dict[int, int] = {}
        """Grid axes that tasks take in blocks, and how many positions."""
        self.rows = 0
        """The one of them that is walked around the vectors, as a mask; none around so short rows
        that what repeats in them stays in registers."""
        self.beside = 0
        """Products side by side whose rows nobody folds: each is done with before the next."""
        if products:
            self._cut_products(products)
        elif self.vector & region.grid:
            together = self._rows_together()
            along = self.vector.bit_length() - 1
            row = units.extents[region.axes[along]]
            if not isinstance(row, int) or row > WRITTEN_OUT:
                self.rows = sum(1 << a for a in together)
            self.cut = {along: self.block, **together}
        self.cut_axes = sum(1 << a for a in self.cut)
        self.own = self.local | self.vector | self.cut_axes
        """The axes that one task walks itself."""
        self.times: dict[int, float] = {}
        self.kept = 0
        self.needs: dict[Nest, int] = {}
        """The units that each nest computes."""
        self.sweeps: dict[int, list[int]] = {}
        """How many nests read a value, for each of its places; empty where there is one nest."""
        self.roots: dict[Nest, int] = {}
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

    def inner(self, axes: int) -> int:
        """Those of some axes that one task walks itself."""
        return axes & self.own

    def blocks(self, a: int) -> int:
        """Blocks of an axis that is cut."""
        return -(-self.sizes[a] // self.cut[a])

    def evaluations(self, axes: int) -> float:
        """How often something along `axes` is computed by all tasks together."""
        known = self.times.get(axes)
        if known is None:
            fixed = self.region.grid & ~self.cut_axes & ~self.spread
            found = self.volume(fixed | (axes & self.spread) | self.inner(axes))
            for a in self.cut:
                if not axes >> a & 1:  # along the vectors a row begins anew
                    anew = self.rows >> a & 1 and axes & self.vector
                    found *= self.sizes[a] if anew else self.blocks(a)
            known = self.times[axes] = float(found)
        return known

    def row(self, axes: int) -> int:
        """Elements of something along `axes` that one task holds."""
        inner = self.inner(axes) & ~self.held
        found = self.volume(inner & ~self.cut_axes)
        for a, block in self.cut.items():
            if inner >> a & 1:
                found *= min(self.sizes[a], block)
        return -(-found // self.parts) if self.split & inner else found

    def _rows_together(self) -> dict[int, int]:
        """How many rows a task takes where nothing is folded: of the axis beside the vector one."""
        region = self.region
        place = region.places[region.stored.bit_length() - 1][0]
        others = [
            t
            for t in place
            if isinstance(t, int)
            and t >= 0
            and region.grid >> t & 1
            and self.sizes[t] > 1
            and not (self.vector | self.spread) >> t & 1
        ]
        if region.ended or not others:
            return {}
        return {
            others[-1]: int(evaluate(rows_together(self.sizes[self.vector.bit_length() - 1]), {}))
        }

    def _cut_products(self, products: list[int]) -> None:
        """Blocks of the axes that only one operand of a contraction has."""
        grid, few = self.region.grid, short_axes(self.units, self.region)
        found = {
            u: [side_of(self.region, u, edge) for edge in self.units.unit(u).edges]
            for u in products
        }
        pairs = {u: (s[0], s[1]) for u, s in found.items() if len(s) == 2}
        if len(pairs) > 1 and not any((x ^ y) & self.region.folded for x, y in pairs.values()):
            self.beside = sum(1 << u for u in pairs)
        for u, (left, right) in pairs.items():
            if self.hosted >> u & 1:
                continue
            own = [left & ~right, right & ~left]
            if self._cut_windows(u, own) or u in self.region.peeked:
                self._cut_bands(u)
                continue
            chosen = [(x & ~grid or x & ~few or x).bit_length() - 1 for x in own]
            free = self.volume((left | right) & grid)
            cut = self._product_block(u, chosen, free, len(products))
            for a, block in zip(chosen, cut, strict=True):
                if a >= 0 and grid >> a & 1:
                    self.cut[a] = min(block, self.cut.get(a, block))

    def _cut_windows(self, u: int, own: list[int]) -> bool:
        """Blocks of a product over windows, or of one whose columns two axes walk: rows of the one
        operand, whole lines of the other."""
        place, grid = self.region.places[u][0], self.region.grid
        for k, edge in enumerate(self.units.unit(u).edges):
            terms = [term_at(place, t) for t in edge.terms]
            walks = any(map(slides, terms)) or (u == self.host and own[k] & grid)
            walks = walks or in_lines(self.units, self.region, u, edge, own[k], self.sizes)
            if not walks or not own[0] or not own[1]:
                continue
            *_, row = bits(own[1 - k])
            *outer, line = list(bits(own[k]))[-2:]
            most = window_columns(self.units.values[u].type.dtype.compute.itemsize)
            width = min(self.sizes[line], most)
            lines = lines_of(self.sizes[outer[0]], width) if outer and u == self.host else most
            columns = min(max(most // width, 1), lines)
            blocks = {row: WINDOW_ROWS, line: width, **dict.fromkeys(outer, columns)}
            self.cut |= {a: n for a, n in blocks.items() if grid >> a & 1}
            return True
        return False

    def _cut_bands(self, u: int) -> None:
        """Blocks of the axes whose windows peek at a product."""
        windows = self.region.peeked.get(u)
        if windows:
            itemsize = self.units.values[u].type.dtype.compute.itemsize
            self.cut |= bands(windows, self.sizes, itemsize)

    def _product_block(
        self, u: int, chosen: list[int], free: int, products: int
    ) -> tuple[int, int]:
        """Positions of both axes that one task takes, where `free` ones are independent."""
        if any(a < 0 or self.sizes[a] <= THIN for a in chosen):
            return THIN_COLUMNS, THIN_COLUMNS
        itemsize = self.units.values[u].type.dtype.compute.itemsize
        if self.region.grid >> chosen[1] & 1:
            rows = product_rows(free, itemsize, products)
        elif self.beside:
            rows = beside_rows(free, itemsize)
        else:
            rows = whole_rows(free, self.sizes[chosen[1]], itemsize, products)
        return int(evaluate(rows, {})), COLUMNS

    def is_across(self, places: list[Place]) -> bool:
        """Whether a load walks its rows across the vector axis."""
        a = self.vector.bit_length() - 1
        return a >= 0 and not self.apart and any(a in place and place[-1] != a for place in places)

    def is_far(self, place: Place) -> bool:
        """Whether lanes move elements of lines of their own, along which another axis runs."""
        last = place[-1] if place else STILL
        return isinstance(last, int) and last >= 0 and self.is_across([place])

    def _vector(self) -> int:
        """The axis along which most memory is walked in unit steps."""
        region = self.region
        if len(region.axes) < 2:
            return region.all_axes
        lasts = {place[-1] for places in region.loads.values() for place in places if place}
        lasts.update(region.places[u][0][-1] for u in bits(region.stored) if region.places[u][0])
        if len(lasts) == 1 and isinstance(only := lasts.pop(), int) and only >= 0:
            return 1 << only
        score = [0.0] * len(region.axes)
        for v, places in region.loads.items():
            for place, mask in zip(places, region.load_masks[v], strict=True):
                vote(score, place, mask, 1.0)
        for u in bits(region.stored):
            vote(score, region.places[u][0], region.masks[u][0], 1.5)
        for a in bits(self.split):
            score[a] *= CUT_SCORE if score[a] > 0 else 1.0
        return 1 << max(range(len(score)), key=lambda a: (score[a], a))

    def _collapse(self) -> None:
        """Neighbouring axes that every array walks as one become one: the inner axis takes the
        extent of both, the outer one has a single position."""
        region, units = self.region, self.units
        after: dict[int, int] = {}
        before: dict[int, int] = {}
        places: dict[Place, int] = {}  # with axes that are fixed where a term is an expression
        fixed = region.scanned | self.split
        for v, masks in region.load_masks.items():
            for mask, place in zip(masks, region.loads[v], strict=True):
                places[place] = mask
                fixed |= mask if v in units.loose else 0
        for u in bits(region.stored):
            places.setdefault(region.places[u][0], 0)
        for place, mask in places.items():
            last = -1
            for t in (*place, -2):
                if not isinstance(t, int):
                    last = -3
                    fixed |= mask
                elif t != STILL:
                    if after.setdefault(last, t) != t:
                        after[last] = SEVERAL
                    if before.setdefault(t, last) != last:
                        before[t] = SEVERAL
                    last = t
        for a, b in after.items():
            if a < 0 or b < 0 or before[b] != a or fixed >> a & 1 or fixed >> b & 1:
                continue
            if all((m >> a & 1) == (m >> b & 1) for m in (region.grid, *region.ended.values())):
                self.sizes[b] *= self.sizes[a]
                self.sizes[a] = 1
        self.volumes = {0: 1}

    # ---- tasks ---------------------------------------------------------------------------------

    def tasks(self) -> int:
        """Independent pieces of work."""
        grid = self.region.grid
        found = self.volume(grid & ~self.cut_axes)
        for a in self.cut:
            found *= self.blocks(a)
        if not self.local:
            found = max(found, -(-self.volume(grid) // self.block))
        return found * self.parts if self.split else found

    def _split(self) -> int:
        """The folded axis that is split over the grid, as a mask; 0 if none is."""
        region = self.region
        if region.scanned or self._columns() >= LEAST_TASKS:
            return 0
        if self.volume(region.all_axes) < SPLIT_ABOVE:
            return 0
        able = [a for a in joining(self.units, region) if self._one_sweep(a)]
        long = [a for a in able if self.sizes[a] >= PARTS]
        if not able:
            return 0
        best = min(long, key=self._depth) if long else max(able, key=lambda a: self.sizes[a])
        return 1 << best if parts_for(self, best) > 1 else 0

    def _is_rowwise(self) -> bool:
        """Whether folds along rows wait for one another, so that a part is walked row by row
        (`codegen.llvm.rowwise`)."""
        region = self.region
        split = [u for u, over in region.ended.items() if over & self.split]
        if any(
            region.ended[u] != self.split or self.units.values[u].type.dtype == f64 for u in split
        ):
            return False
        return max((region.levels[u] for u in region.ended if u not in split), default=0) > 1

    def _columns(self) -> int:
        """Tasks of the grid, where neighbouring positions in memory go together: those along which
        the arrays with most dimensions lie (`fastest` in lowering)."""
        walked = [
            [t for t in place if t != STILL]
            for places in self.region.loads.values()
            for place in places
        ]
        most = max(map(len, walked), default=0)
        runs = 0
        for place in walked:
            if most and len(place) == most:
                last = place[-1]
                runs |= sum([1 << a for a in axis_numbers(last)])
        found = self.volume(self.region.grid & ~runs)
        for a in bits(self.region.grid & runs):
            found *= -(-self.sizes[a] // self.block)
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
            waits = self.units.operands[u] & late
            over = region.ended.get(u, 0) >> a & 1
            if waits and (over or any(mask >> a & 1 for mask in region.masks[u])):
                return False
            if over or waits:
                late |= 1 << u
        return True

    # ---- nests ---------------------------------------------------------------------------------

    def work(self, step_ns: Sequence[float]) -> float:
        """Nanoseconds on one core, given those of one step of each unit."""
        region = self.region
        found = 0.0
        slow = walked_units(self.units, region) if region.ended and not self.hosted else set[int]()
        if self.packs:
            found += packing(self.units, region, self.volume)
        whole = awaited(self.units, region, self.split) if self.split else 0
        for (_, around), members in self.needs.items():
            for u in bits(members):
                over = region.ended.get(u, 0)
                step = step_ns[u] * (WALKED_COST / STEP_COST if u in slow else 1.0)
                for mask, place in zip(region.masks[u], region.places[u], strict=True):
                    if not (mask | over) & self.own & ~around:
                        times = self.evaluations(mask | over)
                        if whole >> u & 1 and not (mask | over) & self.split:
                            times *= self.parts
                        if u in region.peeked:
                            times *= places_for_each(
                                region.peeked[u],
                                self.sizes,
                                self.units.values[u].type.dtype.compute.itemsize,
                            )
                        elif self.packs and not over and any(map(slides, place)):
                            times = min(times, self._packed_once(u, mask))
                        found += step * times
        return found

    def emptiness(self, lanes: int) -> float:
        """Lanes of the vectors along a few columns that are folded for each one that has a column:
        every row of theirs is a vector.  Columns that are split have few in each part."""
        size = self.sizes[self.vector.bit_length() - 1] if self.vector else 1
        columns = self.region.ended and not self.vector & self.region.folded
        if self.vector & self.split & ~self.held:
            size, columns = -(-size // self.parts), True
        if self.packs or not columns or size <= 1:
            return 1.0
        return -(-size // lanes) * lanes / size

    def _packed_once(self, u: int, mask: int) -> float:
        """How often elements are computed that a product packs: each once, whatever windows reach
        it, for every block of the axes that it lacks."""
        unit = self.units.unit(u)
        found = HALO * prod(self.extents[n] for n in unit.axes[: unit.rank])
        for a in self.cut:
            if not mask >> a & 1:
                found *= self.blocks(a)
        return found

    def arrange(self) -> None:
        """Finds which units each nest computes, and what is kept for later nests."""
        region = self.region
        if not self.local:  # one nest over the grid
            if region.work < 0:
                everything = sum(1 << u for u in region.masks)
                self.needs[0, self.inner(region.all_axes)] = everything
            return
        for u, ended in region.ended.items():
            self._root(u, region.levels[u] - 1, ended | region.masks[u][0])
        for u in bits(region.stored):
            self._root(u, region.levels.get(u, 0), region.masks[u][0])
        for level in range(max(level for level, _ in self.roots), -1, -1):
            for nest in [k for k in self.roots if k[0] == level]:
                self._close(nest)

    def _root(self, u: int, level: int, axes: int) -> None:
        nest = level, self.inner(axes)
        self.roots[nest] = self.roots.get(nest, 0) | 1 << u

    def _close(self, nest: Nest) -> None:
        """Finds what one nest computes and reads."""
        levels = self.region.levels
        self.needs[nest] = self.nest_loads = 0
        for u in bits(self.roots[nest]):
            if self.units.unit(u).is_fold and levels[u] > nest[0]:
                self.needs[nest] |= 1 << u
                self.nest_loads |= self.units.operands[u] & ~self.region.members
                self._need(self.units.operands[u] & self.region.members, nest)
            else:
                self._need(1 << u, nest)
        for v in bits(self.nest_loads):
            masks = self.region.load_masks[v]
            times = self.sweeps.setdefault(v, [0] * len(masks))
            for k, mask in enumerate(masks):
                times[k] += not self.inner(mask) & ~nest[1]

    def _need(self, wanted: int, nest: Nest) -> None:
        """Has a nest compute units, and what they need that was not kept by an earlier nest."""
        operands, members = self.units.operands, self.region.members
        pending, found = list(bits(wanted)), self.needs[nest]
        while pending:
            u = pending.pop()
            if found >> u & 1 or self._is_kept(u, nest[0]):
                continue
            found |= 1 << u
            self.nest_loads |= operands[u] & ~members
            pending += bits(operands[u] & members & ~found)
        self.needs[nest] = found

    def _is_kept(self, u: int, level: int) -> bool:
        """Whether a nest finds a value in scratch: the results of folds, and what is dear."""
        region = self.region
        inner = region.masks[u][0] & self.own
        if u in region.ended:
            self.kept |= 1 << u if inner and not self.hosted >> u & 1 else 0
            return True
        if not inner or region.levels.get(u, 0) >= level:
            return False
        if not self.kept >> u & 1 and self._again(u) > KEEP_ABOVE:
            self.kept |= 1 << u
            self._root(u, region.levels[u], inner)
        return bool(self.kept >> u & 1)

    def _again(self, u: int) -> float:
        """Row cost of computing a value from memory and finished folds."""
        if not self.costs:
            region, units, costs = self.region, self.units, self.costs
            members, kept = region.members, self.kept
            for p, masks in reversed(region.masks.items()):  # operands before readers
                cost = 0.0
                if p not in region.ended and masks[0] & self.own:
                    unit, operands = units.unit(p), units.operands[p]
                    cost = float("inf") if unit.along >= 0 else unit.trace.cost
                    cost += MOVE_COST * (operands & ~members).bit_count()
                    cost += sum([costs[v] for v in bits(operands & members & ~kept)])
                costs[p] = cost
        return self.costs[u]
