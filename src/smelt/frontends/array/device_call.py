"""Call compiled functions on arrays of a GPU.

The recording is the CPU's: a call's arrays are described by their dtypes and shapes, and no element
is read. The results stay on the device, and nothing waits for it; a position out of bounds is an
error of a later call, or of the next read.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.device import DeviceProgram, compile_for_device
from smelt.errors import CaptureError, DeviceError, OutsideError
from smelt.frontends.array.ahead_of_time import signature
from smelt.frontends.array.array import Array
from smelt.frontends.array.bind_args import BoundCall
from smelt.frontends.array.convert import is_foreign_array, is_on_gpu
from smelt.frontends.array.device_array import DeviceArray, Place, buffer_of, place_of
from smelt.frontends.array.device_layout import contiguous, is_readable
from smelt.frontends.array.device_out import run_into, targets_of
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.results import match_parameters, pack
from smelt.frontends.array.trace import Argument, Result, Trace, record_call
from smelt.graph.bounds_checks import BoundsChecks
from smelt.journal import ArgumentCopied
from smelt.knobs import fingerprint
from smelt.runtime.cuda.buffer import DeviceBuffer, copy_to_device, row_major
from smelt.runtime.cuda.flags import DeferredFlags, deferred_flags
from smelt.runtime.cuda.memory import DriverMemory
from smelt.runtime.cuda.recorded_call import VECTOR_BYTES, RecordedCall
from smelt.types.dtype import bool_, from_numpy

if TYPE_CHECKING:
    from smelt.frontends.array.jit import Jit

__all__ = ["KnownCalls", "call_on_device"]

_KEPT = 256
"""Most recordings that a function keeps for one structure of arguments."""
_KNOWN = 512
"""Most calls, by types and shapes of their arrays, that a function repeats natively."""


@dataclass(slots=True, eq=False)
class _Recording:
    """Recording of a function, compiled for one device."""

    trace: Trace
    program: DeviceProgram
    uploads: dict[int, DeviceBuffer]
    """Captured arrays of the CPU that nobody writes to, by number, on the device."""
    copied: set[int]
    """Inputs that calls copied, which the journal says."""


@dataclass(frozen=True, slots=True, eq=False)
class _KnownCall:
    """A call that repeats: what it runs, and what it adds to the arguments' addresses."""

    recording: _Recording
    native: RecordedCall
    size_count: int
    """Inputs at the end that only pass a size."""
    outputs: tuple[int, ...]
    """By output of the graph: the number of the result."""
    flags: DeferredFlags
    memory: DriverMemory


