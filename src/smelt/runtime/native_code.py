"""Compile the thread pool's native loop once per machine and bind its entry points.

The object comes from the cache like any kernel's. It is generic for the architecture: it gains
nothing from newer instructions, and one cache entry serves every machine that shares a home
directory.

>>> native_code().helper > 0
True
"""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import llvmlite

from smelt.imports import fork_safe_import
from smelt.kernel.abi import ABI_VERSION
from smelt.runtime import native
from smelt.runtime.cache import Cache
from smelt.runtime.host import host_processor
from smelt.runtime.loader import Loaded, load

_GENERIC_CPU: Final = {"x86_64": "x86-64"}


class NativeCode:
    """Entry points of `smelt.runtime.native`; calling one releases the GIL."""

    def __init__(self, loaded: Loaded) -> None:
        # Leak a reference: helpers run this code until the process ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
        pointer, integer, at = ctypes.c_void_p, ctypes.c_int64, loaded.address
        call = (pointer, pointer, integer, pointer)
        run = ctypes.CFUNCTYPE(ctypes.c_int, pointer, *call, integer, integer, integer)
        self.run: Callable[..., int] = run(at("smelt_run"))
        drive = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, *call)
        self.drive: Callable[..., int] = drive(at("smelt_drive"))
        self.abandon: Callable[[int, int], None] = ctypes.CFUNCTYPE(None, pointer, integer)(
            at("smelt_abandon")
        )
        self.wake: Callable[[int], None] = ctypes.CFUNCTYPE(None, pointer)(at("smelt_wake"))
        self.helper = at("smelt_helper")


def native_text(triple: str) -> str:
    """Return the loop's LLVM IR for `triple`, with this system's constants."""
    detached = 2 if sys.platform == "darwin" else 1
    monotonic = int(getattr(time, "CLOCK_MONOTONIC", 1))
    return native.ir(triple, monotonic, int(getattr(signal, "SIG_SETMASK", 2)), detached)


def generic_target() -> tuple[str, str]:
    """Return this system's triple, and LLVM's generic CPU name for its architecture."""
    triple = host_processor().triple
    return triple, _GENERIC_CPU.get(triple.partition("-")[0], "generic")


def native_code(variant: str | None = None) -> NativeCode:
    """Return the loop for this machine, from the object cache or compiled now.

    `variant` names a triple whose way of sleeping is used instead of this system's.
    """
    triple, cpu = generic_target()
    text = native_text(variant or triple)
    key = f"smelt pool 2 {(ABI_VERSION, triple, cpu, llvmlite.__version__, text)}".encode()
    cache = Cache.default()
    entry = cache.get(key)
    if entry is None:
        jit: Any = fork_safe_import("smelt.runtime.jit")
        code = jit.compile_ir(text, 2, cpu, "")
        cache.put(key, {"what": "thread pool"}, code)
    else:
        code = entry.code
    return NativeCode(load(code, native.SYMBOLS))
