"""Recording of a function for a device: its programs, and captured arrays there."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, NoReturn

from smelt.compiler.device import DeviceProgram, compile_for_device
from smelt.errors import CaptureError, OutsideError
from smelt.frontends.array.device_array import Place
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.trace import Trace
from smelt.graph.bounds_checks import BoundsChecks
from smelt.python.dataclass import dataclass
from smelt.runtime.cuda.buffer import DeviceBuffer, copy_to_device
from smelt.runtime.cuda.flags import DeferredFlags
from smelt.types.dtype import from_numpy

if TYPE_CHECKING:
    from smelt.fusion.plan import Donate


def compile_trace(trace: Trace, place: Place) -> DeviceProgram:
    """Compile a recording for a device, where plans may race.

    Raises CaptureError in a captured stream, which would record the race.
    """
    if place.device.is_capturing(place.stream):
        raise CaptureError(reason="the program is loaded by its first call")
    return compile_for_device(
        trace.graph, trace.hints, place.device, donate=trace.donate, frozen=True
    )


@dataclass(slots=True, eq=False)
class Recording:
    """Recording of a function, compiled for one device."""

    trace: Trace
    program: DeviceProgram
    replacing: dict[Donate, DeviceProgram] = field(default_factory=dict[Any, DeviceProgram])
    """Programs of calls in which results replace inputs, by the pairs of these."""
    uploads: dict[int, DeviceBuffer] = field(default_factory=dict[int, DeviceBuffer])
    """Captured arrays of the CPU that nobody writes to, by number, on the device."""
    copied: set[int] = field(default_factory=set[int])
    """Inputs that calls copied, which the journal says."""

    def program_of(self, trace: Trace, place: Place) -> DeviceProgram:
        """Return the program of the recording, or of its variant that replaces inputs."""
        if trace is self.trace:
            return self.program
        program = self.replacing.get(trace.donate)
        if program is None:
            program = self.replacing[trace.donate] = compile_trace(trace, place)
        return program

    def captured(self, place: Place) -> list[DeviceBuffer]:
        """Return the captured arrays on the device, each copied once if nobody writes to it."""
        return [self._captured(k, place) for k in range(len(self.trace.captured))]

    def _captured(self, k: int, place: Place) -> DeviceBuffer:
        value = self.trace.captured[k]
        if not value.shared and k in self.uploads:
            return self.uploads[k]
        data = evaluate(value)
        buffer = copy_to_device(data, from_numpy(data.dtype), place.memory, place.stream)
        if not value.shared:
            self.uploads[k] = buffer
        return buffer

    def defer_flag(self, flag: DeviceBuffer, flags: DeferredFlags) -> None:
        """Let a later call read the flag of bad positions.

        Its memory is freed after the copy is queued.
        """
        checks = self.trace.bounds
        flags.add(flag.address, flag.stream, lambda: _fail(checks))


def _fail(checks: BoundsChecks) -> NoReturn:
    """Raise the error of a position out of bounds, at the first possible operator."""
    reader, origin = checks.readers[0] if checks.readers else ("a call before", None)
    others = f" (or one of {len(checks.readers) - 1} others)" if len(checks.readers) > 1 else ""
    raise OutsideError(
        f"{reader}{others}: a position was out of bounds in a call on the GPU before",
        origin=origin,
    )
