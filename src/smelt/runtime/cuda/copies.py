"""Copy slices within the memory of a device, and fill arrays, in stream order."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

from smelt.runtime.cuda.driver import INVALID_VALUE, Device
from smelt.runtime.sliced_plan import Slices

DEVICE_MEMORY: Final = 2
"""The driver's number of memory of a device."""


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        *((f"from_{n}", ctypes.c_size_t) for n in ("x", "y")),
        ("from_kind", ctypes.c_uint),
        ("from_host", ctypes.c_void_p),
        ("source", ctypes.c_uint64),
        ("from_array", ctypes.c_void_p),
        ("from_pitch", ctypes.c_size_t),
        *((f"to_{n}", ctypes.c_size_t) for n in ("x", "y")),
        ("to_kind", ctypes.c_uint),
        ("to_host", ctypes.c_void_p),
        ("to", ctypes.c_uint64),
        ("to_array", ctypes.c_void_p),
        ("to_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


def copy_bytes(device: Device, to: int, source: int, nbytes: int, stream: int) -> None:
    """Queue a copy of adjacent bytes; the context must be current."""
    if nbytes:
        device.driver.call("cuMemcpyDtoDAsync_v2", to, source, nbytes, stream)


def copy_slices(
    device: Device, to: int, to_slices: Slices, source: int, slices: Slices, stream: int
) -> None:
    """Queue a copy of slices with the same pieces; the context must be current."""
    if slices.runs == 1 or slices.pitch == slices.nbytes == to_slices.pitch:
        copy_bytes(device, to, source, slices.total, stream)
        return
    if not slices.total:
        return
    copy = _Copy2D(
        from_kind=DEVICE_MEMORY,
        source=source,
        from_pitch=slices.pitch,
        to_kind=DEVICE_MEMORY,
        to=to,
        to_pitch=to_slices.pitch,
        width=slices.nbytes,
        height=slices.runs,
    )
    code = device.driver.result("cuMemcpy2DAsync_v2", ctypes.byref(copy), stream)
    if code == INVALID_VALUE:  # a device may refuse distances that it would not choose
        for k in range(slices.runs):
            at, first = to + k * to_slices.pitch, source + k * slices.pitch
            copy_bytes(device, at, first, slices.nbytes, stream)
    elif code:
        raise device.driver.error("cuMemcpy2DAsync", code)


def fill(device: Device, to: int, element: Any, count: int, stream: int) -> None:
    """Queue writes of an element of NumPy to adjacent places; the context must be current."""
    data = np.asarray(element)
    if not count:
        return
    if data.itemsize < 8:
        bits = int.from_bytes(data.tobytes(), "little")
        device.driver.call(f"cuMemsetD{8 * data.itemsize}Async", to, bits, count, stream)
        return
    halves = [int(bits) for bits in data.reshape(1).view(np.uint32)]
    if halves[0] == halves[1]:
        device.driver.call("cuMemsetD32Async", to, halves[0], 2 * count, stream)
        return
    for at, bits in zip((to, to + 4), halves, strict=True):
        device.driver.call("cuMemsetD2D32Async", at, 8, bits, 1, count, stream)
