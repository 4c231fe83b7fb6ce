"""Select the output range of a tile's columns once, rather than vector by vector.

Where outputs are ranges of a product's columns, nearly every tile is inside one of them.  Its rows
then have one address and one stride, chosen by comparing the tile's first and last column; vectors
are stored as if there were one output.  For a tile which spans several ranges, or none, sums go to
the stack, and a loop over its vectors selects the range of each.

    ranges = OutputRanges(env, c.n, row_stride)           the ranges of the open nest
    chosen = ranges.select_outputs(column, end, top)       whether one holds the columns, and which
    ranges.emit_in_range(chosen, row, count, run)          the epilogue of a tile inside one range
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, Item, StoreItem
from smelt.codegen.llvm.loopir.store_ranges import Range, stored_range
from smelt.codegen.llvm.loops.split_store_ranges import range_ends
from smelt.codegen.llvm.nests.environment import Environment, RangeStoreTarget
from smelt.python.dataclass import dataclass
from smelt.types.affine import coefficient

Value = ir.Value
Ranges = list[tuple[StoreItem, Range]]


@dataclass(frozen=True, slots=True, eq=False)
class SelectedOutputs:
    """The output range selected for some columns."""

    inside: Value
    """Whether they are inside one range of each value, and overlap no other (i1)."""
    aims: list[RangeStoreTarget]
    """For each value its selected range, from row 0 on."""


class OutputRanges:
    """The range stores of the open nest along a product's columns.

    `row_strides` is the row stride of each output.
    """

    def __init__(self, env: Environment, axis: str, apart: Mapping[Access, Value]) -> None:
        self.env, self.axis, self.row_strides = env, axis, apart
        by_value: dict[tuple[Item, str], Ranges] = {}
        for s in env.nest.stores:
            within = stored_range(s)
            if within is not None and within.axis == axis and self._rows_are_contiguous(s):
                dtype = env.frame.dtypes[s.access.buffer]
                by_value.setdefault((s.value, dtype.name), []).append((s, within))
        self.groups = [group for group in by_value.values() if len(group) > 1]
        """Ranges of one value each, with outputs of one type."""
        self.ends = {
            within: range_ends(env, within) for group in self.groups for _, within in group
        }

    def _rows_are_contiguous(self, store: StoreItem) -> bool:
        """Return whether rows of an output are contiguous, at a uniform stride."""
        access = store.access
        return (
            access in self.row_strides
            and not access.limits
            and coefficient(access.offset, self.axis) == 1
        )

    @property
    def accesses(self) -> set[Access]:
        """Return accesses which need no address of their own in a tile inside one range."""
        return {s.access for group in self.groups for s, _ in group}

    def inside(self, low: Value, high: Value) -> Value:
        """Return whether columns are inside one range of each value and overlap no other (i1)."""
        b, inside_all = self.env.b, ir.IntType(1)(1)
        for group in self.groups:
            once, clear = ir.IntType(1)(0), ir.IntType(1)(1)
            for _, within in group:
                is_inside = self._holds(within, low, high)
                is_apart = self._misses(within, low, high)
                clear = b.and_(clear, b.or_(is_apart, b.and_(is_inside, b.not_(once))))
                once = b.or_(once, is_inside)
            inside_all = b.and_(inside_all, b.and_(once, clear))
        return inside_all

    def _holds(self, within: Range, low: Value, high: Value) -> Value:
        b, (first, stop) = self.env.b, self.ends[within]
        begins = b.icmp_signed("<=", first, low)
        return begins if stop is None else b.and_(begins, b.icmp_signed("<=", high, stop))

    def _misses(self, within: Range, low: Value, high: Value) -> Value:
        b, (first, stop) = self.env.b, self.ends[within]
        before = b.icmp_signed("<=", high, first)
        return before if stop is None else b.or_(before, b.icmp_signed("<=", stop, low))

    def select_outputs(self, low: Value, high: Value, top: Scope) -> SelectedOutputs:
        """Return the output ranges of columns; `top` is the scope before all rows."""
        aims = [self._select_range(group, low, high, top) for group in self.groups]
        return SelectedOutputs(self.inside(low, high), aims)

    def _select_range(self, group: Ranges, low: Value, high: Value, top: Scope) -> RangeStoreTarget:
        b, outputs = self.env.b, list[tuple[Value, Value]]()
        dtype = self.env.frame.dtypes[group[0][0].access.buffer]
        for store, _ in group:
            base = self.env.frame.buffers[store.access.buffer]
            first = element_address(b, base, top.offset(store.access), dtype)
            outputs.append((first, self.row_strides[store.access]))
        first, stride = outputs[0]
        for (_, within), (other_first, other_stride) in zip(group[1:], outputs[1:], strict=True):
            in_range = self._holds(within, low, high)
            first, stride = (
                b.select(in_range, other_first, first),
                b.select(in_range, other_stride, stride),
            )
        return RangeStoreTarget([store for store, _ in group], first, stride, dtype)

    def emit_in_range(
        self, aimed: SelectedOutputs, row: Value, count: int, run: Callable[[int], None]
    ) -> None:
        """Emit `run(i)`, the epilogue of each of `count` rows, for columns inside one range."""
        env, b = self.env, self.env.b
        accesses = [a for a in env.accesses if a not in self.accesses]
        firsts = [
            element_address(b, aim.line, b.mul(row, aim.apart), aim.dtype) for aim in aimed.aims
        ]
        for i in range(count):
            targets = [
                replace(aim, line=element_address(b, x, b.mul(number(i), aim.apart), aim.dtype))
                for aim, x in zip(aimed.aims, firsts, strict=True)
            ]
            with env.within(accesses=accesses, range_targets=targets):
                run(i)
