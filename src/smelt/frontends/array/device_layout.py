"""Copy arrays on a device that programs do not read or write where they lie.

Programs read contiguous arrays in vectors of 16 bytes. An array with strides is copied by a kernel
of ours, which is compiled once for a dtype and rank; bytes that follow one another are copied by
the driver. Nothing waits for the device.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from smelt.device import DeviceProgram, compile_for_device
from smelt.frontends.array.device_array import Place
from smelt.graph import build
from smelt.graph.ir import Graph
from smelt.ops.view import Reshape
from smelt.runtime.cuda.buffer import DeviceBuffer, is_contiguous, row_major
from smelt.runtime.cuda.copies import Slices, copy_bytes, copy_slices
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.recorded_call import VECTOR_BYTES
from smelt.types.dtype import DType
from smelt.types.expr import size
from smelt.types.tensor import TensorType

__all__ = ["as_host_array", "contiguous", "is_readable", "order_after", "write"]

_PROGRAMS: Final = WeakKeyDictionary[Device, dict[tuple[DType, int], DeviceProgram]]()


def is_readable(buffer: DeviceBuffer) -> bool:
    """Return whether programs read an array where it lies: contiguous, aligned to a vector."""
    return buffer.is_contiguous and not (buffer.address % VECTOR_BYTES and buffer.shape)


def contiguous(buffer: DeviceBuffer, place: Place) -> DeviceBuffer:
    """Return a contiguous copy of an array, made in the stream of a place.

    Raises DeviceMemoryError and CaptureError.
    """
    order_after(buffer, place)
    if buffer.is_contiguous or not buffer.nbytes:
        block = place.memory.allocate(buffer.nbytes, place.stream)
        with place.device.current():
            copy_bytes(place.device, block.address, buffer.address, buffer.nbytes, place.stream)
        strides = row_major(buffer.shape)
        return replace(
            buffer, address=block.address, strides=strides, stream=place.stream, owner=block
        )
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
    device, itemsize = place.device, target.dtype.itemsize
    inner = len(shape)  # dimensions from here on follow one another in the target
    while inner and is_contiguous(shape[inner - 1 :], to[inner - 1 :]):
        inner -= 1
    nbytes = math.prod(shape[inner:]) * itemsize
    outer = max(inner - 1, 0)
    rows = shape[outer] if inner else 1
    pitch = to[outer] * itemsize if inner else nbytes
    with device.current():
        for k, index in enumerate(np.ndindex(*shape[:outer])):
            at = target.address + itemsize * sum(i * s for i, s in zip(index, to, strict=False))
            first = source.address + k * rows * nbytes
            if pitch >= nbytes:
                pieces = Slices(rows, nbytes, pitch)
                copy_slices(device, at, pieces, first, pieces.packed, place.stream)
                continue
            for row in range(rows):  # backwards, which the driver's copies do not go
                copy_bytes(device, at + row * pitch, first + row * nbytes, nbytes, place.stream)


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
    reach = [(n - 1) * s for n, s in zip(buffer.shape, strides, strict=True)]
    low = 0 if 0 in buffer.shape else sum(r for r in reach if r < 0)
    span = kind.itemsize + sum(map(abs, reach)) if buffer.nbytes else 0
    memory: Any = (ctypes.c_char * span).from_address(buffer.address + low)
    return np.ndarray(buffer.shape, kind, memory, -low, strides)


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
