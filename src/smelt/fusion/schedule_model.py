"""Predict the schedule that the code generator will choose for a region.

A schedule consists of tasks, loop nests, and the values kept between nests. A reduction is a
barrier: what reads its result belongs to a later level, hence to a later loop nest. A value that a
later nest needs is recomputed there if that is cheap, else kept in scratch memory. If there are too
few independent positions, a reduced axis is split, as in lowering, which asks the same functions
(`smelt.fusion.iteration_space`). Rules about nests mirror those in
`smelt.codegen.llvm.schedule.build_nests`; the numbers are the machine's (`smelt.machine.tiling`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import TypeAlias

from smelt.fusion.bitsets import bits, closure
from smelt.fusion.contraction_cost import (
    edge_axes,
    fused_depthwise,
    is_row_by_row,
    short_axes,
    term_at,
    unblocked_units,
)
from smelt.fusion.iteration_space import IterationSpace, Step
from smelt.fusion.region import Position, Region, axes_mask
from smelt.fusion.trace import STEP_COST, Term, is_window_term
from smelt.fusion.units import AT_ZERO, Units
from smelt.fusion.window_recompute import recompute_ratio, task_positions
from smelt.machine.tiling import Tiling
from smelt.ops.contract import bare_axis
from smelt.ops.cost import MOVE_COST
from smelt.types.dtype import f64
from smelt.types.expr import evaluate

KEEP_ABOVE = 4.0
"""Threshold on an element's cost: a value that a later nest needs is kept above it."""

HALO_RATIO = 1.25
"""Pixels of an image that are packed for the windows of one task, relative to its own."""

AMBIGUOUS = -4
"""Marks an axis that has different neighbouring axes in different arrays."""

Nest: TypeAlias = tuple[int, int]
"""A loop nest: the level of reductions it waits for, and the axes that a task iterates over."""


