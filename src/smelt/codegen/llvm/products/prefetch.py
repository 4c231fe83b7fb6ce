"""Prefetch what the next tiles read and write, at a limited rate.

Prefetched at once, a tile's cache lines would occupy all line fill buffers of L1, and the tile
would stall before it begins; so they are spread over its reduction loop.

- `PrefetchStream`: the two cache lines of each of a dozen rows that a tile's epilogue reads and
  writes.
- `TilePrefetcher`: the rows of the left operand that the next tile reads, this tile's results, and
  the next panel of a prepacked right operand.  The first tile of a column would read that at the
  speed of L3, the others find it in L2; so each tile prefetches its share.
- `panel_share`: a tile's share of a panel; of filter panels of channels-last convolutions there is
  one run per tap, each too short for hardware prefetchers.

    stream = PrefetchStream(b, first, step, (12, 2), near=False, written=False)
    stream.begin(depth)                    before a loop over so many positions along k
    prefetch_in_loop(b, [stream], k)       within it
    stream.prefetch_all()                  instead
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, prefetch
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import multiple_of_counter, step_address
from smelt.codegen.llvm.instructions.indexing import I64, number, opaque
from smelt.codegen.llvm.loopir.items import Access, Apply, Cast, Item, StoreItem
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.codegen.llvm.nests.product_plan import ProductPlan
from smelt.codegen.llvm.products.microkernel import reduction_loop
from smelt.python.dataclass import dataclass
from smelt.types.dtype import i8
from smelt.types.expr import axes_of, coefficient, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.products.macrokernel import OperandLayout

Value = ir.Value
FRACTION = 16
"""Fraction bits of fixed-point numbers: lines per position, and the like."""
INTERVAL = 16
"""Positions per prefetch: prefetching at each would slow long sums."""


def prefetch_in_loop(b: ir.IRBuilder, streams: Sequence[PrefetchStream], k: Value) -> None:
    """Prefetch the lines which fall to position k, once every `INTERVAL` positions."""
    if not streams:
        return
    with b.if_then(b.icmp_signed("==", b.and_(k, number(INTERVAL - 1)), number(0))):
        for stream in streams:
            stream.prefetch_at(k)


class PrefetchStream:
    """Cache lines of some rows to prefetch, from an address on.

    `step` is in bytes between rows, `shape` the numbers of rows and of lines per row.  `near`
    prefetches into L1 rather than L2, `written` for writing.
    """

    def __init__(
        self,
        b: ir.IRBuilder,
        first: Value,
        step: Value,
        shape: tuple[int, int],
        *,
        near: bool,
        written: bool,
    ) -> None:
        self.b, self.first, self.step = b, first, step
        (self.rows, self.lines), self.near, self.written = shape, near, written

    def begin(self, depth: Value) -> None:
        """Set the rate for a loop over `depth` positions.

        If there are too few positions, prefetch all lines now.
        """
        b, count = self.b, self.rows * self.lines
        least = number(count * INTERVAL)
        short = b.icmp_signed("<", depth, least)
        with b.if_then(short):
            self.prefetch_all()
        self.rate = b.udiv(number(count << FRACTION), b.select(short, least, depth))

    def prefetch_at(self, k: Value) -> None:
        """Prefetch the line which falls to a position."""
        b = self.b
        nth = b.lshr(multiple_of_counter(b, k, self.rate), number(FRACTION))
        self._prefetch_line(b.udiv(nth, number(self.lines)), b.urem(nth, number(self.lines)))

    def prefetch_all(self) -> None:
        """Prefetch all lines."""
        for row in range(self.rows):
            for line in range(self.lines):
                self._prefetch_line(number(row), number(line))

    def _prefetch_line(self, row: Value, line: Value) -> None:
        b = self.b
        at = b.add(b.mul(row, self.step), b.mul(line, number(CACHE_LINE)))
        address = element_address(b, self.first, at, i8)
        prefetch(b, address, near=self.near, written=self.written)


PREFETCH_TYPES = (ir.PointerType(), I64)
"""Types of a tile's prefetch arguments."""
PanelShare = tuple[Value, Value]
"""A tile's share of a panel: the address where it begins, and lines per position, fixed point."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a tile: `own` pieces from the nth on, of all `pieces`."""

    nth: Value
    pieces: Value
    own: int = 1

    def split(self, b: ir.IRBuilder, nth: Value, count: Value) -> Share:
        """Return the share of the nth of `count` image rows which divide this one."""
        return Share(b.add(b.mul(self.nth, count), nth), b.mul(self.pieces, count))


ALL_TILES = Share(number(0), number(1))


