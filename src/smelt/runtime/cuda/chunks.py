"""Queue a plan for one chunk of rows after another, carrying sums over rows.

    x[0:96] -> body -> dx[0:96], dw += ..
    x[96:192] -> body -> dx[96:192], dw += ..
    ...

Sizes alone decide what is queued, as in `smelt.runtime.chunking`, and nothing waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from smelt.kernel.chunks import FIRST_ROW, WHOLE, Chunks, ChunkSlice
from smelt.ops.combine import SCALAR_IDENTITIES
from smelt.runtime.cuda.copies import fill
from smelt.runtime.cuda.executable import DeviceExecutable
from smelt.runtime.cuda.stream import DeviceStream
from smelt.runtime.plan_tables import Sizes
from smelt.runtime.sliced_plan import SlicedPlan, Slices, place_after
from smelt.types.expr import evaluate

_WORD: Final = 8
"""Bytes of a position."""


class DeviceChunks:
    """The chunks of a body at sizes, as a `HostPart`."""

    def __init__(self, chunks: Chunks, body: DeviceExecutable, sizes: Sizes) -> None:
        self._chunks, self._body, self._sizes = chunks, body, sizes
        self._extent = int(evaluate(chunks.extent, sizes))
        ranges = [*chunks.ranges(sizes)]
        plans = {rows: self._plan(rows) for rows in {high - low for low, high in ranges}}
        self._ranges = [(low, plans[high - low]) for low, high in ranges]
        self._row = max((p.nbytes for p in plans.values()), default=0)
        """Place of the number of a chunk's first row."""
        self.nbytes = place_after(self._row, _WORD)
        queued = [p.operations for _, p in self._ranges]
        self.operations = None if None in queued else sum((n or 0) + 2 for n in queued)
        if not queued:
            self.operations = 2 * len(chunks.makes)

    def _plan(self, rows: int) -> SlicedPlan:
        """Return the body for a chunk of so many rows."""
        named = {**self._sizes, self._chunks.rows: rows}
        here = tuple(named[n] for n in self._body.size_names)
        shapes = self._body.prepared(here).shapes

        def slices(cuts: Sequence[ChunkSlice], numbers: Sequence[int]) -> dict[int, Slices]:
            return {
                k: Slices.along(self._whole(shapes[v], c.axis), c.axis, rows, self._itemsize(v))
                for k, (c, v) in enumerate(zip(cuts, numbers, strict=False))
                if c.axis >= 0
            }

        reads = slices(self._chunks.reads, range(len(shapes)))
        makes = slices(self._chunks.makes, self._body.outputs)
        sums = [k for k, c in enumerate(self._chunks.makes) if c.axis == WHOLE]
        return SlicedPlan(self._body, here, reads, makes, sums)

    def _whole(self, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
        """Return the shape of an array of all rows."""
        return (*shape[:axis], self._extent, *shape[axis + 1 :])

    def _itemsize(self, value: int) -> int:
        return self._body.values[value].dtype.itemsize

    def _distance(self, value: int, axis: int) -> int:
        """Return the bytes from a row of a value to the next one."""
        shape = self._body.values[value].shape[axis + 1 :]
        elements = math.prod(int(evaluate(n, self._sizes)) for n in shape)
        return elements * self._itemsize(value)

    def queue(self, addresses: Sequence[int], stream: DeviceStream) -> None:
        """Queue all chunks; see `HostPart`."""
        makes, reads = self._chunks.makes, self._chunks.reads
        last = len(addresses) - 1 - len(makes)
        inputs, outputs, memory = addresses[:last], addresses[last:-1], addresses[-1]
        row = memory + self._row
        sums = [outputs[c.place] for c in makes if c.axis == WHOLE]
        if not self._ranges:  # no chunk initialises the sums
            self._initialise(outputs, stream)

        def address(cut: ChunkSlice, side: Sequence[int], value: int, low: int) -> int:
            if cut.axis == FIRST_ROW:
                return row
            moved = 0 if cut.axis == WHOLE else low * self._distance(value, cut.axis)
            return side[cut.place] + moved

        for low, plan in self._ranges:
            fill(stream.device, row, np.int64(low), 1, stream.number)
            read = [address(c, inputs, v, low) for v, c in enumerate(reads)]
            pairs = zip(makes, self._body.outputs, strict=True)
            results = [address(c, outputs, v, low) for c, v in pairs]
            plan.bind([*read, *sums], results, memory, stream)()

    def _initialise(self, outputs: Sequence[int], stream: DeviceStream) -> None:
        """Set the sums over no rows to the identities of their operators."""
        for c, v in zip(self._chunks.makes, self._body.outputs, strict=True):
            if c.axis == WHOLE:
                value = self._body.values[v]
                count = math.prod(int(evaluate(n, self._sizes)) for n in value.shape)
                identity = value.dtype.numpy.type(SCALAR_IDENTITIES[c.combine](value.dtype))
                fill(stream.device, outputs[c.place], identity, count, stream.number)
