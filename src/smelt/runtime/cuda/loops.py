"""Queue the plan of a loop's step again and again on the values it carries.

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

import ctypes
import math
from collections.abc import Mapping, Sequence

import numpy as np

from smelt.runtime.cuda.copies import Slices, copy_bytes
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.executable import DeviceExecutable
from smelt.runtime.cuda.recorded_call import VECTOR_BYTES
from smelt.runtime.cuda.sliced_plan import Addresses, SlicedPlan, place_after
from smelt.runtime.cuda.tables import HostPart
from smelt.runtime.loop import LoopShape
from smelt.runtime.steps import Sizes


def prepare_loop(
    shape: LoopShape, wanted: tuple[int, ...], step: DeviceExecutable, sizes: Sizes
) -> HostPart:
    """Return a loop at these sizes.

    `wanted` are the results to write, and `step` is the plan of a step.
    """
    return _Loop(shape, wanted, step, sizes)


class _Loop:
    """A loop at sizes."""

    def __init__(
        self, shape: LoopShape, wanted: tuple[int, ...], step: DeviceExecutable, sizes: Sizes
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

    def queue(self, addresses: Sequence[int], stream: int) -> None:
        """Queue all steps; see `HostPart`."""
        count, last = self._shape.carries, len(addresses) - 1 - len(self._wanted)
        inputs, outputs, memory = addresses[:last], addresses[last:-1], addresses[-1]
        targets = dict(reversed([*zip(self._wanted, outputs, strict=True)]))
        device, moments = self._step.device, self._moments
        if moments is None:
            steps = self._queue_while(inputs, memory, stream)
            results = (
                inputs[:count] if not steps else [memory + x for x in self._buffers[steps % 2]]
            )
        else:
            results = self._queue_steps(np.array(moments), inputs, targets, memory, stream)
        for k, target in targets.items():
            if k < count and results[k] != target:
                copy_bytes(device, target, results[k], self._input_bytes[k], stream)
        for k, other in zip(self._wanted, outputs, strict=True):
            if other != targets[k]:  # a result that is wanted twice
                copy_bytes(device, other, targets[k], self._result_bytes(k), stream)

    def _queue_while(self, inputs: Sequence[int], memory: int, stream: int) -> int:
        """Queue steps while the first carry is true; return their number."""
        count, steps = self._shape.carries, 0
        carries = inputs[:count]
        while _is_true(self._step.device, carries[0], stream):
            steps += 1
            after = [memory + x for x in self._buffers[steps % 2]]
            self._step.queue([*carries, *inputs[count:]], after, memory, stream)
            carries = after
            if self._shape.runs_once:
                break
        return steps

    def _queue_steps(
        self,
        moments: Addresses,
        inputs: Sequence[int],
        targets: Mapping[int, int],
        memory: int,
        stream: int,
    ) -> list[int]:
        """Queue a counted number of steps; return where the carries are after them."""
        count, steps = self._shape.carries, len(moments)
        places: list[Addresses] = []
        """By carry: where it is after each number of steps."""
        for k in range(count):
            place = memory + np.resize([side[k] for side in self._buffers], steps + 1)
            if k in self._direct:
                place[:-1] = self._slots(k, targets, moments)
            place[-1] = targets.get(k, place[-1])
            place[0] = inputs[k]
            places.append(place)
        moving = zip(inputs[count:], self._input_bytes[count:], strict=False)
        read = [x + n * moments for x, n in moving]
        read += [np.full(steps, x) for x in inputs[len(self._input_bytes) :]]
        pairs = zip(self._stacked, self._stacked_bytes, strict=True)
        written = [targets[k] + n * moments for k, n in pairs]
        run_inputs = [*(x[:-1] for x in places), *read]
        run_outputs = [*(x[1:] for x in places), *written]
        copied = [k for k in self._histories if k not in self._direct]
        for k in self._histories if steps else ():  # the first values, which no step has written
            self._keep(k, 0, places, targets, moments, stream)
        if not copied:
            self._step.queue_runs(run_inputs, run_outputs, memory, stream)
        for j in range(steps if copied else 0):
            for k in copied if j else ():
                self._keep(k, j, places, targets, moments, stream)
            one, other = ([x[j : j + 1] for x in side] for side in (run_inputs, run_outputs))
            self._step.queue_runs(one, other, memory, stream)
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
        stream: int,
    ) -> None:
        """Copy a carry before a step to where its values are stacked."""
        to = int(self._slots(k, targets, moments)[j])
        copy_bytes(self._step.device, to, int(places[k][j]), self._input_bytes[k], stream)

    def _result_bytes(self, k: int) -> int:
        """Return the bytes of a result of the loop."""
        if k < self._shape.carries:
            return self._input_bytes[k]
        stacked = dict(zip(self._stacked, self._stacked_bytes, strict=True))
        each = stacked[k] if k in stacked else self._input_bytes[k - self._shape.results]
        return each * len(self._moments or ())


def _is_true(device: Device, address: int, stream: int) -> bool:
    """Read a bool of the device; waits for what is queued before."""
    place = ctypes.c_uint8()
    device.driver.call("cuMemcpyDtoHAsync_v2", ctypes.addressof(place), address, 1, stream)
    device.driver.call("cuStreamSynchronize", stream)
    return bool(place.value)
