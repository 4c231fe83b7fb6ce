"""Operands of a tall product: what of them is packed, and where the rest lies.

The left operand is multiplied where it lies, or else some rows of it are packed first; the right
one is packed once in a task, line by line or in panels as wide as a tile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.gather_cache import hold
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_vector,
    prefetch,
    store_vector,
)
from smelt.codegen.llvm.access.prefetch import fresh
from smelt.codegen.llvm.access.proven_bounds import known_limits, of_lines, within_lines
from smelt.codegen.llvm.instructions.indexing import number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Access, Item, accesses_of
from smelt.codegen.llvm.loops.full_unroll import rest_mask
from smelt.codegen.llvm.loops.partition_interior import each_row
from smelt.codegen.llvm.loops.versioning import needed
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.products.partition_loops import in_stretches, stretched
from smelt.codegen.llvm.products.prefetch_stream import PrefetchStream
from smelt.codegen.llvm.products.tile_loops import in_blocks, in_squares
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.operands import load_of
from smelt.codegen.llvm.schedule.tall_skinny import TallSkinnyPlan
from smelt.codegen.llvm.scratch.scratch import each_vector
from smelt.codegen.llvm.scratch.transpose import turned
from smelt.codegen.llvm.scratch.workspace import LEFT_PART, RIGHT_PART
from smelt.codegen.llvm.scratch.zero_pad import clear_beyond
from smelt.ops.cast import cast
from smelt.types.affine import coefficient
from smelt.types.expr import nonnegative, sub

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
BELOW = 16
"""Summed positions that are packed for one vector of columns after another, where each tests what
lies outside: their lines stay in the first cache from vector to vector."""


PANELS_AHEAD = 4
"""Panels by which packing what lies in lines runs behind what it has asked memory for: places of
more channels than the processor can foresee are read side by side."""


class TallPacker(Packer):
    """Packs the operands of one tall product in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: TallSkinnyPlan) -> None:
        super().__init__(home, c.item)
        self.nest, self.c = nest, c
        self.m = LLVMMachine(self.b, c.tile.lanes, home.home.target)
        self.scalar = LLVMMachine(self.b, None, home.home.target)
        self.first, self.staged = number(0), False
        """Of the rows at hand; and whether they are stored by way of scratch."""
        self.top = home.top
        self.rows_apart: dict[Access, Value] = {}
        self.beside: list[Access] = []
        """What is read beside the sums, element by element."""
        self.courses: list[PrefetchStream] = []
        """What the tile at hand asks for in its course."""
        self.left_steps: list[Value] = []
        low, high = home.ranges[c.k]
        self.depth = self.b.sub(high, low)
        self.column, high = home.ranges[c.n]
        self.columns = self.b.sub(high, self.column)
        self.pitch = self._whole(self.b.add(self.columns, number(c.tile.lanes - 1)), c.tile.lanes)
        """Elements between packed lines of the right operand, and between rows of sums."""
        self.strides = {c.k: self.pitch, c.n: number(1)}
        self.apart = {c.m: self.depth, c.k: number(1)}

    def _whole(self, count: Value, step: int) -> Value:
        return self.b.and_(count, number(-step))

    # ---- the left operand ------------------------------------------------------------------------

    def _open_left(self) -> None:
        """Finds where the left operand lies, and how far apart its rows and positions are."""
        home, b, c = self.home, self.b, self.c
        self.along, self.stored = "", c.item.dtype
        if not c.direct:
            self.base = home.storage.at[c.item if c.turned else c.leader or c.item, LEFT_PART]
            self.left_steps = [self.depth, number(1)]
            return
        if c.picked:
            self.left_steps = [number(0), number(1)]
            return
        access = load_of(c.left)
        assert access is not None
        top = home.open(self.nest.packs[0], Scope(home.top))
        self.left_steps = [home.index(coefficient(access.offset, a) or 0, top) for a in (c.m, c.k)]
        self.along = c.k if coefficient(access.offset, c.k) == 1 else ""
        origin = b.add(top.offset(access), b.mul(home.ranges[c.k][0], self.left_steps[1]))
        self.base = element_address(b, home.home.buffers[access.buffer], origin, self.stored)

    def _picked(self, row: Value) -> Value:
        """Where a row of the left operand begins that lies at a computed position."""
        home, c, access = self.home, self.c, self.c.left.payload
        assert isinstance(access, Access)
        place = Scope(home.top, {c.m: row, c.k: home.ranges[c.k][0]})
        at = home.index(access.offset, place)
        return element_address(self.b, home.home.buffers[access.buffer], at, self.stored)

    def _pack_left(self) -> None:
        """Some rows of the left operand, unless they are multiplied where they lie."""
        c, nest = self.c, self.nest.packs[0]
        if c.direct:
            return
        access = load_of(c.left)
        flat = access is not None and coefficient(access.offset, c.k) == 1
        if (
            access is None
            or not flat
            or coefficient(access.offset, c.m) != self.home.s.phase.axes[c.k]
        ):
            self.pack(nest)
        else:
            self._convert(nest, access)

    def _convert(self, nest: Nest, access: Access) -> None:
        """The same where they are converted only, and follow one another without gaps."""
        home, b, c = self.home, self.b, self.c
        low, high = home.ranges[c.m]
        top = home.open(nest, Scope(home.top))
        dtype = home.home.dtypes[access.buffer]
        origin = b.add(top.offset(access), b.mul(low, self.depth))
        base = element_address(b, home.home.buffers[access.buffer], origin, dtype)

        def put(at: Value, mask: Value | None) -> None:
            found = load_vector(self.m, element_address(b, base, at, dtype), dtype, mask)
            found = converted(self.m, found, c.left)
            store_vector(self.m, self.at(LEFT_PART, at), found, c.item.dtype, None)

        each_vector(b, home, b.mul(b.sub(high, low), self.depth), c.tile.lanes, put)

    def _pack_right(self) -> None:
        """All of the right operand: of one that is turned each panel from its begin to its end."""
        nest, c, home = self.nest.packs[1], self.c, self.home
        self.starts = {a: home.ranges[a][0] for a in nest.order}
        if not nest.turned:
            self.pack(nest)
            return
        axes = stretched(home, nest, c.tile.columns)
        in_stretches(home, axes, lambda: self._turn_right(nest))

    def _pack(self, nest: Nest, scope: Scope) -> None:
        """Runs the nest; where vectors come before the summed positions, all of these for each."""
        if nest.order[0] == nest.vector:
            top = self.home.open(nest, scope)
            below = nest.order[1]
            each_row(
                self.home,
                (),
                top,
                lambda facts, few: in_blocks(
                    self.home, below, BELOW, lambda: self._by_columns(top)
                ),
            )
        else:
            super()._pack(nest, scope)

    def _by_columns(self, top: Scope) -> None:
        """Vectors of columns, of which it is found out once what lies outside: where places of many
        lines are columns, as many vectors at once as a tile has."""
        home, b, lanes = self.home, self.b, self.home.s.lanes
        column, k = home.nest.order
        low, high = home.ranges[column]
        whole, later = b.add(low, self._whole(b.sub(high, low), lanes)), fresh(home)
        lines = any(of_lines(e, column) for a in accesses_of(home.items) for e, _ in a.limits)

        last = farthest(accesses_of(home.items), column) if lines else []

        def vector(at: Value, mask: Value | None, count: int = lanes) -> None:
            outer = Scope(top, {column: at}, lanes=Lanes(column, at, count, mask))
            home.enter(outer, 1)
            known = known_limits(home, outer)
            home.held = hold(home, k)
            here = Lanes(column, at, count, mask, inside=known)

            def inside(position: Value) -> None:
                inner = Scope(outer, {k: position}, lanes=here)
                home.enter(inner, 2)
                home.body(inner)
                for access, far in later:
                    self._ask_for(access, b.add(inner.offset(access), home.index(far, top)))
                for access in last:
                    for nth in range(count // lanes):
                        far = number(PANELS_AHEAD * count + nth * lanes)
                        self._ask_for(access, b.add(inner.offset(access), far))

            within_lines(home, column, known, lambda: home.loop(*home.ranges[k], 1, inside))
            home.held = {}

        done = low
        if lines and self.c.tile.vectors > 1:
            wide = self.c.tile.columns
            done = b.add(low, self._whole(b.sub(high, low), wide))
            home.loop(low, done, wide, lambda at: vector(at, None, wide))
        home.loop(done, whole, lanes, lambda at: vector(at, None))
        home.loop(whole, high, lanes, lambda at: vector(at, rest_mask(home, high, at, lanes)))

    def _ask_for(self, access: Access, at: Value) -> None:
        """Has the processor fetch the line of an element."""
        home = self.home
        buffer, dtype = home.home.buffers[access.buffer], home.home.dtypes[access.buffer]
        prefetch(self.b, element_address(self.b, buffer, at, dtype))

    def _turn_right(self, nest: Nest) -> None:
        """A stretch of a right operand that is turned."""
        c, home = self.c, self.home
        items = needed(nest, home.taken) if home.taken else nest.items
        if len(items) == 1 and items[0] in nest.turned:
            m = LLVMMachine(self.b, c.tile.lanes, home.home.target)

            def put(k: Value, column: Value, value: Value) -> None:
                at = (self.b.sub(x, self.starts[a]) for x, a in ((k, c.k), (column, c.n)))
                store_vector(m, self.at(RIGHT_PART, self._packed(*at)), value, c.item.dtype, None)

            turned(home, items[0], home.open(nest, Scope(home.top)), put)
            return

        in_squares(home, (c.n, c.k), lambda: home.run(nest, Scope(home.top)))

    def _clear_beyond(self) -> None:
        """The lanes without a column of the right operand's last panel."""
        panels = self.at(RIGHT_PART, number(0)), self.c.item.dtype
        clear_beyond(self.home, panels, self.c.tile, self.columns, self.depth, self.depth)

    def plain(self, nest: Nest) -> Collection[str]:
        return () if nest.turned else nest.order

    def unit(self, nest: Nest) -> int:
        return self.c.tile.columns if nest.packed == "right" and self.c.wide else 1

    def offset(self, nest: Nest, scope: Scope) -> Value:
        """Where the vector at a scope goes, in elements."""
        c, b = self.c, self.b
        if not c.wide or nest.packed != "right":
            return super().offset(nest, scope)
        k, column = scope.axis(c.k), scope.axis(c.n)
        return self._packed(b.sub(k, self.starts[c.k]), b.sub(column, self.column))

    def _packed(self, k: Value, column: Value) -> Value:
        """Where an element of the right operand is packed."""
        b, wide = self.b, self.c.tile.columns
        if not self.c.wide:
            return b.add(b.mul(k, self.pitch), column)
        panel = b.mul(self._whole(column, wide), self.depth)
        inside = b.and_(column, number(wide - 1))
        return b.add(b.add(panel, b.mul(k, number(wide))), inside)

    def put(self, nest: Nest, value: Value, scope: Scope) -> None:
        """Stores one vector of a packed operand: of the left one a whole vector, over whose end the
        next row is stored, unless parts of all rows come one after another."""
        if nest.packed == "right" or scope.lanes is None or self.parted:
            super().put(nest, value, scope)
            return
        lanes = scope.lanes.count
        to = self.at(LEFT_PART, self.offset(nest, scope))
        m = LLVMMachine(self.b, lanes, self.home.home.target)
        store_vector(m, to, splat(self.b, value, lanes), self.item.dtype, None)

    def _clamped(self, row: Value, count: int) -> list[Value]:
        """Where the rows of a tile begin that follow one another; those beyond the last one are the
        last one."""
        b, c = self.b, self.c
        last = b.sub(self.home.ranges[c.m][1], number(1))
        found: list[Value] = []
        for i in range(count):
            at = b.add(row, number(i)) if i else row
            at = b.select(b.icmp_signed("<", at, last), at, last)
            if c.picked:
                found.append(self._picked(at))
                continue
            at = b.mul(at if c.direct else b.sub(at, self.first), self.left_steps[0])
            found.append(element_address(b, self.base, at, self.stored))
        return found


def farthest(read: Sequence[Access], along: str) -> list[Access]:
    """Of what is read along an axis of each array, that which lies farthest on."""
    found = dict[str, Access]()
    for access in read:
        if coefficient(access.offset, along) == 1:
            other = found.setdefault(access.buffer, access)
            if nonnegative(sub(access.offset, other.offset)):
                found[access.buffer] = access
    return [*found.values()]


def converted(m: LLVMMachine, value: Value, item: Item) -> Value:
    """What was loaded for an item, as the type to which this converts it."""
    chain = [item]
    while chain[-1].kind == "cast":
        chain.append(chain[-1].args[0])
    for outer, inner in zip(chain[-2::-1], chain[:0:-1], strict=True):
        value = cast(m, value, inner.dtype, outer.dtype)
    return value


__all__ = ["TallPacker", "converted"]
