"""Declare the indices of a program: which block of each grid axis, and the lanes with masks."""

from __future__ import annotations

from smelt.codegen.triton.indices import IndexPrinter
from smelt.codegen.triton.schedule import Schedule, power_of_two
from smelt.codegen.triton.writer import Text, Writer
from smelt.kernel.ir import Kernel
from smelt.types.dtype import bool_, i32

__all__ = ["Lanes"]


class Lanes:
    """Index and mask of each axis in a program.

    `blocks` maps the names of constants to their values: a number, or the axis that is padded.
    """

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        self.kernel, self.schedule = kernel, schedule
        self.index: dict[str, Text] = {}
        self.mask: dict[str, Text] = {}
        self.blocks: dict[str, int | None] = {}

    def declare(self, writer: Writer, indices: IndexPrinter) -> None:
        """Write the indices; the last axis of the grid is the fastest."""
        rest = "tl.program_id(0)"
        entries = list(self.schedule.grid)
        if len(entries) > 1:
            writer.line("program = tl.program_id(0)")
            rest = "program"
        for k, (axis, lanes) in reversed(list(enumerate(entries))):
            extent = indices.text(self.kernel.axis(axis).extent)
            count = extent.operand
            if lanes > 1:
                self.blocks[axis] = lanes
                count = f"tl.cdiv({extent.code}, {self.block(axis)})"
            place = rest if k == 0 else f"{rest} % {count}"
            if lanes == 1:
                writer.line(f"i_{axis} = {place}")
                self.index[axis] = Text(f"i_{axis}", (), i32)
            else:
                place = place if k == 0 else f"({place})"
                start = f"{place} * {self.block(axis)} + "
                self._lanes(writer, axis, start, extent.code)
            if k:
                writer.line(f"program = program // {count}")
        for axis in self.schedule.whole:
            extent_of_axis = self.kernel.axis(axis).extent
            least = self.schedule.least[axis]
            is_exact = extent_of_axis == power_of_two(least) or (
                isinstance(extent_of_axis, int)
                and extent_of_axis >= least
                and power_of_two(extent_of_axis) == extent_of_axis
            )
            self.blocks[axis] = None
            extent = None if is_exact else indices.text(extent_of_axis).code
            self._lanes(writer, axis, "", extent)

    def block(self, axis: str) -> str:
        """Return the name of the constant for an axis' lanes."""
        return f"BLOCK_{axis}"

    def _lanes(self, writer: Writer, axis: str, start: str, extent: str | None) -> None:
        writer.line(f"i_{axis} = {start}tl.arange(0, {self.block(axis)})")
        self.index[axis] = Text(f"i_{axis}", (axis,), i32)
        if extent is not None:
            writer.line(f"in_{axis} = i_{axis} < {extent}")
            self.mask[axis] = Text(f"in_{axis}", (axis,), bool_)
