"""Recording of a function for a device: its programs, and captured arrays there.

Calls are repeated natively, by the types and shapes of their arrays. A `KnownCall` is a call that
Python has made: it runs a recorded call of the plan on the addresses of other arrays. What it does
not serve (another layout of `out=`, arrays that overlap in another way, memory that the driver
refuses) goes the way of Python, with its checks and errors.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from smelt import knobs
from smelt.compiler.device import DeviceProgram, compile_for_device
from smelt.errors import CaptureError, OutsideError
from smelt.frontends.array.device_array import DeviceArray, Place
from smelt.frontends.array.device_out import is_readable, overwritable_arguments, replaced_inputs
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.results import pack
from smelt.frontends.array.trace import Trace
from smelt.frontends.array.tree import LEAF, flatten, leaves_like
from smelt.graph.bounds_checks import BoundsChecks
from smelt.knobs import fingerprint
from smelt.python.dataclass import dataclass
from smelt.python.origin import here
from smelt.runtime.cuda.buffer import DeviceBuffer, copy_to_device
from smelt.runtime.cuda.executable import DeviceExecutable
from smelt.runtime.cuda.flags import DeferredFlags, deferred_flags
from smelt.runtime.cuda.memory import DriverMemory
from smelt.runtime.cuda.recorded_call import RecordedCall
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


_KNOWN: Final = 512
"""Maximum calls, by types and shapes of their arrays, that a function repeats natively."""


@dataclass(frozen=True, slots=True, eq=False)
class _KnownCall:
    """A call that repeats: what it runs, and what it adds to the arguments' addresses."""

    recording: Recording
    native: RecordedCall
    size_count: int
    """Inputs at the end that only pass a size."""
    outputs: tuple[int, ...]
    """By output of the graph: the number of the result."""
    targets: tuple[int, ...]
    """Arrays of `out=` whose addresses are passed, by number, in the order of these."""
    is_complete: bool
    """Whether nothing remains to be done when the kernels are queued."""
    flags: DeferredFlags
    memory: DriverMemory


