"""Copy arrays on a device that programs do not read or write where they lie.

Programs read contiguous arrays in vectors of 16 bytes. An array with strides is copied by a kernel
of ours, which is compiled once for a dtype and rank and has offsets of 32 bits; bytes that follow
one another, and arrays that reach further, are copied by the driver. Nothing waits for the device.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from smelt.compiler.device import DeviceProgram, compile_for_device
from smelt.frontends.array.device_array import Place
from smelt.graph import build
from smelt.graph.ir import Graph
from smelt.ops.view import Reshape
from smelt.runtime.cuda.buffer import DeviceBuffer, is_contiguous, row_major
from smelt.runtime.cuda.copies import Slices, copy_slices
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.tables import MAX_DEVICE_ELEMENTS
from smelt.runtime.sliced_plan import VECTOR_BYTES
from smelt.types.dtype import DType
from smelt.types.expr import size
from smelt.types.tensor import TensorType

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
