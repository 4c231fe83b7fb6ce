"""The thread pool's native code, and what it must know of architecture and system.

Running a plan must neither hold the GIL nor return to Python between chunks, and there is no
compiled extension: `c/pool.c`, which explains the protocol, is checked in as LLVM IR, compiled
once per machine and kept in the object cache like every kernel. It has no undefined symbols: the C
library's functions and constants are stored in the pool's memory.

>>> "@smelt_run(" in ir("x86_64-pc-linux-gnu")
True
"""

from __future__ import annotations

import platform
import re
import signal
import sys
import time
from typing import Final

from smelt.runtime.native_object import generic_target, native_source

__all__ = ["SYMBOLS", "ir", "library_constants", "system_constants"]

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
