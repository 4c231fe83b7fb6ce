"""Describe an array in device memory, and move elements between host and device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from smelt.errors import CaptureError
from smelt.python.dataclass import dataclass
from smelt.runtime.cuda.copies import fill
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.memory import Memory
from smelt.types.dtype import DType
from smelt.types.tensor import row_major

Array = np.ndarray[Any, Any]


@dataclass(slots=True, eq=False)  # not frozen: every call makes some, and that takes three times
class DeviceBuffer:
    """Elements on a device: address, shape, strides in elements, dtype; `owner` keeps the memory.

    `stream` is the one whose order the elements were written in.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: Device
    stream: int
    owner: Any

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow one another in row-major order."""
        return is_contiguous(self.shape, self.strides)

    @property
    def reach(self) -> tuple[int, int]:
        """Positions of the lowest and the highest element in memory, from the first one on."""
        if 0 in self.shape:
            return 0, 0
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether strides in elements are those of row-major order.

    >>> is_contiguous((2, 3), (3, 1)), is_contiguous((2, 3), (1, 2)), is_contiguous((0, 3), (9, 9))
    (True, False, True)
    """
    if 0 in shape:
        return True
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1 and stride != step:
            return False
        step *= n
    return True


def copy_to_device(array: Array, dtype: DType, memory: Memory, stream: int) -> DeviceBuffer:
    """Copy a NumPy array to new device memory, in a stream.

    The driver has read the array when this returns; a number is part of the call. Raises
    DeviceMemoryError, and CaptureError where the stream is captured: a graph would read the array
    when it is replayed.
    """
    data = np.ascontiguousarray(array).reshape(array.shape)
    device = memory.device
    if device.is_capturing(stream):
        raise CaptureError(reason="memory of the host would be read at replay")
    block = memory.allocate(data.nbytes, stream)
    with device.current():
        if not data.ndim:
            fill(device, block.address, data, 1, stream)
        elif data.nbytes:
            device.driver.call(
                "cuMemcpyHtoDAsync_v2", block.address, data.ctypes.data, data.nbytes, stream
            )
            if device.reads_pageable_memory:  # elsewhere the driver has made a copy of its own
                device.driver.call("cuStreamSynchronize", stream)
    return DeviceBuffer(
        block.address, data.shape, row_major(data.shape), dtype, device, stream, block
    )


def copy_to_host(buffer: DeviceBuffer) -> Array:
    """Return the elements as a new NumPy array; waits for the stream that writes them."""
    if not buffer.is_contiguous:
        low, high = buffer.reach
        flat = np.empty(high - low + 1, buffer.dtype.numpy)
        steps = [s * flat.itemsize for s in buffer.strides]
        _read(buffer, low, flat)
        return np.lib.stride_tricks.as_strided(flat[-low:], buffer.shape, steps).copy()
    result = np.empty(buffer.shape, buffer.dtype.numpy)
    _read(buffer, 0, result)
    return result


def _read(buffer: DeviceBuffer, first: int, result: Array) -> None:
    """Read adjacent elements, the first one so many elements after the array's own."""
    device, stream = buffer.device, buffer.stream
    with device.current():
        if result.nbytes:
            device.driver.call(
                "cuMemcpyDtoHAsync_v2",
                result.ctypes.data,
                buffer.address + first * result.itemsize,
                result.nbytes,
                stream,
            )
        device.driver.call("cuStreamSynchronize", stream)
    device.call_finished()
