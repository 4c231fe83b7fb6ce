"""Emit a tall-skinny GEMM whose epilogue reads the sums from registers.

A register tile computes some rows at a time.  The nest which reads its sums (the epilogue) takes
them from registers and stores what follows.  A long epilogue is not unrolled for every row: the
sums of some rows are staged in scratch first.  A row remainder goes to lower tiles, down to single
rows: nothing is computed twice, since outputs may overwrite operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, cast

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_scalar,
    load_vector,
    prefetch,
    store_vector,
)
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import (
    multiple_of_counter,
    row_addresses,
    step_address,
)
from smelt.codegen.llvm.instructions.indexing import (
    first_lanes,
    lanes_before_end,
    number,
    opaque,
    splat,
)
from smelt.codegen.llvm.instructions.registers import memory_type
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Access, Item, accesses_of
from smelt.codegen.llvm.nests.product_plan import OUTPUT_STAGE_PART, RIGHT_PART, SUMS_PART
from smelt.codegen.llvm.products.move_elements import copy_elements
from smelt.codegen.llvm.products.prefetch import PrefetchStream, prefetch_in_loop
from smelt.codegen.llvm.products.rank_one_update import multiply_add, rank_one_update
from smelt.codegen.llvm.products.store_ranges import OutputRanges, SelectedOutputs
from smelt.codegen.llvm.products.tall_skinny_packing import TallPacker
from smelt.codegen.llvm.products.tile_loops import reduction_loop, strip_mine_axis
from smelt.codegen.llvm.products.tile_sums import fits_one_run, strided_rows, sum_in_runs
from smelt.codegen.llvm.schedule.fused_gemm_plan import FusedGemmPlan
from smelt.types.affine import coefficient
from smelt.types.dtype import DType

Value = ir.Value
ROW_PREFETCH_BYTES = 8192
"""Bytes between what is read of long rows and what is prefetched."""


def mask_of_last(mask: Value | None, nth: int, vectors: int) -> Value | None:
    """Return the mask of the nth vector: only the last may be partial."""
    return mask if nth == vectors - 1 else None


class TallSkinnyGemm(TallPacker):
    """Emits one tall-skinny product of the task that `env` is emitting."""

    def run(self) -> None:
        """Emit all rows of this task, some at a time.

        Products whose sums the epilogue of another product reads are emitted with it: it takes the
        same rows of all of them, so that operands and sums stay in L1.
        """
        env, c = self.env, self.c
        if c.keeps_sums:
            return
        products = [*self._kept_products(), self]
        for product in products:
            with env.within(products=product):
                product._prepare()

        def row_block() -> None:
            for product in products:
                with env.within(products=product):
                    product._row_block(*env.ranges[c.m])

        with env.within(prefetch_enabled=False):
            strip_mine_axis(env, c.m, c.rows_per_pass, row_block)

    def _kept_products(self) -> list[Self]:
        """Return the other products, whose sums are kept for this product's epilogue."""
        others = (n for n in self.env.s.nests if n is not self.nest and n.product is not None)
        # All products of a phase are planned alike.
        return [type(self)(self.env, n, cast(FusedGemmPlan, n.product)) for n in others]

    def _prepare(self) -> None:
        """Emit what precedes all rows: pack the right operand and locate the left one."""
        self._pack_right()
        self._locate_left()

    def _row_block(self, low: Value, high: Value) -> None:
        """Emit a block of rows: sums and epilogue."""
        env, b, c = self.env, self.b, self.c
        self.first_row = low
        self._pack_left()
        self.top = env.open(self.nest, Scope(env.top))
        self._set_row_strides()
        if not c.dense:
            self._results(low, high)
            return
        aligned = b.icmp_signed("==", b.urem(self.columns, number(c.tile.lanes)), number(0))
        with b.if_else(aligned) as (full_rows, staged_rows):
            with full_rows:
                self._results(low, high)
            with staged_rows:
                self.staged = True
                self._results(low, high)
                self._copy_staged(low, high)
                self.staged = False

    def _set_row_strides(self) -> None:
        """Compute the row strides of what the epilogue reads and writes."""
        env = self.env
        steps = {a: coefficient(a.offset, self.c.m) for a in env.accesses if not a.positions}
        self.row_strides = {a: env.index(s, self.top) for a, s in steps.items() if s is not None}
        loads = dict.fromkeys(accesses_of(i for i in env.items if {self.c.m, self.c.n} <= i.axes))
        stores = dict.fromkeys(s.access for s in self.nest.stores if s.where is None)
        self.output_ranges = OutputRanges(env, self.c.n, self.row_strides)
        self.selected_outputs: SelectedOutputs | None = None
        """Output ranges of a tile's columns, where several tiles share the selection."""
        self.extra_loads, self.results = (
            [a for a in accesses if a in self.row_strides and coefficient(a.offset, self.c.n) == 1]
            for accesses in (loads, stores)
        )

    # ---- rows ------------------------------------------------------------------------------------

    def _results(self, low: Value, high: Value) -> None:
        """Emit full tiles of rows, then lower ones; then a deferred epilogue."""
        b, c, loop, done = self.b, self.c, self.env.loop, low
        part = "whole" if c.wide else ""
        for size in c.heights[:-1]:
            end = b.sub(high, b.urem(b.sub(high, done), number(size)))
            loop(done, end, size, lambda row, size=size: self._rows(row, size, part))
            done = end
        if part:
            self._edge_columns(low, done)
        loop(done, high, 1, lambda row: self._rows(row, 1))
        if self.c.stores_sums and not self.c.keeps_sums:
            loop(low, high, 1, self._epilogue_row)

    def _edge_columns(self, low: Value, high: Value) -> None:
        """Emit the columns past the full panels, by full and by lower tiles."""
        done, (full, *_, lower, _) = low, self.c.heights
        for size in (full, lower):
            end = self.b.sub(high, self.b.urem(self.b.sub(high, done), number(size)))
            self.env.loop(done, end, size, lambda row, size=size: self._rows(row, size, "rest"))
            done = end

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
            dtype = env.frame.dtypes[s.access.buffer]
            base = env.frame.buffers[s.access.buffer]
            to = element_address(b, base, place.offset(s.access), dtype)
            staged, lanes = env.storage.at[c.item, OUTPUT_STAGE_PART + j], c.tile.lanes
            copy_elements(env, to, staged, count, lanes, dtype, dtype)

    def _rows(self, row: Value, count: int, part: Literal["", "whole", "rest"] = "") -> None:
        """Emit all columns of some rows, or the full panels, or the rest."""
        self._across(self._tile(row, count), self.c.tile.vectors, part)

    def _tile(self, row: Value, count: int) -> Any:
        """Return a callback which emits some columns of some rows."""
        b, c = self.b, self.c
        if c.gathers_rows:
            starts = [self._gathered_row(b.add(row, number(i)) if i else row) for i in range(count)]
        else:
            at = b.mul(row if c.direct else b.sub(row, self.first_row), self.left_strides[0])
            first = element_address(b, self.base, at, self.left_dtype)
            starts = strided_rows(b, first, self.left_strides[0], count, self.left_dtype)
        places = [] if c.stores_sums else self._places(row, count)
        origins = self._origins(row) if count > 1 else {}
        lanes = c.tile.lanes

        def columns(at: Value, vectors: int, mask: Value | None) -> None:
            streams = self._prefetch_streams(origins, at, count, vectors)
            for stream in streams:
                if c.wide:
                    stream.begin(self.depth)
                else:
                    stream.prefetch_all()
            self.prefetch_streams = streams if c.wide else []
            if c.gathers_rows and count == c.heights[0]:
                self._prefetch_gathered(b.add(row, number(count)), at)
            totals = self._sums(starts, b.sub(at, self.column), vectors, mask)
            if not c.stores_sums:
                self._epilogue_tile(row, places, at, mask, totals)
                return
            for j, total in enumerate(totals):
                i, v = divmod(j, vectors)
                vector_column = b.add(at, number(v * lanes)) if v else at
                to = self._sum_address(b.add(row, number(i)), vector_column)
                store_vector(self.m, to, total, c.item.dtype, None)

        return columns

    def _origins(self, row: Value) -> dict[Access, Value]:
        """Return the first element of a row for each access of the epilogue to prefetch."""
        fills = self.c.wide and not self.c.k_blocked  # L1, with a panel over all of k
        accesses = [*self.extra_loads, *(() if fills else self.results)]
        place = self._places(row, 1)[0] if accesses else None
        return {a: place.offset(a) for a in accesses} if place else {}

    def _prefetch_streams(
        self, origins: Mapping[Access, Value], column: Value, count: int, vectors: int
    ) -> list[PrefetchStream]:
        """Return prefetch streams for what the epilogue of a tile reads and writes.

        Rows as short as a tile do not train hardware prefetchers.
        """
        b, env, streams = self.b, self.env, list[PrefetchStream]()
        for access, origin in origins.items():
            dtype, step = env.frame.dtypes[access.buffer], self.row_strides[access]
            base, written = env.frame.buffers[access.buffer], access in self.results
            rows_ahead = 0 if written else self._rows_ahead(count)
            at = b.add(b.add(origin, column), b.mul(number(rows_ahead), step))
            first = element_address(b, base, at, dtype)
            cache_lines = -(-vectors * self.c.tile.lanes * dtype.itemsize // CACHE_LINE)
            step = b.mul(step, number(dtype.itemsize))
            shape = count, cache_lines
            streams.append(
                PrefetchStream(b, first, step, shape, near=not rows_ahead, written=written)
            )
        return streams

    def _rows_ahead(self, count: int) -> int:
        """Return how many rows ahead a tile prefetches what its epilogue reads."""
        return 0 if self.c.stores_sums else count

    def _prefetch_gathered(self, row: Value, column: Value) -> None:
        """Prefetch one of the next gathered rows, another for each panel.

        Hardware prefetchers cannot predict their addresses.
        """
        b, c, env = self.b, self.c, self.env
        nth = b.udiv(b.sub(column, self.column), number(c.tile.columns))
        row, last = b.add(row, nth), b.sub(env.ranges[c.m][1], number(1))
        first = self._gathered_row(b.select(b.icmp_signed("<", row, last), row, last))
        env.loop(
            number(0),
            self.depth,
            CACHE_LINE // self.left_dtype.itemsize,
            lambda k: prefetch(b, element_address(b, first, k, self.left_dtype)),
        )

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

    def _across(self, put: Any, vectors: int, part: Literal["", "whole", "rest"] = "") -> None:
        """Emit `put(column, vectors, mask)` for all columns, several vectors at once.

        The masked remainder comes first, since it may be stored over the beginning of the next row.
        `part` "whole" emits only full panels, "rest" only the other columns: at once if they need
        as many vectors.  A mask applies to the last vector.
        """
        b, env, c = self.b, self.env, self.c
        (low, high), lanes, panel_columns = env.ranges[c.n], c.tile.lanes, c.tile.lanes * vectors
        size = b.sub(high, low)
        vectors_end, panels_end = (
            b.add(low, self._round_down(size, lanes)),
            b.add(low, self._round_down(size, panel_columns)),
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
        env.loop(low, panels_end, panel_columns, lambda at: put(at, vectors, None))
        if panel_columns > lanes and not part:
            env.loop(panels_end, vectors_end, lanes, lambda at: put(at, 1, None))

    def _edge_panel(
        self, put: Any, panels_end: Value, vectors: int, single: Callable[[], None]
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
        if may_be_wide and may_be_narrow:
            with b.if_else(is_wide) as (wide, narrow):
                with wide:
                    put(panels_end, vectors, first_lanes(b, left, lanes))
                with narrow:
                    single()
        elif may_be_wide:
            with b.if_then(is_wide):
                put(panels_end, vectors, first_lanes(b, left, lanes))
        elif not rests or max(rests):
            single()

    def _edge_widths(self, panel_columns: int) -> set[int]:
        """Return the possible numbers of columns past full panels; empty if unknown."""
        total, local = (extents[self.c.n] for extents in (self.env.s.phase.axes, self.env.s.local))
        if (
            self.env.row_groups
            or not isinstance(total, int)
            or not isinstance(local, int)
            or not local
        ):
            return set()
        return {min(local, total) % panel_columns, total % local % panel_columns}

    # ---- the epilogue ---------------------------------------------------------------------

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
                at = b.add(column, number(v * lanes)) if v else column
                self._epilogue_vector(places[i], at, mask_of_last(mask, v, vectors), total)

        if self.selected_outputs is not None:
            self.output_ranges.emit_in_range(self.selected_outputs, row, len(places), row_epilogue)
            return
        if not self.output_ranges.groups or len(totals) == 1:
            for i in range(len(places)):
                row_epilogue(i)
            return
        end, high = b.add(column, number(vectors * lanes)), env.ranges[self.c.n][1]
        end = end if mask is None else b.select(b.icmp_signed("<", end, high), end, high)
        aimed = self.output_ranges.select_outputs(column, end, self.top)
        with b.if_else(aimed.inside) as (in_one_range, in_several):
            with in_one_range:
                self.output_ranges.emit_in_range(aimed, row, len(places), row_epilogue)
            with in_several:
                self._epilogue_by_vector(row, len(places), (column, end), totals)

    def _epilogue_by_vector(
        self, row: Value, count: int, columns: tuple[Value, Value], totals: list[Value]
    ) -> None:
        """Emit the epilogue vector by vector, for a tile which spans several output ranges."""
        b, env, lanes, dtype = self.b, self.env, self.c.tile.lanes, self.c.item.dtype
        vectors, (low, high) = len(totals) // count, columns
        with b.goto_entry_block():
            room = b.alloca(ir.ArrayType(totals[0].type, len(totals)))
        for j, total in enumerate(totals):
            b.store(total, b.gep(room, [number(j)], source_etype=total.type))

        def vector(i: Value, at: Value) -> None:
            nth = b.add(b.mul(b.sub(i, row), number(vectors * lanes)), b.sub(at, low))
            total = b.load(element_address(b, room, nth, dtype), typ=totals[0].type)
            (place,) = self._places(i, 1)
            mask = first_lanes(b, opaque(b, b.sub(high, at)), lanes)
            self._epilogue_vector(place, at, mask, total)

        env.loop(
            row,
            b.add(row, number(count)),
            1,
            lambda i: env.loop(low, high, lanes, lambda at: vector(i, at)),
        )

    def _sum_address(self, row: Value, column: Value) -> Value:
        return self._sum_address_of(self.item, row, column)

    def _sum_address_of(self, item: Item, row: Value, column: Value) -> Value:
        """Return the address of a sum of one of the products emitted together."""
        b, low = self.b, self.env.ranges[self.c.n][0]
        at = b.add(b.mul(b.sub(row, self.first_row), self.pitch), b.sub(column, low))
        return element_address(b, self.env.storage.at[item, SUMS_PART], at, item.dtype)

    def _epilogue_row(self, row: Value) -> None:
        """Emit the epilogue of a row from sums in scratch."""
        (place,), c, b = self._places(row, 1), self.c, self.b

        def columns(at: Value, vectors: int, mask: Value | None) -> None:
            for v in range(vectors):
                vector_column = b.add(at, number(v * c.tile.lanes)) if v else at
                total = load_vector(
                    self.m, self._sum_address(row, vector_column), c.item.dtype, None
                )
                self._epilogue_vector(place, vector_column, mask_of_last(mask, v, vectors), total)

        # After long sums the epilogue need not be unrolled.
        self._across(columns, 1 if c.wide else c.tile.vectors)

    def _epilogue_vector(
        self, place: Scope, column: Value, mask: Value | None, total: Value
    ) -> None:
        env, b, c = self.env, self.b, self.c
        inner = Scope(place, {c.n: column}, lanes=Lanes(c.n, column, c.tile.lanes, mask))
        inner.define(c.item, total)
        for item, _ in c.others:
            address = self._sum_address_of(item, inner.axis(c.m), column)
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

    # ---- the tile --------------------------------------------------------------------------------

    def _sums(
        self, starts: list[Value], column: Value, vectors: int, mask: Value | None
    ) -> list[Value]:
        """Return the sums of some rows and vectors of columns over all of k."""
        c = self.c
        right_row = self.at(RIGHT_PART, self._packed_offset(number(0), column))

        def step_at(k: Value, totals: list[Value], nth: int) -> list[Value]:
            across = self._load_row(k, nth, right_row, column, vectors, mask)
            if nth == 0:
                self._prefetch_rows(starts, k, column)
                prefetch_in_loop(self.b, self.prefetch_streams, k)
            rows = (self._splat_at(at) for at in self._rows_at(starts, k))
            return rank_one_update(multiply_add(self.m, c.item), rows, across, totals)

        zeros = [self.m.const(c.item.dtype, 0)] * (len(starts) * vectors)
        if not c.wide or fits_one_run(self.env.s.local[c.k], c.item.dtype):
            return reduction_loop(self.b, (number(0), self.depth), 1, step_at, zeros)
        return sum_in_runs(
            self.m,
            c.item.dtype,
            (number(0), self.depth),
            len(zeros),
            lambda run: reduction_loop(self.b, run, 1, step_at, zeros),
        )

    def _load_row(
        self, k: Value, nth: int, first: Value, column: Value, vectors: int, mask: Value | None
    ) -> list[Value]:
        """Load some vectors of the right operand's row at position k + nth."""
        places = self._panel(k, nth, first, vectors)
        return [
            load_vector(self.m, place, self.c.item.dtype, mask_of_last(mask, v, vectors))
            for v, place in enumerate(places)
        ]

    def _panel(self, k: Value, nth: int, first: Value, vectors: int) -> list[Value]:
        """Return addresses of vectors in the packed row at k + nth.

        `first_row` is the row at k = 0.
        """
        c = self.c
        step = number(c.tile.columns) if c.wide else self.pitch
        b, dtype = self.b, c.item.dtype
        row_address = step_address(b, first, k, step, memory_type(dtype))
        row_address = (
            element_address(b, row_address, b.mul(number(nth), step), dtype) if nth else row_address
        )
        return [
            element_address(b, row_address, number(v * c.tile.lanes), dtype) for v in range(vectors)
        ]

    def _advance(self, first: Value, k: Value, nth: int, step: Value, dtype: DType) -> Value:
        """Return the address `k + nth` steps on; only `k` changes between iterations."""
        b = self.b
        at = element_address(b, first, multiple_of_counter(b, k, step), dtype)
        return element_address(b, at, b.mul(number(nth), step), dtype) if nth else at

    def _prefetch_rows(self, starts: list[Value], k: Value, column: Value) -> None:
        """Prefetch rows of later tiles: too many and too short for hardware prefetchers."""
        b = self.b
        if self.left_contiguous_axis == self.c.k and len(starts) > 1:
            distance = number(ROW_PREFETCH_BYTES // self.left_dtype.itemsize)
            if self.c.wide:  # the next rows, in the course of this row block's tiles
                distance = b.mul(self.left_strides[0], number(len(starts)))
            at = step_address(b, starts[0], k, number(len(starts)), memory_type(self.left_dtype))
            prefetch(b, element_address(b, at, distance, self.left_dtype), near=not self.c.wide)

    def _rows_at(self, starts: list[Value], k: Value) -> list[Value]:
        """Return the addresses of a tile's rows at a position."""
        step, kind = self.left_strides[1], memory_type(self.left_dtype)
        if self.c.gathers_rows:  # at unrelated addresses
            return [self._advance(start, k, 0, step, self.left_dtype) for start in starts]
        return row_addresses(self.b, starts, (self.left_strides[0], kind), k, step, kind)

    def _broadcast(self, start: Value, k: Value, nth: int) -> Value:
        """Broadcast an element of the left operand: of its row, at k + nth."""
        return self._splat_at(self._advance(start, k, nth, self.left_strides[1], self.left_dtype))

    def _splat_at(self, at: Value) -> Value:
        """Broadcast an element of the left operand, from its address."""
        return splat(self.b, load_scalar(self.scalar, at, self.left_dtype, None), self.c.tile.lanes)


__all__ = ["TallSkinnyGemm", "mask_of_last"]
