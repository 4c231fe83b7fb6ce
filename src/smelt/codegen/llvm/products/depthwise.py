"""Emit depthwise convolutions, with columns of outputs in registers.

A tile computes some positions along one axis for a vector of another.  Each input row is read once
for all outputs of the tile which need it (a sliding window); the weights of the taps along the
tile's axis stay in registers.  A loop walks the taps along the other axes, for which a table says
where each is read.  There are two sources of input rows:

- `Packed`, padding included, by the packing nest or by transposes (`pack_pixel_rows`); the table
  holds the offset from an output to each tap;
- `InPlace`, where a vector of a pixel's channels is contiguous (NHWC).  For each row of outputs the
  table holds the addresses of the input rows which its windows reach.  A row of the padding is a
  shared row of zeros; so is a pixel outside its row, which tiles test for where they may have one:

      at -1: zeros    0: x[y, 0, c:]    1: x[y, 1, c:]    ...

  Rows are walked tile by tile, and each tile along the channels, as the image is stored.  Hardware
  prefetchers do not predict this order, so tiles prefetch the next input row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_scalar, load_vector, prefetch
from smelt.codegen.llvm.access.permute_gather import permuted_lanes
from smelt.codegen.llvm.instructions.indexing import I64, iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine, emit
from smelt.codegen.llvm.loopir.input_tile import WindowAxis
from smelt.codegen.llvm.loopir.items import Apply, Const, Item, Load
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RIGHT_PART, SUMS_PART, TABLE_PART, Tile
from smelt.codegen.llvm.products.direct_store import (
    image_layout,
    rounded_output,
)
from smelt.codegen.llvm.products.microkernel import (
    TileTarget,
    fits_one_run,
    fma_step,
    outline_function,
    reduction_loop,
    row_offset,
    store_tile,
    sum_in_runs,
)
from smelt.codegen.llvm.products.move_elements import (
    clear_elements,
    pack_pixel_rows,
    store_channel_rows,
)
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.schedule.depthwise import TILE_HEIGHTS, DepthwisePlan
from smelt.machine.blocks import REGISTER_RUN
from smelt.machine.target import Target
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, i64
from smelt.types.expr import Index, add, axes_of, mod, mul, nonnegative, product, sub, substitute

Value = ir.Value
PTR = ir.PointerType()
Reader: TypeAlias = Callable[[int, int], Value]
"""Loads a vector at a tile position, given as remainder and quotient by the stride."""
SUM_ARGS = [PTR, I64]
ROUNDED_ARGS = [PTR, I64, ir.IntType(1)]
"""Arguments for rounded sums: address, row stride, and whether to use them."""
WEIGHT_ARGS = [PTR, I64, PTR]
"""Arguments for weights: address, elements between neighbouring taps, and the table."""
ENTRIES = 4
"""Words per table entry, at most."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Input packed with its padding; table entries are offsets from the output.

    Arguments of a tile: first input position, elements between positions, and between remainders.
    """

    name: ClassVar = "stencil"
    operands: ClassVar[Sequence[ir.Type]] = (PTR, I64, I64)
    words: ClassVar[Sequence[ir.Type]] = (I64,)
    """Types of the words of a table entry which say where its rows are."""
    prefetches: ClassVar = False
    """Whether the last entry has code of its own, which prefetches what comes next."""
    facts: ClassVar[tuple[object, ...]] = ()
    """What else functions depend on."""

    def mask(self, t: DepthwiseTile) -> Value | None:
        """Return None: packed rows have full vectors."""
        return None

    def reader(self, t: DepthwiseTile, entry: Sequence[Value], newest: bool) -> Reader:
        """Return what loads the vector at a position of a tile, for a table entry."""
        b, c, dtype = t.b, t.c, t.c.item.dtype
        right, step, plane = t.extra_args
        is_uniform = bool(c.mixing_axis) and c.group == c.tile.lanes
        lane, place = entry
        first = b.add(place, lane) if is_uniform else place
        first = element_address(b, right, first, dtype)

        def read(phase: int, at: int) -> Value:
            plane_address = element_address(b, first, b.mul(plane, number(phase)), dtype)
            place = element_address(b, plane_address, b.mul(step, number(at)), dtype)
            if is_uniform:  # one channel for all lanes
                return splat(b, load_scalar(t.scalar, place, dtype, None), c.tile.lanes)
            return load_vector(t.m, place, dtype, None)

        return read


@dataclass(frozen=True, slots=True)
class InPlace:
    """Input rows in place; zeros replace what is outside.

    A table entry is the address of a row's first pixel inside, and the distance of its neighbours.
    Arguments of a tile: a row of zeros for pixels outside, the tile's first pixel, the number of
    pixels inside, the channel, the channels left, and the distance of the row to prefetch.
    """

    name: ClassVar = "stencil.in_place"
    operands: ClassVar[Sequence[ir.Type]] = (PTR, I64, I64, I64, I64, I64)
    words: ClassVar[Sequence[ir.Type]] = (PTR, I64)
    prefetches: ClassVar = True

    dtype: DType
    """Element type in memory."""
    first: int
    """The first pixel inside."""
    most_beyond: int | None
    """Upper bound on how many last pixels of a row may be outside, if known."""
    masked: bool
    """Whether vectors may have lanes past the last channel."""

    @property
    def facts(self) -> tuple[object, ...]:
        """What else functions depend on."""
        return self.dtype, self.first, self.most_beyond, self.masked

    def mask(self, t: DepthwiseTile) -> Value | None:
        """Return the mask of lanes which have a channel, or None if all have."""
        if not self.masked:
            return None
        left, lanes = t.extra_args[4], t.c.tile.lanes
        return t.b.icmp_signed("<", iota(lanes), splat(t.b, left, lanes))

    def reader(self, t: DepthwiseTile, entry: Sequence[Value], newest: bool) -> Reader:
        """Return what loads the vector at a position of a tile, for a table entry.

        The rows of the `newest` entry have not been read before.
        """
        b, tall = t.b, t.c.tile_axis
        outside, place, count, lane, _, next_row, *_ = t.extra_args
        _, first_pixel, step = entry
        mask = self.mask(t)
        first = element_address(b, first_pixel, b.add(lane, b.mul(step, place)), self.dtype)
        places = (t.height - 1) * tall.step + (tall.taps - 1) * tall.dilation + 1
        # The lowest tiles may go past the last output.
        more = (TILE_HEIGHTS[-1] - 1) * tall.step if t.height == TILE_HEIGHTS[-1] else 0

        def read(phase: int, at: int) -> Value:
            k = at * tall.step + phase
            address = element_address(b, first, b.mul(step, number(k)), self.dtype)
            if self.may_be_outside(k, places - more):
                inside = b.icmp_unsigned("<", b.add(place, number(k)), count)
                address = b.select(inside, address, outside)
            if newest:
                prefetch(b, element_address(b, address, next_row, self.dtype), near=True)
            return load_vector(t.m, address, self.dtype, mask)

        return read

    def may_be_outside(self, place: int, places: int) -> bool:
        """Return whether one of the `places` pixels of a tile may be outside."""
        beyond = self.most_beyond
        return place < self.first or beyond is None or place >= places - beyond


Source: TypeAlias = Packed | InPlace


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Epilogue of a depthwise convolution: scalar operators in order, and per-channel loads.

    `number` is the place of the convolution among the phase's items, which tells epilogues apart;
    `dtypes` are the types of `loads` in memory.  Their addresses are the last arguments of a tile.
    """

    number: int
    sums: Item
    ops: tuple[Const | Apply, ...]
    loads: tuple[Load, ...]
    dtypes: tuple[DType, ...]

    def apply(self, t: DepthwiseTile, sums: list[Value]) -> list[Value]:
        """Return the outputs for a tile's sums."""
        m, outputs = t.m, list[Value]()
        addresses = t.extra_args[len(t.extra_args) - len(self.loads) :]
        fixed: dict[Item, Value] = {}
        for item, address, dtype in zip(self.loads, addresses, self.dtypes, strict=True):
            if t.c.lane in item.axes:
                fixed[item] = load_vector(m, address, dtype, t.source.mask(t))
            else:
                scalar = load_scalar(t.scalar, address, dtype, None)
                fixed[item] = splat(t.b, scalar, t.c.tile.lanes)
        for total in sums:
            values = {**fixed, self.sums: total}
            for item in self.ops:
                if isinstance(item, Const):
                    values[item] = m.const(item.dtype, item.value)
                else:
                    args = [values[a] for a in item.args]
                    dtypes = [a.dtype for a in item.args]
                    values[item] = emit(SCALARS[item.op], m, dtypes, args)
            outputs.append(values[self.ops[-1]] if self.ops else total)
        return outputs


