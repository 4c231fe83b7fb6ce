"""A driver that does nothing, for a GPU that is not there: what a run compiles is in the cache.

with use_library(DryDriver("sm_90")):
    ...     # plans and programs are compiled as on the device; results are arbitrary
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

from smelt.runtime.cuda.driver import SIGNATURES, TYPES

__all__ = ["DryDriver"]

_VERSION: Final = 12_080
_MEMORY_BYTES: Final = 80 << 30
_ATTRIBUTES: Final = {16: 132, 97: 227 << 10}
"""Multiprocessors, and bytes of shared memory of a block, of an H100."""


class DryDriver:
    """Library whose functions succeed and store plausible values; no memory is allocated."""

    def __init__(self, arch: str) -> None:
        number = int(arch.removeprefix("sm_"))
        self._attributes = {**_ATTRIBUTES, 75: number // 10, 76: number % 10}
        self._handles = itertools.count(1 << 32, 1 << 31)  # far apart, as addresses of blocks
        self._pinned: list[Any] = []
        self._context = 0
        self._functions: dict[str, Any] = {}

    def address(self, symbol: str) -> int | None:
        """Return the address of a function of the driver."""
        if symbol not in SIGNATURES:
            return None
        if symbol not in self._functions:
            kinds = [TYPES[k] for k in SIGNATURES[symbol]]
            act = self._actions().get(symbol, lambda *_: None)

            def call(*arguments: Any, act: Callable[..., Any] = act) -> int:
                act(*arguments)
                return 0

            self._functions[symbol] = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(call)
        return ctypes.cast(self._functions[symbol], ctypes.c_void_p).value

    def _actions(self) -> Mapping[str, Callable[..., Any]]:
        """Return what the functions store that return something."""

        def number(value: int) -> Callable[..., Any]:
            return lambda place, *_: _put(ctypes.c_int, place, value)

        def handle(place: int, *_: Any) -> None:
            _put(ctypes.c_uint64, place, next(self._handles))

        def memory(free: int, total: int) -> None:
            _put(ctypes.c_uint64, free, _MEMORY_BYTES)
            _put(ctypes.c_uint64, total, _MEMORY_BYTES)

        def pinned(place: int, nbytes: int, _: int) -> None:
            self._pinned.append(ctypes.create_string_buffer(nbytes))
            _put(ctypes.c_uint64, place, ctypes.addressof(self._pinned[-1]))

        handles = (
            *("cuDevicePrimaryCtxRetain", "cuModuleLoadDataEx", "cuModuleGetFunction"),
            *("cuStreamCreate", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"),
            *("cuEventCreate", "cuMemAllocAsync", "cuDeviceGetDefaultMemPool"),
        )
        return {
            **dict.fromkeys(handles, handle),
            "cuDriverGetVersion": number(_VERSION),
            "cuDeviceGetCount": number(1),
            "cuDeviceGet": number(0),
            "cuDeviceGetAttribute": lambda place, k, _: _put(
                ctypes.c_int, place, self._attributes.get(k, 0)
            ),
            "cuDeviceGetName": lambda text, *_: ctypes.memmove(text, b"dry run\0", 8),
            "cuCtxGetCurrent": lambda place: _put(ctypes.c_uint64, place, self._context),
            "cuCtxPushCurrent_v2": lambda context: setattr(self, "_context", context or 0),
            "cuCtxPopCurrent_v2": lambda _: setattr(self, "_context", 0),
            "cuStreamIsCapturing": lambda _, place: _put(ctypes.c_int, place, 0),
            "cuEventElapsedTime": lambda place, *_: _put(ctypes.c_float, place, 1.0),
            "cuMemGetInfo_v2": memory,
            "cuMemHostAlloc": pinned,
        }


def _put(kind: Any, address: int, value: float) -> None:
    kind.from_address(address).value = value
