"""Rounds over rows: what runs before, the body for each block of rows, what runs after.

    x[0:96] -> body -> dx[0:96], dw += ..
    x[96:192] -> body -> dx[96:192], dw += ..
    ...

To its callers the whole is one library call of an `Executable`, on arrays of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from smelt.types.expr import Index, evaluate

Array = np.ndarray[Any, Any]
STEP = 48
"""Rounds take a multiple of so many rows where they take more: whole register tiles."""


class Runs(Protocol):
    """A compiled graph."""

    @property
    def size_names(self) -> tuple[str, ...]: ...

    def run(
        self, arrays: Sequence[Array], sizes: tuple[int, ...],
        out: Sequence[Array | None] | None = None,
    ) -> list[Array]: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cut:
    """Value `number` of all that there is, and the axis of it that blocks are cut from; -1 for all
    of it, -2 for the number of the block's first row."""

    number: int
    axis: int

    def rows(self, values: Sequence[Array], low: int, high: int) -> Array:
        """The block of rows."""
        if self.axis == -2:
            return np.asarray(low, np.int64)
        value = values[self.number]
        if self.axis < 0:
            return value
        return value[(*(slice(None),) * self.axis, slice(low, high))]


@dataclass(frozen=True, slots=True)
class Made:
    """A result of the body: rows of a value, or a value that all rounds add to, begun with
    `first`."""

    cut: Cut
    shape: tuple[Index, ...]
    dtype: Any
    first: float | int | bool | None


@dataclass(frozen=True, slots=True)
class Rounds:
    """Values are numbered: the inputs, the results of `before`, of the body, of `after`."""

    before: Runs
    body: Runs
    after: Runs
    reads: tuple[Cut, ...]
    makes: tuple[Made, ...]
    handed: tuple[int, ...]
    """What `after` reads beside the inputs."""
    outputs: tuple[int, ...]
    extent: Index
    rows: str
    block: int

    def call(
        self, sizes: Mapping[str, int], inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """All of it, into `outputs`."""
        count = len(inputs)
        known = tuple(sizes[n] for n in self.before.size_names)
        values = [*inputs, *self.before.run(inputs, known)]
        first = len(values)
        places = dict(zip(self.outputs, outputs, strict=True))
        for k, made in enumerate(self.makes):
            shape = tuple(int(evaluate(d, sizes)) for d in made.shape)
            place = places.get(first + k)
            value: Array = np.empty(shape, made.dtype) if place is None else place
            if made.first is not None:
                value[...] = made.first
            values.append(value)
        self._run(sizes, values)
        handed = [values[k] for k in self.handed]
        values += self.after.run([*values[:count], *handed], known)
        for number, place in zip(self.outputs, outputs, strict=True):
            if values[number] is not place:
                place[...] = values[number]

    def _run(self, sizes: Mapping[str, int], values: Sequence[Array]) -> None:
        """The rounds: as many as blocks are needed, all about as long but for the last one."""
        total = int(evaluate(self.extent, sizes))
        times = -(-total // self.block)
        each = max(min(self.block, -(-total // (max(times, 1) * STEP)) * STEP), 1)
        for low in range(0, total, each):
            high = min(low + each, total)
            named = {**sizes, self.rows: high - low}
            known = tuple(named[n] for n in self.body.size_names)
            arrays = [c.rows(values, low, high) for c in self.reads]
            arrays += [values[m.cut.number] for m in self.makes if m.first is not None]
            out = [m.cut.rows(values, low, high) if m.first is None else None for m in self.makes]
            found = self.body.run(arrays, known, out)
            for m, part in zip(self.makes, found, strict=True):
                if m.first is not None and part is not values[m.cut.number]:
                    values[m.cut.number][...] = part  # not written where it was read


__all__ = ["Cut", "Made", "Rounds"]