def tile_function(
    module: ir.Module,
    c: DepthwisePlan,
    height: int,
    target: Target,
    short: DType | None,
    source: Source,
    epilogue: Epilogue | None,
) -> ir.Function:
    """Return the function of a register tile; its sums may be stored as `short`."""
    tall, count = c.tile_axis, len(c.taps)
    parts = [source.name, c.item.dtype, f"{height}x{c.tile.lanes}", f"{count}x{tall.taps}"]
    parts += [tall.step, tall.dilation, "vector" if c.has_lane_weights else "scalar", c.group]
    parts += [short or "", *source.facts, *([f"of{epilogue.number}"] if epilogue else [])]
    sums = SUM_ARGS if short is None else [*SUM_ARGS, *ROUNDED_ARGS]
    more = [*source.operands, *([PTR] * len(epilogue.loads) if epilogue else [])]
    kind = ir.FunctionType(ir.VoidType(), [*sums, *WEIGHT_ARGS, *more])

    def fill(f: ir.Function) -> None:
        DepthwiseTile(f, c, height, target, source, epilogue).fill(count, short)

    return outline_function(module, ".".join(map(str, parts)), kind, fill)


def pin_order(b: ir.IRBuilder, target: Target, vector: Value) -> Value:
    """Return a vector, ordered before all later loads.

    LLVM would otherwise load all rows at once and run out of registers.
    """
    register = target.facts.register_constraint
    if not register:
        return vector
    kind = ir.FunctionType(vector.type, [vector.type])
    return b.asm(kind, "", f"={register},0,~{{memory}}", [vector], True)


