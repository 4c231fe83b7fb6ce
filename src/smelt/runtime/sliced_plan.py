"""Run a plan again and again on slices of arrays, on any device.

The step of a loop and the body of chunks are plans of their own. Arrays are passed by address. A
kernel may read vectors of 16 bytes of contiguous arrays, and a slice may begin between two vectors,
or not be contiguous: then it is copied to memory of the plan's before it is read, or from there
after it is written. Every other slice is passed as it lies, and so are slices to read that are not
contiguous where kernels take their strides.

A slice along any axis of a contiguous array is a number of runs of bytes with one distance:

>>> Slices.along((3, 8, 5), 1, 2, 4)  # x[:, k : k + 2] of float32
Slices(runs=3, nbytes=40, pitch=160)
>>> Slices.whole(100)
Slices(runs=1, nbytes=100, pitch=100)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from smelt.runtime.plan_tables import NO_STRIDES, Addresses, PlanExecutable, Strides

RUNS_OF_TABLE: Final = 1024
"""Maximum runs in one table of launches."""
LINE_BYTES: Final = 128
"""Alignment of values in the memory of a plan: what a device reads at once."""
VECTOR_BYTES: Final = 16
"""Alignment in bytes of inputs that are read in vectors."""


class Stream(Protocol):
    """A device that copies and launches in order, at once or later."""

    def copy(self, to: int, to_slices: Slices, source: int, slices: Slices) -> None:
        """Copy slices with the same pieces."""
        ...

    def is_true(self, address: int) -> bool:
        """Read a bool; waits for what is queued before."""
        ...

    def fill(self, to: int, element: Any, count: int) -> None:
        """Write an element of NumPy to adjacent places."""
        ...

    def bind(
        self, p: Any, where: Sequence[int], memory: int, strides: Mapping[int, Strides]
    ) -> Callable[[], None]:
        """Return what runs a plan on sources and memory of its own given by address.

        `strides` are those of inputs that need not be contiguous, by number.
        """
        ...

    def launch_runs(
        self, p: Any, count: int, where: Sequence[Addresses | int], memory: int
    ) -> None:
        """Run kernels again and again: a source has an address for each run, or for all."""
        ...


class HostPart(Protocol):
    """Part of a plan that the host drives, prepared for sizes."""

    nbytes: int
    """Memory that it needs while it runs, in bytes."""
    operations: int | None
    """Launches and copies that it queues; None if values on the device decide."""
    reads_strides: bool
    """Whether inputs that are not contiguous may be read as they lie."""

    def queue(
        self, addresses: Sequence[int], stream: Any, strides: Mapping[int, Strides], /
    ) -> None:
        """Queue it in a `Stream` on inputs, outputs and memory of its own.

        They are given by address, in this order, with the strides of inputs that are not
        contiguous. A device's context must be current.
        """
        ...


class Slices(NamedTuple):
    """How a slice lies in its array: `runs` pieces of `nbytes` bytes, `pitch` bytes apart."""

    runs: int
    nbytes: int
    pitch: int

    @staticmethod
    def whole(nbytes: int) -> Slices:
        """Return a slice of one piece."""
        return Slices(1, nbytes, nbytes)

    @staticmethod
    def along(shape: tuple[int, ...], axis: int, count: int, itemsize: int) -> Slices:
        """Return a slice of `count` positions along an axis of an array of this shape."""
        inner = math.prod(shape[axis + 1 :]) * itemsize
        if count == shape[axis]:
            return Slices.whole(math.prod(shape[: axis + 1]) * inner)
        return Slices(math.prod(shape[:axis]), count * inner, shape[axis] * inner)

    @property
    def packed(self) -> Slices:
        """How these pieces lie one behind another."""
        return Slices(self.runs, self.nbytes, self.nbytes)

    @property
    def total(self) -> int:
        """Bytes of all pieces."""
        return self.runs * self.nbytes


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
        plan: PlanExecutable[Any],
        sizes: tuple[int, ...],
        inputs: Mapping[int, Slices],
        outputs: Mapping[int, Slices],
        apart: Collection[int] = (),
    ) -> None:
        """Prepare the plan; raise what `prepared` of it raises."""
        self._tables = p = plan.prepared(sizes)
        values = plan.values
        self.nbytes = place_after(0, p.arena_bytes)
        self._copied: list[tuple[int, int, Slices]] = []
        """Inputs that are copied, with where to."""
        for k, slices in inputs.items():
            is_apart = slices.runs > 1 and not plan.reads_strides
            if is_apart or (slices.nbytes % VECTOR_BYTES and k in p.aligned):
                self._copied.append((k, self._reserve(slices.total), slices))
        places = {n: _Place(v.number) for n, v in enumerate(values) if v.place == "input"}
        first = {v: k for k, v in reversed([*enumerate(plan.outputs)])}
        vectors = {first[r[0]] for k, r in enumerate(p.results, len(places)) if k in p.aligned}
        self._unaligned = {*range(len(plan.outputs))} - vectors - p.aligned
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
        nbytes = [math.prod(p.shapes[v]) * values[v].dtype.itemsize for v in plan.outputs]
        self._outputs = [
            (places[v], outputs.get(k, Slices.whole(n)))
            for k, (v, n) in enumerate(zip(plan.outputs, nbytes, strict=True))
        ]
        """By output: where its value is computed, and how it lies in its array."""
        copies = len(self._copied) + sum(at.output != k for k, (at, _) in enumerate(self._outputs))
        self._is_launches = not self._copied and not p.has_parts
        self._elsewhere = [
            (k, at.output) for k, (at, _) in enumerate(self._outputs) if at.output != k
        ]
        """Outputs computed elsewhere, with the output that their value is, or -1."""
        self.operations = None if p.operations is None else p.operations + copies
        """Launches and copies of a run at most; None if values on the device decide."""

    def is_unaligned(self, k: int) -> bool:
        """Return whether input and output `k` may begin between two vectors."""
        return k in self._unaligned

    def bind(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        memory: int,
        stream: Stream,
        strides: Mapping[int, Strides] = NO_STRIDES,
    ) -> Callable[[], None]:
        """Return what queues a run on slices given by address, and `memory` of `nbytes`.

        `strides` are those of inputs that need not be contiguous, by number.
        """
        read, strides = [*inputs], {**strides}
        for k, offset, _ in self._copied:
            read[k] = memory + offset
            strides.pop(k, None)

        def address(place: _Place) -> int:
            if place.input >= 0:
                return read[place.input]
            return outputs[place.output] if place.memory < 0 else memory + place.memory

        where = [*read, *map(address, self._results)]
        run = stream.bind(self._tables, where, memory, strides)
        before = [(read[k], s.packed, inputs[k], s) for k, _, s in self._copied]
        after = [
            (to, slices, source, slices.packed)
            for to, (place, slices) in zip(outputs, self._outputs, strict=True)
            if (source := address(place)) != to
        ]
        if not before and not after:
            return run

        def queue() -> None:
            for copy in before:
                stream.copy(*copy)
            run()
            for copy in after:
                stream.copy(*copy)

        return queue

    def queue_runs(
        self,
        count: int,
        inputs: Sequence[Addresses | int],
        outputs: Sequence[Addresses | int],
        memory: int,
        stream: Stream,
    ) -> None:
        """Queue runs one after another: an input or output has an address for each, or for all.

        Runs that are launches alone are one table, for which native code launches them. An output
        that is another one's value is not copied if both have the same addresses, one object.
        """
        copies = any(j < 0 or outputs[k] is not outputs[j] for k, j in self._elsewhere)
        if copies or not self._is_launches:
            for k in range(count):
                read, written = ([int(_of_runs(x, k)) for x in s] for s in (inputs, outputs))
                self.bind(read, written, memory, stream)()
            return
        where = [*inputs, *(outputs[at.output] for at in self._results)]
        for k in range(0, count, RUNS_OF_TABLE):
            runs = slice(k, min(k + RUNS_OF_TABLE, count))
            of_table = [_of_runs(x, runs) for x in where]
            stream.launch_runs(self._tables, runs.stop - k, of_table, memory)

    def _reserve(self, nbytes: int) -> int:
        at = self.nbytes
        self.nbytes = place_after(at, nbytes)
        return at


def _of_runs(x: Addresses | int, runs: int | slice) -> Any:
    return x if isinstance(x, int) else x[runs]


def place_after(at: int, nbytes: int) -> int:
    """Return the first aligned place behind `nbytes` bytes at a place.

    >>> place_after(0, 100), place_after(128, 0)
    (128, 128)
    """
    return at + -(-nbytes // LINE_BYTES) * LINE_BYTES
