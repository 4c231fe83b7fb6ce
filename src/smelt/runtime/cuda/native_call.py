"""Native code of a repeated call (`c/device.c`): memory, arguments, launches, and memory freed.

It gets the driver's functions by address, in the first words of a call's description.

A table has a row of `ROW_WORDS` 64-bit words per launch: function, grid (three), threads, bytes of
shared memory, first argument, number of arguments. Arguments are words of the call's frame.

>>> "@smelt_device_call(" in native_source("device")
True
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from smelt.runtime.code import load
from smelt.runtime.native import native_object, native_source
from smelt.runtime.native_layout import DECLINED, DEVICE_LAUNCH, SIZES

if TYPE_CHECKING:
    from smelt.runtime.cuda.driver import Device

__all__ = [
    "DECLINED",
    "FIRST_ARGUMENT",
    "ROW_WORDS",
    "NativeCalls",
    "device_words",
    "native_calls",
]

ROW_WORDS: Final = SIZES["DEVICE_LAUNCH"] // 8
FIRST_ARGUMENT: Final = DEVICE_LAUNCH["FIRST"] // 8
"""The word of a row that says where in the frame its arguments begin."""
FUNCTIONS: Final = (
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamIsCapturing",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuLaunchKernel",
    "cuGraphLaunch",
)
"""The driver's functions, whose addresses are the first words of a description."""
_WITHOUT_POOLS: Final = {"cuMemAllocAsync": "cuMemAlloc_v2", "cuMemFreeAsync": "cuMemFree_v2"}
"""What a device without pools has instead.

Native code passes the stream as a last argument, which these do not read: callers clean up, and
arguments lie in registers, by the calling conventions of x86-64 and AArch64.
"""
_SYMBOLS: Final = (
    "smelt_launch",
    "smelt_device_call",
    "smelt_device_free",
    "smelt_device_replay",
)


class NativeCalls(NamedTuple):
    """Entry points; calling one releases the GIL."""

    launch: Callable[[Any, int, Any, Any, int, int], int]
    """Table, count, frame, room for argument pointers, stream, address of cuLaunchKernel."""
    call: Callable[[int, int, int, int], int]
    """Description, addresses, stream, room for the frame; with room, nothing is launched."""
    free: Callable[[int, int, int], int]
    """Description (its functions and context), address, stream."""
    replay: Callable[[int, int, int], int]
    """Description (its functions and context), graph, stream."""


@cache
def native_calls() -> NativeCalls:
    """Return the code for this machine."""
    loaded = load(native_object("calls of a GPU", native_source("device")), list(_SYMBOLS))
    # The code is needed for as long as the process lives: blocks are freed by it at the very end.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    pointer, integer, status = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    launch, call, free, replay = (loaded.address(s) for s in _SYMBOLS)
    return NativeCalls(
        ctypes.CFUNCTYPE(integer, pointer, integer, *[pointer] * 4)(launch),
        ctypes.CFUNCTYPE(integer, *[pointer] * 4)(call),
        ctypes.CFUNCTYPE(status, *[pointer] * 3)(free),
        ctypes.CFUNCTYPE(status, *[pointer] * 3)(replay),
    )


def device_words(device: Device) -> array[int]:
    """Return the first words of a description: the driver's functions and the context.

    They are the device's own, and what `free` and `replay` need.
    """
    if device.words is None:
        names = FUNCTIONS if device.has_pools else [_WITHOUT_POOLS.get(n, n) for n in FUNCTIONS]
        addresses = [device.driver.address(name) for name in names]
        device.words = array("q", [*addresses, device.context])
    return device.words