class DepthwiseTile:
    """Emits sums[i] += left[o, u] * right[position of (o, i, u)] over all o, u."""

    def __init__(
        self,
        f: ir.Function,
        c: DepthwisePlan,
        height: int,
        target: Target,
        source: Source,
        epilogue: Epilogue | None,
    ) -> None:
        self.f, self.c, self.height, self.target = f, c, height, target
        self.source, self.epilogue = source, epilogue
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, c.tile.lanes, target)
        self.scalar = LLVMMachine(self.b, None, target)
        self.taps = c.tile_axis.taps
        self.weights_in_registers = self.taps + height + 2 <= target.registers
        """Whether the weights of all taps fit registers."""
        more = len(source.operands) + (len(epilogue.loads) if epilogue else 0)
        common = len(f.args) - more
        self.to, self.extra_args = f.args[: common - len(WEIGHT_ARGS)], f.args[common:]
        self.left, self.weight_stride, self.table = f.args[common - len(WEIGHT_ARGS) : common]

    def fill(self, count: int, short: DType | None) -> None:
        """Emit the function's body, for `count` table entries."""
        b, (to, row, *later) = self.b, self.to
        item: Item = self.c.item
        zeros = [self.m.const(item.dtype, 0)] * self.height

        def step_at(o: Value, sums: list[Value], nth: int) -> list[Value]:
            entries = element_address(b, self.table, b.mul(o, number(ENTRIES)), i64)
            words = [
                b.load(element_address(b, entries, number(k), i64), typ=kind)
                for k, kind in enumerate((I64, I64, *self.source.words))
            ]
            weights = element_address(b, self.left, words[0], item.dtype)
            read = self._lane_group_reader(self.source.reader(self, words[1:], nth < 0), words[1])
            return self._add_rows(read, weights, list(sums))

        def run(span: tuple[Value, Value]) -> list[Value]:
            return reduction_loop(b, span, 1, step_at, zeros)

        full_span, run_length = (number(0), number(count)), REGISTER_RUN // self.taps
        if not fits_one_run(count * self.taps, item.dtype):
            totals = sum_in_runs(self.m, item.dtype, full_span, self.height, run, run_length)
        elif self.source.prefetches:
            last = number(count - 1)
            totals = step_at(last, run((number(0), last)) if count > 1 else zeros, -1)
        else:
            totals = run(full_span)
        tile = Tile(self.height, 1, self.c.tile.lanes)
        places = TileTarget(to, row, item.dtype).addresses(b, tile)
        rounded = None if short is None else (later[2], TileTarget(later[0], later[1], short))
        outputs = self.epilogue.apply(self, totals) if self.epilogue else totals
        store_tile(self.m, self.c, tile, outputs, places, last=rounded)
        b.ret_void()

    def _lane_group_reader(self, read: Reader, lane: Value) -> Reader:
        """Return a reader which broadcasts one channel within each group of lanes.

        Used for grouped convolutions whose small groups share a vector.  If a group fills the
        vector, `Packed` broadcasts a scalar itself.
        """
        b, c, lanes = self.b, self.c, self.c.tile.lanes
        if not c.mixing_axis or c.group == lanes:
            return read
        kind = ir.IntType(32)
        first = ir.Constant(ir.VectorType(kind, lanes), [k - k % c.group for k in range(lanes)])
        picks = b.add(first, splat(b, b.trunc(lane, kind), lanes))
        return lambda rest, at: permuted_lanes(b, self.target, read(rest, at), picks, lanes)

    def _add_rows(self, read: Reader, weights: Value, sums: list[Value]) -> list[Value]:
        """Return the sums after every row which the tile reads, for one table entry."""
        b, tall, item, rise = self.b, self.c.tile_axis, self.c.item, self.weight_stride

        def weight(u: int) -> Value:
            at = element_address(b, weights, b.mul(rise, number(u)), item.dtype)
            if self.c.has_lane_weights:
                return load_vector(self.m, at, item.dtype, None)
            return splat(b, load_scalar(self.scalar, at, item.dtype, None), self.c.tile.lanes)

        weights_held = [weight(u) for u in range(self.taps)] if self.weights_in_registers else []
        for phase in range(tall.step):
            places = {u: tall.quotient(u) for u in range(self.taps) if tall.remainder(u) == phase}
            for at in range(self.height + max(places.values(), default=-self.height)):
                used = [u for u, q in places.items() if 0 <= at - q < self.height]
                if not used:
                    continue
                x = read(phase, at)
                for u in used:
                    i = at - places[u]
                    w = weights_held[u] if self.weights_in_registers else weight(u)
                    sums[i] = fma_step(self.m, w, x, sums[i], item)
                newest = at - places[used[-1]]
                sums[newest] = pin_order(b, self.target, sums[newest])
        return sums


