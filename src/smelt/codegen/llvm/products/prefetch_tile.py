"""Prefetch from within register tiles: rows of the next tile, and lines of an output.

Where several nests of a task work on a block of rows, multiply-adds leave memory idle, and the nest
which stores an output then waits for each of its cache lines.  So tiles prefetch both.

    ahead = TileAhead(home, c, (left, right), (rows, depth), last)
    part = ahead.tile(place, height, vectors)   per tile: prefetches its output lines
    ahead.panel(part, k)                        per k: a part of the next panel
    ahead.rows(starts, k)                       address and step for the rows which follow
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, prefetch
from smelt.codegen.llvm.instructions.indexing import number, opaque
from smelt.codegen.llvm.loopir.items import Item, StoreItem
from smelt.codegen.llvm.products.prefetch_panel import PanelPrefetcher, PanelShare
from smelt.codegen.llvm.schedule.contract import Contraction
from smelt.types.affine import coefficient
from smelt.types.expr import axes_of, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.products.microkernel import OperandLayout

Value = ir.Value


class TilePrefetcher:
    """Prefetches of one contraction's tiles.

    `operands` are their layouts, `block` the number of rows and of positions along k, `last`
    whether the block is the last one along k.
    """

    def __init__(
        self,
        home: NestEmitter,
        c: Contraction,
        operands: tuple[OperandLayout, OperandLayout],
        block: tuple[Value, Value],
        last: Value | None,
    ) -> None:
        (left, right), depth = operands, block[1]
        self.home, self.b, self.c, self.left, self.last = home, home.b, c, left, last
        region = home.s.region(c.item)
        self.row_mask: Value | None = None
        """All ones where the prefetched address advances with k, else 0.

        It does not where rows are not adjacent in memory: hardware prefetchers do better there.
        """
        if region is None and c.kind == "packed" and not left.packed and left.unit is None:
            neighbours = self.b.icmp_signed("==", left.steps[0], depth)
            self.row_mask = self.b.select(neighbours, number(-1), number(0))
        store = None if region or home.home.streaming else _store(home, c)
        self.result = None if store is None else self._result(store)
        """Output address of the block's first sum, elements between rows, element size."""
        self.panels = None
        if right.panels is not None and not c.by_panels:
            self.panels = PanelPrefetcher(home, c, right, block, last)

    def begin_tile(
        self, place: tuple[Value, Value, Value], height: int, vectors: int
    ) -> PanelShare | None:
        """Prefetch the output lines of a tile; return its share of the next panel.

        `place` is a row, the block's first column in the result, and a column of the block.
        """
        row, first, column = place
        self.prefetch_results(row, self.b.add(first, column), height, vectors)
        return None if self.panels is None else self.panels.begin(row, column, height)

    def prefetch_panel(self, part: PanelShare | None, k: Value) -> None:
        """Prefetch a part of the next panel: all of it in the course of k."""
        if self.panels is not None and part is not None:
            self.panels.prefetch_at(part, k)

    def next_rows(self, starts: list[Value], k: Value) -> tuple[Value, Value] | None:
        """Return address at k, and bytes per k, to prefetch the rows which follow `starts`."""
        if self.row_mask is None:
            return None
        b, itemsize = self.b, self.left.dtype.itemsize
        step = b.and_(number(len(starts) * itemsize), self.row_mask)
        offset = b.add(b.mul(k, step), b.mul(self.left.steps[0], number(itemsize)))
        return b.gep(starts[-1], [offset], source_etype=ir.IntType(8)), step

    def prefetch_results(self, row: Value, column: Value, height: int, vectors: int) -> None:
        """Prefetch for writing the output lines of a tile."""
        if self.result is None or self.last is None:
            return
        b, (base, row_stride, itemsize) = self.b, self.result
        with b.if_then(self.last):
            at = opaque(b, b.mul(b.add(b.mul(row, row_stride), column), number(itemsize)))
            for i in range(height):
                for v in range(vectors):
                    vector_offset = number(v * self.c.tile.lanes * itemsize)
                    line = b.add(b.add(at, b.mul(row_stride, number(i * itemsize))), vector_offset)
                    address = b.gep(base, [line], source_etype=ir.IntType(8))
                    prefetch(b, address, near=True, written=True)

    def _result(self, store: StoreItem) -> tuple[Any, Value, int]:
        home, b, c, access = self.home, self.b, self.c, store.access
        assert c.m is not None
        offset = substitute(access.offset, {c.m: 0, c.n: 0})
        row_stride = home.index(coefficient(access.offset, c.m) or 0, home.top)
        first = b.mul(home.scratch.start(c.item, c.m), row_stride)
        first = b.add(b.add(home.index(offset, home.top), first), home.scratch.start(c.item, c.n))
        dtype = home.home.dtypes[access.buffer]
        base = element_address(b, home.home.buffers[access.buffer], first, dtype)
        return base, row_stride, dtype.itemsize


def _store(home: NestEmitter, c: Contraction) -> StoreItem | None:
    """Return a store along the columns of a value computed elementwise, or None.

    Values which need a later product are left to that product.
    """
    if c.m is None or c.item in home.direct.stores:
        return None
    later = [i for i in home.s.products if i.number > c.item.number]
    for store in home.s.phase.stores:
        offset = store.access.offset
        rows, columns = (coefficient(offset, a) for a in (c.m, c.n))
        plain = store.where is None and not store.access.limits
        if not plain or columns != 1 or rows is None or not _is_made_of(store.value, c.item):
            continue
        if not c.item.axes.issuperset(axes_of(offset)):
            continue  # each sum is broadcast along an axis it does not have
        if not any(_is_made_of(store.value, i) for i in later):
            return store
    return None


def _is_made_of(value: Item, item: Item) -> bool:
    """Return whether a value is an item, or computed elementwise from it."""
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        if current is item:
            return True
        if current.kind in ("apply", "cast"):
            pending += [x for x in current.args if x not in seen]
            seen.update(current.args)
    return False


__all__ = ["TilePrefetcher"]
