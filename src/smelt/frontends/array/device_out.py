"""Write results of a call on a device into the caller's arrays (`out=`, `donate=`).

The rules are the CPU's (`results`): an array of `out=` may be an argument, but not a part of one.
A result is computed where it belongs if that is contiguous, and no argument or one that the plan
lets it replace: each element is read before it is written. Else it is computed in other memory and
copied at the end, in stream order.

Programs read contiguous arrays in vectors of 16 bytes. An array with strides is copied by a kernel
of ours, which is compiled once for a dtype and rank and has offsets of 32 bits; bytes that follow
one another, and arrays that reach further, are copied by the driver. Nothing waits for the device.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from smelt.compiler.device import DeviceProgram, compile_for_device
from smelt.errors import DeviceError, OutArgumentError
from smelt.frontends.array.convert import is_foreign_array, is_on_gpu
from smelt.frontends.array.device_array import DeviceArray, Place, buffer_of
from smelt.frontends.array.results import check_targets
from smelt.frontends.array.trace import Argument, Trace
from smelt.frontends.array.tree import leaves_like
from smelt.graph import build
from smelt.graph.ir import Graph
from smelt.ops.view import Reshape
from smelt.runtime.cuda.buffer import DeviceBuffer, is_contiguous
from smelt.runtime.cuda.copies import Slices, copy_slices
from smelt.runtime.cuda.dlpack import is_shared
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.tables import MAX_DEVICE_ELEMENTS
from smelt.runtime.memory import Spans
from smelt.runtime.sliced_plan import VECTOR_BYTES
from smelt.types.dtype import DType
from smelt.types.expr import size
from smelt.types.tensor import TensorType, row_major

_PROGRAMS: Final = WeakKeyDictionary[Device, dict[tuple[DType, int], DeviceProgram]]()


def is_readable(buffer: DeviceBuffer) -> bool:
    """Return whether programs read an array where it lies: contiguous, aligned to a vector."""
    return buffer.is_contiguous and not (buffer.address % VECTOR_BYTES and buffer.shape)


def contiguous(buffer: DeviceBuffer, place: Place) -> DeviceBuffer:
    """Return a contiguous copy of an array, made in the stream of a place.

    Raises DeviceMemoryError and CaptureError.
    """
    order_after(buffer, place)
    low, high = buffer.reach
    if buffer.is_contiguous or high - low >= MAX_DEVICE_ELEMENTS:
        block = place.memory.allocate(buffer.nbytes, place.stream)
        strides = row_major(buffer.shape)
        copy = replace(
            buffer, address=block.address, strides=strides, stream=place.stream, owner=block
        )
        _copy_rows(buffer, copy.address, place, is_target=False)
        return copy
    program = _program(buffer.dtype, len(buffer.shape), place.device)
    sizes = tuple(buffer.shape[int(n[1:])] for n in program.size_names)
    (copy,) = program.executable.run([buffer], sizes, place.stream, place.memory)
    return replace(copy, shape=copy.shape[1:], strides=copy.strides[1:])


def write(target: DeviceBuffer, source: DeviceBuffer, place: Place) -> None:
    """Write the elements of an array to another one in the stream of a place.

    They agree in dtype and shape, and share no memory. Elements that do not follow one another are
    written by the driver, a row or column at a time.
    """
    order = sorted(range(len(target.shape)), key=lambda d: -abs(target.strides[d]))
    shape = tuple(target.shape[d] for d in order)
    to, strides = (tuple(x.strides[d] for d in order) for x in (target, source))
    if not target.nbytes:
        return
    if not is_contiguous(shape, strides):
        source = contiguous(replace(source, shape=shape, strides=strides), place)
    _copy_rows(replace(target, shape=shape, strides=to), source.address, place, is_target=True)


def _copy_rows(array: DeviceBuffer, packed: int, place: Place, *, is_target: bool) -> None:
    """Copy an array with any strides from or to adjacent elements at an address."""
    device, itemsize = place.device, array.dtype.itemsize
    shape, strides = array.shape, array.strides
    inner = len(shape)  # dimensions from here on follow one another
    while inner and is_contiguous(shape[inner - 1 :], strides[inner - 1 :]):
        inner -= 1
    nbytes = math.prod(shape[inner:]) * itemsize
    outer = max(inner - 1, 0)
    rows = shape[outer] if inner else 1
    pitch = strides[outer] * itemsize if inner else nbytes
    with device.current():
        for k, index in enumerate(np.ndindex(*shape[:outer])):
            at = array.address + itemsize * sum(i * s for i, s in zip(index, strides, strict=False))
            for row, pieces in _pieces(rows, nbytes, pitch):
                there = at + row * pitch, pieces
                here = packed + (k * rows + row) * nbytes, pieces.packed
                to, source = (there, here) if is_target else (here, there)
                copy_slices(device, *to, *source, place.stream)


def _pieces(rows: int, nbytes: int, pitch: int) -> Iterator[tuple[int, Slices]]:
    """Yield what the driver copies at once, with its first row.

    It copies rows that go forward and do not overlap.
    """
    if pitch >= nbytes:
        yield 0, Slices(rows, nbytes, pitch)
    else:
        yield from ((row, Slices.whole(nbytes)) for row in range(rows))


def order_after(buffer: DeviceBuffer, place: Place) -> None:
    """Make a place's stream wait for what is queued in the stream of an array."""
    if buffer.stream != place.stream:
        place.device.order(buffer.stream, place.stream)
        if hasattr(buffer.owner, "used_by"):
            buffer.owner.used_by(place.stream)


