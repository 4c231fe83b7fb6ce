"""Call compiled functions on arrays of a GPU.

The recording is the CPU's: a call's arrays are described by their dtypes and shapes, and no element
is read. The results stay on the device, and nothing waits for it; a position out of bounds is an
error of a later call, or of the next read. Calls that repeat are answered by `KnownCalls`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.compiler.device import DeviceProgram
from smelt.errors import DeviceError
from smelt.frontends.array.array import Array
from smelt.frontends.array.bind_args import BoundCall
from smelt.frontends.array.convert import is_foreign_array, is_on_gpu
from smelt.frontends.array.device_array import DeviceArray, Place, buffer_of, place_of
from smelt.frontends.array.device_out import (
    contiguous,
    is_readable,
    overwritable_arguments,
    overwriting_trace_of,
    run_into,
    targets_of,
)
from smelt.frontends.array.device_recording import KnownCalls, Recording, compile_trace, give_away
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.results import match_parameters, pack
from smelt.frontends.array.trace import Argument, Result, Trace, record_call
from smelt.frontends.array.tree import flatten
from smelt.journal.facts import ArgumentCopied
from smelt.knobs import fingerprint
from smelt.runtime.cuda.buffer import DeviceBuffer, copy_to_device, row_major
from smelt.runtime.cuda.flags import deferred_flags, positions_are_checked
from smelt.runtime.sliced_plan import VECTOR_BYTES
from smelt.types.dtype import bool_, from_numpy

if TYPE_CHECKING:
    from smelt.frontends.array.jit import Jit

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
        trace = overwriting_trace_of(trace, targets, inputs)
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
    returned = (
        out if targets is not None else pack(trace, _leaves(trace, results, arguments, bound))
    )
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


def _leaves(
    trace: Trace, results: list[DeviceBuffer], arguments: Sequence[Argument], bound: BoundCall
) -> list[Any]:
    computed = [DeviceArray.of(b) for b in results]
    sizes = iter(
        () if trace.result_sizes is None else trace.result_sizes(*match_parameters(arguments))
    )

    def leaf_of(r: Result) -> Any:
        if r.kind == "graph":
            return computed[r.position]
        if r.kind == "argument":
            x = bound.leaves[r.position]
            if isinstance(x, DeviceArray) and r.position in bound.donated:
                return DeviceArray.of(x.buffer)  # the argument itself is given away
            return x if isinstance(x, (DeviceArray, Array)) else _returned(x)
        if r.kind == "captured":
            return Array.of(r.value)
        return next(sizes) if r.kind == "size" else r.value

    return [leaf_of(r) for r in trace.results]


def _returned(x: Any) -> Any:
    return DeviceArray.of(buffer_of(x)) if is_on_gpu(x) else x
