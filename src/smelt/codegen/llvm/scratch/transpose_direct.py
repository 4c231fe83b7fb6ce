"""Emit nests over transposed arrays: from staging tiles, or directly with streaming stores.

Where the output exceeds the caches, little is computed of a single transposed array, and a vector
fills a cache line, no staging tile is needed: a square is read, transposed, and each of its columns
goes through the nest's body at once and is stored non-temporally.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.gather_cache import cache_gathers
from smelt.codegen.llvm.access.memory import element_address, load_vector
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.schedule.task_tiling import transpose_side
from smelt.codegen.llvm.scratch.transpose import emit_transposed, fill_transposed_tile, tile_pitch
from smelt.codegen.llvm.scratch.workspace import TRANSPOSED_PART
from smelt.ops.scalar import SCALARS

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
MAX_WORK = 16
"""Maximum instructions per vector: the body is unrolled for each column of a square."""


def emit_transposed_loops(home: NestEmitter, scope: Scope, loops: Callable[[], None]) -> None:
    """Emit the last two loops of a nest, which `loops` emits on transposed tiles.

    Where it pays there is a second version, square by square, for blocks of complete squares whose
    stores are aligned cache lines.
    """

    def by_tiles() -> None:
        for item in filter(home.live_items.__contains__, home.nest.transposed):
            fill_transposed_tile(home, item, scope)
        if not home.nest.strips:
            home.cached_gathers = cache_gathers(
                home, home.nest.order[-2], transpose_side(home.s.lanes)
            )
        loops()
        home.cached_gathers = {}

    if home.nest.strips or not _is_plain(home):
        by_tiles()
        return
    b, (item,) = home.b, home.nest.transposed
    parts = [b.sub(high, low) for low, high in (home.ranges[a] for a in home.nest.order[-2:])]
    remainders = [b.and_(n, number(home.s.lanes - 1)) for n in parts]
    remainders += [b.and_(n, number(CACHE_LINE - 1)) for n in _places(home, scope)]
    with b.if_else(b.icmp_signed("==", reduce(b.or_, remainders), number(0))) as (
        direct,
        otherwise,
    ):
        with direct:
            home.nontemporal = True
            emit_transposed(
                home,
                item,
                scope,
                lambda *column: _column(home, scope, *column),
                across=True,
                full_squares=True,
            )
            home.nontemporal = False
        with otherwise:
            by_tiles()


def _is_plain(home: NestEmitter) -> bool:
    """Return whether the direct version pays.

    Little is computed of one transposed array, and the outputs are stored non-temporally in full
    cache lines.
    """
    nest, lanes = home.nest, home.s.lanes
    if (
        len(nest.transposed) != 1
        or not home.home.streaming
        or nest.stages
        or nest.reductions
        or nest.saves
    ):
        return False
    access = nest.transposed[0].payload
    inner = [i for i in home.items if nest.vector in i.axes]
    work = sum(SCALARS[i.payload].cost if isinstance(i.payload, str) else 1 for i in inner)
    # Stores are checked at two rows, which determine the alignment of all.
    full_lines = all(
        s.where is None
        and home.step(s.access, nest.vector or "") == 1
        and home.step(s.access, nest.order[-2]) is not None
        and home.home.dtypes[s.access.buffer].itemsize * lanes == CACHE_LINE
        for s in nest.stores
    )
    return full_lines and isinstance(access, Access) and not access.limits and work <= MAX_WORK


def _places(home: NestEmitter, scope: Scope) -> list[Value]:
    """Return addresses which are line-aligned if all vectors of all stores are.

    They are those of the first vectors of two rows.
    """
    b, axes = home.b, home.nest.order[-2:]
    u, v = (home.ranges[a][0] for a in axes)
    addresses: list[Value] = []
    for access in (s.access for s in home.nest.stores):
        base, dtype = home.home.buffers[access.buffer], home.home.dtypes[access.buffer]
        for row in (u, b.add(u, number(1))):
            at = home.index(access.offset, Scope(scope, {axes[0]: row, axes[1]: v}))
            addresses.append(b.ptrtoint(element_address(b, base, at, dtype), I64))
    return addresses


def _column(home: NestEmitter, scope: Scope, row: Value, first: Value, column: Value) -> None:
    """Emit the nest's body for one column."""
    depth, (u, v) = len(home.nest.order), home.nest.order[-2:]
    outer = Scope(scope, {u: row})
    home.enter(outer, depth - 1)
    lanes = Lanes(v, first, home.s.lanes, None)
    inner = Scope(outer, {v: first}, {home.nest.transposed[0]: column}, lanes=lanes)
    home.enter(inner, depth)
    home.body(inner)


def load_transposed_row(home: NestEmitter, item: Item, scope: Scope) -> Value:
    """Load the vector of a transposed tile at the current position."""
    b = home.b
    u, v = home.nest.order[-2:]
    row = b.mul(b.sub(scope.axis(u), home.ranges[u][0]), tile_pitch(home, item))
    column = b.sub(scope.axis(v), home.ranges[v][0])
    at = element_address(b, home.storage.at[item, TRANSPOSED_PART], b.add(row, column), item.dtype)
    return load_vector(
        home.machine(scope, True), at, item.dtype, scope.lanes.mask if scope.lanes else None
    )


__all__ = ["emit_transposed_loops", "load_transposed_row"]
