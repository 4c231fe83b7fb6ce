"""The installed version of llvmlite, without importing LLVM.

>>> bool(llvm_version())
True
"""

from __future__ import annotations

from functools import cache

from smelt.imports import fork_safe_import

__all__ = ["llvm_version"]


@cache
def llvm_version() -> str:
    """Return llvmlite's version; "none" where it is not installed."""
    try:
        return str(fork_safe_import("llvmlite").__version__)
    except ModuleNotFoundError:
        return "none"
