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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Literal, TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.indexing import first_lanes, lanes_before_end, number, opaque
from smelt.codegen.llvm.loopir.items import Access, Item, StoreItem, accesses_of
from smelt.codegen.llvm.loopir.store_ranges import Range, stored_range
from smelt.codegen.llvm.loops.split_store_ranges import range_ends
from smelt.codegen.llvm.lower_nest import identifier
from smelt.codegen.llvm.nest_loops import NestBody, Row
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import OUTPUT_STAGE_PART, SUMS_PART, Tile
from smelt.codegen.llvm.products.fused_gemm_packing import FusedGemmPacker
from smelt.codegen.llvm.products.microkernel import TileTarget
from smelt.codegen.llvm.products.move_elements import copy_elements
from smelt.codegen.llvm.products.prefetch import PrefetchStream
from smelt.codegen.llvm.schedule.fused_gemm import FusedGemmPlan
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import axis, coefficient

Value = ir.Value
Ranges = list[tuple[StoreItem, Range]]


@dataclass(frozen=True, slots=True, eq=False)
class RangeTarget:
    """The output of a value: the address of column 0 of row 0, and elements between rows."""

    first: Value
    row_stride: Value
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class SelectedOutputs:
    """The output range selected for some columns."""

    inside: Value
    """Whether they are inside one range of each value, and overlap no other (i1)."""
    targets: list[RangeTarget]


class OutputRanges:
    """The range stores of a nest along a product's columns.

    `row_strides` is the row stride of each output.
    """

    def __init__(
        self, env: Environment, nest: Nest, axis: str, row_strides: Mapping[Access, Value]
    ) -> None:
        self.env, self.nest, self.axis, self.row_strides = env, nest, axis, row_strides
        by_value: dict[tuple[Item, str], Ranges] = {}
        for s in nest.stores:
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

    def body(self, lanes: int, sums: Sequence[Item]) -> NestBody:
        """Return the nest for columns inside one range of each value."""
        stores = [group[0][0] for group in self.groups]
        ranged = {id(s) for group in self.groups for s, _ in group}
        others = [s for s in self.nest.stores if id(s) not in ranged]
        return targeted_body(self.env, self.nest, lanes, sums, (others, stores))

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

    def select_outputs(self, low: Value, high: Value) -> SelectedOutputs:
        """Return the output ranges of columns."""
        targets = [self._select_range(group, low, high) for group in self.groups]
        return SelectedOutputs(self.inside(low, high), targets)

    def _select_range(self, group: Ranges, low: Value, high: Value) -> RangeTarget:
        env, b, outputs = self.env, self.env.b, list[tuple[Value, Value]]()
        dtype = env.frame.dtypes[group[0][0].access.buffer]
        for store, _ in group:
            origin = env.origin(store.access, self.nest.order, env.top)
            first = env.address(store.access.buffer, origin)
            outputs.append((first, self.row_strides[store.access]))
        first, stride = outputs[0]
        for (_, within), (other_first, other_stride) in zip(group[1:], outputs[1:], strict=True):
            in_range = self._holds(within, low, high)
            first = b.select(in_range, other_first, first)
            stride = b.select(in_range, other_stride, stride)
        return RangeTarget(first, stride, dtype)


