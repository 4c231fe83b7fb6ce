"""Queue a plan that runs again and again on slices of arrays.

The step of a loop and the body of chunks are plans of their own. A kernel reads vectors of 16 bytes
of contiguous arrays, and a slice may begin between two vectors, or not be contiguous: then it is
copied to memory of the plan's before it is read, or from there after it is written. Every other
slice is passed by address.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from smelt.runtime.cuda.copies import Slices, copy_slices
from smelt.runtime.cuda.executable import DeviceExecutable
from smelt.runtime.cuda.native_call import FIRST_ARGUMENT
from smelt.runtime.cuda.recorded_call import (
    VECTOR_BYTES,
    fill_frame,
    launch_frame,
    launch_rows,
)

Addresses: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""An address for each of many runs."""
RUNS_OF_TABLE: Final = 1024
"""Maximum runs in one table of launches."""

LINE_BYTES: Final = 128
"""Alignment of values in the memory of a plan: what a device reads at once."""


class _Place(NamedTuple):
    """Where a value is: an input, the plan's own memory, or else an output, by number."""

    input: int = -1
    memory: int = -1
    output: int = -1


class SlicedPlan:
    """A plan at sizes, some of whose inputs and outputs are slices, by number.

    Outputs in `apart` are computed in other memory than they are copied to, unless they take over
    an input's.
    """

    def __init__(
        self,
        executable: DeviceExecutable,
        sizes: tuple[int, ...],
        inputs: Mapping[int, Slices],
        outputs: Mapping[int, Slices],
        apart: Collection[int] = (),
    ) -> None:
        """Prepare the plan; raise what `DeviceExecutable.prepared` raises."""
        self.device = executable.device
        self.launches = p = executable.prepared(sizes)
        values = executable.values
        self.nbytes = place_after(0, p.arena_bytes)
        self._copied: list[tuple[int, int, Slices]] = []
        """Inputs that are copied, with where to."""
        for k, slices in inputs.items():
            if slices.runs > 1 or (slices.nbytes % VECTOR_BYTES and k in p.aligned):
                self._copied.append((k, self._reserve(slices.total), slices))
        places = {n: _Place(v.number) for n, v in enumerate(values) if v.place == "input"}
        first = {v: k for k, v in reversed([*enumerate(executable.outputs)])}
        vectors = {first[r[0]] for k, r in enumerate(p.results, len(places)) if k in p.aligned}
        self._unaligned = {*range(len(executable.outputs))} - vectors - p.aligned
        for v, _, _, nbytes, over in p.results:
            k = first[v]
            slices = outputs.get(k, Slices.whole(nbytes))
            is_between = k in outputs and k in vectors and slices.nbytes % VECTOR_BYTES
            if over >= 0:
                places[v] = _Place(over)
            elif slices.runs > 1 or is_between or k in apart:
                places[v] = _Place(memory=self._reserve(slices.total))
            else:
                places[v] = _Place(output=k)
        self._results = [places[v] for v, *_ in p.results]
        nbytes = [math.prod(p.shapes[v]) * values[v].dtype.itemsize for v in executable.outputs]
        self._outputs = [
            (places[v], outputs.get(k, Slices.whole(n)))
            for k, (v, n) in enumerate(zip(executable.outputs, nbytes, strict=True))
        ]
        """By output: where its value is computed, and how it lies in its array."""
        copies = len(self._copied) + sum(at.output != k for k, (at, _) in enumerate(self._outputs))
        self._is_launches = not copies and not p.has_parts
        self.operations = None if p.operations is None else p.operations + copies
        """Launches and copies of a run at most; None if values on the device decide."""

    def is_unaligned(self, k: int) -> bool:
        """Return whether input and output `k` may begin between two vectors."""
        return k in self._unaligned

    def queue(
        self, inputs: Sequence[int], outputs: Sequence[int], memory: int, stream: int
    ) -> None:
        """Queue a run on slices given by address, and `memory` of `nbytes`.

        The context must be current.
        """
        device, read = self.device, [*inputs]
        for k, offset, slices in self._copied:
            copy_slices(device, memory + offset, slices.packed, inputs[k], slices, stream)
            read[k] = memory + offset

        def address(place: _Place) -> int:
            if place.input >= 0:
                return read[place.input]
            return outputs[place.output] if place.memory < 0 else memory + place.memory

        frame = fill_frame(self.launches, [*read, *map(address, self._results)], memory)
        launch_frame(device, self.launches, frame, stream, None)
        for to, (place, slices) in zip(outputs, self._outputs, strict=True):
            if (source := address(place)) != to:
                copy_slices(device, to, slices, source, slices.packed, stream)

    def queue_runs(
        self, inputs: Sequence[Addresses], outputs: Sequence[Addresses], memory: int, stream: int
    ) -> None:
        """Queue runs one after another: each has an address for every input and output.

        Runs that are launches alone are one table, for which native code launches them.
        """
        count = len(outputs[0]) if outputs else 0
        if not self._is_launches:
            for k in range(count):
                read, written = ([int(x[k]) for x in side] for side in (inputs, outputs))
                self.queue(read, written, memory, stream)
            return
        for k in range(0, count, RUNS_OF_TABLE):
            runs = slice(k, k + RUNS_OF_TABLE)
            read, written = ([x[runs] for x in side] for side in (inputs, outputs))
            self._launch_runs(read, written, memory, stream)

    def _launch_runs(
        self, inputs: Sequence[Addresses], outputs: Sequence[Addresses], memory: int, stream: int
    ) -> None:
        """Launch runs by one table: each has a frame of its own."""
        p, count = self.launches, len(outputs[0])
        words = len(p.frame) - p.most_arguments
        frames = np.tile(np.array(p.frame[:words], np.int64), (count, 1))
        where = [*inputs, *(outputs[at.output] for at in self._results)]
        for slot, source, offset in p.addresses:
            frames[:, slot] = where[source] + offset
        for slot, offset in p.arena:
            frames[:, slot] = memory + offset
        rows = np.tile(p.rows, (count, 1, 1))
        rows[:, :, FIRST_ARGUMENT] += words * np.arange(count)[:, None]
        launch_rows(self.device, p, rows.reshape(-1, p.rows.shape[1]), frames, stream)

    def _reserve(self, nbytes: int) -> int:
        at = self.nbytes
        self.nbytes = place_after(at, nbytes)
        return at


def place_after(at: int, nbytes: int) -> int:
    """Return the first aligned place behind `nbytes` bytes at a place.

    >>> place_after(0, 100), place_after(128, 0)
    (128, 128)
    """
    return at + -(-nbytes // LINE_BYTES) * LINE_BYTES
