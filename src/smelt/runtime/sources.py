"""Which Smelt this is, a digest of its own text, so that code from before a change is not used.

Reading every module takes longer than a warm start may; so the digest is kept in the cache under
the modules' sizes and times of change, as Python keeps its byte code.

>>> len(sources()) > 32
True
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from smelt.runtime.cache import Cache
from smelt.version import __version__

__all__ = ["sources"]

_PACKAGE: Final = Path(__file__).parents[1]


@cache
def sources() -> str:
    """The package's version and a digest of the text of all its modules."""
    files = sorted(_files(str(_PACKAGE)))
    stamp = repr([(name[len(str(_PACKAGE)) :], size, time) for name, size, time in files])
    key = b"smelt sources " + hashlib.sha256(f"{__version__} {_PACKAGE} {stamp}".encode()).digest()
    entry = Cache.default().get(key)
    known = None if entry is None else entry.meta.get("digest")
    if not isinstance(known, str):
        known = _digest([name for name, _, _ in files])
        Cache.default().put(key, {"what": "sources", "digest": known}, b"")
    return f"{__version__} {known}"


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Every module below a folder, with its size and time of change."""
    with os.scandir(folder) as found:
        for item in found:
            if item.is_dir(follow_symlinks=False):
                if item.name != "__pycache__":
                    yield from _files(item.path)
            elif item.name.endswith(".py"):
                status = item.stat()
                yield item.path, status.st_size, status.st_mtime_ns


def _digest(files: list[str]) -> str:
    found = hashlib.sha256()
    for name in files:
        path = Path(name)
        found.update(f"\0{path.relative_to(_PACKAGE)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()