def targeted_body(
    env: Environment,
    nest: Nest,
    lanes: int,
    sums: Sequence[Item],
    stores: tuple[Sequence[StoreItem], Sequence[StoreItem]],
    *,
    stores_whole: bool = False,
) -> NestBody:
    """Return a nest, some of whose stores go to rows at other addresses."""
    plain, aimed = stores
    columns = axis(nest.order[-1], env.s.phase.axes[nest.order[-1]])
    taken = {*map(identifier, env.frame.buffers)}
    free = (name for k in count() if (name := f"target{k}") not in taken)
    names = [name for _, name in zip(aimed, free, strict=False)]
    pairs = zip(aimed, names, strict=True)
    others = [replace(s, access=Access(name, columns), where=None) for s, name in pairs]
    dtypes = (env.frame.dtypes[s.access.buffer] for s in aimed)
    targets = dict(zip(names, dtypes, strict=True))
    nest = replace(nest, stores=(*plain, *others))
    return NestBody(env, nest, lanes, sums, targets, stores_whole=stores_whole)


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
        self.row_strides: dict[Access, Value] = {}
        """Row strides of what the epilogue reads and writes."""
        self.extra_loads: list[Access] = []
        """Accesses of the epilogue which read one element per sum."""
        self.selected_outputs: SelectedOutputs | None = None
        """Output ranges of a tile's columns, where several tiles share the selection."""

    def _open_epilogue(self) -> None:
        """Lower the nest, and compute row strides of what it reads and writes."""
        env, c = self.env, self.c
        accesses = [*accesses_of(self.nest.items), *(s.access for s in self.nest.stores)]
        steps = {a: coefficient(a.offset, c.m) for a in accesses if not a.positions}
        self.row_strides = {a: env.index(s, env.top) for a, s in steps.items() if s is not None}
        loads = dict.fromkeys(accesses_of(i for i in self.nest.items if {c.m, c.n} <= i.axes))
        stores = dict.fromkeys(s.access for s in self.nest.stores if s.where is None)
        self.output_ranges = OutputRanges(env, self.nest, c.n, self.row_strides)
        if not c.keeps_sums:
            products = [c.item, *(item for item, _ in c.others)]
            self.plain = self.body = NestBody(env, self.nest, c.tile.lanes, products)
            if self.output_ranges.groups:
                self.body = self.output_ranges.body(c.tile.lanes, products)
        self.selected_outputs = None
        self.extra_loads, self.results = (
            [a for a in accesses if a in self.row_strides and coefficient(a.offset, c.n) == 1]
            for accesses in (loads, stores)
        )

    # ---- rows and columns ------------------------------------------------------------------------

    def _rows_of(self, row: Value, count: int) -> list[Row]:
        """Print what the epilogue of each row computes once."""
        return [self.body.row(self.b.add(row, number(i))) for i in range(count)]

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
        rows: list[Row],
        column: Value,
        mask: Value | None,
        totals: list[Value],
    ) -> None:
        """Emit the epilogue of a tile from a row on, reading its sums from registers."""
        b, lanes, vectors = self.b, self.c.tile.lanes, len(totals) // len(rows)

        def inside(selected: SelectedOutputs | None) -> None:
            firsts = [
                element_address(b, x.first, b.mul(row, x.row_stride), x.dtype)
                for x in (selected.targets if selected else ())
            ]
            for i, place in enumerate(rows):
                targets = [
                    element_address(b, first, b.mul(number(i), x.row_stride), x.dtype)
                    for first, x in zip(firsts, selected.targets if selected else (), strict=True)
                ]
                for v, total in enumerate(totals[i * vectors : (i + 1) * vectors]):
                    at = b.add(column, number(v * lanes))
                    mask_of_vector = mask_of_last(mask, v, vectors)
                    self._epilogue_vector(self.body, place, at, mask_of_vector, total, targets)

        if self.selected_outputs is not None or not self.output_ranges.groups:
            inside(self.selected_outputs)
            return
        end = b.add(column, number(vectors * lanes))
        end = end if mask is None else b.minimum(end, self.env.ranges[self.c.n][1])
        selected = self.output_ranges.select_outputs(column, end)
        b.either(
            selected.inside,
            lambda: inside(selected),
            lambda: self._epilogue_of_stack(row, len(rows), (column, end), totals),
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
            self._epilogue_vector(self.plain, self.plain.row(row), at, mask, total)

        env.loop(*rows, 1, lambda row: env.loop(low, high, lanes, lambda at: vector(row, at)))

    def _epilogue_vector(
        self,
        body: NestBody,
        row: Row,
        column: Value,
        mask: Value | None,
        total: Value,
        targets: Sequence[Value] = (),
    ) -> None:
        """Emit a vector of a row from its sums."""
        sums: dict[Item, Value] = {self.c.item: total}
        for item, _ in self.c.others:
            address = self._sum_address(row.position, column, item)
            sums[item] = load_vector(self.m, address, item.dtype, None)
        body.put(row, column, mask, sums, targets or self._staged_row(row.position))

    def _staged_row(self, row: Value) -> list[Value]:
        """Return the addresses of column 0 of a row of staged results."""
        b, env, c = self.b, self.env, self.c
        if not self.staged:
            return []
        before = b.mul(b.sub(row, self.first_row), self.columns)
        at = b.sub(before, env.ranges[c.n][0])
        arrays = enumerate(env.frame.dtypes[s.access.buffer] for s in self.nest.stores)
        return [
            element_address(b, env.storage.at[c.item, OUTPUT_STAGE_PART + j], at, dtype)
            for j, dtype in arrays
        ]

    def _stage(self, run: Callable[[], None]) -> None:
        """Emit `run`, an epilogue of rows that follow one another, with results in scratch."""
        before = self.plain, self.body
        products = [self.c.item, *(item for item, _ in self.c.others)]
        lanes, stores = self.c.tile.lanes, ([], self.nest.stores)
        body = targeted_body(self.env, self.nest, lanes, products, stores, stores_whole=True)
        self.staged, self.plain, self.body = True, body, body
        run()
        self.staged, (self.plain, self.body) = False, before

    def _copy_staged(self, low: Value, high: Value) -> None:
        """Copy rows of results from scratch to their destination.

        They were stored there in full vectors, each over the end of the one before: stores of a few
        lanes are several times slower.
        """
        b, env, c = self.b, self.env, self.c
        count = b.mul(b.sub(high, low), self.columns)
        place = Scope(env.top, {c.m: low})
        for j, s in enumerate(self.nest.stores):
            dtype, to = env.frame.dtypes[s.access.buffer], env.origin(s.access, (c.n,), place)
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
        place, c, b = self.plain.row(row), self.c, self.b

        def columns(at: Value, vectors: int, mask: Value | None) -> None:
            for v in range(vectors):
                column = b.add(at, number(v * c.tile.lanes))
                total = self._sum_vector(row, column)
                mask_of_vector = mask_of_last(mask, v, vectors)
                self._epilogue_vector(self.plain, place, column, mask_of_vector, total)

        # After long sums the epilogue need not be unrolled.
        self._across(columns, 1 if c.wide else c.tile.vectors, first=first)

    # ---- prefetch --------------------------------------------------------------------------------

    def _origins(self, row: Value) -> dict[Access, Value]:
        """Return the first element of a row for each access of the epilogue to prefetch."""
        fills = self.c.wide and not self.c.blocks_k  # L1, with a panel over all of k
        accesses = [*self.extra_loads, *(() if fills else self.results)]
        place = Scope(self.env.top, {self.c.m: row})
        return {a: self.env.origin(a, (self.c.n,), place) for a in accesses}

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