class KnownCalls:
    """Calls of one function that are repeated natively, by types and shapes of their arrays."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Hashable, _KnownCall] = {}

    def answer(self, structure: Hashable, leaves: Sequence[Any]) -> Any:
        """Return the results of a call, or `NotImplemented` if it is not known.

        `structure` describes the nest of the arguments; None: each argument is a leaf. Raises
        OutsideError for a call before, and DriverCallError.
        """
        key = _exact_key(structure, leaves)
        if key is None or (repeat := self._known.get(key)) is None:
            return NotImplemented
        repeat.flags.check()
        trace = repeat.recording.trace
        stream = leaves[0].buffer.stream
        addresses = [leaves[k].buffer.address for k in trace.arguments]
        if trace.captured:
            place = Place(leaves[0].buffer.device, stream, repeat.memory)
            copies = [_captured(repeat.recording, k, place) for k in range(len(trace.captured))]
            addresses += [b.address for b in copies]
        words = repeat.native.run(addresses + [0] * repeat.size_count, stream)
        if words is None:
            return NotImplemented
        computed = repeat.native.adopt(words, repeat.memory, stream)
        results = [computed[k] for k in repeat.outputs]
        _defer_flag(trace, results, stream, repeat.flags)
        arrays = [DeviceArray.of(b) for b in results]
        return arrays[0] if trace.single else pack(trace, arrays)

    def note(
        self,
        structure: Hashable,
        leaves: Sequence[Any],
        recording: _Recording,
        inputs: Sequence[DeviceBuffer],
        sizes: tuple[int, ...],
        place: Place,
    ) -> None:
        """Remember a call that was made with `inputs`, if it can be repeated natively."""
        key, trace = _exact_key(structure, leaves), recording.trace
        executable = recording.program.executable
        computed = [n for n, v in enumerate(executable.values) if v.place == "output"]
        if (
            key is None
            or not isinstance(place.memory, DriverMemory)
            or not trace.only_outputs
            or not {*executable.outputs} <= {*computed}
            or not knobs.NATIVE_CALLS.get()
        ):
            return
        native = executable.record(inputs, sizes, allocates=True)
        if native is None:
            return
        if len(self._known) >= _KNOWN:
            self._known.clear()
        size_count = len(trace.size_inputs)
        outputs = tuple(computed.index(v) for v in executable.outputs)
        flags = deferred_flags(place.device)
        self._known[key] = _KnownCall(recording, native, size_count, outputs, flags, place.memory)


def _exact_key(structure: Hashable, leaves: Sequence[Any]) -> Hashable:
    """Return what decides a call of arrays on a device; None for other leaves."""
    key: list[Any] = [structure, fingerprint()]
    for x in leaves:
        if x.__class__ is not DeviceArray:
            return None
        b = x.buffer
        key += b.shape, b.strides, b.dtype, b.device, b.stream
    return tuple(key) if leaves else None


def call_on_device(jit: Jit[Any, Any], bound: BoundCall, out: Any) -> Any:
    """Run a jitted function on arrays of a GPU and return its results there.

    With `out` they are written there. Raises OutArgumentError, StructureError and AliasError about
    `out`, DeviceError for arrays elsewhere, and what compiling and running on a device raise. A
    donated array keeps its memory.
    """
    buffers = [buffer_of(x) if is_on_gpu(x) else None for x in bound.leaves]
    place = next(place_of(x, b) for x, b in zip(bound.leaves, buffers) if b is not None)
    _check_places(bound, buffers, place)
    deferred_flags(place.device).check()
    arguments = [_argument(*pair) for pair in zip(bound.leaves, buffers, strict=True)]
    recording, sizes = _find(jit, bound, arguments, place)
    trace = recording.trace
    inputs = [
        _number(arguments[k], place) if (b := buffers[k]) is None else b for k in trace.arguments
    ]
    inputs += [_captured(recording, k, place) for k in range(len(trace.captured))]
    if trace.bounds.flag is not None and place.device.is_capturing(place.stream):
        raise CaptureError(
            reason="positions are checked by the host",
            hint="Record with sm.config(check_positions=False) what may be captured.",
        )
    targets = None if out is None else targets_of(out, trace, sizes, inputs, arguments, place)
    readable = [_readable(k, b, recording, bound, place) for k, b in enumerate(inputs)]
    readable += [_size_carrier(sizes[k], place) for k in trace.size_inputs]
    labels = [bound.names[k] for k in trace.arguments]
    in_order = _program_sizes(recording, sizes)
    flags = deferred_flags(place.device)

    def run(direct: Sequence[DeviceBuffer | None] = ()) -> list[DeviceBuffer]:
        execute = recording.program.executable.run
        results = execute(readable, in_order, place.stream, place.memory, labels, direct)
        _defer_flag(trace, results, place.stream, flags)
        return results

    if targets is not None:
        others = {
            k: _other_result(r, arguments, buffers, place)
            for k, r in enumerate(trace.results)
            if r.kind != "graph"
        }
        run_into(run, trace, targets, inputs, others, place)
        return out
    results = run()
    if all(a is b for a, b in zip(inputs, readable)):
        repeats = jit.known_device_calls = jit.known_device_calls or KnownCalls()
        structure = None if bound.is_flat else (bound.tree, bound.statics)
        repeats.note(structure, bound.leaves, recording, readable, in_order, place)
    return pack(trace, _leaves(trace, results, arguments, bound))


def _readable(
    k: int, buffer: DeviceBuffer, recording: _Recording, bound: BoundCall, place: Place
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


def _defer_flag(
    trace: Trace, results: list[DeviceBuffer], stream: int, flags: DeferredFlags
) -> None:
    """Take the flag of bad positions off the results, for a later call to read."""
    if trace.bounds.flag is not None:
        checks, flag = trace.bounds, results.pop()  # it is freed after the copy is queued
        flags.add(flag.address, stream, lambda: _fail(checks))


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
    jit: Jit[Any, Any], bound: BoundCall, arguments: Sequence[Argument], place: Place
) -> tuple[_Recording, tuple[int, ...]]:
    """Return a recording that is valid for a call and the values of its sizes."""
    key: Hashable = (
        bound.tree,
        bound.statics,
        tuple(map(signature, arguments)),
        place.device.name,
        id(place.device),
        fingerprint(),
    )
    recordings: list[_Recording] = jit.device_recordings.setdefault(key, [])
    measures = match_parameters(arguments)
    for recording in recordings:
        sizes = recording.trace.match(*measures)
        if sizes is not None:
            return recording, sizes
    trace = record_call(jit.options.name, bound.names, arguments, bound.call, (), turns=False)
    sizes = trace.match(*measures)
    assert sizes is not None, "a recording does not hold for the call it was made in"
    program = compile_for_device(trace.graph, trace.hints, place.device)
    recordings.insert(0, _Recording(trace, program, {}, set()))
    del recordings[_KEPT:]
    return recordings[0], sizes


def _program_sizes(recording: _Recording, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes in the order of the executable."""
    named = dict(zip(recording.trace.hints, sizes, strict=True))
    return tuple(named[n] for n in recording.program.size_names)