def panel_share(
    b: ir.IRBuilder, c: ProductPlan, panel: Value, depth: Value, share: Share
) -> PanelShare:
    """Return a tile's share of a panel's run of `depth` positions."""
    lines = max(c.tile.columns * c.unit.itemsize // CACHE_LINE, 1)
    rate = b.udiv(number(lines << FRACTION), share.pieces)
    before = b.lshr(b.mul(b.mul(rate, share.nth), depth), number(FRACTION))
    begin = element_address(b, panel, b.mul(before, number(CACHE_LINE)), i8)
    return begin, b.mul(rate, number(share.own))


def prefetch_at(b: ir.IRBuilder, begin: Value, rate: Value, k: Value) -> None:
    """Prefetch the line which falls to a position."""
    line = b.lshr(multiple_of_counter(b, k, rate), number(FRACTION))
    prefetch(b, element_address(b, begin, b.mul(line, number(CACHE_LINE)), i8))


def prefetch_all(b: ir.IRBuilder, begin: Value, rate: Value, depth: Value) -> None:
    """Prefetch all lines which fall to `depth` positions."""
    count = b.lshr(b.add(b.mul(depth, rate), number((1 << FRACTION) - 1)), number(FRACTION))

    def prefetch_line(k: Value, _: list[Value], __: int) -> list[Value]:
        prefetch(b, element_address(b, begin, b.mul(k, number(CACHE_LINE)), i8))
        return []

    reduction_loop(b, (number(0), count), 1, prefetch_line, [])


class TilePrefetcher:
    """Prefetches of one contraction's tiles.

    `operands` are their layouts, `block` the number of rows and of positions along k, `last`
    whether the block is the last one along k.
    """

    def __init__(
        self,
        env: Environment,
        c: Contraction,
        operands: tuple[OperandLayout, OperandLayout],
        block: tuple[Value, Value],
        last: Value | None,
    ) -> None:
        (left, right), (self.rows, self.depth) = operands, block
        self.env, self.b, self.c, self.left, self.last = env, env.b, c, left, last
        region = env.s.region(c.item)
        self.row_mask: Value | None = None
        """All ones where the prefetched address advances with k, else 0.

        It does not where rows are not adjacent in memory: hardware prefetchers do better there.
        """
        if region is None and c.kind == "packed" and not left.packed and left.unit is None:
            neighbours = self.b.icmp_signed("==", left.steps[0], self.depth)
            self.row_mask = self.b.select(neighbours, number(-1), number(0))
        store = None if region or env.frame.streaming else _store(env, c)
        self.result = None if store is None else self._result(store)
        """Output address of the block's first sum, elements between rows, element size."""
        self.right = None if c.by_panels else right.panels
        self.right_base = right.base

    def begin_tile(
        self, place: tuple[Value, Value, Value], height: int, vectors: int
    ) -> PanelShare | None:
        """Prefetch the output lines of a tile; return its share of the next panel.

        `place` is a row, the block's first column in the result, and a column of the block.
        """
        (row, first, column), b, c = place, self.b, self.c
        self.prefetch_results(row, b.add(first, column), height, vectors)
        if self.right is None:
            return None
        share = Share(b.udiv(row, number(height)), b.udiv(self.rows, number(height)))
        return panel_share(b, c, self._next_panel(*self.right, column), self.depth, share)

    def _next_panel(self, access: Access, top: Scope, column: Value) -> Value:
        """Return the address of the panel which follows that of a column.

        After the last column comes the first panel of the next block, or of the next task's
        columns.
        """
        b, env, c = self.b, self.env, self.c
        (low, high), (start, end) = env.ranges[c.n], env.ranges[c.k]
        next_column, k = b.add(b.add(low, column), number(c.tile.columns)), start
        if self.last is not None and c.n in env.s.block:
            is_past = b.and_(b.icmp_signed(">=", next_column, high), b.not_(self.last))
            next_column, k = b.select(is_past, low, next_column), b.select(is_past, end, start)
        at = env.index(access.offset, Scope(top, {c.n: next_column, c.k: k}))
        at = at if c.group_size == 1 else b.udiv(at, number(c.group_size))
        return element_address(b, self.right_base, at, c.unit)

    def prefetch_at(
        self, k: Value, rows: tuple[Value, Value] | None, part: PanelShare | None
    ) -> None:
        """Prefetch the share of a tile's position: of the next rows, and of the next panel."""
        if rows is not None:
            prefetch(self.b, step_address(self.b, rows[0], k, rows[1], i8))
        if part is not None:
            prefetch_at(self.b, *part, k)

    def next_rows(self, starts: list[Value]) -> tuple[Value, Value] | None:
        """Return where to prefetch the following rows: address at k = 0, and bytes per k."""
        if self.row_mask is None:
            return None
        b, itemsize = self.b, self.left.dtype.itemsize
        step = b.and_(number(len(starts) * itemsize), self.row_mask)
        offset = b.mul(self.left.steps[0], number(itemsize))
        return element_address(b, starts[-1], offset, i8), step

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
                    prefetch(b, element_address(b, base, line, i8), near=True, written=True)

    def _result(self, store: StoreItem) -> tuple[Any, Value, int]:
        env, b, c, access = self.env, self.b, self.c, store.access
        assert c.m is not None
        offset = substitute(access.offset, {c.m: 0, c.n: 0})
        row_stride = env.index(coefficient(access.offset, c.m) or 0, env.top)
        first = b.mul(env.start(c.item, c.m), row_stride)
        first = b.add(b.add(env.index(offset, env.top), first), env.start(c.item, c.n))
        dtype = env.frame.dtypes[access.buffer]
        base = env.address(access.buffer, first)
        return base, row_stride, dtype.itemsize


def _store(env: Environment, c: Contraction) -> StoreItem | None:
    """Return a store along the columns of a value computed elementwise, or None.

    Values which need a later product are left to that product.
    """
    if c.m is None or c.item in env.direct.stores:
        return None
    items = env.s.phase.items
    later = [i for i in items[items.index(c.item) + 1 :] if i in env.s.products]
    for store in env.s.phase.stores:
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
        if isinstance(current, (Apply, Cast)):
            pending += [x for x in current.args if x not in seen]
            seen.update(current.args)
    return False