class KnownCalls:
    """Calls of one function that are repeated natively, by types and shapes of their arrays."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Hashable, _KnownCall] = {}

    def answer(
        self,
        structure: Hashable,
        leaves: Sequence[Any],
        out: Any = None,
        donated: tuple[int, ...] = (),
    ) -> Any:
        """Return the results of a call, or `NotImplemented` if it is not known.

        `structure` describes the nest of the arguments; None: each argument is a leaf. Raises
        OutsideError for a call before, DonatedError and DriverCallError.
        """
        key = _exact_key(structure, leaves, out, donated)
        if key is None or (repeat := self._known.get(key)) is None:
            return NotImplemented
        buffers = [x.buffer for x in leaves]
        repeat.flags.check()
        recording, native = repeat.recording, repeat.native
        trace, stream = recording.trace, buffers[0].stream
        inputs = [buffers[k] for k in trace.arguments]
        if trace.captured:
            inputs += recording.captured(Place(buffers[0].device, stream, repeat.memory))
        addresses = [b.address for b in inputs]
        if repeat.size_count:
            addresses += [0] * repeat.size_count
        if repeat.targets:
            targets = _leaves(out)
            addresses += [targets[k].buffer.address for k in repeat.targets]
        words = native.run(addresses, stream)
        if words is None:
            return NotImplemented
        if repeat.is_complete:
            return out
        computed = native.adopt(words, inputs, repeat.memory, stream)
        results = [computed[k] for k in repeat.outputs]
        if trace.bounds.flag is not None and (flag := results.pop()) is not None:
            recording.defer_flag(flag, repeat.flags)
        if donated:
            give_away(leaves, donated, () if out is None else _leaves(out))
        if out is not None:
            return out
        arrays = [DeviceArray.of(b) for b in results if b is not None]
        return arrays[0] if trace.single else pack(trace, arrays)

    def note(
        self,
        call: tuple[Hashable, Sequence[Any], Any, tuple[int, ...]],
        recording: Recording,
        trace: Trace,
        inputs: Sequence[DeviceBuffer],
        sizes: tuple[int, ...],
        place: Place,
    ) -> None:
        """Remember a call that was made with `inputs`, if it can be repeated natively.

        `call` has what `answer` takes; `trace` is the recording, or its variant in which results
        replace inputs.
        """
        key, out = _exact_key(*call), call[2]
        executable = recording.program_of(trace, place).executable
        computed = [n for n, v in enumerate(executable.values) if v.place == "output"]
        if (
            key is None
            or not isinstance(place.memory, DriverMemory)
            or not trace.only_outputs
            or not {*executable.outputs} <= {*computed}
            or not knobs.NATIVE_CALLS.get()
        ):
            return
        outputs = tuple(computed.index(v) for v in executable.outputs)
        order: dict[int, int] = {}
        if out is not None:
            numbers = _numbers_in_place(executable, trace, outputs, inputs, sizes, place, out)
            if numbers is None:
                return
            order = numbers
        native = executable.record(inputs, sizes, order)
        if native is None:
            return
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[key] = _KnownCall(
            recording,
            native,
            len(trace.size_inputs),
            outputs,
            tuple(order[k] for k in native.passed),
            out is not None and not call[3] and native.has_no_blocks,
            deferred_flags(place.device),
            place.memory,
        )


def _numbers_in_place(
    executable: DeviceExecutable,
    trace: Trace,
    outputs: tuple[int, ...],
    inputs: Sequence[DeviceBuffer],
    sizes: tuple[int, ...],
    place: Place,
    out: Any,
) -> dict[int, int] | None:
    """Return by computed result the number of its array of `out=`.

    None if one is not computed there: then something is copied after the kernels.
    """
    identities = [id(x) for x in _leaves(out)]
    overwrites = [over for *_, over in executable.prepared(sizes).results]
    order: dict[int, int] = {}
    for x, k in zip(leaves_like("out=", out, trace.tree), outputs, strict=False):
        target = x.buffer
        over = inputs[overwrites[k]].address if overwrites[k] >= 0 else None
        is_there = over == target.address
        if over is None:
            apart = all(b.address != target.address for b in inputs if b.nbytes)
            is_there = is_readable(target) and (apart or not target.nbytes)
        if k in order or not is_there or target.stream != place.stream:
            return None
        order[k] = identities.index(id(x))
    return order


def _leaves(out: Any) -> list[Any]:
    return [out] if out.__class__ is DeviceArray else flatten(out)[0]


def _exact_key(
    structure: Hashable, leaves: Sequence[Any], out: Any, donated: tuple[int, ...]
) -> Hashable:
    """Return what decides a call of arrays on a device; None for any other call."""
    key: list[Any] = [structure, fingerprint()]
    for x in leaves:
        if x.__class__ is not DeviceArray:
            return None
        b = x.buffer
        key += b.shape, b.strides, b.dtype, b.device, b.stream
    if out is not None:
        targets, tree = ([out], LEAF) if out.__class__ is DeviceArray else flatten(out)
        key.append(tree)
        for x in targets:
            if x.__class__ is not DeviceArray:
                return None
            b = x.buffer
            key += b.shape, b.strides, b.dtype, b.device, b.stream
        replaced = replaced_inputs([x.buffer for x in targets], [x.buffer for x in leaves])
        if replaced is None:
            return None
        key.append(replaced)
    if donated:
        key.append(overwritable_arguments(leaves, [x.buffer for x in leaves], donated))
    return tuple(key) if leaves else None


def give_away(leaves: Sequence[Any], donated: Sequence[int], keep: Sequence[Any] = ()) -> None:
    """Make reading donated arrays an error; those in `keep` are arrays of `out=`."""
    where = str(here()) if donated else ""
    for x in (leaves[k] for k in donated):
        if isinstance(x, DeviceArray) and not any(x is y for y in keep):
            x.give_away(where)
