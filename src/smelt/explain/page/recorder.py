"""Record what the kernel interpreter does: values of statements, loads and stores by block.

recorder = Recorder(kernel, most=200)
interp.run(kernel, arrays, observer=recorder)
recorder.finish()
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from smelt.explain.page_data import Cells, GridBlock, Number, Step, Tile
from smelt.kernel import evaluate
from smelt.kernel.evaluate import Evaluator
from smelt.kernel.ir import Block, Kernel, Let, Merge, Position, Statement, Store, Stream, Update
from smelt.kernel.memory import Buffer
from smelt.kernel.text_print import statement_text

MAX_BLOCKS = 64
"""Maximum blocks of the grid whose accesses are recorded."""
DIGITS = 6
"""Significant digits of a recorded number."""


class Recorder:
    """An observer of a run that keeps its first `most` steps and its first blocks."""

    def __init__(self, kernel: Kernel, most: int) -> None:
        self.kernel, self.most = kernel, most
        self.steps: list[Step] = []
        self.tiles: list[evaluate.Tile | None] = []
        """The value of each step, with all its digits."""
        self.blocks: list[GridBlock] = []
        self.complete = True
        self._block = -1
        self._visit = ""
        self._visit_number = 0
        self._place: Evaluator | None = None
        self._accessed: tuple[dict[str, set[int]], dict[str, set[int]]] = ({}, {})
        self._pending: tuple[dict[str, list[int]], dict[str, list[int]]] = ({}, {})

    @property
    def block_count(self) -> int:
        """Blocks of the grid that have begun."""
        return self._block + 1

    def block(self, place: Evaluator) -> None:
        """Begin a block of the grid."""
        self.finish()
        self._block += 1
        self._place = place
        self._visit, self._visit_number = "", 0

    def visit(self, stream: Stream, place: Evaluator) -> None:
        """Begin a block of a stream; the first one shows the states' initial values."""
        if self._is_full(place):
            return
        self._visit = ", ".join(_range_text(b.axis, place) for b in stream.blocks)
        self._visit_number += 1
        if self._visit_number == 1:
            for state in stream.states:
                text = f"{state.name} starts as its initial value"
                self._add("state", state.name, text, -1, place.names[state.name], place, 0)

    def statement(self, statement: Statement, place: Evaluator) -> None:
        """Record a statement that has run."""
        if self._is_full(place):
            return
        text = statement_text(statement, self.kernel)
        match statement:
            case Let(name=name, origin=origin):
                self._add("value", name, text, origin, place.names[name], place)
            case Position(name=name):
                self._add("position", name, text, -1, place.names[name], place)
            case Update(state=name):
                self._add("state", name, text, -1, place.new[name], place)
            case Store(param=name):
                self._add("store", name, text, -1, None, place)
            case Stream():
                self._visit, self._visit_number = "", 0
            case Merge():
                pass

    def _is_full(self, place: Evaluator) -> bool:
        """Return whether no more steps are recorded; accesses of blocks still are."""
        if len(self.steps) < self.most:
            return False
        self.complete = False
        self._collect(place)
        return True

    def finish(self) -> None:
        """Keep the accesses of the block that ends."""
        place = self._place
        if place is None:
            return
        self._collect(place)
        if len(self.blocks) < MAX_BLOCKS:
            self.blocks.append(
                GridBlock(
                    ranges=self._ranges(place),
                    loads=_sorted_cells(self._accessed[0]),
                    stores=_sorted_cells(self._accessed[1]),
                )
            )
        self._accessed, self._pending = ({}, {}), ({}, {})
        self._place = None

    def _ranges(self, place: Evaluator) -> dict[str, tuple[int, int]]:
        names = [
            b.axis if isinstance(b, Block) else getattr(b, "name", "") for b in self.kernel.grid
        ]
        ranges = place.space.ranges
        return {n: (ranges[n].start, ranges[n].stop) for n in names if n in ranges}

    def _collect(self, place: Evaluator) -> None:
        """Take the logs of all buffers since the last statement."""
        buffers: dict[str, Buffer] = {**place.inputs, **place.outputs}
        kept = len(self.blocks) < MAX_BLOCKS
        for name, buffer in buffers.items():
            for stores, cells in (buffer.log or ()) if kept else ():
                listed = cells.reshape(-1).tolist()
                self._accessed[stores].setdefault(name, set()).update(listed)
                self._pending[stores].setdefault(name, []).extend(listed)
            buffer.log = []

    def _add(
        self,
        kind: Any,
        name: str,
        text: str,
        origin: int,
        value: evaluate.Tile | None,
        place: Evaluator,
        visit_number: int | None = None,
    ) -> None:
        self._collect(place)
        loads, stores = self._pending
        self._pending = ({}, {})
        self.tiles.append(value)
        self.steps.append(
            Step(
                block=self._block,
                visit=self._visit if visit_number is None else "",
                visit_number=self._visit_number if visit_number is None else visit_number,
                kind=kind,
                name=name,
                text=text,
                node=origin if origin >= 0 else None,
                value=None if value is None else _tile(value),
                loads=tuple(Cells(array=a, cells=tuple(c)) for a, c in loads.items()),
                stores=tuple(Cells(array=a, cells=tuple(c)) for a, c in stores.items()),
            )
        )


def _range_text(axis: str, place: Evaluator) -> str:
    positions = place.space.ranges[axis]
    last = positions.stop - 1
    return f"{axis} {positions.start}" + (f"..{last}" if last > positions.start else "")


def _sorted_cells(cells: Mapping[str, set[int]]) -> tuple[Cells, ...]:
    return tuple(Cells(array=a, cells=tuple(sorted(c))) for a, c in cells.items())


def _tile(value: evaluate.Tile) -> Tile:
    return Tile(
        axes=value.axes,
        start=tuple(int(s) for s in value.start),
        shape=tuple(value.data.shape),
        values=numbers_of(value.data),
    )


def numbers_of(array: np.ndarray[Any, Any]) -> tuple[Number, ...]:
    """Return the elements of an array as numbers for JSON, in row-major order.

    >>> numbers_of(np.array([1 / 3, np.inf]))
    (0.333333, 'inf')
    """
    return tuple(_number(x) for x in np.asarray(array).reshape(-1).tolist())


def _number(x: Any) -> Number:
    if isinstance(x, bool | int):
        return x
    if isinstance(x, complex):
        return str(x)
    return float(f"{x:.{DIGITS}g}") if math.isfinite(x) else str(float(x))
