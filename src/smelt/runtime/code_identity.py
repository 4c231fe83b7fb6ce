"""Which Smelt this is, a digest of its own text, so that code from before a change is not used.

Two digests: of all modules, which decide a plan, and of those that decide what machine code a
kernel's text becomes, so that work on the planner leaves compiled kernels valid.  Reading every
module takes longer than a warm start may; so both are kept in the cache under the modules' sizes
and times of change, as Python keeps its byte code.

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

__all__ = ["Digests", "digests", "generator", "sources"]

CODE: Final = ("blocks.py", "codegen", "kernel", "llvm.py", "ops", "types")
"""The modules and packages whose text decides what code a kernel's text becomes."""

_PACKAGE: Final = str(Path(__file__).parents[1])


class Digests(NamedTuple):
    """Of the text of all modules, and of those that make machine code."""

    all: str
    code: str


def sources() -> str:
    """The package's version and a digest of the text of all its modules."""
    return f"{__version__} {digests().all}"


def generator() -> str:
    """The version and a digest of the modules that make machine code."""
    return f"{__version__} {digests().code}"


@cache
def digests(package: str = _PACKAGE) -> Digests:
    """The digests of a package in a folder."""
    try:
        found = sorted(_files(package, ""))
    except OSError:  # not a folder of files: an archive does not change under its version
        return Digests("packed", "packed code")
    stamp = f"{__version__} {package} {CODE} {found}"
    key = b"smelt sources " + hashlib.sha256(stamp.encode()).digest()
    entry = Cache.default().get(key)
    if entry is not None:
        known = entry.meta.get("all"), entry.meta.get("code")
        if isinstance(known[0], str) and isinstance(known[1], str):
            return Digests(known[0], known[1])
    names = [name for name, _, _ in found]
    made = Digests(
        _digest(package, names), _digest(package, [n for n in names if n.split("/")[1] in CODE])
    )
    Cache.default().put(key, {"what": "sources", **made._asdict()}, b"")
    return made


def _files(package: str, folder: str) -> Iterator[tuple[str, int, int]]:
    """Every module below a folder of the package, with its size and time of change."""
    with os.scandir(package + folder) as found:
        for item in found:
            name = f"{folder}/{item.name}"
            if item.is_dir(follow_symlinks=False):
                if item.name != "__pycache__":
                    yield from _files(package, name)
            elif item.name.endswith(".py"):
                status = item.stat()
                yield name, status.st_size, status.st_mtime_ns


def _digest(package: str, names: Iterable[str]) -> str:
    found = hashlib.sha256()
    for name in names:
        with open(package + name, "rb", buffering=0) as file:  # noqa: PTH123 - a third of the time
            text = file.read()
        found.update(f"{name}\0{len(text)}\0".encode())
        found.update(text)
    return found.hexdigest()
