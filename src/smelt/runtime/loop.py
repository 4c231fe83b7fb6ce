"""Run a loop's step again and again on the values it carries.

    initial h, x[0] -> step -> h', y[0]
    h', x[1]        -> step -> h, y[1]
    ...

Carries stay on the device: the first step reads the operands, the last one of a counted loop
writes the results, and between them steps use two buffers in turn, or the stacked values of a carry
where these are results. A loop of a counted number of steps is a series of launches that sizes
decide alone; nothing waits. Where the first carry decides, the host reads it before each step, and
so waits for the step before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from smelt.runtime.plan_tables import NO_STRIDES, Addresses, PlanExecutable, Sizes, Strides
from smelt.runtime.sliced_plan import (
    RUNS_OF_TABLE,
    VECTOR_BYTES,
    SlicedPlan,
    Slices,
    Stream,
    place_after,
)
from smelt.types.expr import Index, evaluate
from smelt.types.tensor import Shape


class LoopShape(NamedTuple):
    """What a loop carries and how often it runs; fields as in `smelt.graph.loop.Loop`."""

    carries: int
    slices: int
    length: Shape
    reverse: bool
    results: int
    """Results of a step, without those that are carries before it."""
    names: tuple[str, ...]
    sizes: tuple[Index, ...]
    runs_once: bool = False
    """Whether a condition is false after a step."""

    def moments(self, sizes: Sizes) -> range | None:
        """Return the numbers of the steps, in the order in which they run; None: a condition."""
        if not self.length:
            return None
        steps = range(int(evaluate(self.length[0], sizes)))
        return steps[::-1] if self.reverse else steps

    def step_sizes(self, sizes: Sizes, order: tuple[str, ...]) -> tuple[int, ...]:
        """Return the step's sizes in the order of their names."""
        named = {n: int(evaluate(e, sizes)) for n, e in zip(self.names, self.sizes, strict=True)}
        return tuple(named[n] for n in order)


