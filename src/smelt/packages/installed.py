"""Know which LLVM, Triton and algebra system are installed, without importing them.

>>> bool(llvm_version())
True
>>> is_too_old("3.3.1"), is_too_old("3.4.0+git1234"), is_too_old("4.0"), is_too_old("unknown")
(True, False, False, False)
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from typing import Any, Final

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


ALGEBRA_SYSTEM: Final = "sympy"
"""The package of the computer algebra system."""


@cache
def has_algebra_system() -> bool:
    """Return whether the computer algebra system is installed."""
    return importlib.util.find_spec(ALGEBRA_SYSTEM) is not None


MIN_VERSION: Final = "3.4"
"""Oldest version whose compiler takes what is printed."""


def has_triton() -> bool:
    """Return whether Triton is installed; it is not imported."""
    return importlib.util.find_spec("triton") is not None


@cache
def triton_version() -> str:
    """Return the version of the package, "unknown" for one that does not say."""
    metadata = fork_safe_import("importlib.metadata")  # brings sockets and mail along
    try:
        return str(metadata.version("triton"))
    except metadata.PackageNotFoundError:  # builds of torch bring it under names of their own
        (name, *_) = metadata.packages_distributions().get("triton", [""])
        return str(metadata.version(name)) if name else "unknown"


def is_too_old(present: str) -> bool:
    """Return whether a version is older than the oldest that is known to compile programs."""
    numbers = re.match(r"(\d+)\.(\d+)", present)
    least = tuple(map(int, MIN_VERSION.split(".")))
    return numbers is not None and tuple(map(int, numbers.groups())) < least
