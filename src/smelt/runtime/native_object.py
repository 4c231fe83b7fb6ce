"""Compile the run time's own code once per machine, or take it from a file.

An object comes from the cache like any kernel's. It is generic for the architecture: it gains
nothing from newer instructions, and one cache entry serves every machine that shares a home
directory. A program file brings its own, so that a process that runs it needs no LLVM.

>>> digest_of("a text") == digest_of("another text")
False
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from smelt.kernel.abi import ABI_VERSION
from smelt.machine.processor import system_triple
from smelt.packages.llvm_package import llvm_version
from smelt.python.imports import fork_safe_import
from smelt.runtime.cache import Cache
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
