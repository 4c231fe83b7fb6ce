"""Emit depthwise microkernels: columns of outputs in registers, as separate functions.

Each input row is read once for all outputs of the tile which need it (a sliding window); the
weights of the taps along the tile's axis stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

from smelt.blocks import REGISTER_RUN
from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_scalar, load_vector
from smelt.codegen.llvm.access.permute_gather import permuted
from smelt.codegen.llvm.instructions.indexing import I64, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.products.rank_one_update import fma_step
from smelt.codegen.llvm.products.tile_loops import outline_function, reduction_loop
from smelt.codegen.llvm.products.tile_sums import TileTarget, fits_one_run, store_tile, sum_in_runs
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.schedule.register_tile import Tile
from smelt.target import Target
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


def tile_function(
    module: ir.Module,
    kind: type[DepthwiseTile],
    height: int,
    target: Target,
    short: DType | None,
    c: DepthwisePlan,
    *more: str,
) -> ir.Function:
    """Return the function of a register tile; `more` completes its name."""
    tall, count = c.tile_axis, len(c.taps)
    name = ".".join(
        map(
            str,
            (
                kind.name,
                c.item.dtype,
                f"{height}x{c.tile.lanes}",
                f"{count}x{tall.taps}",
                tall.step,
                tall.dilation,
                "vector" if c.has_lane_weights else "scalar",
                c.group,
                short or "",
                *more,
            ),
        )
    )
    sums = SUM_ARGS if short is None else [*SUM_ARGS, *ROUNDED_ARGS]
    of = ir.FunctionType(ir.VoidType(), [*sums, *WEIGHT_ARGS, *kind.operands])
    return outline_function(
        module, name, of, lambda f: kind(f, c, height, target).fill(count, short)
    )


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

    name = "stencil"
    operands: ClassVar[Sequence[ir.Type]] = ()
    """Types of the arguments behind the common ones."""
    read: ClassVar[Sequence[ir.Type]] = ()
    """Types of the words of a table entry which say where an o is read."""
    prefetches: ClassVar[bool] = False
    """Whether the last o has a loop of its own, which prefetches what comes next."""

    def __init__(self, f: ir.Function, c: DepthwisePlan, height: int, target: Target) -> None:
        self.f, self.c, self.height, self.target = f, c, height, target
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, c.tile.lanes, target)
        self.scalar = LLVMMachine(self.b, None, target)
        self.taps = c.tile_axis.taps
        self.weights_in_registers = self.taps + height + 2 <= target.registers
        """Whether the weights of all taps fit registers."""
        common = len(f.args) - len(self.operands)
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
                for k, kind in enumerate((I64, I64, *self.read))
            ]
            weights = element_address(b, self.left, words[0], item.dtype)
            read = self._lane_group_reader(self.reader(words[1:], nth < 0), words[1])
            return self._add_rows(read, weights, list(sums))

        def run(span: tuple[Value, Value]) -> list[Value]:
            return reduction_loop(b, span, 1, step_at, zeros)

        full_span, run_length = (number(0), number(count)), REGISTER_RUN // self.taps
        if not fits_one_run(count * self.taps, item.dtype):
            totals = sum_in_runs(self.m, item.dtype, full_span, self.height, run, run_length)
        elif self.prefetches:
            last = number(count - 1)
            totals = step_at(last, run((number(0), last)) if count > 1 else zeros, -1)
        else:
            totals = run(full_span)
        tile = Tile(self.height, 1, self.c.tile.lanes)
        places = TileTarget(to, row, item.dtype).addresses(b, tile)
        rounded = None if short is None else (later[2], TileTarget(later[0], later[1], short))
        store_tile(self.m, self.c, tile, self.outputs(totals), places, last=rounded)
        b.ret_void()

    def outputs(self, sums: list[Value]) -> list[Value]:
        """Return what is stored for the sums."""
        return sums

    def reader(self, entry: Sequence[Value], newest: bool) -> Reader:
        """Return what loads the vector at a position of the tile, for a table entry.

        The rows of the `newest` entry have not been read before.
        """
        raise NotImplementedError

    def _lane_group_reader(self, read: Reader, lane: Value) -> Reader:
        """Return a reader which broadcasts one channel within each group of lanes.

        Used for grouped convolutions whose small groups share a vector.  If a group fills the
        vector, `PackedTile` broadcasts a scalar itself.
        """
        b, c, lanes = self.b, self.c, self.c.tile.lanes
        if not c.mixing_axis or c.group == lanes:
            return read
        kind = ir.IntType(32)
        first = ir.Constant(ir.VectorType(kind, lanes), [k - k % c.group for k in range(lanes)])
        picks = b.add(first, splat(b, b.trunc(lane, kind), lanes))
        return lambda rest, at: permuted(b, [read(rest, at)], picks, lanes)

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


class PackedTile(DepthwiseTile):
    """A tile over packed input; table entries are offsets from the output."""

    operands = (PTR, I64, I64)
    read = (I64,)

    def reader(self, entry: Sequence[Value], newest: bool) -> Reader:
        b, c, dtype = self.b, self.c, self.c.item.dtype
        right, step, plane = self.extra_args
        is_uniform = bool(c.mixing_axis) and c.group == c.tile.lanes
        lane, place = entry
        first = b.add(place, lane) if is_uniform else place
        first = element_address(b, right, first, dtype)

        def read(phase: int, at: int) -> Value:
            plane_address = element_address(b, first, b.mul(plane, number(phase)), dtype)
            place = element_address(b, plane_address, b.mul(step, number(at)), dtype)
            if is_uniform:  # one channel for all lanes
                return splat(b, load_scalar(self.scalar, place, dtype, None), c.tile.lanes)
            return load_vector(self.m, place, dtype, None)

        return read


__all__ = ["ENTRIES", "PTR", "DepthwiseTile", "PackedTile", "Reader", "tile_function"]
