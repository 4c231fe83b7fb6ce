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
from collections.abc import Sequence

from smelt.runtime.cuda.copies import Slices, copy_bytes
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.executable import DeviceExecutable
from smelt.runtime.cuda.recorded_call import VECTOR_BYTES
from smelt.runtime.cuda.sliced_plan import SlicedPlan, place_after
from smelt.runtime.cuda.tables import HostPart
from smelt.runtime.loop import LoopShape
from smelt.runtime.steps import Sizes

__all__ = ["prepare_loop"]


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
        initial, constants = inputs[:count], inputs[len(self._input_bytes) :]
        sequences = [*zip(inputs[count:], self._input_bytes[count:], strict=False)]
        stacked = [(targets[k], n) for k, n in zip(self._stacked, self._stacked_bytes, strict=True)]
        moments, device = self._moments, self._step.device

        def slot(k: int, t: int) -> int:
            """Return where the value of a carry before a step is stacked."""
            return targets[self._shape.results + k] + t * self._input_bytes[k]

        def carry(k: int, j: int) -> int:
            """Return where a carry is after `j` steps."""
            if j == 0:
                return initial[k]
            if moments is not None and j == len(moments) and k in targets:
                return targets[k]
            if moments is not None and j < len(moments) and k in self._direct:
                return slot(k, moments[j])
            return memory + self._buffers[j % 2][k]

        def run(j: int, t: int) -> None:
            before, after = ([carry(k, n) for k in range(count)] for n in (j, j + 1))
            for k in self._histories:
                if j == 0 or k not in self._direct:
                    copy_bytes(device, slot(k, t), before[k], self._input_bytes[k], stream)
            slices, results = ([x + t * n for x, n in side] for side in (sequences, stacked))
            self._step.queue([*before, *slices, *constants], [*after, *results], memory, stream)

        for j, t in enumerate(moments or ()):
            run(j, t)
        steps = len(moments or ())
        most = 0 if moments is not None else 1 if self._shape.runs_once else math.inf
        while steps < most and _is_true(device, carry(0, steps), stream):
            run(steps, 0)
            steps += 1
        for k, target in targets.items():
            if k < count and carry(k, steps) != target:
                copy_bytes(device, target, carry(k, steps), self._input_bytes[k], stream)
        for k, other in zip(self._wanted, outputs, strict=True):
            if other != targets[k]:  # a result that is wanted twice
                copy_bytes(device, other, targets[k], self._result_bytes(k), stream)

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
