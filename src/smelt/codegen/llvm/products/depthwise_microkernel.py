"""Emit depthwise microkernels: columns of outputs in registers, as separate functions.

Each input row is read once for all outputs of the tile which need it (a sliding window); the
weights of the taps along the tile's axis stay in registers.  A `Source` says where input rows are:
packed with their padding, or in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_scalar, load_vector, prefetch
from smelt.codegen.llvm.access.permute_gather import permuted_lanes
from smelt.codegen.llvm.instructions.indexing import I64, iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine, emit
from smelt.codegen.llvm.loopir.items import Apply, Const, Item, Load
from smelt.codegen.llvm.nests.register_tile import Tile
from smelt.codegen.llvm.products.rank_one_update import fma_step
from smelt.codegen.llvm.products.tile_loops import outline_function, reduction_loop
from smelt.codegen.llvm.products.tile_sums import TileTarget, fits_one_run, store_tile, sum_in_runs
from smelt.codegen.llvm.schedule.depthwise import TILE_HEIGHTS, DepthwisePlan
from smelt.machine.blocks import REGISTER_RUN
from smelt.machine.target import Target
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, i64

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
