"""Emit GEMV and skinny GEMM: few rows, the larger operand read once and never packed.

Such a product is limited by memory bandwidth, so many rows of the operand are read side by side: as
many streams as hardware prefetchers follow, in long runs.

- Axpy form (outer products), where the operand's rows are contiguous along n: a vector of each row
  is added to the sums of its columns, which stay in cache: sum[i, n] += left[i, k] * right[k, n] +
  left[i, k+1] * right[k+1, n] + ...

- Dot form (inner products), where they are contiguous along a reduction axis: several dot products
  run side by side and end in horizontal sums.

The operand may be computed as it is read: a conversion, a scale, a gather of rows.  Short numbers
are multiplied in groups (`smelt.codegen.llvm.instructions.dot_product`).
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_scalar,
    load_vector,
    prefetch,
    store_scalar,
    store_vector,
)
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.dot_product import (
    SIGN_BITS,
    as_units,
    interleave_rows,
)
from smelt.codegen.llvm.instructions.indexing import number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.reductions import sum_each, sum_lanes
from smelt.codegen.llvm.instructions.registers import lane_numbers
from smelt.codegen.llvm.loopir.items import Load
from smelt.codegen.llvm.nest_loops import NestBody, Row
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, SUMS_PART
from smelt.codegen.llvm.products.microkernel import multiply_add, strip_mine
from smelt.codegen.llvm.products.move_elements import clear_elements
from smelt.codegen.llvm.products.pack_rows import existing, factors, vector_loop
from smelt.codegen.llvm.scratch.workspace import sums_runs_apart
from smelt.machine.blocks import AXPY_RUN
from smelt.python.dataclass import dataclass
from smelt.types.expr import atoms, coefficient

Value = ir.Value


@dataclass(frozen=True, slots=True)
class GemvLoops:
    """What the loops of a GEMV take at a time, and how far they prefetch."""

    rows: int = 8
    """Rows along n read side by side, given registers for two vectors of each: hardware prefetchers
    do not follow more streams."""
    dot_rows: int = 4
    """Rows side by side for a single left row, costly rows, remainders, and dot products."""
    single_row_elements: int = 1536
    """Minimum elements of rows along k that a single left row meets one at a time; more along n.
    The horizontal sum at the end of a row along k costs as much as 100 elements."""
    row_bytes: int = 2 * CACHE_LINE
    """Bytes of each such row along n that a single left row meets at a time.  Rows that are read by
    parts of lines reach less of memory's bandwidth (`python -m bench` measures it for a vector
    times a matrix of 4096²)."""
    row_vectors: int = 4
    """Maximum vectors of these bytes."""
    axpy_prefetch_bytes: int = 1024
    dot_prefetch_bytes: int = 2048
    """Bytes between what dot products read and what they prefetch."""
    row_prefetch_bytes: int = 4096
    """As `dot_prefetch_bytes`, for rows read singly."""
    cheap_items: int = 6
    """Maximum values per element of a row that counts as cheap to compute."""


@dataclass(frozen=True, slots=True)
class DotChunks:
    """The chunks of k in which the dot products of many left rows are computed."""

    nbytes: int
    """Bytes of each left row in a chunk; all rows' chunks stay in L1.  The horizontal sums at a
    chunk's end cost as much as half a kilobyte of it."""
    prefetch_groups: int
    """Row groups between what is multiplied and what is prefetched into L2; L1 has little room
    beside the chunks."""


LOOPS = GemvLoops()
ONE_GROUP, MANY_GROUPS = DotChunks(4096, 2), DotChunks(1024, 8)
"""Where all left rows are one group, and where they are visited in several."""