class ScheduleModel:
    """The predicted loop nests of one region. Sets of axes are bit masks."""

    def __init__(self, units: Units, region: Region, extents: list[int], tiling: Tiling) -> None:
        self.units, self.region, self.tiling = units, region, tiling
        self.extents = extents
        self.sizes = [extents[e] for e in region.axes]
        self.volumes: dict[int, int] = {0: 1}
        self.block = (
            tiling.reduction_columns(len(region.reduced_axes))
            if region.reduced_axes
            else tiling.map_block
        )
        self.local = region.all_axes & ~region.grid
        products = [u for u in region.reduced_axes if units.unit(u).trace.dots]
        plain = bool(region.reduced_axes) and not region.scanned and not products
        self.split = self._choose_split() if plain else 0
        self.parts = self.part_count(self.split.bit_length() - 1) if self.split else 1
        self.vector = self._choose_vector_axis()
        self.lane_axis = 1 << self.space.lane_axis() if plain and self.space.lane_axis() >= 0 else 0
        """The grid axis that vectors run along because rows are short, as a mask."""
        self.vector = self.lane_axis or self.vector
        self.unrolled_axes = self._choose_unrolled_axis()
        self.has_contractions = bool(products)
        self.pointwise, self.depthwise = (
            fused_depthwise(units, region)
            if len(products) > 1 and tiling.fuses_depthwise
            else (-1, 0)
        )
        self.rowwise_axis = self.split if self.split and self._is_rowwise() else 0
        """The split axis where a part is processed row by row, as a mask."""
        if not region.uniform and len(region.axes) > 2:
            self._collapse()
        self.cut: dict[int, int] = {}
        """Grid axes of which tasks take blocks, with the positions of a block."""
        self.rows = 0
        """Those of `cut` whose loop is outside of the vector loop, as a mask.

        Empty around rows so short that what repeats in them stays in registers.
        """
        self.independent_contractions = 0
        """Independent contractions whose rows are not reduced, as a mask.

        Each is finished before the next one starts.
        """
        if products:
            self._block_contractions(products)
        elif self.vector & region.grid:
            together = self._rows_together()
            along = self.vector.bit_length() - 1
            row = units.extents[region.axes[along]]
            if not isinstance(row, int) or row > tiling.unroll_results:
                self.rows = sum(1 << a for a in together)
            self.cut = {along: self.block, **together}
        self.cut_axes = sum(1 << a for a in self.cut)
        self.task_axes = self.local | self.vector | self.cut_axes
        """The axes that one task iterates over itself."""
        self.times: dict[int, float] = {}
        self.kept = 0
        self.needs: dict[Nest, int] = {}
        """The units that each nest computes."""
        self.reads_by_nest: dict[int, list[int]] = {}
        """How many nests read a value, for each of its positions; empty if there is one nest."""
        self.roots: dict[Nest, int] = {}
        self.nest_loads = 0
        self.costs: dict[int, float] = {}

    def volume(self, axes: int) -> int:
        """Return the number of positions of a set of axes."""
        count = self.volumes.get(axes)
        if count is None:
            count = 1
            for a in bits(axes):
                count *= self.sizes[a]
            self.volumes[axes] = count
        return count

    def inner(self, axes: int) -> int:
        """Return those of some axes that one task iterates over itself."""
        return axes & self.task_axes

    def blocks(self, a: int) -> int:
        """Return the number of blocks of an axis in `cut`."""
        return -(-self.sizes[a] // self.cut[a])

    def evaluations(self, axes: int) -> float:
        """Return how often something along `axes` is computed by all tasks together."""
        count = self.times.get(axes)
        if count is None:
            fixed = self.region.grid & ~self.cut_axes & ~self.unrolled_axes
            product = self.volume(fixed | (axes & self.unrolled_axes) | self.inner(axes))
            for a in self.cut:
                if not axes >> a & 1:  # a vector loop starts again for each row
                    restarts = self.rows >> a & 1 and axes & self.vector
                    product *= self.sizes[a] if restarts else self.blocks(a)
            count = self.times[axes] = float(product)
        return count

    def row(self, axes: int) -> int:
        """Return the elements along `axes` that one task holds."""
        inner = self.inner(axes) & ~self.rowwise_axis
        count = self.volume(inner & ~self.cut_axes)
        for a, block in self.cut.items():
            if inner >> a & 1:
                count *= min(self.sizes[a], block)
        return -(-count // self.parts) if self.split & inner else count

    def _rows_together(self) -> dict[int, int]:
        """Return how many rows a task takes in an elementwise kernel.

        They are rows of the axis next to the vector axis.
        """
        region = self.region
        position = region.positions[region.stored.bit_length() - 1][0]
        others = [
            t
            for t in position
            if isinstance(t, int)
            and t >= 0
            and region.grid >> t & 1
            and self.sizes[t] > 1
            and not (self.vector | self.unrolled_axes) >> t & 1
        ]
        if region.reduced_axes or not others:
            return {}
        return {
            others[-1]: int(
                evaluate(self.tiling.rows_per_task(self.sizes[self.vector.bit_length() - 1]), {})
            )
        }

    def _block_contractions(self, products: list[int]) -> None:
        """Block the axes that only one operand of a contraction has."""
        grid, short = self.region.grid, short_axes(self.units, self.region, self.tiling.thin)
        sides = {
            u: [edge_axes(self.region, u, edge) for edge in self.units.unit(u).edges]
            for u in products
        }
        pairs = {u: (s[0], s[1]) for u, s in sides.items() if len(s) == 2}
        if len(pairs) > 1 and not any((x ^ y) & self.region.all_reduced for x, y in pairs.values()):
            self.independent_contractions = sum(1 << u for u in pairs)
        depth = self._fused_depth(pairs)
        for u, (left, right) in pairs.items():
            if self.depthwise >> u & 1:
                continue
            own_axes = [left & ~right, right & ~left]
            if self._block_windows(u, own_axes) or u in self.region.windows:
                self._block_peeked(u)
                continue
            chosen = [(x & ~grid or x & ~short or x).bit_length() - 1 for x in own_axes]
            free = self.volume((left | right) & grid)
            blocks = self._product_block(u, chosen, free, len(products), depth)
            for a, block in zip(chosen, blocks, strict=True):
                if a >= 0 and grid >> a & 1:
                    self.cut[a] = min(block, self.cut.get(a, block))

    def _fused_depth(self, pairs: dict[int, tuple[int, int]]) -> int:
        """Return the positions that products sum over, if just right factors are computed for them.

        0 unless they are all that is reduced, sums of floats with the same rows and columns: then
        rows of a task share what is computed, as they do not share the rows of left factors.
        """
        reduced, members = self.region.reduced_axes, self.region.members
        if reduced.keys() != pairs.keys() or len({(x & ~y, y & ~x) for x, y in pairs.values()}) > 1:
            return 0
        products = [self.units.unit(u) for u in pairs]
        left, right = (
            any(members >> unit.edges[side].producer & 1 for unit in products) for side in (0, 1)
        )
        if left or not right or not all(x.node.type.dtype.is_float for x in products):
            return 0
        return sum(self.volume(over) for over in reduced.values())

    def _block_windows(self, u: int, own_axes: list[int]) -> bool:
        """Block a convolution: rows of the filter operand, full rows of the image operand.

        Also a product whose columns are two axes. Returns whether it is one of these.
        """
        position, grid = self.region.positions[u][0], self.region.grid
        for k, edge in enumerate(self.units.unit(u).edges):
            terms = [term_at(position, t) for t in edge.terms]
            by_rows = any(map(is_window_term, terms)) or (
                u == self.pointwise and own_axes[k] & grid
            )
            by_rows = by_rows or is_row_by_row(
                self.units, self.region, u, edge, own_axes[k], self.sizes, self.tiling.thin
            )
            if not by_rows or not own_axes[0] or not own_axes[1]:
                continue
            *_, row_axis = bits(own_axes[1 - k])
            *outer, last_axis = list(bits(own_axes[k]))[-2:]
            max_columns = self.tiling.window_columns(
                self.units.values[u].type.dtype.compute.itemsize
            )
            row_length = min(self.sizes[last_axis], max_columns)
            max_rows = (
                self.tiling.image_rows(self.sizes[outer[0]], row_length)
                if outer and u == self.pointwise
                else max_columns
            )
            columns = min(max(max_columns // row_length, 1), max_rows)
            blocks = {
                row_axis: self.tiling.window_rows,
                last_axis: row_length,
                **dict.fromkeys(outer, columns),
            }
            self.cut |= {a: n for a, n in blocks.items() if grid >> a & 1}
            return True
        return False

    def _block_peeked(self, u: int) -> None:
        """Block the axes of windows that read a product which is computed once per position."""
        windows = self.region.windows.get(u)
        if windows:
            itemsize = self.units.values[u].type.dtype.compute.itemsize
            self.cut |= task_positions(windows, self.sizes, self.tiling, itemsize)

    def _product_block(
        self, u: int, chosen: list[int], free: int, products: int, depth: int
    ) -> tuple[int, int]:
        """Return the positions of both axes that one task takes.

        `free` positions are independent; `depth` as in `_fused_depth`.
        """
        if any(a < 0 or self.sizes[a] <= self.tiling.thin for a in chosen):
            reads = [p for positions in self.region.loads.values() for p in positions]
            own_axes = [a for a in chosen if a >= 0]
            if not any(len(p) > 1 and p[-1] in own_axes for p in reads):
                return self.tiling.thin_dot_rows, self.tiling.thin_dot_rows
            most = max(self.sizes[a] for a in own_axes)
            columns = int(evaluate(self.tiling.thin_columns(most), {}))
            return columns, columns
        itemsize = self.units.values[u].type.dtype.compute.itemsize
        row_count, column_count = (self.sizes[a] for a in chosen)
        rows = self.tiling.product_rows(
            row_count,
            column_count,
            free,
            itemsize,
            products,
            cuts_columns=bool(self.region.grid >> chosen[1] & 1),
            is_reduced=not self.independent_contractions,
            depth=depth,
        )
        return int(evaluate(rows, {})), self.tiling.product_columns

    def is_across(self, positions: list[Position]) -> bool:
        """Return whether a load runs across the vector axis."""
        a = self.vector.bit_length() - 1
        return (
            a >= 0
            and not self.lane_axis
            and any(a in position and position[-1] != a for position in positions)
        )

    def is_transposed(self, position: Position) -> bool:
        """Return whether each lane accesses a cache line of its own.

        That is so if another axis is the contiguous one.
        """
        last = position[-1] if position else AT_ZERO
        return isinstance(last, int) and last >= 0 and self.is_across([position])

    def _choose_vector_axis(self) -> int:
        """Return the axis along which most memory is accessed with stride 1, as a mask."""
        region = self.region
        if len(region.axes) < 2:
            return region.all_axes
        lasts = {
            position[-1]
            for positions in region.loads.values()
            for position in positions
            if position
        }
        lasts.update(
            region.positions[u][0][-1] for u in bits(region.stored) if region.positions[u][0]
        )
        if len(lasts) == 1 and isinstance(only := lasts.pop(), int) and only >= 0:
            return 1 << only
        score = [0.0] * len(region.axes)
        for v, positions in region.loads.items():
            for position, mask in zip(positions, region.load_masks[v], strict=True):
                _vote(score, position, mask, 1.0)
        for u in bits(region.stored):
            _vote(score, region.positions[u][0], region.masks[u][0], 1.5)
        for a in bits(self.split):
            score[a] *= self.tiling.part_score if score[a] > 0 else 1.0
        return 1 << max(range(len(score)), key=lambda a: (score[a], a))

    def _choose_unrolled_axis(self) -> int:
        """Return the axis that an elementwise kernel unrolls besides the vector axis, as a mask.

        All results have it (`smelt.codegen.llvm.loops.unroll_columns`). 0 if there is none.
        """
        region = self.region
        if region.reduced_axes or region.scanned or region.grid != region.all_axes:
            return 0
        for a in bits(region.grid & ~self.vector):
            n = self.units.extents[region.axes[a]]
            if isinstance(n, int) and 1 < n <= self.tiling.unroll_results:
                return 1 << a
        return 0

    def _collapse(self) -> None:
        """Collapse neighbouring axes that every array has next to each other.

        The inner axis takes the extent of both; the outer one keeps a single position.
        """
        region, units = self.region, self.units
        after: dict[int, int] = {}
        before: dict[int, int] = {}
        positions: dict[Position, int] = {}  # with its axes where a term is an expression, else 0
        fixed = region.scanned | self.split
        for v, masks in region.load_masks.items():
            for mask, position in zip(masks, region.loads[v], strict=True):
                positions[position] = mask
                fixed |= mask if v in units.strided_inputs else 0
        for u in bits(region.stored):
            positions.setdefault(region.positions[u][0], 0)
        for position, mask in positions.items():
            last = -1
            for t in (*position, -2):
                if not isinstance(t, int):
                    last = -3
                    fixed |= mask
                elif t != AT_ZERO:
                    if after.setdefault(last, t) != t:
                        after[last] = AMBIGUOUS
                    if before.setdefault(t, last) != last:
                        before[t] = AMBIGUOUS
                    last = t
        for a, b in after.items():
            if a < 0 or b < 0 or before[b] != a or fixed >> a & 1 or fixed >> b & 1:
                continue
            if all(
                (m >> a & 1) == (m >> b & 1) for m in (region.grid, *region.reduced_axes.values())
            ):
                self.sizes[b] *= self.sizes[a]
                self.sizes[a] = 1
        self.volumes = {0: 1}

    # ---- tasks ---------------------------------------------------------------------------------

    def tasks(self) -> int:
        """Return the number of independent tasks."""
        grid = self.region.grid
        count = self.volume(grid & ~self.cut_axes)
        for a in self.cut:
            count *= self.blocks(a)
        if not self.local:
            count = max(count, -(-self.volume(grid) // self.block))
        return count * self.parts if self.split else count

    @cached_property
    def space(self) -> IterationSpace:
        """The facts from which lowering assigns roles to the axes."""
        region = self.region
        stored = region.positions[region.stored.bit_length() - 1][0]
        order = [t for t in stored if isinstance(t, int) and t >= 0]
        order += [a for a in bits(region.grid) if a not in order]
        return IterationSpace(
            self.tiling,
            self.volume,
            [a for a in order if region.grid >> a & 1],
            [[_axes_at(t) for t in p] for positions in region.loads.values() for p in positions],
            [*self._steps()],
            self.sizes,
            region.all_reduced,
        )

    def _steps(self) -> Iterator[Step]:
        """Yield the members, one for each position at which it is read."""
        region, units = self.region, self.units
        for u, masks in reversed(region.masks.items()):
            over = merged = region.reduced_axes.get(u, 0)
            if over and units.unit(u).trace.positional:
                merged = 1 << region.reduced_axis_order[u][0]
            operands, compensated = [*bits(units.operands[u])], units.values[u].type.dtype == f64
            for mask in masks:
                yield Step(u, operands, mask | over, over, merged, compensated)

    def part_count(self, axis: int) -> int:
        """Return into how many parts an axis would be split."""
        return int(evaluate(self.space.parts(axis, self.space.rows_per_step(axis)), {}))

    def _choose_split(self) -> int:
        """Return the reduced axis that is split over the grid, as a mask, or 0."""
        best = self.space.split()
        return 1 << best if best >= 0 and self.part_count(best) > 1 else 0

    def _is_rowwise(self) -> bool:
        """Return whether reductions along rows depend on one another.

        A part is then processed row by row (`codegen.llvm.loopir.rowwise_split`).
        """
        region = self.region
        split = [u for u, over in region.reduced_axes.items() if over & self.split]
        if any(
            region.reduced_axes[u] != self.split or self.units.values[u].type.dtype == f64
            for u in split
        ):
            return False
        return max((region.levels[u] for u in region.reduced_axes if u not in split), default=0) > 1

    # ---- nests ---------------------------------------------------------------------------------

    def work(self, step_ns: Sequence[float], unblocked_cost: float, start_ns: float = 0.0) -> float:
        """Return the nanoseconds on one core, with `step_ns` for one step of each unit.

        A step of a contraction that cannot be blocked costs `unblocked_cost`; contractions take
        `start_ns` to start.
        """
        region = self.region
        total_ns = start_ns
        unblocked = (
            unblocked_units(self.units, region, self.tiling.thin)
            if region.reduced_axes and not self.depthwise
            else set[int]()
        )
        repeated_units = members_before(self.units, region, self.split) if self.split else 0
        for (_, around), members in self.needs.items():
            for u in bits(members):
                reduced = region.reduced_axes.get(u, 0)
                unit_ns = step_ns[u] * (unblocked_cost / STEP_COST if u in unblocked else 1.0)
                for mask, position in zip(region.masks[u], region.positions[u], strict=True):
                    if not (mask | reduced) & self.task_axes & ~around:
                        count = self.evaluations(mask | reduced)
                        if repeated_units >> u & 1 and not (mask | reduced) & self.split:
                            count *= self.parts
                        if u in region.windows:
                            count *= recompute_ratio(
                                region.windows[u],
                                self.sizes,
                                self.tiling,
                                self.units.values[u].type.dtype.compute.itemsize,
                            )
                        elif (
                            self.has_contractions
                            and not reduced
                            and any(map(is_window_term, position))
                        ):
                            count = min(count, self._packed_once(u, mask))
                        total_ns += unit_ns * count
        return total_ns

    def short_sums(self) -> list[int]:
        """Return the sums of few single-precision terms, each added in double precision.

        Vectors run along the results, whose lanes meet the terms one after another: always beside
        contractions, which have an axis of results for vectors.
        """
        return [
            u
            for u, over in self.region.reduced_axes.items()
            if self.units.ordered >> u & 1
            and (self.has_contractions or not over & self.vector)
            and self.volume(over) <= self.tiling.short_row
            and not self.units.unit(u).trace.dots
            and self.units.values[u].type.dtype.itemsize < 8
        ]

    def lane_overhead(self, lanes: int) -> float:
        """Return the computed lanes per useful lane where few columns are reduced.

        Every row of theirs takes full vectors. Columns that are split have few in each part.
        """
        size = self.sizes[self.vector.bit_length() - 1] if self.vector else 1
        columns = self.region.reduced_axes and not self.vector & self.region.all_reduced
        if self.vector & self.split & ~self.rowwise_axis:
            size, columns = -(-size // self.parts), True
        if self.has_contractions or not columns or size <= 1:
            return 1.0
        return -(-size // lanes) * lanes / size

    def _packed_once(self, u: int, mask: int) -> float:
        """Return how often elements are computed that a contraction packs.

        Each once per block of the axes that it lacks, however many windows read it.
        """
        unit = self.units.unit(u)
        count = HALO_RATIO * prod(self.extents[n] for n in unit.axes[: unit.rank])
        for a in self.cut:
            if not mask >> a & 1:
                count *= self.blocks(a)
        return count

    def assign_nests(self) -> None:
        """Determine which units each nest computes, and what is kept for later nests."""
        region = self.region
        if not self.local:  # a single nest over the grid
            if region.work < 0:
                members = sum(1 << u for u in region.masks)
                self.needs[0, self.inner(region.all_axes)] = members
            return
        for u, ended in region.reduced_axes.items():
            self._add_root(u, region.levels[u] - 1, ended | region.masks[u][0])
        for u in bits(region.stored):
            self._add_root(u, region.levels.get(u, 0), region.masks[u][0])
        for level in range(max(level for level, _ in self.roots), -1, -1):
            for nest in [k for k in self.roots if k[0] == level]:
                self._fill_nest(nest)

    def _add_root(self, u: int, level: int, axes: int) -> None:
        nest = level, self.inner(axes)
        self.roots[nest] = self.roots.get(nest, 0) | 1 << u

    def _fill_nest(self, nest: Nest) -> None:
        """Determine what one nest computes and loads."""
        levels = self.region.levels
        self.needs[nest] = self.nest_loads = 0
        for u in bits(self.roots[nest]):
            if self.units.unit(u).is_reduction and levels[u] > nest[0]:
                self.needs[nest] |= 1 << u
                self.nest_loads |= self.units.operands[u] & ~self.region.members
                self._require(self.units.operands[u] & self.region.members, nest)
            else:
                self._require(1 << u, nest)
        for v in bits(self.nest_loads):
            masks = self.region.load_masks[v]
            times = self.reads_by_nest.setdefault(v, [0] * len(masks))
            for k, mask in enumerate(masks):
                times[k] += not self.inner(mask) & ~nest[1]

    def _require(self, roots: int, nest: Nest) -> None:
        """Make a nest compute units, and their operands that no earlier nest has kept."""
        operands, members = self.units.operands, self.region.members
        pending, computed = list(bits(roots)), self.needs[nest]
        while pending:
            u = pending.pop()
            if computed >> u & 1 or self._is_kept(u, nest[0]):
                continue
            computed |= 1 << u
            self.nest_loads |= operands[u] & ~members
            pending += bits(operands[u] & members & ~computed)
        self.needs[nest] = computed

    def _is_kept(self, u: int, level: int) -> bool:
        """Return whether a nest finds a value in scratch memory.

        Results of reductions and expensive values are kept there.
        """
        region = self.region
        inner = region.masks[u][0] & self.task_axes
        if u in region.reduced_axes:
            self.kept |= 1 << u if inner and not self.depthwise >> u & 1 else 0
            return True
        if not inner or region.levels.get(u, 0) >= level:
            return False
        if not self.kept >> u & 1 and self._recompute_cost(u) > KEEP_ABOVE:
            self.kept |= 1 << u
            self._add_root(u, region.levels[u], inner)
        return bool(self.kept >> u & 1)

    def _recompute_cost(self, u: int) -> float:
        """Return the cost of computing an element from memory and finished reductions."""
        if not self.costs:
            region, units, costs = self.region, self.units, self.costs
            members, in_scratch = region.members, self.kept
            for p, masks in reversed(region.masks.items()):  # operands before readers
                cost = 0.0
                if p not in region.reduced_axes and masks[0] & self.task_axes:
                    unit, operands = units.unit(p), units.operands[p]
                    cost = float("inf") if unit.scan_axis >= 0 else unit.trace.cost
                    cost += MOVE_COST * (operands & ~members).bit_count()
                    cost += sum([costs[v] for v in bits(operands & members & ~in_scratch)])
                costs[p] = cost
        return self.costs[u]


@lru_cache(maxsize=4096)
def _axes_at(t: Term) -> int | None:
    """Return the axes along which a dimension is read; None at position 0."""
    return None if t == AT_ZERO else axes_mask(t)


def members_before(units: Units, region: Region, split: int) -> int:
    """Return the members that reductions over a split axis depend on.

    Every part computes them itself. Those without that axis, such as the mean that a row is centred
    by, are computed once per part.
    """
    operands = 0
    for u, over in region.reduced_axes.items():
        operands |= units.operands[u] if over & split else 0
    return closure(operands, units.operands, region.members)


@lru_cache(maxsize=4096)
def _contiguous_axis(term: Term) -> int:
    """Return the contiguous axis of a last dimension, -1 for none or several.

    A remainder (%) of a longer axis counts as that axis.
    """
    if isinstance(term, int):
        return term
    while len(term.terms) == 1 and term.terms[0][1] == 1 and len(term.terms[0][0]) == 1:
        (atom,) = term.terms[0][0]
        if atom.kind != "%" or isinstance(atom.args[0], int):
            break
        term = atom.args[0]
    name = bare_axis(term)
    return -1 if name is None else int(name[1:])


def _vote(score: list[float], position: Position, mask: int, weight: float) -> None:
    """Count an access for its stride-1 axis, and against its other axes."""
    contiguous = _contiguous_axis(position[-1]) if position else -1
    weight *= 64.0 ** mask.bit_count()
    for a in bits(mask):
        score[a] += 2 * weight if contiguous == a else -weight
