"""Declare the indices of a program: which block of each grid axis, and the lanes with masks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from smelt.codegen.triton.block_axes import power_of_two
from smelt.codegen.triton.indices import IndexPrinter
from smelt.codegen.triton.schedule import Schedule
from smelt.codegen.triton.writer import Text, Writer
from smelt.kernel.ir import Extreme, IndexValue, Kernel, Partial
from smelt.kernel.walk import visit, visit_body
from smelt.types.dtype import bool_, i32
from smelt.types.expr import axes_of


class Lanes:
    """Index and mask of each axis in a program.

    `blocks` maps axes to lanes (None: the extent, padded to a power of two). Indices have
    `index_type`: a type of Triton, or the name of a constant of the program.
    """

    def __init__(self, kernel: Kernel, schedule: Schedule, index_type: str = "tl.int32") -> None:
        self.kernel, self.schedule, self.index_type = kernel, schedule, index_type
        self.index: dict[str, Text] = {}
        self.mask: dict[str, Text] = {}
        self.ends: dict[str, tuple[str, str]] = {}
        """The first index of a block of an axis, and one more than the last."""
        self.late: set[str] = set()
        """Axes whose first lanes of a block may be none: the range begins inside of it."""
        self.blocks: dict[str, int | None] = {}
        self.with_ends = _with_ends(kernel)
        self.half = ""
        """The axis that is taken in halves of its blocks."""
        if schedule.halved:
            self.with_ends |= {schedule.halved}
        for access in (*schedule.copied, *schedule.stored):
            self.with_ends |= {a for e in access.index for a in axes_of(e)}

    def declare(self, writer: Writer, indices: IndexPrinter, *, members: bool = False) -> None:
        """Write the indices; the last axis of the grid is the fastest.

        With `members`, the variable `program` is the program's number among those of one member.
        """
        entries = dict(self.schedule.grid)
        counts = {a: self._count(a, indices) for a in entries}
        rest = self._first(writer, counts, members=members)
        pair = self.schedule.blocked if self.schedule.group > 1 else []
        if pair:
            rest = self._grouped(writer, pair, counts, rest)
            entries = {a: n for a, n in entries.items() if a not in pair} | dict.fromkeys(pair, 0)
        for k, axis in reversed(list(enumerate(entries))):
            is_last = axis in pair or k == 0
            place = f"block_{axis}" if axis in pair else rest
            if not is_last:
                place = f"{rest} % {counts[axis]}"
            self._enter_grid(writer, axis, place, is_plain=is_last, indices=indices)
            if not is_last:
                writer.line(f"program = program // {counts[axis]}")
        for axis, least in self.schedule.whole.items():
            extent = self.kernel.axis(axis).extent
            self.blocks[axis] = None
            is_exact = isinstance(extent, int) and power_of_two(max(extent, least)) == extent
            self.enter(writer, axis, "", "" if is_exact else indices.text(extent).code)

    def _count(self, axis: str, indices: IndexPrinter) -> str:
        """Return the number of blocks of an axis of the grid."""
        extent = indices.text(self.kernel.axis(axis).extent)
        if self.schedule.grid[axis] == 1:
            return extent.operand
        return f"tl.cdiv({extent.code}, {self.block(axis)})"

    def _first(self, writer: Writer, counts: Mapping[str, str], *, members: bool) -> str:
        """Write the number of a program's block, or the loop over its blocks."""
        if members:
            return "program"
        if self.schedule.programs is not None:
            every = f"tl.program_id(0), {' * '.join(counts.values())}, tl.num_programs(0)"
            writer.open(f"for tile in tl.range({every}{self.schedule.loop_options}):")
        rest = self.typed("tl.program_id(0)" if self.schedule.programs is None else "tile")
        if len(counts) > 1:
            writer.line(f"program = {rest}")
            return "program"
        return rest

    def _grouped(
        self, writer: Writer, pair: Sequence[str], counts: Mapping[str, str], rest: str
    ) -> str:
        """Write the blocks of rows and columns: some rows by all columns at a time."""
        rows, columns = pair
        group = self.schedule.group
        place = rest
        if len(counts) > 2:
            every = f"({counts[rows]} * {counts[columns]})"
            place = writer.bind(f"{rest} % {every}", (), i32).code
            writer.line(f"program = {rest} // {every}")
        first = writer.bind(f"{place} // ({group} * {counts[columns]}) * {group}", (), i32).code
        height = writer.bind(f"tl.minimum({counts[rows]} - {first}, {group})", (), i32).code
        inside = writer.bind(f"{place} % ({group} * {counts[columns]})", (), i32).code
        writer.line(f"block_{rows} = {first} + {inside} % {height}")
        writer.line(f"block_{columns} = {inside} // {height}")
        return "program"

    def _enter_grid(
        self, writer: Writer, axis: str, place: str, *, is_plain: bool, indices: IndexPrinter
    ) -> None:
        """Write the index or the lanes of a block of an axis of the grid."""
        lanes = self.schedule.grid[axis]
        if lanes == 1:
            self.fix(writer, axis, place)
            return
        self.blocks[axis] = lanes
        start = f"{place if is_plain else f'({place})'} * {self.block(axis)}"
        if axis in self.with_ends:
            writer.line(f"start_{axis} = {start}")
            start = f"start_{axis}"
        self.enter(writer, axis, start, indices.text(self.kernel.axis(axis).extent).code)

    def typed(self, code: str) -> str:
        """Return an index of 32 bits as one of the program's index type."""
        return code if self.index_type == "tl.int32" else f"{code}.to({self.index_type})"

    def block(self, axis: str) -> str:
        """Return the name of the constant for an axis' lanes."""
        return f"(BLOCK_{axis} // 2)" if axis == self.half else f"BLOCK_{axis}"

    def stream(self, axis: str) -> str:
        """Take an axis in the blocks of its stream; return the name of their lanes."""
        self.blocks[axis] = self.schedule.streams[axis]
        return self.block(axis)

    def fix(self, writer: Writer, axis: str, place: str) -> None:
        """Write the one index of an axis."""
        if place != f"i_{axis}":
            writer.line(f"i_{axis} = {place}")
        self.select(axis, f"i_{axis}")

    def select(self, axis: str, name: str) -> None:
        """Let a variable be the one index of an axis."""
        self.index[axis] = Text(name, (), i32)
        self.mask.pop(axis, None)
        self.ends.pop(axis, None)

    def enter(
        self,
        writer: Writer,
        axis: str,
        first: str,
        stop: str,
        least: Text | None = None,
        *,
        is_full: bool = False,
    ) -> None:
        """Write a block of an axis: its indices from `first`, and which are in `least` .. stop.

        All lanes of a full block are.
        """
        lanes = self.typed(f"tl.arange(0, {self.block(axis)})")
        writer.line(f"i_{axis} = {first} + {lanes}" if first else f"i_{axis} = {lanes}")
        self.index[axis] = Text(f"i_{axis}", (axis,), i32)
        self.mask.pop(axis, None)
        self.ends.pop(axis, None)
        self.late.discard(axis)
        if first:
            begin = first if least is None else f"tl.maximum({first}, {least.code})"
            self.ends[axis] = begin, f"tl.minimum({first} + {self.block(axis)}, {stop})"
        if stop and not is_full:
            inside = f"i_{axis} < {stop}"
            if least is not None:
                self.late.add(axis)
                inside = f"({inside}) & (i_{axis} >= {least.operand})"
            writer.line(f"in_{axis} = {inside}")
            self.mask[axis] = Text(f"in_{axis}", (axis,), bool_)

    def start(self, axis: str) -> str:
        """Return the first index of a block of an axis, of 32 bits."""
        if axis not in self.ends:
            return "0"
        is_wide = axis in self.schedule.grid and self.index_type != "tl.int32"
        return f"start_{axis}.to(tl.int32)" if is_wide else f"start_{axis}"

    def place_in_block(self, axis: str) -> str:
        """Return the distance of indices from the first of their block."""
        if axis not in self.ends:
            return f"i_{axis}"
        return f"(i_{axis} - ({self.ends[axis][0]}))"

    def length_of_block(self, axis: str, extent: str) -> str:
        """Return the number of indices of a block."""
        if axis not in self.ends:
            return extent
        first, end = self.ends[axis]
        return f"({end} - ({first}))"

    @contextmanager
    def halved(self, axis: str) -> Generator[None]:
        """Take an axis in halves of its blocks within."""
        self.half = axis
        yield
        self.half = ""

    @contextmanager
    def scope(self) -> Generator[None]:
        """Forget the indices that are declared within."""
        before = dict(self.index), dict(self.mask), dict(self.ends)
        yield
        self.index, self.mask, self.ends = before


def _with_ends(kernel: Kernel) -> frozenset[str]:
    """Return the axes of whose blocks a kernel needs the first or the last index."""
    values = visit_body(kernel)
    ends = (v for v in values if isinstance(v, Extreme | Partial))
    inside = (x.index for v in ends for x in visit(v) if isinstance(x, IndexValue))
    return frozenset(a for e in inside for a in axes_of(e))