RowPosition: TypeAlias = dict[str, Value]
"""A position along each of some axes."""


class Depthwise(Packer):
    """Emits one depthwise convolution of the task that `env` is emitting."""

    def __init__(
        self, env: Environment, nest: Nest, c: DepthwisePlan, epilogue: Epilogue | None = None
    ) -> None:
        super().__init__(env, c.item)
        self.nest, self.c, self.epilogue = nest, c, epilogue
        self.m = LLVMMachine(self.b, c.tile.lanes, env.frame.target)
        self.source = _source(env, c)
        self.outer = [k for k in c.columns[:-1] if k is not c.tile_axis]
        """Output axes which tiles do not cover, outermost first."""

    def run(self) -> None:
        """Emit the convolution into its scratch array, unless a product emits it row by row."""
        if self.c.fused_lanes:
            return
        self.pack_operands()
        self.full_tiles()
        if self.c.transposed_rows is not None:
            store_channel_rows(self, self.c)

    def store_to(self, to: Value, strides: RowPosition) -> None:
        """Store the results of the next tiles to an address, with strides along their axes."""
        self.to, self.results = to, strides

    # ---- before the tiles ------------------------------------------------------------------------

    def pack_operands(self) -> None:
        """Emit what precedes the tiles: the table and packed operands."""
        env, c = self.env, self.c
        self.packed_right_strides = self.dense_strides(c.right_order(), c.packed(env.s.local))
        self.to, self.results = self._places()
        self.rounded = rounded_output(env, c)
        tap_stride = env.extent(c.item, c.lane) if c.has_lane_weights else number(1)
        self.packed_left_strides = {c.flat: tap_stride, c.lane: number(1)}
        if c.rows_in_place is None:
            self._table()
        left, right = self.nest.packs
        taps = number(0), env.frame.index(env.s.phase.axes[c.flat])
        with env.narrowed({c.flat: taps}):
            self.pack(left)
            with env.narrowed(self.widened(c.columns)):
                if c.rows_in_place is not None:
                    self.clear(self.sizes()[c.lane])
                elif c.transposed_rows is not None:
                    if any(c.transposed_rows.bounds):
                        self.clear(env.frame.index(product(c.packed(env.s.local))))
                    pack_pixel_rows(self, c, c.transposed_rows)
                else:
                    self.pack(right)

    def _places(self) -> tuple[Value, RowPosition]:
        """Return where tiles write, and the strides along all axes but the lanes'."""
        env, c = self.env, self.c
        axes = tuple(k.axis for k in c.columns)
        if c.transposed_rows is not None:
            extents = [*(env.s.local[a] for a in axes[:-1]), c.tile.lanes]
            return env.storage.at[self.item, SUMS_PART], self.dense_strides(axes, extents)
        to, strides = image_layout(env, c)
        return to, dict(zip(axes[:-1], strides, strict=True))

    def clear(self, count: Value) -> None:
        """Clear the first elements of the packed input, or the row of zeros."""
        to = self.at(RIGHT_PART, number(0))
        clear_elements(self.env, to, count, self.c.tile.lanes, self.c.item.dtype)

    def _table(self) -> None:
        """Store a table entry for each position of the reduction but those along the tile."""
        c = self.c
        reduced = [a for a in c.over if a != c.mixing_axis]
        for j, at in enumerate(self._outer_taps()):
            offset = self.window_offset(c.columns, reduced, [at[a] for a in reduced])
            self._write_entry(j, at, offset)

    def _row_table(self, row: RowPosition) -> None:
        """Store the addresses of the input rows which a row of outputs reaches."""
        env, b, c, source, rows = self.env, self.b, self.c, self.source, self.c.rows_in_place
        assert rows is not None and isinstance(source, InPlace)
        steps = dict(zip(c.columns, (env.frame.index(n) for n in rows.steps), strict=False))
        bounds = dict(zip(c.columns, rows.bounds, strict=False))
        start = b.add(env.index(rows.start, env.top), env.ranges[c.lane][0])
        start = b.add(start, b.mul(steps[c.tile_axis], number(source.first)))
        outside = b.ptrtoint(self.at(RIGHT_PART, number(0)), I64)
        base = env.frame.buffers[rows.buffer]
        for j, at in enumerate(self._outer_taps()):
            place, inside = start, ir.IntType(1)(1)
            for k in self.outer:
                position = b.mul(b.add(env.ranges[k.axis][0], row[k.axis]), number(k.step))
                position = b.add(position, number(at[k.tap] * k.dilation))
                place = b.add(place, b.mul(position, steps[k]))
                for low, extent in bounds[k]:
                    place_in = b.add(position, number(low))
                    within = b.icmp_unsigned("<", place_in, env.frame.index(extent))
                    inside = b.and_(inside, within)
            address = b.ptrtoint(element_address(b, base, place, source.dtype), I64)
            step = b.select(inside, steps[c.tile_axis], number(0))
            self._write_entry(j, at, b.select(inside, address, outside), step)

    def _outer_taps(self) -> list[dict[str, int]]:
        """Return positions of the reduction along all axes, with the first one along the tile."""
        c = self.c
        return [dict(zip(c.over, _position(first, c.extents), strict=True)) for first, *_ in c.taps]

    def _write_entry(self, j: int, at: dict[str, int], *read: Value) -> None:
        """Store a table entry: weight offset, lane of a channel group, where to read."""
        b, c = self.b, self.c
        weights = b.mul(self.packed_left_strides[c.flat], number(c.taps[j][0]))
        base = self.env.storage.at[c.item, TABLE_PART]
        for k, value in enumerate((weights, number(at.get(c.mixing_axis, 0)), *read)):
            b.store(value, element_address(b, base, number(ENTRIES * j + k), i64))

    # ---- tiles -----------------------------------------------------------------------------------

    def full_tiles(self) -> None:
        """Emit every tile of the task."""
        b, sizes, emit_row = self.b, self.sizes(), self._packed_row
        if self.c.rows_in_place is not None:
            emit_row = self._row_in_place

        def loops(outer: Sequence[WindowAxis], row: RowPosition, right: Value) -> None:
            if not outer:
                emit_row(row, right, sizes)
                return
            first, *inner = outer

            def step(at: Value) -> None:
                place = b.add(right, b.mul(at, self.packed_right_strides[first.position_axis]))
                loops(inner, {**row, first.axis: at}, place)

            self.env.loop(number(0), sizes[first.axis], 1, step)

        loops(self.outer, {}, number(0))

    def sizes(self) -> RowPosition:
        """Return the number of the task's outputs along each axis."""
        ranges = self.env.ranges
        return {k.axis: self.b.sub(*ranges[k.axis][::-1]) for k in self.c.columns}

    def _packed_row(self, row: RowPosition, right: Value, sizes: RowPosition) -> None:
        """Emit all tiles of a row of packed input, vector by vector."""
        b, c, tall = self.b, self.c, self.c.tile_axis
        strides = self.packed_right_strides

        def column(at: Value) -> None:
            first, step = b.add(right, at), strides[tall.position_axis]
            plane = strides[tall.remainder_axis] if tall.remainder_axis else number(0)
            weights = self._weights(at)

            def tile(y: Value, height: int) -> None:
                address = self.at(RIGHT_PART, b.add(first, b.mul(y, step)))
                self._tile(height, {**row, tall.axis: y}, at, [*weights, address, step, plane])

            self._for_each_height(sizes[tall.axis], tile)

        self.env.loop(number(0), sizes[c.lane], c.tile.lanes, column)

    def _row_in_place(self, row: RowPosition, _: Value, sizes: RowPosition) -> None:
        """Emit all tiles of a row of input in place, each along the channels."""
        env, b, c, source, tall = self.env, self.b, self.c, self.source, self.c.tile_axis
        rows = c.rows_in_place
        assert rows is not None and isinstance(source, InPlace)
        self._row_table(row)
        low, high = env.ranges[tall.axis]
        last = b.mul(b.sub(high, number(1)), number(tall.step))
        last = b.add(last, number((tall.taps - 1) * tall.dilation + 1))
        for offset, extent in rows.bounds[c.columns.index(tall)]:
            end = b.sub(env.frame.index(extent), number(offset))
            last = b.minimum(end, last)
        count = b.maximum(b.sub(last, number(source.first)), number(0))
        nearest = (self.outer or [tall])[-1]
        next_row = env.frame.index(rows.steps[c.columns.index(nearest)])

        def tiles(y: Value, height: int) -> None:
            place = b.mul(b.add(low, y), number(tall.step))
            place = b.sub(place, number(source.first))

            def tile(at: Value) -> None:
                operands = [*self._weights(at), self.at(RIGHT_PART, at), place, count, at]
                operands += [b.sub(sizes[c.lane], at), next_row, *self._epilogue_operands(at)]
                self._tile(height, {**row, tall.axis: y}, at, operands)

            env.loop(number(0), sizes[c.lane], c.tile.lanes, tile)

        self._for_each_height(sizes[tall.axis], tiles)

    def _epilogue_operands(self, lane: Value) -> list[Value]:
        """Return the addresses of the epilogue's per-channel values."""
        b, env, addresses = self.b, self.env, list[Value]()
        for item in self.epilogue.loads if self.epilogue else ():
            access = item.access
            at = env.index(substitute(access.offset, {self.c.lane: 0}), env.top)
            if self.c.lane in axes_of(access.offset):
                at = b.add(at, b.add(env.ranges[self.c.lane][0], lane))
            addresses.append(env.address(access.buffer, at))
        return addresses

    def _weights(self, lane: Value) -> list[Value]:
        """Return the address of a vector's weights, elements between taps, and the table."""
        c = self.c
        first, second = c.taps[0][0], c.taps[0][-1]
        rise = number((second - first) // max(c.tile_axis.taps - 1, 1))
        left = self.at(LEFT_PART, lane if c.has_lane_weights else number(0))
        step = self.b.mul(self.packed_left_strides[c.flat], rise)
        return [left, step, self.env.storage.at[c.item, TABLE_PART]]

    def _for_each_height(self, size: Value, tile: Callable[[Value, int], None]) -> None:
        """Emit `tile(position, height)` for all tiles over `size` outputs, tallest first.

        The lowest tiles overlap earlier ones rather than reach past the end.
        """
        b, done, heights = self.b, number(0), self.c.heights()
        for height in heights:
            remainder = b.srem(b.sub(size, done), number(height))
            is_lowest = height == heights[-1]
            end = size if is_lowest else b.sub(size, remainder)

            def put(y: Value, height: int = height, is_lowest: bool = is_lowest) -> None:
                if is_lowest:  # ends inside the task
                    last_start = b.maximum(b.sub(size, number(height)), number(0))
                    y = b.minimum(last_start, y)
                tile(y, height)

            self.env.loop(done, end, height, put)
            done = end

    def _tile(self, height: int, row: RowPosition, lane: Value, operands: list[Value]) -> None:
        """Call the function of a tile whose sums begin at a position."""
        b, c, tall = self.b, self.c, self.c.tile_axis.axis
        order = [k.axis for k in c.columns[:-1]]
        rows = [row[a] for a in order]
        to = b.add(row_offset(b, [self.results[a] for a in order], rows), lane)
        args, short = [element_address(b, self.to, to, c.item.dtype), self.results[tall]], None
        if (later := self.rounded) is not None:
            offset = b.add(row_offset(b, later.strides, rows), lane)
            args += [element_address(b, later.base, offset, later.dtype)]
            args += [later.strides[order.index(tall)], later.enabled]
            short = later.dtype
        target = self.env.frame.target
        function = tile_function(b.module, c, height, target, short, self.source, self.epilogue)
        b.call(function, [*args, *operands])


def _source(env: Environment, c: DepthwisePlan) -> Source:
    """Return where tiles read, with what is known of pixels outside the image."""
    rows, tall = c.rows_in_place, c.tile_axis
    if rows is None:
        return Packed()
    limits, axes = rows.bounds[c.columns.index(tall)], env.s.phase.axes
    last = add(mul(sub(axes[tall.axis], 1), tall.step), (tall.taps - 1) * tall.dilation + 1)
    excess = [sub(last, sub(extent, low)) for low, extent in limits]
    bounds = [n for e in excess if (n := _at_most(e, tall)) is not None]
    return InPlace(
        env.frame.dtypes[rows.buffer],
        max((-low for low, _ in limits), default=0),
        max(bounds, default=0) if len(bounds) == len(excess) else None,
        mod(axes[c.lane], c.tile.lanes) != 0,
    )


def _at_most(count: Index, c: WindowAxis) -> int | None:
    """Return a constant upper bound on a number of pixels outside, or None."""
    most = c.taps * c.dilation + c.step
    return next((n for n in range(most) if nonnegative(sub(n, count))), None)


def _position(number: int, extents: Sequence[int]) -> list[int]:
    """Return the position along several axes for a row-major index."""
    position: list[int] = []
    for n in extents[::-1]:
        number, at = divmod(number, n)
        position.insert(0, at)
    return position
