"""Digest Smelt's own source, so that code from an older version is never used.

There are two digests: of all modules, which decide a plan, and of those that decide the machine
code for a kernel's text, so that changes to the planner keep compiled kernels valid. Reading
every module is too slow for a warm start, so both are cached under the modules' sizes and
modification times, as Python caches byte code.

>>> generator() != sources()
True
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from smelt.runtime.cache import Cache
from smelt.version import __version__

__all__ = ["Digests", "digests", "generator_identity", "package_identity"]

CODEGEN_SOURCES: Final = ("blocks.py", "codegen", "kernel", "llvm.py", "ops", "types")
"""Modules and packages whose source decides the machine code for a kernel's text."""

_PACKAGE: Final = str(Path(__file__).parents[1])


class Digests(NamedTuple):
    """Digests of all modules, and of those that generate machine code."""

    all: str
    code: str


def package_identity() -> str:
    """Return the package's version and a digest of all its modules."""
    return f"{__version__} {digests().all}"


def generator_identity() -> str:
    """Return the version and a digest of the modules that generate machine code."""
    return f"{__version__} {digests().code}"


@cache
def digests(package: str = _PACKAGE) -> Digests:
    """Return the digests of a package directory."""
    try:
        files = sorted(_files(package, ""))
    except OSError:  # not a directory: an archive's content is fixed by its version
        return Digests("packed", "packed code")
    stamp = f"{__version__} {package} {CODEGEN_SOURCES} {files}"
    key = b"smelt sources " + hashlib.sha256(stamp.encode()).digest()
    entry = Cache.default().get(key)
    if entry is not None:
        cached = entry.meta.get("all"), entry.meta.get("code")
        if isinstance(cached[0], str) and isinstance(cached[1], str):
            return Digests(cached[0], cached[1])
    names = [name for name, _, _ in files]
    result = Digests(
        _digest(package, names),
        _digest(package, [n for n in names if n.split("/")[1] in CODEGEN_SOURCES]),
    )
    Cache.default().put(key, {"what": "sources", **result._asdict()}, b"")
    return result


def _files(package: str, folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield every module below a folder of the package, with its size and modification time."""
    with os.scandir(package + folder) as items:
        for item in items:
            name = f"{folder}/{item.name}"
            if item.is_dir(follow_symlinks=False):
                if item.name != "__pycache__":
                    yield from _files(package, name)
            elif item.name.endswith(".py"):
                status = item.stat()
                yield name, status.st_size, status.st_mtime_ns


def _digest(package: str, names: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        with open(package + name, "rb", buffering=0) as file:  # noqa: PTH123 - faster than Path
            text = file.read()
        digest.update(f"{name}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()