def as_host_array(buffer: DeviceBuffer) -> np.ndarray[Any, Any]:
    """Return an array at a device's addresses: its layout can be asked for, its elements cannot."""
    kind = buffer.dtype.numpy
    strides = [s * kind.itemsize for s in buffer.strides]
    low, high = buffer.reach
    span = (high - low + 1) * kind.itemsize if buffer.nbytes else 0
    memory: Any = (ctypes.c_char * span).from_address(buffer.address + low * kind.itemsize)
    return _Described(buffer.shape, kind, memory, -low * kind.itemsize, strides)


class _Described(np.ndarray[Any, Any]):
    """Array that is shown without its elements, which the host cannot read."""

    def __repr__(self) -> str:
        return f"<{self.dtype} {self.shape} on a device>"

    __str__ = __repr__


def _program(dtype: DType, rank: int, device: Device) -> DeviceProgram:
    """Return the program that copies an array with any strides."""
    programs = _PROGRAMS.setdefault(device, {})
    program = programs.get((dtype, rank))
    if program is None:
        shape = tuple(size(f"n{d}") for d in range(rank))
        x = build.input("x", TensorType(dtype, shape), (None,) * rank)
        copy = build.apply(Reshape((1, *shape)), x)  # one of x's own shape would be x
        graph = Graph("copy", (x,), (copy,))
        program = programs[dtype, rank] = compile_for_device(graph, {}, device)
    return program


def targets_of(
    out: Any,
    trace: Trace,
    sizes: tuple[int, ...],
    inputs: Sequence[DeviceBuffer],
    arguments: Sequence[Argument],
    place: Place,
) -> list[DeviceBuffer]:
    """Return the memory for each leaf of the result, checked before anything runs.

    Raises DeviceError for arrays elsewhere, and what `check_targets` raises.
    """
    targets = [_target(x, place) for x in leaves_like("out=", out, trace.tree)]
    described = [as_host_array(b) for b in targets]
    check_targets(trace, sizes, described, [as_host_array(b) for b in inputs], arguments)
    return targets


