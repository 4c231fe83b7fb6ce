"""Run a plan for one chunk of rows after another, on any device.

    x[0:96] -> body -> dx[0:96], dw += ..
    x[96:192] -> body -> dx[96:192], dw += ..
    ...

Sums over rows are carried from chunk to chunk. Sizes alone decide what is queued; nothing waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from smelt.kernel.chunks import FIRST_ROW, WHOLE, Chunks, ChunkSlice
from smelt.ops.combine import SCALAR_IDENTITIES
from smelt.runtime.plan_tables import NO_STRIDES, PlanExecutable, Sizes, Strides, Value
from smelt.runtime.sliced_plan import SlicedPlan, Slices, Stream, place_after
from smelt.types.dtype import DType
from smelt.types.expr import evaluate
from smelt.types.tensor import row_major

_WORD: Final = 8
"""Bytes of a position."""


class _Cut(NamedTuple):
    """How chunks cut an operand or result from its array of all rows."""

    place: int
    axis: int
    combine: str
    dtype: DType
    shape: tuple[int, ...]
    strides: Strides

    @staticmethod
    def of(cut: ChunkSlice, value: Value, all_rows: Sizes) -> _Cut:
        """Return a cut; `all_rows` are the sizes of a chunk of all rows."""
        shape = tuple(int(evaluate(n, all_rows)) for n in value.shape)
        return _Cut(*cut, value.dtype, shape, row_major(shape))

    def slices(self, rows: int) -> Slices:
        return Slices.along(self.shape, self.axis, rows, self.dtype.itemsize)

    def address(self, arrays: Sequence[int], low: int, strides: Strides) -> int:
        """Return where the chunk whose first row is `low` begins in its array."""
        elements = low * strides[self.axis] if self.axis >= 0 else 0
        return arrays[self.place] + elements * self.dtype.itemsize


class RowChunks:
    """The chunks of a body at sizes, as a `HostPart` of a plan."""

    def __init__(self, chunks: Chunks, body: PlanExecutable[Any], sizes: Sizes) -> None:
        self._chunks, self._body, self._sizes = chunks, body, sizes
        all_rows = {**sizes, chunks.rows: int(evaluate(chunks.extent, sizes))}
        self.reads_strides = body.reads_strides
        results = [body.values[v] for v in body.outputs]
        self._reads = [_Cut.of(c, v, all_rows) for c, v in zip(chunks.reads, body.values)]
        self._makes = [_Cut.of(c, v, all_rows) for c, v in zip(chunks.makes, results, strict=True)]
        self._sums = [x for x in self._makes if x.axis == WHOLE]
        ranges = [*chunks.ranges(sizes)]
        plans = {rows: self._plan(rows) for rows in {high - low for low, high in ranges}}
        self._ranges = [(low, plans[high - low]) for low, high in ranges]
        self._row = max((p.nbytes for p in plans.values()), default=0)
        """Place of the number of a chunk's first row."""
        self.nbytes = place_after(self._row, _WORD)
        queued = [p.operations for _, p in self._ranges]
        self.operations = None if None in queued else sum((n or 0) + 2 for n in queued)
        if not queued:
            self.operations = 2 * len(self._makes)

    def _plan(self, rows: int) -> SlicedPlan:
        """Return the body for a chunk of so many rows."""
        named = {**self._sizes, self._chunks.rows: rows}
        reads, makes = (
            {k: x.slices(rows) for k, x in enumerate(cuts) if x.axis >= 0}
            for cuts in (self._reads, self._makes)
        )
        sums = [k for k, x in enumerate(self._makes) if x.axis == WHOLE]
        here = tuple(named[n] for n in self._body.size_names)
        return SlicedPlan(self._body, here, reads, makes, sums)

    def queue(
        self, addresses: Sequence[int], stream: Stream, strides: Mapping[int, Strides] = NO_STRIDES
    ) -> None:
        """Queue all chunks; see `HostPart`."""
        last = len(addresses) - 1 - len(self._makes)
        inputs, outputs, memory = addresses[:last], addresses[last:-1], addresses[-1]
        row = memory + self._row
        sums = [outputs[x.place] for x in self._sums]
        if not self._ranges:  # no chunk initialises the sums
            for x, place in zip(self._sums, sums, strict=True):
                identity = x.dtype.numpy.type(SCALAR_IDENTITIES[x.combine](x.dtype))
                stream.fill(place, identity, math.prod(x.shape))
        apart = {k: strides.get(x.place, x.strides) for k, x in enumerate(self._reads)}
        for low, plan in self._ranges:
            stream.fill(row, np.int64(low), 1)
            read = [
                row if x.axis == FIRST_ROW else x.address(inputs, low, apart[k])
                for k, x in enumerate(self._reads)
            ]
            results = [x.address(outputs, low, x.strides) for x in self._makes]
            plan.bind([*read, *sums], results, memory, stream, apart)()