class Loop:
    """A loop at sizes.

    `wanted` are the results to write, and `step` is the plan of a step.
    """

    reads_strides = False

    def __init__(
        self, shape: LoopShape, wanted: tuple[int, ...], step: PlanExecutable[Any], sizes: Sizes
    ) -> None:
        self._shape, self._wanted = shape, wanted
        self._moments = shape.moments(sizes)
        here = shape.step_sizes(sizes, step.size_names)
        shapes, count = step.prepared(here).shapes, shape.carries
        nbytes = [math.prod(s) * v.dtype.itemsize for s, v in zip(shapes, step.values, strict=True)]
        self._stacked = sorted({k for k in wanted if count <= k < shape.results})
        self._input_bytes = nbytes[: count + shape.slices]
        self._stacked_bytes = [nbytes[step.outputs[k]] for k in range(count, len(step.outputs))]
        self._step = SlicedPlan(
            step,
            here,
            {k: Slices.whole(nbytes[k]) for k in range(count, count + shape.slices)},
            {k: Slices.whole(n) for k, n in enumerate(self._stacked_bytes, count)},
        )
        self._histories = [k for k in range(count) if shape.results + k in wanted]
        self._direct = {
            k
            for k in self._histories
            if nbytes[k] % VECTOR_BYTES == 0 or self._step.is_unaligned(k)
        }
        """Carries that steps write to where their values are stacked."""
        stacked = {v: k - count for k, v in reversed([*enumerate(step.outputs)]) if k >= count}
        self._shared = {
            k: stacked[v]
            for k, v in enumerate(step.outputs[:count])
            if v in stacked
            and k not in self._histories
            and (nbytes[k] % VECTOR_BYTES == 0 or self._step.is_unaligned(k))
        }
        """Carries that are a stacked result too, by its number: steps read them where it is."""
        self.nbytes = self._step.nbytes
        self._buffers: tuple[list[int], list[int]] = [], []
        for side in self._buffers:
            for k in range(count):
                side.append(self.nbytes)
                self.nbytes = place_after(self.nbytes, nbytes[k])
        self.operations = None
        if self._moments is not None and self._step.operations is not None:
            each = self._step.operations + len(self._histories)
            self.operations = each * len(self._moments) + len(wanted)

    def queue(
        self, addresses: Sequence[int], stream: Stream, _: Mapping[int, Strides] = NO_STRIDES
    ) -> None:
        """Queue all steps on inputs, outputs and memory of `nbytes`, given by address."""
        count, last = self._shape.carries, len(addresses) - 1 - len(self._wanted)
        inputs, outputs, memory = addresses[:last], addresses[last:-1], addresses[-1]
        targets = dict(reversed([*zip(self._wanted, outputs, strict=True)]))
        if self._moments is None:
            steps = self._queue_while(inputs, memory, stream)
            results = (
                inputs[:count] if not steps else [memory + x for x in self._buffers[steps % 2]]
            )
        else:
            results = self._queue_steps(self._moments, inputs, targets, memory, stream)
        for k, target in targets.items():
            if k < count and results[k] != target:
                _copy(stream, target, results[k], self._input_bytes[k])
        for k, other in zip(self._wanted, outputs, strict=True):
            if other != targets[k]:  # a result that is wanted twice
                _copy(stream, other, targets[k], self._result_bytes(k))

    def _queue_while(self, inputs: Sequence[int], memory: int, stream: Stream) -> int:
        """Queue steps while the first carry is true; return their number."""
        count = self._shape.carries
        constants = inputs[count:]
        sides = [[memory + x for x in side] for side in self._buffers]
        carries, steps, bound = inputs[:count], 0, list[Callable[[], None]]()
        while stream.is_true(carries[0]):
            steps += 1
            after = sides[steps % 2]
            if steps <= 3:  # from the operands, and then from either side
                bound.append(self._step.bind([*carries, *constants], after, memory, stream))
            bound[steps - 1 if steps <= 3 else 1 + steps % 2]()
            carries = after
            if self._shape.runs_once:
                break
        return steps

    def _queue_steps(
        self,
        moments: range,
        inputs: Sequence[int],
        targets: Mapping[int, int],
        memory: int,
        stream: Stream,
    ) -> list[int]:
        """Queue a counted number of steps; return where the carries are after them."""
        at, many = [*inputs], RUNS_OF_TABLE  # an even number: carries change sides
        for first in range(0, max(len(moments), 1), many):
            part = np.array(moments[first : first + many], np.int64)
            rest = np.array(moments[first + many :][:1], np.int64)
            at[: self._shape.carries] = self._queue_part(
                part, rest, at, targets, memory, stream, is_first=not first
            )
        return at[: self._shape.carries]

    def _queue_part(
        self,
        moments: Addresses,
        rest: Addresses,
        inputs: Sequence[int],
        targets: Mapping[int, int],
        memory: int,
        stream: Stream,
        *,
        is_first: bool,
    ) -> list[int]:
        """Queue some of the steps, before those of `rest`; return where the carries are then."""
        count, steps = self._shape.carries, len(moments)
        pairs = zip(self._stacked, self._stacked_bytes, strict=True)
        written = [targets[k] + n * moments for k, n in pairs]
        places: list[Addresses] = []
        """By carry: where it is after each number of steps."""
        for k in range(count):
            place = np.empty(steps + 1, np.int64)
            place[::2], place[1::2] = (memory + side[k] for side in self._buffers)
            if k in self._direct:
                place[:-1] = self._slots(k, targets, moments)
            if k in self._shared:
                place[1:] = written[self._shared[k]]
            elif not len(rest):
                place[-1] = targets.get(k, place[-1])
            elif k in self._direct:
                place[-1:] = self._slots(k, targets, rest)
            place[0] = inputs[k]
            places.append(place)
        moving = zip(inputs[count:], self._input_bytes[count:], strict=False)
        read: list[Addresses | int] = [x + n * moments for x, n in moving]
        read += inputs[len(self._input_bytes) :]
        run_inputs = [*(x[:-1] for x in places), *read]
        after = [
            written[self._shared[k]] if k in self._shared else x[1:] for k, x in enumerate(places)
        ]
        run_outputs = [*after, *written]
        copied = [k for k in self._histories if k not in self._direct]
        for k in self._histories if steps and is_first else ():  # values that no step has written
            self._keep(k, 0, places, targets, moments, stream)
        if not copied:
            self._step.queue_runs(steps, run_inputs, run_outputs, memory, stream)
        for j in range(steps if copied else 0):
            for k in copied if j or not is_first else ():
                self._keep(k, j, places, targets, moments, stream)
            one, other = (
                [x if isinstance(x, int) else x[j : j + 1] for x in side]
                for side in (run_inputs, run_outputs)
            )
            self._step.queue_runs(1, one, other, memory, stream)
        return [int(x[-1]) for x in places]

    def _slots(self, k: int, targets: Mapping[int, int], moments: Addresses) -> Addresses:
        """Return where the values of a carry before steps are stacked."""
        return targets[self._shape.results + k] + self._input_bytes[k] * moments

    def _keep(
        self,
        k: int,
        j: int,
        places: Sequence[Addresses],
        targets: Mapping[int, int],
        moments: Addresses,
        stream: Stream,
    ) -> None:
        """Copy a carry before a step to where its values are stacked."""
        to = int(self._slots(k, targets, moments)[j])
        _copy(stream, to, int(places[k][j]), self._input_bytes[k])

    def _result_bytes(self, k: int) -> int:
        """Return the bytes of a result of the loop."""
        if k < self._shape.carries:
            return self._input_bytes[k]
        stacked = dict(zip(self._stacked, self._stacked_bytes, strict=True))
        each = stacked[k] if k in stacked else self._input_bytes[k - self._shape.results]
        return each * (0 if self._moments is None else len(self._moments))


def _copy(stream: Stream, to: int, source: int, nbytes: int) -> None:
    """Copy adjacent bytes."""
    whole = Slices.whole(nbytes)
    stream.copy(to, whole, source, whole)