class Gemv:
    """Emits one block of a skinny contraction, with the left operand packed.

    It covers all of n and a block of k.
    """

    def __init__(self, env: Environment, c: Contraction, right: Nest, scope: Scope) -> None:
        self.env, self.b, self.c = env, env.b, c
        self.right, self.scope = right, scope
        self.ranges = {a: env.ranges[a] for a in (c.k, c.n)}
        self.start = env.ranges[c.k][0]
        self.rows = number(1)
        if c.m is not None:
            low, high = env.ranges[c.m]
            self.rows = self.b.sub(high, low)
        self.stride = env.extent(c.item, c.n)
        self.sums: Value = env.storage.at[c.item, 0]
        self.lanes, self.vector_elements = c.tile.lanes, c.tile.lanes * c.group_size
        if c.vector_axis == c.n and c.group is None and c.m is not None:
            self.vector_elements *= 2  # one broadcast of the left operand serves two vectors
        s = env.s
        blocks = c.vector_axis == c.k and s.region(c.item) is None and c.k not in s.phase.cut
        self.alignment = self.vector_elements if blocks else 1
        """Multiple at which vectors of the right operand begin."""
        self.prefetch_distance = dict[int, tuple[Value, Value]]()
        """Prefetch distance by element size: groups of rows, and elements beyond."""
        self.prefetch_to_l2 = False
        """Whether to prefetch into L2 rather than L1."""
        self.machine = LLVMMachine(self.b, self.lanes, env.frame.target)
        self.multiply_add = multiply_add(self.machine, c.item, c.group)
        self.scalar = LLVMMachine(self.b, None, env.frame.target)

    def zero_row_ends(self) -> None:
        """Store zeros behind the left operand's rows, before they are packed.

        Full vectors of them are multiplied, and complete units for complete groups of rows.
        """
        low, high = self.ranges[self.c.k]
        b, count = self.b, max(self.lanes, LOOPS.dot_rows)
        end = b.add(low, b.and_(b.sub(high, low), number(-count * self.c.group_size)))
        zero = self.machine.const(self.c.unit, 0)

        def clear(row: Value) -> None:
            for more in range(0, count, self.lanes):
                store_vector(
                    self.machine, self._left_address(row, end, more), zero, self.c.unit, None
                )

        self.env.loop(number(0), self.rows, 1, clear)

    def run(self, fresh: Value | None) -> None:
        """Add the block's products to the sums in scratch; `fresh` marks a first block."""
        lanes, align = self.vector_elements, self.alignment
        self.body = NestBody(self.env, self.right, lanes, scope=self.scope, align=align)
        if sums_runs_apart(self.c, self.env.s):
            self._summed_runs(ir.IntType(1)(0) if fresh is None else fresh)
        elif self.c.vector_axis == self.c.n:
            self._axpy()
        else:
            self._dot_products()

    def _summed_runs(self, fresh: Value) -> None:
        """Emit the axpy form in runs of rows which end at fixed multiples."""
        b, span, run_length = self.b, self.ranges[self.c.k], AXPY_RUN * self.c.group_size

        def run(start: Value, end: Value) -> None:
            self.ranges[self.c.k] = start, end
            self._summed_run(b.not_(b.and_(fresh, b.icmp_signed("==", start, span[0]))))

        strip_mine(self.env, span, run_length, run, at_multiples=True)
        self.ranges[self.c.k] = span

    def _summed_run(self, later: Value) -> None:
        """Emit a run of rows; a `later` run is summed separately, then added.

        This bounds rounding errors (`smelt.codegen.llvm.products.microkernel`).
        """
        b, env, c, dtype = self.b, self.env, self.c, self.c.item.dtype
        before, separate = env.storage.at[c.item, 0], env.storage.at[c.item, SUMS_PART]
        count = b.mul(env.frame.index(env.storage.rows(c)), self.stride)
        count = b.select(later, count, number(0))

        def add(at: Value) -> None:
            place = element_address(b, before, at, dtype)
            both = [
                load_vector(self.machine, element_address(b, base, at, dtype), dtype, None)
                for base in (before, separate)
            ]
            store_vector(self.machine, place, self.machine.add(*both), dtype, None)

        clear_elements(env, separate, count, self.lanes, dtype)
        self.sums = b.select(later, separate, before)
        self._axpy()
        env.loop(number(0), count, self.lanes, add)

    # ---- operands ----------------------------------------------------------------------------

    def _right_vector(self, row: Row, at: Value, mask: Value | None) -> Value:
        """Return a vector of a right row, ready to multiply; 0 outside the mask."""
        return factors(self.env, self.c, self.body, row, at, mask)

    def _left_address(self, row: Value, k: Value, more: int = 0) -> Value:
        """Return the address of the unit of left[row] `more` units behind k."""
        b = self.b
        at = b.sub(k, self.start)
        if self.c.group_size > 1:
            at = b.udiv(at, number(self.c.group_size))
        at = b.add(b.mul(row, number(self.c.pitch)), b.add(at, number(more)))
        base = self.env.storage.at[self.c.item, LEFT_PART]
        return element_address(b, base, at, self.c.unit)

    def _sum_address(self, row: Value, column: Value) -> Value:
        """Return the address of the sum at a row and an absolute column."""
        b, item = self.b, self.c.item
        at = b.add(b.mul(row, self.stride), b.sub(column, self.env.start(item, self.c.n)))
        return element_address(b, self.sums, at, item.dtype)

    def _broadcast_left(self, row: Value, k: Value, count: int) -> list[Value]:
        """Return units of the left operand from k on, each broadcast."""
        units = (
            load_scalar(self.scalar, self._left_address(row, k, t), self.c.unit, None)
            for t in range(count)
        )
        return [splat(self.b, unit, self.lanes) for unit in units]

    def _add(
        self, k: Value, column: Value, values: Sequence[Sequence[Value]], only: Sequence[Value]
    ) -> None:
        """Emit sum[i, columns] += left[i, units from k on] * rows[unit][vector of columns].

        `only` are the broadcast units of a single left row.
        """
        b, m, dtype = self.b, self.machine, self.c.item.dtype
        excess = [self._excess(units) for units in zip(*values, strict=True)]

        def row(i: Value) -> None:
            places = [
                self._sum_address(i, b.add(column, number(v * self.lanes)))
                for v in range(len(values[0]))
            ]
            totals = [load_vector(m, place, dtype, None) for place in places]
            for left, vectors in zip(
                only or self._broadcast_left(i, k, len(values)), values, strict=True
            ):
                pairs = zip(vectors, totals, strict=True)
                totals = [self.multiply_add(left, x, total) for x, total in pairs]
            totals = [self._less(t, more) for t, more in zip(totals, excess, strict=True)]
            for place, total in zip(places, totals, strict=True):
                store_vector(m, place, total, dtype, None)

        if self.c.m is None:
            row(number(0))
        else:
            self.env.loop(number(0), self.rows, 1, row)

    def _excess(self, units: Sequence[Value]) -> Value | None:
        """Return the products of units with the offset of a packed left operand.

        None if it was packed without one. The offset is one more row of the left operand.
        """
        if self.c.group is None or not self.c.group.left_offset:
            return None
        offset = ir.Constant(units[0].type, [SIGN_BITS] * self.lanes)
        total = self.machine.const(self.c.item.dtype, 0)
        for unit in units:
            total = self.multiply_add(offset, unit, total)
        return total

    def _less(self, total: Value, excess: Value | None) -> Value:
        """Return sums without what `_excess` returned."""
        return total if excess is None else self.machine.sub(total, excess)

    # ---- lines along n -----------------------------------------------------------------------

    def _axpy(self) -> None:
        """Emit the axpy form: many rows at a time, then a few."""
        b, c, target, usual = self.b, self.c, self.env.frame.target, self.body
        is_cheap = len(self.right.items) <= LOOPS.cheap_items
        if c.m is not None or c.group is not None or not is_cheap:
            streams = LOOPS.rows if target.registers >= 32 else LOOPS.rows // 2
            self._axpy_rows(LOOPS.dot_rows if c.m is None or not is_cheap else streams)
            return
        low, high = self.ranges[c.n]
        is_long = b.icmp_signed(">=", b.sub(high, low), number(LOOPS.single_row_elements))
        wide = min(max(1, LOOPS.row_bytes // target.vector_bytes), LOOPS.row_vectors)

        def rows(vectors: int, streams: int) -> None:
            self.body = usual if vectors == 1 else usual.widened(usual.lanes * vectors)
            self._axpy_rows(streams)

        b.either(is_long, lambda: rows(wide, LOOPS.rows), lambda: rows(1, LOOPS.dot_rows))

    def _axpy_rows(self, streams: int) -> None:
        """Emit the axpy form, `streams` rows at a time."""
        b, (low, high) = self.b, self.ranges[self.c.k]
        middle = b.add(low, b.and_(b.sub(high, low), number(-streams)))
        self._set_prefetch_distance(self.c.n, LOOPS.axpy_prefetch_bytes)
        self.env.loop(low, middle, streams, lambda k: self._row_group(k, streams, False))
        rest = LOOPS.dot_rows
        self.env.loop(middle, high, rest, lambda k: self._row_group(k, rest, True))

    def _row_group(self, k: Value, count: int, clamped: bool) -> None:
        """Emit `count` rows from k on; with `clamped` there may be fewer."""
        b, unit_size = self.b, self.c.group_size
        end = self.ranges[self.c.k][1] if clamped else None
        rows = self.body.rows(k, count=count, end=end)
        units = 0 if self.c.m is not None else count // unit_size
        only = self._broadcast_left(number(0), k, units)

        def put(at: Value, mask: Value | None) -> None:
            values = existing(b, [self._right_vector(x, at, mask) for x in rows], k, end)
            if mask is None and not clamped and self.c.m is not None:
                self._prefetch(rows, at, (self.c.k, self.c.n))
            if self.c.group is None:
                self._add(k, at, [self._vectors(value) for value in values], only)
                return
            groups = (values[r : r + unit_size] for r in range(0, count, unit_size))
            self._add(k, at, [interleave_rows(b, group) for group in groups], only)

        vector_loop(self.env, self.ranges[self.c.vector_axis], self.body.lanes, put)

    # ---- lines along k -----------------------------------------------------------------------

    def _dot_products(self) -> None:
        """Emit the dot form: sum[i, n] += left[i, :] . right[n, :].

        It takes as many left rows at once as possible, since each pass over a right row loads all
        of its bytes.
        """
        b, many_registers = self.b, self.env.frame.target.registers >= 32
        has_long_form = self.c.group is None and self.env.frame.target.prefetches_across_pages
        if self.c.m is None and not has_long_form:
            self._all_dots(1, LOOPS.dot_rows)
            return
        if self.c.m is None:
            low, high = self.ranges[self.c.k]
            b.either(
                b.icmp_signed(">=", b.sub(high, low), number(LOOPS.single_row_elements)),
                lambda: self.env.loop(*self.ranges[self.c.n], 1, self._single_dot),
                lambda: self._all_dots(1, LOOPS.dot_rows),
            )
            return
        heights, group_rows = (
            ((LOOPS.dot_rows // 2, LOOPS.dot_rows), 2 * LOOPS.dot_rows)
            if many_registers
            else ((LOOPS.dot_rows // 2,), LOOPS.dot_rows)
        )

        def rows(heights: tuple[int, ...]) -> None:
            if not heights:
                self._chunks(group_rows)
                return
            b.either(
                b.icmp_signed("<=", self.rows, number(heights[0])),
                lambda: self._all_dots(heights[0], LOOPS.dot_rows),
                lambda: rows(heights[1:]),
            )

        rows(heights)

    def _chunks(self, group_rows: int) -> None:
        """Emit dot products of many left rows, `group_rows` at once, chunk by chunk of k."""
        b, elements_per_byte = self.b, self.c.group_size / self.c.unit.itemsize
        many_rows_size, few_rows_size = (
            number(int(chunks.nbytes * elements_per_byte)) for chunks in (MANY_GROUPS, ONE_GROUP)
        )
        is_one_group = b.icmp_signed("<=", self.rows, number(group_rows))
        size = b.select(is_one_group, few_rows_size, many_rows_size)
        few, many = (number(x.prefetch_groups) for x in (ONE_GROUP, MANY_GROUPS))
        groups, span = b.select(is_one_group, few, many), self.ranges[self.c.k]
        self.env.loop(*span, size, lambda at: self._chunk(at, size, group_rows, groups))

    def _single_dot(self, n: Value) -> None:
        """Emit sum[n] += single left row . long right row.

        Read alone, into several accumulators, the row is one stream which hardware prefetchers
        follow.
        """
        b, c, m, lanes = self.b, self.c, self.machine, self.lanes
        zero = m.const(c.item.dtype, 0)
        places = [self._stack_slot(zero) for _ in range(LOOPS.dot_rows)]
        low, high = self.ranges[c.k]
        middle = b.add(low, b.and_(b.sub(high, low), number(-LOOPS.dot_rows * lanes)))

        usual, wide = self.body, self._widest_body()
        row, each = wide.row(n), wide.lanes // lanes

        def put(at: Value, mask: Value | None, first: int = 0) -> None:
            for k, value in enumerate(self._vectors(self._right_vector(row, at, mask))):
                left = load_vector(m, self._left_address(number(0), at, k * lanes), c.unit, None)
                total = b.load(places[first + k], typ=zero.type)
                b.store(self.multiply_add(left, value, total), places[first + k])

        def unrolled(at: Value) -> None:
            if self.alignment > 1:  # addresses of groups then differ by constants
                at = b.and_(at, number(-LOOPS.dot_rows * lanes))
            self._prefetch([row], at, (c.n, c.k), length=LOOPS.dot_rows * lanes)
            for k in range(0, LOOPS.dot_rows, each):
                put(b.add(at, number(k * lanes)), None, k)

        self._set_prefetch_distance(c.k, LOOPS.row_prefetch_bytes)
        self.body = wide
        self.env.loop(low, middle, LOOPS.dot_rows * lanes, unrolled)
        self.body, row = usual, usual.row(n)
        vector_loop(self.env, (middle, high), lanes, put)
        totals = [b.load(place, typ=zero.type) for place in places]
        while len(totals) > 1:
            totals = [m.add(x, y) for x, y in zip(totals[::2], totals[1::2], strict=True)]
        self._add_scalar(self._sum_address(number(0), n), sum_lanes(self.machine, totals[0]))

    def _widest_body(self) -> NestBody:
        """Return what prints as many vectors of a row as one.

        As many as read contiguous or equal elements, but single ones where lanes gather: wide ones
        would be concatenated and split again.
        """
        counts = (LOOPS.dot_rows, LOOPS.dot_rows // 2)
        wide = (self.body.widened(count * self.lanes) for count in counts)
        return next((x for x in wide if not x.gathers()), self.body)

    def _chunk(self, at: Value, size: Value, rows: int, groups: Value) -> None:
        """Emit one chunk of k, whose left rows stay in L1."""
        b, (low, high) = self.b, self.ranges[self.c.k]
        end = b.add(at, size)
        self.ranges[self.c.k] = at, b.minimum(end, high)
        self._all_dots(rows, LOOPS.dot_rows // 2, groups)
        self.ranges[self.c.k] = low, high

    def _all_dots(self, rows: int, count: int, groups: Value | None = None) -> None:
        """Emit all dot products of `count` right and `rows` left rows at a time.

        With `groups`, rows that many groups ahead are prefetched.
        """
        b, (low, high) = self.b, self.ranges[self.c.n]
        middle = b.add(low, b.and_(b.sub(high, low), number(-count)))
        self.prefetch_to_l2 = groups is not None
        if groups is None:
            self._set_prefetch_distance(self.c.k, LOOPS.dot_prefetch_bytes)
        else:  # no remainder of elements here: LLVM schedules loads and prefetches better
            self.prefetch_distance = {size: (groups, number(0)) for size in self._sizes()}
        for first, last, group_size in ((low, middle, count), (middle, high, 1)):

            def row_group(n: Value, group_size: int = group_size) -> None:
                right_rows = self.body.rows(n, count=group_size)
                self.env.loop(
                    number(0), self.rows, rows, lambda i: self._dot_group(i, rows, n, right_rows)
                )

            self.env.loop(first, last, group_size, row_group)

    def _dot_group(self, i: Value, rows: int, n: Value, right_rows: list[Row]) -> None:
        """Emit the dot products of `rows` left rows and some right rows."""
        b, c, m = self.b, self.c, self.machine
        zero = m.const(c.item.dtype, 0)
        places = [[self._stack_slot(zero) for _ in right_rows] for _ in range(rows)]

        def put(at: Value, mask: Value | None) -> None:
            values = [self._right_vector(right_row, at, mask) for right_row in right_rows]
            values = values if c.group is None else [as_units(b, x) for x in values]
            excess = [self._excess([x]) for x in values]
            for g, sums in enumerate(places):
                left = load_vector(m, self._left_address(b.add(i, number(g)), at), c.unit, None)
                for value, more, place in zip(values, excess, sums, strict=True):
                    total = self.multiply_add(left, value, b.load(place, typ=zero.type))
                    b.store(self._less(total, more), place)

        def prefetching_put(at: Value) -> None:
            self._prefetch(right_rows, at, (c.n, c.k), b.icmp_signed("==", i, number(0)), step)
            for v in range(0, step, self.body.lanes):
                put(b.add(at, number(v)), None)

        low, high = self.ranges[c.vector_axis]
        step = max(self.body.lanes, CACHE_LINE // min(self._sizes(), default=CACHE_LINE))
        middle = b.add(low, b.and_(b.sub(high, low), number(-step)))
        self.env.loop(low, middle, step, prefetching_put)
        vector_loop(self.env, (middle, high), self.body.lanes, put)
        totals = [b.load(place, typ=zero.type) for sums in places for place in sums]
        while len(totals) > 1 and len(totals) < self.lanes:
            totals.append(zero)
        for first in range(0, len(totals), self.lanes):
            part = totals[first : first + self.lanes]
            self._add_lane_sums(i, n, first, part, len(right_rows), rows)

    def _add_lane_sums(
        self, i: Value, n: Value, first: int, totals: list[Value], right_rows: int, rows: int
    ) -> None:
        """Add horizontal sums of some accumulators to the sums in scratch.

        Accumulators are ordered by left row, then right row; a vector shorter than a row's group
        spans part of it.
        """
        b, dtype = self.b, self.c.item.dtype
        if len(totals) == 1:
            self._add_scalar(self._sum_address(i, n), sum_lanes(self.machine, totals[0]))
            return
        sums, run = sum_each(self.machine, totals), min(right_rows, self.lanes)
        for at in range(first, min(first + self.lanes, rows * right_rows), run):
            row, right_row = divmod(at, right_rows)
            address = self._sum_address(b.add(i, number(row)), b.add(n, number(right_row)))
            if right_rows == 1:
                total = b.extract_element(sums, ir.Constant(ir.IntType(32), at - first))
                self._add_scalar(address, total)
                continue
            picks = range(at - first, at - first + run)
            part = b.shuffle_vector(sums, sums, lane_numbers(picks))
            m = LLVMMachine(b, run, self.env.frame.target)
            earlier = load_vector(m, address, dtype, None)
            store_vector(m, address, m.add(earlier, part), dtype, None)

    def _add_scalar(self, where: Value, total: Value) -> None:
        dtype = self.c.item.dtype
        before = load_scalar(self.scalar, where, dtype, None)
        store_scalar(self.scalar, where, self.scalar.add(before, total), dtype, None)

    def _prefetch(
        self,
        rows: list[Row],
        at: Value,
        axes: tuple[str, str],
        is_new: Value | None = None,
        length: int = 0,
    ) -> None:
        """Prefetch what is ahead along the rows, or past their end in the next rows.

        `axes` are the axis across rows and the one along them.  Where `is_new` is false, nothing
        new is fetched.
        """
        b, env, (row_axis, column_axis) = self.b, self.env, axes
        for item in self.right.items:
            if not isinstance(item, Load) or coefficient(item.access.offset, column_axis) != 1:
                continue
            access = item.access
            step = coefficient(access.offset, row_axis)
            positions = (env.s.phase.positions[n] for n in access.positions)
            if step is None or any(a.kind == "axis" for a in atoms(step)):
                continue
            if not all(i.axes.isdisjoint(axes) for i in positions):
                continue
            dtype = env.frame.dtypes[access.buffer]
            low, high = self.ranges[column_axis]
            group_stride = b.mul(env.index(step, self.scope), number(len(rows)))
            groups, excess = self.prefetch_distance[dtype.itemsize]
            inside = b.icmp_signed("<", b.add(at, excess), high)
            distance = b.select(
                inside, excess, b.add(b.sub(excess, b.sub(high, low)), group_stride)
            )
            distance = b.add(b.mul(groups, group_stride), distance)
            if is_new is not None:
                distance = b.select(is_new, distance, number(0))
            distance = b.add(at, distance)
            for row in rows:
                first = env.origin(
                    access, (column_axis,), Scope(self.scope, {row_axis: row.position})
                )
                place = b.add(first, distance)
                line = max(CACHE_LINE // dtype.itemsize, 1)
                for k in range(0, length or self.body.lanes, line):
                    address = env.address(access.buffer, b.add(place, number(k)))
                    prefetch(b, address, near=not self.prefetch_to_l2)

    def _set_prefetch_distance(self, axis: str, distance: int) -> None:
        """Convert a distance in bytes to complete rows and a remainder of elements.

        Short rows are prefetched some groups ahead, so that as many bytes are in flight as for long
        ones.
        """
        b, (low, high) = self.b, self.ranges[axis]
        length = b.maximum(b.sub(high, low), number(1))
        for size in self._sizes():
            groups = b.udiv(number(distance // size), length)
            excess = b.sub(number(distance // size), b.mul(groups, length))
            self.prefetch_distance[size] = groups, excess

    def _sizes(self) -> set[int]:
        """Return the element sizes of what is read along a row."""
        return {
            self.env.frame.dtypes[x.access.buffer].itemsize
            for x in self.right.items
            if isinstance(x, Load)
        }

    def _vectors(self, value: Value) -> list[Value]:
        """Split a wide vector into machine vectors."""
        lanes = self.lanes
        return [
            self.b.shuffle_vector(value, value, lane_numbers(range(v, v + lanes)))
            for v in range(0, value.type.count, lanes)
        ]

    def _stack_slot(self, start: Value) -> Value:
        with self.b.goto_entry_block():
            place = self.b.alloca(start.type)
        self.b.store(start, place)
        return place
