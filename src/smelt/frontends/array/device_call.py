"""Call compiled functions on arrays of a GPU.

The recording is the CPU's: a call's arrays are described by their dtypes and shapes, and no element
is read. The results stay on the device, and nothing waits for it; a position out of bounds is an
error of a later call, or of the next read.

Calls are repeated natively, by the types and shapes of their arrays (`KnownCalls`): a recorded call
of the plan runs on the addresses of other arrays. What that does not serve (another layout of
`out=`, arrays that overlap in another way, memory that the driver refuses) goes the way of Python,
with its checks and errors.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from smelt import knobs
from smelt.compiler.device import DeviceProgram, compile_for_device
from smelt.errors import CaptureError, DeviceError, OutsideError
from smelt.frontends.array.array import Array
from smelt.frontends.array.bind_args import BoundCall
from smelt.frontends.array.convert import is_foreign_array, is_on_gpu
from smelt.frontends.array.device_array import DeviceArray, Place, buffer_of, place_of
from smelt.frontends.array.device_out import (
    as_host_array,
    contiguous,
    is_readable,
    overwritable_arguments,
    replaced_inputs,
    run_into,
    targets_of,
)
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.results import match_parameters, overwriting_trace, pack, result_leaves
from smelt.frontends.array.trace import Argument, Result, Trace, record_call
from smelt.frontends.array.tree import LEAF, flatten, leaves_like
from smelt.graph.bounds_checks import BoundsChecks
from smelt.journal.facts import ArgumentCopied
from smelt.knobs import fingerprint
from smelt.python.dataclass import dataclass
from smelt.python.origin import here
from smelt.runtime.cuda.buffer import DeviceBuffer, copy_to_device
from smelt.runtime.cuda.executable import DeviceExecutable
from smelt.runtime.cuda.flags import DeferredFlags, deferred_flags, positions_are_checked
from smelt.runtime.cuda.memory import DriverMemory
from smelt.runtime.cuda.recorded_call import RecordedCall
from smelt.runtime.sliced_plan import VECTOR_BYTES
from smelt.types.dtype import bool_, from_numpy
from smelt.types.tensor import row_major

if TYPE_CHECKING:
    from smelt.frontends.array.jit import Jit
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
            targets = _out_leaves(out)
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
            give_away(leaves, donated, () if out is None else _out_leaves(out))
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
    identities = [id(x) for x in _out_leaves(out)]
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


def _out_leaves(out: Any) -> list[Any]:
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


_KEPT = 256
"""Maximum recordings that a function keeps for one structure of arguments."""


def call_on_device(jit: Jit[Any, Any], bound: BoundCall, out: Any) -> Any:
    """Run a jitted function on arrays of a GPU and return its results there.

    With `out` they are written there. Raises OutArgumentError, StructureError and AliasError about
    `out`, DeviceError for arrays elsewhere, and what compiling and running on a device raise.
    """
    buffers = [buffer_of(x) if is_on_gpu(x) else None for x in bound.leaves]
    place = next(place_of(x, b) for x, b in zip(bound.leaves, buffers) if b is not None)
    _check_places(bound, buffers, place)
    deferred_flags(place.device).check()
    arguments = [_argument(*pair) for pair in zip(bound.leaves, buffers, strict=True)]
    donated = overwritable_arguments(bound.leaves, buffers, bound.donated)
    recording, sizes = _find(jit, bound, arguments, place, donated)
    trace = recording.trace
    inputs = [
        _number(arguments[k], place) if (b := buffers[k]) is None else b for k in trace.arguments
    ]
    inputs += recording.captured(place)
    if trace.bounds.flag is not None and place.device.is_capturing(place.stream):
        raise positions_are_checked()
    targets = None if out is None else targets_of(out, trace, sizes, inputs, arguments, place)
    if targets is not None:
        described = ([as_host_array(b) for b in buffers] for buffers in (targets, inputs))
        trace = overwriting_trace(trace, *described, checks_first=False)
    program = recording.program_of(trace, place)
    carriers = [_size_carrier(sizes[k], place) for k in trace.size_inputs]
    names = bound.names
    labels = [names[k] for k in trace.arguments]
    in_order = _program_sizes(trace, program, sizes)

    def run(direct: Sequence[DeviceBuffer | None] = ()) -> list[DeviceBuffer]:
        execute, copied = (
            program.executable.run,
            sum(b.nbytes for b in inputs if not is_readable(b)),
        )
        if copied:
            program.executable.check_memory(in_order, place.stream, direct, copied)
        readable = [_readable(k, b, recording, bound, place) for k, b in enumerate(inputs)]
        readable += carriers
        results = execute(readable, in_order, place.stream, place.memory, labels, direct)
        if trace.bounds.flag is not None:
            recording.defer_flag(results.pop(), deferred_flags(place.device))
        return results

    results: list[DeviceBuffer] = []
    if targets is None:
        results = run()
    else:
        others = {
            k: _other_result(r, arguments, buffers, place)
            for k, r in enumerate(trace.results)
            if r.kind != "graph"
        }
        run_into(run, trace, targets, inputs, others, place)
    if all(map(is_readable, inputs)):
        repeats = jit.known_device_calls = jit.known_device_calls or KnownCalls()
        structure = None if bound.is_flat else (bound.tree, bound.statics)
        call = structure, bound.leaves, out, bound.donated
        repeats.note(call, recording, trace, [*inputs, *carriers], in_order, place)
    returned = out
    if targets is None:
        computed = [DeviceArray.of(b) for b in results]
        leaves = result_leaves(trace, computed, arguments, partial(_returned, bound))
        returned = pack(trace, leaves)
    if bound.donated:
        give_away(bound.leaves, bound.donated, () if out is None else flatten(out)[0])
    return returned


def _readable(
    k: int, buffer: DeviceBuffer, recording: Recording, bound: BoundCall, place: Place
) -> DeviceBuffer:
    """Return input `k` as programs read it, a copy if need be."""
    if is_readable(buffer):
        return buffer
    if k not in recording.copied:
        recording.copied.add(k)
        reason = (
            f"it begins {buffer.address % VECTOR_BYTES} bytes past a multiple of {VECTOR_BYTES}"
            if buffer.is_contiguous
            else f"it has strides {buffer.strides} for shape {buffer.shape}"
        )
        name = bound.names[recording.trace.arguments[k]]
        fact = ArgumentCopied(name, place.device.name, buffer.nbytes, reason)
        recording.program.journal.record(fact)
    return contiguous(buffer, place)


def _other_result(
    r: Result, arguments: Sequence[Argument], buffers: Sequence[DeviceBuffer | None], place: Place
) -> DeviceBuffer:
    """Return a result that the graph does not compute, on the device."""
    if r.kind == "argument":
        buffer = buffers[r.position]
        return _number(arguments[r.position], place) if buffer is None else buffer
    data = evaluate(r.value)
    return copy_to_device(data, from_numpy(data.dtype), place.memory, place.stream)


def _check_places(bound: BoundCall, buffers: Sequence[DeviceBuffer | None], place: Place) -> None:
    """Raise DeviceError unless all arrays are on one device; numbers are anywhere."""
    for k, (x, buffer) in enumerate(zip(bound.leaves, buffers, strict=True)):
        if buffer is not None and buffer.device is not place.device:
            raise DeviceError(
                f"argument {bound.names[k]!r} is on {buffer.device.name},"
                f" others are on {place.device.name}",
                hint="Move one of them; nothing moves between devices by itself.",
            )
        if buffer is None and (isinstance(x, Array) or is_foreign_array(x)) and x.shape:
            raise DeviceError(
                f"argument {bound.names[k]!r} is on the CPU, others are on {place.device.name}",
                hint=f'Move it: sm.asarray(x, device="{place.device.name}").',
            )


def _argument(x: Any, buffer: DeviceBuffer | None) -> Argument:
    """Describe a leaf for a recording, which reads no elements."""
    if buffer is not None:
        one = np.zeros((), buffer.dtype.numpy)
        strides = [n * one.itemsize for n in row_major(buffer.shape)]
        carrier = np.lib.stride_tricks.as_strided(one, buffer.shape, strides, writeable=False)
        return Argument(carrier)
    if isinstance(x, (bool, int, float)):
        return Argument(number=x)
    return Argument(np.asarray(evaluate(x.node) if isinstance(x, Array) else x))


def _find(
    jit: Jit[Any, Any],
    bound: BoundCall,
    arguments: Sequence[Argument],
    place: Place,
    donated: tuple[int, ...],
) -> tuple[Recording, tuple[int, ...]]:
    """Return a recording that is valid for a call and the values of its sizes."""
    key: Hashable = (
        bound.tree,
        bound.statics,
        tuple(a.signature for a in arguments),
        place.device.name,
        id(place.device),
        donated,
        fingerprint(),
    )
    recordings: list[Recording] = jit.device_recordings.setdefault(key, [])
    measures = match_parameters(arguments)
    for recording in recordings:
        sizes = recording.trace.match(*measures)
        if sizes is not None:
            return recording, sizes
    trace = record_call(
        jit.options.name, bound.names, arguments, bound.call, donated, keeps_order=False
    )
    sizes = trace.match(*measures)
    assert sizes is not None, "a recording does not hold for the call it was made in"
    recordings.insert(0, Recording(trace, compile_trace(trace, place)))
    del recordings[_KEPT:]
    return recordings[0], sizes


def _program_sizes(trace: Trace, program: DeviceProgram, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes in the order of the executable."""
    named = dict(zip(trace.hints, sizes, strict=True))
    return tuple(named[n] for n in program.size_names)


def _number(argument: Argument, place: Place) -> DeviceBuffer:
    """Copy a number to the device, as an array of rank 0."""
    data = argument.data
    if data is None:
        kind = np.float64 if isinstance(argument.number, float) else np.int64
        data = np.asarray(argument.number, kind)
    return copy_to_device(data, from_numpy(data.dtype), place.memory, place.stream)


def _size_carrier(size: int, place: Place) -> DeviceBuffer:
    """Return an input that passes a size by its shape; no element is read."""
    return DeviceBuffer(0, (size,), (1,), bool_, place.device, place.stream, None)


def _returned(bound: BoundCall, k: int) -> Any:
    """Return an argument that is a result."""
    x = bound.leaves[k]
    if isinstance(x, DeviceArray) and k in bound.donated:
        return DeviceArray.of(x.buffer)  # the argument itself is given away
    is_foreign = is_on_gpu(x) and not isinstance(x, DeviceArray)
    return DeviceArray.of(buffer_of(x)) if is_foreign else x
