"""Register tiles of stencils: columns of results in registers, as functions of their own.

Each line is read once for all results of the tile that need it; weights of the taps along the
tile's axis stay in registers meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

from smelt.blocks import HELD_RUN
from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_scalar, load_vector
from smelt.codegen.llvm.access.permute_gather import permuted
from smelt.codegen.llvm.instructions.indexing import I64, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.products.block_sums import in_runs, is_short
from smelt.codegen.llvm.products.gemv import fma_step
from smelt.codegen.llvm.products.tile_loops import outline_function, rounds
from smelt.codegen.llvm.products.tile_sums import Spot, put
from smelt.codegen.llvm.schedule.contract import Tile
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.target import Target
from smelt.types.dtype import DType, i64

Value = ir.Value
PTR = ir.PointerType()
Reader: TypeAlias = Callable[[int, int], Value]
"""What reads the vector at a place of a tile, given as remainder and quotient by its step."""
SUMS = [PTR, I64]
SHORT = [PTR, I64, ir.IntType(1)]
"""Where sums go that are rounded as they are stored, how far apart, and whether they do."""
WEIGHTS = [PTR, I64, PTR]
"""Where weights begin, how far those of neighbouring taps lie apart, and the table."""
ENTRIES = 4
"""Numbers that the table has for each of its positions, at most."""


def tile_function(
    module: ir.Module,
    kind: type[StencilTile],
    height: int,
    target: Target,
    short: DType | None,
    c: DepthwisePlan,
    *more: str,
) -> ir.Function:
    """The register tile as a function of its own, where nothing else is kept in registers; `more`
    is what else tells it from others."""
    tall, count = c.tall, len(c.taps)
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
                "vector" if c.shared else "scalar",
                c.group,
                short or "",
                *more,
            ),
        )
    )
    sums = SUMS if short is None else [*SUMS, *SHORT]
    of = ir.FunctionType(ir.VoidType(), [*sums, *WEIGHTS, *kind.operands])
    return outline_function(
        module, name, of, lambda f: kind(f, c, height, target).fill(count, short)
    )


def pinned(b: ir.IRBuilder, target: Target, vector: Value) -> Value:
    """The same vector, which nothing that reads memory further down may come before: LLVM would
    load all lines at once and have no registers for them."""
    if target.isa not in ("avx512", "avx2"):
        return vector
    kind = ir.FunctionType(vector.type, [vector.type])
    return b.asm(kind, "", "=v,0,~{memory}", [vector], True)


class StencilTile:
    """sums[i] += left[(o, u)] * right[place of o, i and u], for all o and u."""

    name = "stencil"
    operands: ClassVar[Sequence[ir.Type]] = ()
    """Types of its arguments behind those of all."""
    read: ClassVar[Sequence[ir.Type]] = ()
    """Those of what the table says of where an o is read."""
    asks: ClassVar[bool] = False
    """Whether the last o has code of its own, which asks for what comes next."""

    def __init__(self, f: ir.Function, c: DepthwisePlan, height: int, target: Target) -> None:
        self.f, self.c, self.height, self.target = f, c, height, target
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, c.tile.lanes, target)
        self.scalar = LLVMMachine(self.b, None, target)
        self.taps = c.tall.taps
        self.held = self.taps + height + 2 <= target.registers
        """Whether there are registers for the weights of all taps."""
        own = len(f.args) - len(self.operands)
        self.to, self.given = f.args[: own - len(WEIGHTS)], f.args[own:]
        self.left, self.rise, self.table = f.args[own - len(WEIGHTS) : own]

    def fill(self, count: int, short: DType | None) -> None:
        """The function's body, for so many summed positions along other axes."""
        b, (to, row, *later) = self.b, self.to
        item: Item = self.c.item
        zeros = [self.m.const(item.dtype, 0)] * self.height

        def one(o: Value, sums: list[Value], nth: int) -> list[Value]:
            entries = element_address(b, self.table, b.mul(o, number(ENTRIES)), i64)
            known = [
                b.load(element_address(b, entries, number(k), i64), typ=kind)
                for k, kind in enumerate((I64, I64, *self.read))
            ]
            weights = element_address(b, self.left, known[0], item.dtype)
            read = self._picked(self.reader(known[1:], nth < 0), known[1])
            return self._lines(read, weights, list(sums))

        def run(span: tuple[Value, Value]) -> list[Value]:
            return rounds(b, span, 1, one, zeros)

        whole, most = (number(0), number(count)), HELD_RUN // self.taps
        if not is_short(count * self.taps, item.dtype):
            found = in_runs(self.m, item.dtype, whole, self.height, run, most)
        elif self.asks:
            last = number(count - 1)
            found = one(last, run((number(0), last)) if count > 1 else zeros, -1)
        else:
            found = run(whole)
        tile = Tile(self.height, 1, self.c.tile.lanes)
        places = Spot(to, row, item.dtype).places(b, tile)
        rounded = None if short is None else (later[2], Spot(later[0], later[1], short))
        put(self.m, self.c, tile, self.made(found), places, last=rounded)
        b.ret_void()

    def made(self, sums: list[Value]) -> list[Value]:
        """What is stored of the sums."""
        return sums

    def reader(self, entry: Sequence[Value], newest: bool) -> Reader:
        """What reads the vector at a place from the tile's first one, given as remainder and
        quotient by the tile's step, for what the table has of one o; of the `newest` lines nothing
        has been read before."""
        raise NotImplementedError

    def _picked(self, read: Reader, lane: Value) -> Reader:
        """The same where groups of lanes take what one of them has; the packed tile's own way if
        all lanes do."""
        b, c, lanes = self.b, self.c, self.c.tile.lanes
        if not c.mixed or c.group == lanes:
            return read
        kind = ir.IntType(32)
        first = ir.Constant(ir.VectorType(kind, lanes), [k - k % c.group for k in range(lanes)])
        picks = b.add(first, splat(b, b.trunc(lane, kind), lanes))
        return lambda rest, at: permuted(b, [read(rest, at)], picks, lanes)

    def _lines(self, read: Reader, weights: Value, sums: list[Value]) -> list[Value]:
        """The sums after every line that the tile reads, for one position along other axes."""
        b, tall, item, rise = self.b, self.c.tall, self.c.item, self.rise

        def weight(u: int) -> Value:
            at = element_address(b, weights, b.mul(rise, number(u)), item.dtype)
            if self.c.shared:
                return load_vector(self.m, at, item.dtype, None)
            return splat(b, load_scalar(self.scalar, at, item.dtype, None), self.c.tile.lanes)

        known = [weight(u) for u in range(self.taps)] if self.held else []
        for rest in range(tall.step):
            places = {u: tall.quotient(u) for u in range(self.taps) if tall.remainder(u) == rest}
            for at in range(self.height + max(places.values(), default=-self.height)):
                used = [u for u, q in places.items() if 0 <= at - q < self.height]
                if not used:
                    continue
                x = read(rest, at)
                for u in used:
                    i = at - places[u]
                    w = known[u] if self.held else weight(u)
                    sums[i] = fma_step(self.m, w, x, sums[i], item)
                newest = at - places[used[-1]]
                sums[newest] = pinned(b, self.target, sums[newest])
        return sums


class PackedTile(StencilTile):
    """A tile over what is packed: the table says how far from a result each o is read."""

    operands = (PTR, I64, I64)
    read = (I64,)

    def reader(self, entry: Sequence[Value], newest: bool) -> Reader:
        b, c, dtype = self.b, self.c, self.c.item.dtype
        right, step, plane = self.given
        alike = bool(c.mixed) and c.group == c.tile.lanes
        lane, place = entry
        first = b.add(place, lane) if alike else place
        first = element_address(b, right, first, dtype)

        def read(rest: int, at: int) -> Value:
            line = element_address(b, first, b.mul(plane, number(rest)), dtype)
            place = element_address(b, line, b.mul(step, number(at)), dtype)
            if alike:  # one number for all lanes
                return splat(b, load_scalar(self.scalar, place, dtype, None), c.tile.lanes)
            return load_vector(self.m, place, dtype, None)

        return read


__all__ = ["ENTRIES", "PTR", "PackedTile", "Reader", "StencilTile", "tile_function"]
