"""What a nest makes of turned arrays: from their tiles, or square by square past the caches.

Where what is stored outgrows the caches, little is computed of one turned array, and a vector is a
line of memory, no tile lies in between: a square is read, transposed, and each of its columns goes
on at once through what the nest computes.  Writing the tile and reading it again took a quarter of
the time of 64 MiB that are only turned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.gather_cache import hold
from smelt.codegen.llvm.access.memory import element_address, load_vector
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.schedule.task_tiling import turned_side
from smelt.codegen.llvm.scratch.transpose import turn, turned, turned_pitch
from smelt.codegen.llvm.scratch.workspace import TURNED_PART
from smelt.ops.scalar import SCALARS

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
MOST_WORK = 16
"""Instructions for a vector, at most: they are written out for each column of a square."""


def in_squares(home: NestEmitter, scope: Scope, loops: Callable[[], None]) -> None:
    """What is inside all loops but the last two, which `loops` emits: they read tiles that are
    turned before.  Where it pays there is another version, by squares, for blocks of whole squares
    of which whole lines are stored."""

    def by_tiles() -> None:
        for item in filter(home.here.__contains__, home.nest.turned):
            turn(home, item, scope)
        if not home.nest.strips:
            home.held = hold(home, home.nest.order[-2], turned_side(home.s.lanes))
        loops()
        home.held = {}

    if home.nest.strips or not _is_plain(home):
        by_tiles()
        return
    b, (item,) = home.b, home.nest.turned
    parts = [b.sub(high, low) for low, high in (home.ranges[a] for a in home.nest.order[-2:])]
    odd = [b.and_(n, number(home.s.lanes - 1)) for n in parts]
    odd += [b.and_(n, number(LINE - 1)) for n in _places(home, scope)]
    with b.if_else(b.icmp_signed("==", reduce(b.or_, odd), number(0))) as (whole, otherwise):
        with whole:
            home.bypass = True
            turned(
                home,
                item,
                scope,
                lambda *column: _column(home, scope, *column),
                across=True,
                whole=True,
            )
            home.bypass = False
        with otherwise:
            by_tiles()


def _is_plain(home: NestEmitter) -> bool:
    """Whether little is computed of one turned array, and what becomes of it is stored in whole
    lines past the caches."""
    nest, lanes = home.nest, home.s.lanes
    if len(nest.turned) != 1 or not home.home.streaming or nest.stages or nest.folds or nest.saves:
        return False
    access = nest.turned[0].payload
    inner = [i for i in home.items if nest.vector in i.axes]
    work = sum(SCALARS[i.payload].cost if isinstance(i.payload, str) else 1 for i in inner)
    lines = all(
        s.where is None
        and home.step(s.access, nest.vector or "") == 1
        and home.step(s.access, nest.order[-2]) is not None  # two rows tell where all lie
        and home.home.dtypes[s.access.buffer].itemsize * lanes == LINE
        for s in nest.stores
    )
    return lines and isinstance(access, Access) and not access.limits and work <= MOST_WORK


def _places(home: NestEmitter, scope: Scope) -> list[Value]:
    """Addresses that are multiples of a line if all vectors of all stores are lines: those of the
    first vectors of two rows."""
    b, axes = home.b, home.nest.order[-2:]
    u, v = (home.ranges[a][0] for a in axes)
    found: list[Value] = []
    for access in (s.access for s in home.nest.stores):
        base, dtype = home.home.buffers[access.buffer], home.home.dtypes[access.buffer]
        for row in (u, b.add(u, number(1))):
            at = home.index(access.offset, Scope(scope, {axes[0]: row, axes[1]: v}))
            found.append(b.ptrtoint(element_address(b, base, at, dtype), I64))
    return found


def _column(home: NestEmitter, scope: Scope, row: Value, first: Value, column: Value) -> None:
    """What the nest makes of one column."""
    depth, (u, v) = len(home.nest.order), home.nest.order[-2:]
    outer = Scope(scope, {u: row})
    home.enter(outer, depth - 1)
    lanes = Lanes(v, first, home.s.lanes, None)
    inner = Scope(outer, {v: first}, {home.nest.turned[0]: column}, lanes=lanes)
    home.enter(inner, depth)
    home.body(inner)


def turned_row(home: NestEmitter, item: Item, scope: Scope) -> Value:
    """The vector of a turned tile at the current position."""
    b = home.b
    u, v = home.nest.order[-2:]
    row = b.mul(b.sub(scope.axis(u), home.ranges[u][0]), turned_pitch(home, item))
    column = b.sub(scope.axis(v), home.ranges[v][0])
    at = element_address(b, home.storage.at[item, TURNED_PART], b.add(row, column), item.dtype)
    return load_vector(
        home.machine(scope, True), at, item.dtype, scope.lanes.mask if scope.lanes else None
    )


__all__ = ["in_squares", "turned_row"]
