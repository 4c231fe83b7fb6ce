"""The package llvmlite, which compiles: its version, and an error where it is not installed.

>>> bool(llvm_version())
True
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

from smelt.errors import UnsupportedError
from smelt.imports import fork_safe_import

__all__ = ["explain_missing_llvm", "llvm_version"]


@cache
def llvm_version() -> str:
    """Return llvmlite's version, without importing LLVM; "none" where it is not installed."""
    try:
        return str(fork_safe_import("llvmlite").__version__)
    except ModuleNotFoundError:
        return "none"


@contextmanager
def explain_missing_llvm() -> Generator[None]:
    """Raise UnsupportedError where what is imported inside needs LLVM and there is none."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "llvmlite":
            raise
        raise UnsupportedError(
            "compiling takes LLVM, which is not installed",
            hint="Install llvmlite. A program from a file runs without it: see sm.load.",
        ) from error
