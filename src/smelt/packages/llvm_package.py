"""The package llvmlite, which compiles: its version, and an error where it is not installed.

>>> bool(llvm_version())
True
"""

from __future__ import annotations

from functools import cache
from typing import Any

from smelt.errors import MissingCompilerError
from smelt.python.imports import fork_safe_import


@cache
def llvm_version() -> str:
    """Return llvmlite's version, without importing LLVM; "none" where it is not installed."""
    try:
        return str(fork_safe_import("llvmlite").__version__)
    except ModuleNotFoundError:
        return "none"


def import_compiler(name: str) -> Any:
    """Import a module that needs LLVM; raises MissingCompilerError where it is not installed."""
    try:
        return fork_safe_import(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "llvmlite":
            raise
        raise MissingCompilerError(package="llvmlite") from error
