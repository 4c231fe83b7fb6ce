"""The run time's own native code: its IR, its objects, and the thread pool's entry points.

Running a plan must neither hold the GIL nor return to Python between chunks, and there is no
compiled extension: C files, such as `c/pool.c`, which explains its protocol, are checked in as
LLVM IR, compiled once per machine and kept in the object cache like every kernel. An object is
generic for the architecture: it gains nothing from newer instructions, and one cache entry serves
every machine that shares a home directory. A program file brings its own, so that a process that
runs it needs no LLVM. The pool has no undefined symbols: the C library's functions and constants
are stored in its memory.

>>> "@smelt_run(" in ir("x86_64-pc-linux-gnu"), native_code().helper > 0
(True, True)
>>> digest_of("a text") == digest_of("another text")
False
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from smelt.kernel.abi import ABI_VERSION
from smelt.machine.processor import system_triple
from smelt.packages.installed import llvm_version
from smelt.python.imports import fork_safe_import
from smelt.runtime.cache import Cache
from smelt.runtime.code import Loaded, load
from smelt.runtime.elf import bind_poll
from smelt.runtime.host import host_processor

_GENERIC_CPU: Final = {"x86_64": "x86-64"}
_SOURCES: Final = Path(__file__).parent / "c"
_SUPPLIED: Final[dict[str, bytes]] = {}
"""Objects from program files, by the digest of the text that they were compiled from."""


def generic_target() -> tuple[str, str]:
    """Return this system's triple, and LLVM's generic CPU name for its architecture."""
    triple = system_triple() or host_processor().triple
    return triple, _GENERIC_CPU.get(triple.partition("-")[0], "generic")


@cache
def native_source(name: str) -> str:
    """Return the checked-in LLVM IR of a C file in `c`."""
    # not read_text: it may import a codec, and a thread that imports while another one forks hangs
    return (_SOURCES / f"{name}.ll").read_bytes().decode()


def digest_of(text: str) -> str:
    """Return what identifies the object of an IR text on this kind of machine."""
    key = f"{(ABI_VERSION, *generic_target(), text)}"
    return hashlib.sha256(key.encode()).hexdigest()


def native_object(what: str, text: str) -> bytes:
    """Return the object code of a module of LLVM IR.

    `what` describes it in the cache.
    """
    digest = digest_of(text)
    if digest in _SUPPLIED:
        return _SUPPLIED[digest]
    key = f"smelt native {digest} {llvm_version()}".encode()
    cache = Cache.default()
    entry = cache.get(key)
    if entry is not None:
        return entry.code
    jit: Any = fork_safe_import("smelt.runtime.jit")
    code: bytes = jit.compile_ir(text, 2, generic_target()[1], "")
    cache.put(key, {"what": what}, code)
    return code


def supply(objects: Mapping[str, bytes]) -> None:
    """Use these objects, by digest, in place of compiling them."""
    _SUPPLIED.update(objects)


SYMBOLS: Final = tuple(
    f"smelt_{name}" for name in ("run", "drive", "abandon", "wake", "helper", "poll")
)

_FUTEX_NUMBER: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_RELAX: Final = re.compile(r"^declare void @smelt_relax\(\).*\n", re.MULTILINE)
_ISB: Final = ("llvm.aarch64.isb", "i32", "i32 15")
_HINT: Final = {
    "x86_64": ("llvm.x86.sse2.pause", "", ""),
    "aarch64": _ISB,
    "arm64": _ISB,
}
"""Spin-wait hint by architecture, which lets the sibling hyperthread run."""


def ir(triple: str | None = None) -> str:
    """Return the pool's module as LLVM IR for `triple`, by default this system's."""
    arch = (triple or generic_target()[0]).partition("-")[0]
    name, types, arguments = _HINT.get(arch, ("", "", ""))
    hint = f"call void @{name}({arguments}) " if name else ""
    relax = f"define internal void @smelt_relax() alwaysinline {{ {hint}ret void }}\n"
    if name:
        relax += f"declare void @{name}({types})\n"
    return _RELAX.sub(relax, native_source("pool"))


def system_constants() -> dict[str, int]:
    """Return what the pool must know of this system's C library, by field."""
    futex = _FUTEX_NUMBER.get(platform.machine(), 0) if sys.platform == "linux" else 0
    return {
        "FUTEX": futex,
        "MONOTONIC": int(getattr(time, "CLOCK_MONOTONIC", 1)),
        "SIG_SETMASK": int(getattr(signal, "SIG_SETMASK", 2)),
        "DETACHED": 2 if sys.platform == "darwin" else 1,
        "MAX_CHUNKS": (1 << 16) - 1,
    }


_AFFINITY_NUMBERS: Final = {"x86_64": (204, 203), "aarch64": (123, 122), "riscv64": (123, 122)}
"""Linux's system calls sched_getaffinity and sched_setaffinity."""


def library_constants() -> dict[str, int]:
    """Return what a library must know of this system, by field of its tables."""
    getaffinity, setaffinity = _AFFINITY_NUMBERS[platform.machine()]
    futex = _FUTEX_NUMBER[platform.machine()]
    return {"futex": futex, "getaffinity": getaffinity, "setaffinity": setaffinity}


class NativeCode:
    """Entry points of the thread pool's code; calling one releases the GIL."""

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
        bind_poll(at("smelt_poll"))


def native_code() -> NativeCode:
    """Return the loop for this machine."""
    return NativeCode(load(native_object("thread pool", ir()), SYMBOLS))