def replaced_inputs(
    targets: Sequence[DeviceBuffer], inputs: Sequence[DeviceBuffer]
) -> tuple[int, ...] | None:
    """Return the input that is the same memory as each array of `out=`.

    -1 stands for none. None if arrays of `out=` share memory in any other way.
    """
    replaced = [-1] * len(targets)
    buffers = [*targets, *inputs]
    for group in _sharing(buffers):
        if group[0] < len(targets):
            if len(group) > 2 or group[1] < len(targets):
                return None
            one, other = (buffers[k] for k in group)
            if (one.address, one.shape, one.strides) != (other.address, other.shape, other.strides):
                return None
            replaced[group[0]] = group[1] - len(targets)
    return tuple(replaced)


def overwritable_arguments(
    leaves: Sequence[Any], buffers: Sequence[DeviceBuffer | None], donated: Sequence[int]
) -> tuple[int, ...]:
    """Return the donated leaves whose memory results may take: nothing else refers to it."""
    if not donated:
        return ()
    present = [k for k, b in enumerate(buffers) if b is not None]
    groups = _sharing([b for b in buffers if b is not None])
    shared = {present[k] for group in groups for k in group}
    return tuple(
        k
        for k in donated
        if (b := buffers[k]) is not None
        and k not in shared
        and is_readable(b)
        and not (isinstance(leaves[k], DeviceArray) and is_shared(b))
    )


def _sharing(buffers: Sequence[DeviceBuffer]) -> list[list[int]]:
    """Return groups of buffers whose memory may overlap, by number, each group in order."""
    spans: list[tuple[int, int, int]] = []
    for k, b in enumerate(buffers):
        if b.nbytes:
            (low, high), size = b.reach, b.dtype.itemsize
            spans.append((b.address + low * size, b.address + (high + 1) * size, k))
    groups: list[list[int]] = []
    last_end = 0
    for first, end, k in sorted(spans):
        if groups and first < last_end:
            groups[-1].append(k)
        else:
            groups.append([k])
        last_end = max(last_end, end)
    return [sorted(group) for group in groups if len(group) > 1]


def _target(x: Any, place: Place) -> DeviceBuffer:
    if is_on_gpu(x):
        buffer = buffer_of(x)
        where = buffer.device.name
        if buffer.device is place.device:
            return buffer
    elif is_foreign_array(x):
        where = "the CPU"
    else:
        raise OutArgumentError(expected="an array", found=type(x).__name__)
    raise DeviceError(
        f"out= is on {where}, the arguments are on {place.device.name}",
        hint=f'Give an array there: sm.asarray(x, device="{place.device.name}").',
    )


def run_into(
    run: Callable[[Sequence[DeviceBuffer | None]], list[DeviceBuffer]],
    trace: Trace,
    targets: Sequence[DeviceBuffer],
    inputs: Sequence[DeviceBuffer],
    others: Mapping[int, DeviceBuffer],
    place: Place,
) -> None:
    """Run a recording and write its results into `targets`.

    `run` takes memory for outputs of the graph, None for those that it allocates, and returns
    them. `others` are the results that the graph does not compute, by leaf.
    """
    read = Spans([as_host_array(b) for b in (*inputs, *others.values())])
    direct: list[DeviceBuffer | None] = [None] * len(trace.graph.outputs)
    for r, target in zip(trace.results, targets, strict=True):
        is_apart = is_readable(target) and not read.overlapping(as_host_array(target))
        if r.kind == "graph" and direct[r.position] is None and is_apart:
            direct[r.position] = target
    results = run(direct)
    sources = [
        others[k] if k in others else results[r.position] for k, r in enumerate(trace.results)
    ]
    pairs = [
        (target, source)
        for target, source in zip(targets, sources, strict=True)
        if (target.address, target.strides) != (source.address, source.strides)
    ]
    written = Spans([as_host_array(target) for target, _ in pairs])
    copies = [  # of what another copy would overwrite
        contiguous(source, place) if written.overlapping(as_host_array(source)) else source
        for _, source in pairs
    ]
    for (target, _), source in zip(pairs, copies, strict=True):
        order_after(target, place)
        order_after(source, place)
        write(target, source, place)
    for target in targets:
        if target.stream != place.stream:
            place.device.order(place.stream, target.stream)
