"""Run a cluster's body for one row chunk after another, carrying sums over rows.

    x[0:96] -> body -> dx[0:96], dw += ..
    x[96:192] -> body -> dx[96:192], dw += ..
    ...

To the surrounding executable this is a single call on arrays of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.kernel.chunks import FIRST_ROW, WHOLE, Chunks, ChunkSlice
from smelt.ops.combine import SCALAR_IDENTITIES
from smelt.runtime.executable import Executable
from smelt.runtime.memory import allocate

Array = np.ndarray[Any, Any]


class ChunkedCall:
    """Chunked execution of one cluster, as the function of a call step."""

    def __init__(self, rounds: Chunks, body: Executable) -> None:
        self.rounds, self.body = rounds, body
        body.nested = True
        self.sums = [c for c in rounds.makes if c.axis == WHOLE]
        kinds = [body.values[n].dtype for n in body.outputs]
        self.first = [
            SCALAR_IDENTITIES[c.combine](kind)
            for c, kind in zip(rounds.makes, kinds, strict=True)
            if c.axis == WHOLE
        ]

    def __call__(self, sizes: Mapping[str, int], inputs: list[Array], outputs: list[Array]) -> None:
        """Run all chunks, writing into `outputs`."""
        so_far = [outputs[c.place] for c in self.sums]
        chunks = [
            (low, high, self._sizes(sizes, high - low)) for low, high in self.rounds.ranges(sizes)
        ]
        if not chunks:  # no chunk initialises the sums
            for c, first in zip(self.sums, self.first, strict=True):
                outputs[c.place][...] = first
        # One arena for all chunks: a shorter last chunk would allocate a second block.
        arena_bytes = max(
            (self.body.prepared(chunk_sizes).arena_bytes for *_, chunk_sizes in chunks), default=0
        )
        arena = allocate(arena_bytes) if arena_bytes else None
        for low, high, chunk_sizes in chunks:
            arrays = [_chunk_of(c, inputs, low, high) for c in self.rounds.reads]
            out = [
                None if c.axis == WHOLE else _chunk_of(c, outputs, low, high)
                for c in self.rounds.makes
            ]
            results = self.body.run([*arrays, *so_far], chunk_sizes, out, None, arena)
            for c, part in zip(self.rounds.makes, results, strict=True):
                if c.axis == WHOLE and part is not outputs[c.place]:
                    outputs[c.place][...] = part  # not accumulated in place

    def prepare(self, sizes: Mapping[str, int]) -> int:
        """Prepare all chunks at these sizes; return the extra bytes that one of them needs."""
        extra_bytes = 0
        for rows in self.rounds.lengths(sizes):
            p = self.body.prepared(self._sizes(sizes, rows))
            sums = (
                nbytes
                for c, (*_, nbytes, over) in zip(self.rounds.makes, p.results)
                if c.axis == WHOLE and over < 0
            )
            extra_bytes = max(extra_bytes, p.arena_bytes + sum(sums))
        return extra_bytes

    def _sizes(self, sizes: Mapping[str, int], rows: int) -> tuple[int, ...]:
        """Return the body's sizes for a chunk of `rows` rows."""
        named = {**sizes, self.rounds.rows: rows}
        return tuple(named[n] for n in self.body.size_names)


def _chunk_of(cut: ChunkSlice, values: Sequence[Array], low: int, high: int) -> Array:
    """Return a chunk's part of a value."""
    if cut.axis == FIRST_ROW:
        return np.asarray(low, np.int64)
    value = values[cut.place]
    if cut.axis == WHOLE:
        return value
    return value[(*(slice(None),) * cut.axis, slice(low, high))]