def _number(argument: Argument, place: Place) -> DeviceBuffer:
    """Copy a number to the device, as an array of rank 0."""
    data = argument.data
    if data is None:
        kind = np.float64 if isinstance(argument.number, float) else np.int64
        data = np.asarray(argument.number, kind)
    return copy_to_device(data, from_numpy(data.dtype), place.memory, place.stream)


def _captured(recording: _Recording, k: int, place: Place) -> DeviceBuffer:
    """Return a captured array on the device, copied once if nobody writes to it."""
    value = recording.trace.captured[k]
    if not value.shared and k in recording.uploads:
        return recording.uploads[k]
    data = evaluate(value)
    buffer = copy_to_device(data, from_numpy(data.dtype), place.memory, place.stream)
    if not value.shared:
        recording.uploads[k] = buffer
    return buffer


def _size_carrier(size: int, place: Place) -> DeviceBuffer:
    """Return an input that passes a size by its shape; no element is read."""
    return DeviceBuffer(0, (size,), (1,), bool_, place.device, place.stream, None)


def _leaves(
    trace: Trace, results: list[DeviceBuffer], arguments: Sequence[Argument], bound: BoundCall
) -> list[Any]:
    """Return the leaves of the result."""
    computed = [DeviceArray.of(b) for b in results]
    sizes = iter(
        () if trace.result_sizes is None else trace.result_sizes(*match_parameters(arguments))
    )

    def leaf_of(r: Result) -> Any:
        if r.kind == "graph":
            return computed[r.position]
        if r.kind == "argument":
            x = bound.leaves[r.position]
            return x if isinstance(x, (DeviceArray, Array)) else _returned(x)
        if r.kind == "captured":
            return Array.of(r.value)
        return next(sizes) if r.kind == "size" else r.value

    return [leaf_of(r) for r in trace.results]


def _returned(x: Any) -> Any:
    return DeviceArray.of(buffer_of(x)) if is_on_gpu(x) else x


def _fail(checks: BoundsChecks) -> NoReturn:
    """Raise the error of a position out of bounds, at the first possible operator."""
    reader, origin = checks.readers[0] if checks.readers else ("a call before", None)
    others = f" (or one of {len(checks.readers) - 1} others)" if len(checks.readers) > 1 else ""
    raise OutsideError(
        f"{reader}{others}: a position was out of bounds in a call on the GPU before",
        origin=origin,
    )
