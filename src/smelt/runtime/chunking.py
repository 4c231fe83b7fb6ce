"""Rounds over rows: the body of a cluster for each block of rows, sums over rows carried along.

    x[0:96] -> body -> dx[0:96], dw += ..
    x[96:192] -> body -> dx[96:192], dw += ..
    ...

To the executable around it the whole is one call, on arrays of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.blocks import FIRST_ROW, WHOLE, Cut, Rounds
from smelt.ops.combine import BEGINS
from smelt.runtime.executable import Executable
from smelt.runtime.memory import allocate

__all__ = ["Turns"]

Array = np.ndarray[Any, Any]


class Turns:
    """The rounds of one cluster, as the function of a call step."""

    def __init__(self, rounds: Rounds, body: Executable) -> None:
        self.rounds, self.body = rounds, body
        body.inside = True
        self.sums = [c for c in rounds.makes if c.axis == WHOLE]
        kinds = [body.values[n].dtype for n in body.outputs]
        self.first = [
            BEGINS[c.combine](kind)
            for c, kind in zip(rounds.makes, kinds, strict=True)
            if c.axis == WHOLE
        ]

    def __call__(self, sizes: Mapping[str, int], inputs: list[Array], outputs: list[Array]) -> None:
        """All rounds, into `outputs`."""
        so_far = [outputs[c.place] for c in self.sums]
        turns = [
            (low, high, self._sizes(sizes, high - low)) for low, high in self.rounds.each(sizes)
        ]
        if not turns:  # the first round begins anew
            for c, first in zip(self.sums, self.first, strict=True):
                outputs[c.place][...] = first
        # One block for all: a shorter last round would take another beside those that wait.
        most = max((self.body.prepared(known).arena_bytes for *_, known in turns), default=0)
        between = allocate(most) if most else None
        for low, high, known in turns:
            arrays = [_taken(c, inputs, low, high) for c in self.rounds.reads]
            out = [
                None if c.axis == WHOLE else _taken(c, outputs, low, high)
                for c in self.rounds.makes
            ]
            found = self.body.run([*arrays, *so_far], known, out, None, between)
            for c, part in zip(self.rounds.makes, found, strict=True):
                if c.axis == WHOLE and part is not outputs[c.place]:
                    outputs[c.place][...] = part  # not written where it was read

    def prepare(self, sizes: Mapping[str, int]) -> int:
        """Makes ready all that rounds need at these sizes; tells the bytes that one of them takes
        beside what it reads and makes."""
        most = 0
        for rows in {high - low for low, high in self.rounds.each(sizes)}:
            p = self.body.prepared(self._sizes(sizes, rows))
            sums = (
                nbytes
                for c, (*_, nbytes, over) in zip(self.rounds.makes, p.results)
                if c.axis == WHOLE and over < 0
            )
            most = max(most, p.arena_bytes + sum(sums))
        return most

    def _sizes(self, sizes: Mapping[str, int], rows: int) -> tuple[int, ...]:
        """The body's sizes for so many rows."""
        named = {**sizes, self.rounds.rows: rows}
        return tuple(named[n] for n in self.body.size_names)


def _taken(cut: Cut, values: Sequence[Array], low: int, high: int) -> Array:
    """What a round has of a value."""
    if cut.axis == FIRST_ROW:
        return np.asarray(low, np.int64)
    value = values[cut.place]
    if cut.axis == WHOLE:
        return value
    return value[(*(slice(None),) * cut.axis, slice(low, high))]
