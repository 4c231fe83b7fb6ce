"""Declare the indices of a program: which block of each grid axis, and the lanes with masks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from smelt.codegen.triton.block_axes import power_of_two
from smelt.codegen.triton.indices import IndexPrinter
from smelt.codegen.triton.schedule import Schedule
from smelt.codegen.triton.writer import Text, Writer
from smelt.kernel.ir import Extreme, IndexValue, Kernel, Partial
from smelt.kernel.walk import statements, values_of, visit
from smelt.types.dtype import bool_, i32
from smelt.types.expr import axes_of

__all__ = ["Lanes"]


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
        self.blocks: dict[str, int | None] = {}
        self.with_ends = _with_ends(kernel)

    def declare(self, writer: Writer, indices: IndexPrinter, *, members: bool = False) -> None:
        """Write the indices; the last axis of the grid is the fastest.

        With `members`, the variable `program` is the program's number among those of one member.
        """
        rest = self.typed("tl.program_id(0)")
        entries = list(self.schedule.grid.items())
        if members:
            rest = "program"
        elif len(entries) > 1:
            writer.line(f"program = {rest}")
            rest = "program"
        for k, (axis, lanes) in reversed(list(enumerate(entries))):
            extent = indices.text(self.kernel.axis(axis).extent)
            count = extent.operand if lanes == 1 else f"tl.cdiv({extent.code}, {self.block(axis)})"
            place = rest if k == 0 else f"{rest} % {count}"
            if lanes == 1:
                self.fix(writer, axis, place)
            else:
                self.blocks[axis] = lanes
                start = f"{place if k == 0 else f'({place})'} * {self.block(axis)}"
                if axis in self.with_ends:
                    writer.line(f"start_{axis} = {start}")
                    start = f"start_{axis}"
                self.enter(writer, axis, start, extent.code)
            if k:
                writer.line(f"program = program // {count}")
        for axis, least in self.schedule.whole.items():
            extent = self.kernel.axis(axis).extent
            self.blocks[axis] = None
            is_exact = isinstance(extent, int) and power_of_two(max(extent, least)) == extent
            self.enter(writer, axis, "", "" if is_exact else indices.text(extent).code)

    def typed(self, code: str) -> str:
        """Return an index of 32 bits as one of the program's index type."""
        return code if self.index_type == "tl.int32" else f"{code}.to({self.index_type})"

    def block(self, axis: str) -> str:
        """Return the name of the constant for an axis' lanes."""
        return f"BLOCK_{axis}"

    def fix(self, writer: Writer, axis: str, place: str) -> None:
        """Write the one index of an axis."""
        if place != f"i_{axis}":
            writer.line(f"i_{axis} = {place}")
        self.index[axis] = Text(f"i_{axis}", (), i32)
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
        if first:
            begin = first if least is None else f"tl.maximum({first}, {least.code})"
            self.ends[axis] = begin, f"tl.minimum({first} + {self.block(axis)}, {stop})"
        if stop and not is_full:
            inside = f"i_{axis} < {stop}"
            if least is not None:
                inside = f"({inside}) & (i_{axis} >= {least.operand})"
            writer.line(f"in_{axis} = {inside}")
            self.mask[axis] = Text(f"in_{axis}", (axis,), bool_)

    def place_in_block(self, axis: str) -> str:
        """Return the distance of an index from the first one of its block."""
        if not self.index[axis].axes:
            return "0"
        if axis not in self.ends:
            return f"i_{axis}"
        return f"(i_{axis} - ({self.ends[axis][0]}))"

    def length_of_block(self, axis: str, extent: str) -> str:
        """Return the number of indices of a block."""
        if not self.index[axis].axes:
            return "1"
        if axis not in self.ends:
            return extent
        first, end = self.ends[axis]
        return f"({end} - ({first}))"

    @contextmanager
    def scope(self) -> Generator[None]:
        """Forget the indices that are declared within."""
        before = dict(self.index), dict(self.mask), dict(self.ends)
        yield
        self.index, self.mask, self.ends = before


def _with_ends(kernel: Kernel) -> frozenset[str]:
    """Return the axes of whose blocks a kernel needs the first or the last index."""
    values = (v for s in statements(kernel) for root in values_of(s) for v in visit(root))
    ends = (v for v in values if isinstance(v, Extreme | Partial))
    inside = (x.index for v in ends for x in visit(v) if isinstance(x, IndexValue))
    return frozenset(a for e in inside for a in axes_of(e))
