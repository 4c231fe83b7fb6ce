"""Emit what reads the sums of a GEMM: from registers, tile by tile, or from scratch.

The nest which reads the sums of a register tile (the epilogue) takes them from registers and stores
what follows.  Sums wait in scratch where an epilogue is too long to be unrolled for every row of a
tile, where other products are read with them, and in tiles which reach past the last row or column.

Where outputs are ranges of a product's columns, nearly every tile is inside one of them.  Its rows
then have one address and one stride, chosen once by comparing the tile's first and last column
(`OutputRanges`); vectors are stored as if there were one output.  For a tile which spans several
ranges, or none, sums go to the stack, and a loop over its vectors selects the range of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, store_vector
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.indexing import first_lanes, lanes_before_end, number, opaque
from smelt.codegen.llvm.loopir.items import Access, Item, StoreItem, accesses_of
from smelt.codegen.llvm.loopir.store_ranges import Range, stored_range
from smelt.codegen.llvm.loops.split_store_ranges import range_ends
from smelt.codegen.llvm.nests.environment import Environment, Lanes, RangeStoreTarget, Scope
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import OUTPUT_STAGE_PART, SUMS_PART, Tile
from smelt.codegen.llvm.products.fused_gemm_packing import FusedGemmPacker
from smelt.codegen.llvm.products.microkernel import TileTarget
from smelt.codegen.llvm.products.move_elements import copy_elements
from smelt.codegen.llvm.products.prefetch import PrefetchStream
from smelt.codegen.llvm.schedule.fused_gemm import FusedGemmPlan
from smelt.python.dataclass import dataclass
from smelt.types.expr import coefficient

Value = ir.Value
Ranges = list[tuple[StoreItem, Range]]


@dataclass(frozen=True, slots=True, eq=False)
class SelectedOutputs:
    """The output range selected for some columns."""

    inside: Value
    """Whether they are inside one range of each value, and overlap no other (i1)."""
    aims: list[RangeStoreTarget]
    """For each value its selected range, from row 0 on."""


class OutputRanges:
    """The range stores of the open nest along a product's columns.

    `row_strides` is the row stride of each output.
    """

    def __init__(self, env: Environment, axis: str, apart: Mapping[Access, Value]) -> None:
        self.env, self.axis, self.row_strides = env, axis, apart
        by_value: dict[tuple[Item, str], Ranges] = {}
        for s in env.nest.stores:
            within = None if s.where is None else stored_range(s)
            if within is not None and within.axis == axis and self._rows_are_contiguous(s):
                dtype = env.frame.dtypes[s.access.buffer]
                by_value.setdefault((s.value, dtype.name), []).append((s, within))
        self.groups = [group for group in by_value.values() if len(group) > 1]
        """Ranges of one value each, with outputs of one type."""
        self.ends = {
            within: range_ends(env, within) for group in self.groups for _, within in group
        }

    def _rows_are_contiguous(self, store: StoreItem) -> bool:
        """Return whether rows of an output are contiguous, at a uniform stride."""
        access = store.access
        return (
            access in self.row_strides
            and not access.limits
            and coefficient(access.offset, self.axis) == 1
        )

    @property
    def accesses(self) -> set[Access]:
        """Return accesses which need no address of their own in a tile inside one range."""
        return {s.access for group in self.groups for s, _ in group}

    def inside(self, low: Value, high: Value) -> Value:
        """Return whether columns are inside one range of each value and overlap no other (i1)."""
        b, inside_all = self.env.b, ir.IntType(1)(1)
        for group in self.groups:
            once, clear = ir.IntType(1)(0), ir.IntType(1)(1)
            for _, within in group:
                is_inside = self._holds(within, low, high)
                is_apart = self._misses(within, low, high)
                clear = b.and_(clear, b.or_(is_apart, b.and_(is_inside, b.not_(once))))
                once = b.or_(once, is_inside)
            inside_all = b.and_(inside_all, b.and_(once, clear))
        return inside_all

    def _holds(self, within: Range, low: Value, high: Value) -> Value:
        b, (first, stop) = self.env.b, self.ends[within]
        begins = b.icmp_signed("<=", first, low)
        return begins if stop is None else b.and_(begins, b.icmp_signed("<=", high, stop))

    def _misses(self, within: Range, low: Value, high: Value) -> Value:
        b, (first, stop) = self.env.b, self.ends[within]
        before = b.icmp_signed("<=", high, first)
        return before if stop is None else b.or_(before, b.icmp_signed("<=", stop, low))

    def select_outputs(self, low: Value, high: Value, top: Scope) -> SelectedOutputs:
        """Return the output ranges of columns; `top` is the scope before all rows."""
        aims = [self._select_range(group, low, high, top) for group in self.groups]
        return SelectedOutputs(self.inside(low, high), aims)

    def _select_range(self, group: Ranges, low: Value, high: Value, top: Scope) -> RangeStoreTarget:
        b, outputs = self.env.b, list[tuple[Value, Value]]()
        dtype = self.env.frame.dtypes[group[0][0].access.buffer]
        for store, _ in group:
            first = self.env.address(store.access.buffer, top.offset(store.access))
            outputs.append((first, self.row_strides[store.access]))
        first, stride = outputs[0]
        for (_, within), (other_first, other_stride) in zip(group[1:], outputs[1:], strict=True):
            in_range = self._holds(within, low, high)
            first = b.select(in_range, other_first, first)
            stride = b.select(in_range, other_stride, stride)
        return RangeStoreTarget([store for store, _ in group], first, stride, dtype)

    def emit_in_range(
        self, aimed: SelectedOutputs, row: Value, count: int, run: Callable[[int], None]
    ) -> None:
        """Emit `run(i)`, the epilogue of each of `count` rows, for columns inside one range."""
        env, b = self.env, self.env.b
        accesses = [a for a in env.accesses if a not in self.accesses]
        firsts = [
            element_address(b, aim.line, b.mul(row, aim.apart), aim.dtype) for aim in aimed.aims
        ]
        for i in range(count):
            targets = [
                replace(aim, line=element_address(b, x, b.mul(number(i), aim.apart), aim.dtype))
                for aim, x in zip(aimed.aims, firsts, strict=True)
            ]
            with env.within(accesses=accesses, range_targets=targets):
                run(i)


Columns: TypeAlias = Callable[[Value, int, Value | None], None]
"""Emits some vectors of columns from one on; the last vector may have a mask."""
Part = Literal["", "whole", "rest"]
"""All columns, those of full panels, or the others."""


def mask_of_last(mask: Value | None, nth: int, vectors: int) -> Value | None:
    """Return the mask of the nth vector: only the last may be partial."""
    return mask if nth == vectors - 1 else None


class FusedEpilogue(FusedGemmPacker):
    """Emits the epilogue of one product in the task that `env` is emitting."""

    def __init__(self, env: Environment, nest: Nest, c: FusedGemmPlan) -> None:
        super().__init__(env, nest, c)
        self.staged = False
        """Whether outputs are staged in scratch."""
        self.top = env.top
        self.row_strides: dict[Access, Value] = {}
        """Row strides of what the epilogue reads and writes."""
        self.extra_loads: list[Access] = []
        """Accesses of the epilogue which read one element per sum."""
        self.selected_outputs: SelectedOutputs | None = None
        """Output ranges of a tile's columns, where several tiles share the selection."""

    def _open_epilogue(self) -> None:
        """Open the nest, and compute row strides of what it reads and writes."""
        env, c = self.env, self.c
        self.top = env.open(self.nest, Scope(env.top))
        steps = {a: coefficient(a.offset, c.m) for a in env.accesses if not a.positions}
        self.row_strides = {a: env.index(s, self.top) for a, s in steps.items() if s is not None}
        loads = dict.fromkeys(accesses_of(i for i in env.items if {c.m, c.n} <= i.axes))
        stores = dict.fromkeys(s.access for s in self.nest.stores if s.where is None)
        self.output_ranges = OutputRanges(env, c.n, self.row_strides)
        self.selected_outputs = None
        self.extra_loads, self.results = (
            [a for a in accesses if a in self.row_strides and coefficient(a.offset, c.n) == 1]
            for accesses in (loads, stores)
        )

    # ---- rows and columns ------------------------------------------------------------------------

    def _places(self, row: Value, count: int) -> list[Scope]:
        b, env, c = self.b, self.env, self.c
        places = [Scope(self.top, {c.m: b.add(row, number(i))}) for i in range(count)]
        env.enter(places[0], 1)
        for i, place in enumerate(places[1:], 1):
            for access, step in self.row_strides.items():
                if access in places[0].offsets:
                    before = places[0].offsets[access]
                    place.locate(access, b.add(before, b.mul(number(i), step)))
            env.enter(place, 1)
        return places

    def _across(
        self, put: Columns, vectors: int, part: Part = "", first: Value | None = None
    ) -> None:
        """Emit `put(column, vectors, mask)` for all columns, several vectors at once.

        The masked remainder comes first, since it may be stored over the beginning of the next row.
        Columns before `first` are left out.
        """
        b, env, c = self.b, self.env, self.c
        (low, high), lanes, panel_columns = env.ranges[c.n], c.tile.lanes, c.tile.lanes * vectors
        size = b.sub(high, low)
        vectors_end, panels_end = (
            b.add(low, self._round_down(size, step)) for step in (lanes, panel_columns)
        )

        def masked(at: Value) -> None:
            left = opaque(b, b.sub(high, at))
            put(at, 1, lanes_before_end(b, left, lanes))

        if part == "rest":
            self._edge_panel(
                put, panels_end, vectors, lambda: env.loop(panels_end, high, lanes, masked)
            )
            return
        if not part:
            env.loop(vectors_end, high, lanes, masked)
        env.loop(first or low, panels_end, panel_columns, lambda at: put(at, vectors, None))
        if panel_columns > lanes and not part:
            env.loop(panels_end, vectors_end, lanes, lambda at: put(at, 1, None))

    def _edge_panel(
        self, put: Columns, panels_end: Value, vectors: int, single: Callable[[], None]
    ) -> None:
        """Emit `put` for the columns past full panels if they fill all vectors, otherwise `single`.

        A case which no task has is not emitted.
        """
        b, lanes = self.b, self.c.tile.lanes
        full, rests = (vectors - 1) * lanes, self._edge_widths(vectors * lanes)
        may_be_wide = vectors > 1 and (not rests or max(rests) > full)
        may_be_narrow = not may_be_wide or not rests or any(0 < n <= full for n in rests)
        left = opaque(b, b.sub(b.sub(self.env.ranges[self.c.n][1], panels_end), number(full)))
        is_wide = b.icmp_signed(">", left, number(0))

        def wide() -> None:
            put(panels_end, vectors, first_lanes(b, left, lanes))

        if may_be_wide and may_be_narrow:
            b.either(is_wide, wide, single)
        elif may_be_wide:
            b.either(is_wide, wide, ())
        elif not rests or max(rests):
            single()

    def _edge_widths(self, panel_columns: int) -> set[int]:
        """Return the possible numbers of columns past full panels; empty if unknown."""
        env = self.env
        total, local = (extents[self.c.n] for extents in (env.s.phase.axes, env.s.local))
        if env.row_groups or not isinstance(total, int) or not isinstance(local, int) or not local:
            return set()
        return {min(local, total) % panel_columns, total % local % panel_columns}

    # ---- from registers --------------------------------------------------------------------------

    def _epilogue_tile(
        self,
        row: Value,
        places: list[Scope],
        column: Value,
        mask: Value | None,
        totals: list[Value],
    ) -> None:
        """Emit the epilogue of a tile from a row on, reading its sums from registers."""
        b, env, lanes, vectors = self.b, self.env, self.c.tile.lanes, len(totals) // len(places)

        def row_epilogue(i: int) -> None:
            for v, total in enumerate(totals[i * vectors : (i + 1) * vectors]):
                at = b.add(column, number(v * lanes))
                self._epilogue_vector(places[i], at, mask_of_last(mask, v, vectors), total)

        if self.selected_outputs is not None:
            self.output_ranges.emit_in_range(self.selected_outputs, row, len(places), row_epilogue)
            return
        if not self.output_ranges.groups or len(totals) == 1:
            for i in range(len(places)):
                row_epilogue(i)
            return
        end = b.add(column, number(vectors * lanes))
        end = end if mask is None else b.minimum(end, env.ranges[self.c.n][1])
        aimed = self.output_ranges.select_outputs(column, end, self.top)
        b.either(
            aimed.inside,
            lambda: self.output_ranges.emit_in_range(aimed, row, len(places), row_epilogue),
            lambda: self._epilogue_of_stack(row, len(places), (column, end), totals),
        )

    def _epilogue_of_stack(
        self, row: Value, count: int, columns: tuple[Value, Value], totals: list[Value]
    ) -> None:
        """Emit the epilogue vector by vector, for a tile which spans several output ranges."""
        b, dtype, stride = self.b, self.c.item.dtype, len(totals) // count * self.c.tile.lanes
        with b.goto_entry_block():
            room = b.alloca(ir.ArrayType(totals[0].type, len(totals)))
        for j, total in enumerate(totals):
            b.store(total, b.gep(room, [number(j)], source_etype=total.type))

        def total_at(i: Value, at: Value) -> Value:
            nth = b.add(b.mul(b.sub(i, row), number(stride)), b.sub(at, columns[0]))
            return b.load(element_address(b, room, nth, dtype), typ=totals[0].type)

        self._epilogue_by_vector((row, b.add(row, number(count))), columns, total_at)

    def _epilogue_by_vector(
        self,
        rows: tuple[Value, Value],
        columns: tuple[Value, Value],
        total_at: Callable[[Value, Value], Value],
    ) -> None:
        """Emit the epilogue of some rows and columns by loops over single vectors."""
        b, env, lanes, (low, high) = self.b, self.env, self.c.tile.lanes, columns

        def vector(row: Value, at: Value) -> None:
            total = total_at(row, at)
            mask = first_lanes(b, opaque(b, b.sub(high, at)), lanes)
            self._epilogue_vector(self._places(row, 1)[0], at, mask, total)

        env.loop(*rows, 1, lambda row: env.loop(low, high, lanes, lambda at: vector(row, at)))

    def _epilogue_vector(
        self, place: Scope, column: Value, mask: Value | None, total: Value
    ) -> None:
        env, b, c = self.env, self.b, self.c
        inner = Scope(place, {c.n: column}, lanes=Lanes(c.n, column, c.tile.lanes, mask))
        inner.define(c.item, total)
        for item, _ in c.others:
            address = self._sum_address(inner.axis(c.m), column, item)
            inner.define(item, load_vector(self.m, address, item.dtype, None))
        env.enter(inner, 2)
        if not self.staged:
            env.body(inner)
            return
        row = b.mul(b.sub(inner.axis(c.m), self.first_row), self.columns)
        at = b.add(row, b.sub(column, env.ranges[c.n][0]))
        for j, s in enumerate(self.nest.stores):
            dtype = env.frame.dtypes[s.access.buffer]
            to = element_address(b, env.storage.at[c.item, OUTPUT_STAGE_PART + j], at, dtype)
            store_vector(self.m, to, env.get(s.value, inner, True), dtype, None)

    def _copy_staged(self, low: Value, high: Value) -> None:
        """Copy rows of results from scratch to their destination.

        They were stored there in full vectors, each over the end of the one before: stores of a few
        lanes are several times slower.
        """
        b, env, c = self.b, self.env, self.c
        count = b.mul(b.sub(high, low), self.columns)
        place = Scope(self.top, {c.m: low})
        env.enter(place, 1)
        for j, s in enumerate(self.nest.stores):
            dtype, to = env.frame.dtypes[s.access.buffer], place.offset(s.access)
            to = env.address(s.access.buffer, to)
            staged, lanes = env.storage.at[c.item, OUTPUT_STAGE_PART + j], c.tile.lanes
            copy_elements(env, to, staged, count, lanes, dtype, dtype)

    # ---- from scratch ----------------------------------------------------------------------------

    def _sum_address(self, row: Value, column: Value, item: Item | None = None) -> Value:
        """Return the address of a sum of this product, or of `item`."""
        b, low, item = self.b, self.env.ranges[self.c.n][0], item or self.item
        at = b.add(b.mul(b.sub(row, self.first_row), self.pitch), b.sub(column, low))
        return element_address(b, self.env.storage.at[item, SUMS_PART], at, item.dtype)

    def _sum_places(self, row: Value, column: Value, count: int, vectors: int) -> list[Value]:
        """Return the scratch addresses of a tile's sums."""
        first = TileTarget(self._sum_address(row, column), self.pitch, self.c.item.dtype)
        return first.addresses(self.b, Tile(count, vectors, self.c.tile.lanes))

    def _sum_vector(self, row: Value, column: Value) -> Value:
        """Load a vector of sums from scratch."""
        return load_vector(self.m, self._sum_address(row, column), self.c.item.dtype, None)

    def _epilogue_row(self, row: Value, first: Value | None = None) -> None:
        """Emit the epilogue of a row from sums in scratch, from column `first` on."""
        (place,), c, b = self._places(row, 1), self.c, self.b

        def columns(at: Value, vectors: int, mask: Value | None) -> None:
            for v in range(vectors):
                column = b.add(at, number(v * c.tile.lanes))
                total = self._sum_vector(row, column)
                self._epilogue_vector(place, column, mask_of_last(mask, v, vectors), total)

        # After long sums the epilogue need not be unrolled.
        self._across(columns, 1 if c.wide else c.tile.vectors, first=first)

    # ---- prefetch --------------------------------------------------------------------------------

    def _origins(self, row: Value) -> dict[Access, Value]:
        """Return the first element of a row for each access of the epilogue to prefetch."""
        fills = self.c.wide and not self.c.blocks_k  # L1, with a panel over all of k
        accesses = [*self.extra_loads, *(() if fills else self.results)]
        place = self._places(row, 1)[0] if accesses else None
        return {a: place.offset(a) for a in accesses} if place else {}

    def _prefetch_streams(
        self, origins: Mapping[Access, Value], column: Value, count: int, vectors: int
    ) -> list[PrefetchStream]:
        """Return prefetch streams for what the epilogue of a tile reads and writes.

        Rows as short as a tile do not train hardware prefetchers.  What is read is that of the next
        tile, unless this tile's own sums take long enough.
        """
        b, env, c, streams = self.b, self.env, self.c, list[PrefetchStream]()
        for access, origin in origins.items():
            dtype, step = env.frame.dtypes[access.buffer], self.row_strides[access]
            base, written = env.frame.buffers[access.buffer], access in self.results
            rows_ahead = 0 if written or c.stores_sums or c.blocks_k else count
            at = b.add(b.add(origin, column), b.mul(number(rows_ahead), step))
            first = element_address(b, base, at, dtype)
            shape = count, -(-vectors * c.tile.lanes * dtype.itemsize // CACHE_LINE)
            step = b.mul(step, number(dtype.itemsize))
            ahead = PrefetchStream(b, first, step, shape, near=not rows_ahead, written=written)
            streams.append(ahead)
        return streams
