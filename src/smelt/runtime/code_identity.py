"""Digest Smelt's own source, so that code from an older version is never used.

There are two digests: of all modules, which decide a plan, and of those that decide the machine
code for a kernel's text, so that changes to the planner keep compiled kernels valid. The latter
are what the code generator imports, directly or not. Reading every module is too slow for a warm
start, so both are cached under the modules' sizes and modification times, as Python caches byte
code.

>>> generator_identity() != package_identity()
True
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from smelt.packages.version import __version__
from smelt.runtime.cache import Cache

CODEGEN_ROOTS: Final = ("codegen", "kernel")
"""Packages that decide the machine code for a kernel's text, with all that they import."""

_PACKAGE: Final = str(Path(__file__).parents[1])
_IMPORT: Final = re.compile(
    rb"\n(?:from[ \t]+(smelt[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([^\n#]*))"
)
_NAME: Final = re.compile(rb"[\w.]+")


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
    stamp = f"{__version__} {package} {CODEGEN_ROOTS} {files}"
    key = b"smelt sources " + hashlib.sha256(stamp.encode()).digest()
    entry = Cache.default().get(key)
    if entry is not None:
        cached = entry.meta.get("all"), entry.meta.get("code")
        if isinstance(cached[0], str) and isinstance(cached[1], str):
            return Digests(cached[0], cached[1])
    texts = {name: _read(package + name) for name, _, _ in files}
    result = Digests(_digest(texts, texts), _digest(texts, codegen_modules(texts)))
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


def codegen_modules(texts: Mapping[str, bytes]) -> list[str]:
    """Return the files that decide the machine code for a kernel's text, in order.

    `texts` maps each file, as "/folder/module.py", to its source. The package's own `__init__.py`
    is left out: it collects the public names.

    >>> codegen_modules({"/codegen/a.py": b"from smelt import b", "/b.py": b"", "/c.py": b""})
    ['/b.py', '/codegen/a.py']
    """
    pending = [name for name in texts if name.split("/")[1] in CODEGEN_ROOTS]
    reached = set(pending)
    seen = {""}
    while pending:
        for path in _imports(texts[pending.pop()]):
            while path not in seen:
                seen.add(path)
                for name in (f"{path}.py", f"{path}/__init__.py"):
                    if name in texts and name not in reached:
                        reached.add(name)
                        pending.append(name)
                path = path.rpartition("/")[0]
    return sorted(reached)


def _imports(text: bytes) -> set[str]:
    """Return what may be modules that a source imports, as "/folder/module"."""
    modules = set[bytes]()
    for origin, names, plain in _IMPORT.findall(b"\n" + text):
        listed = _NAME.findall(names or plain)
        modules.update([origin + b"." + name for name in listed] if origin else listed)
    paths = {module.decode().replace(".", "/") for module in modules}
    return {path.removeprefix("smelt") for path in paths if path.startswith("smelt/")}


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - faster than Path
        return file.read()


def _digest(texts: Mapping[str, bytes], names: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{len(texts[name])}\0".encode())
        digest.update(texts[name])
    return digest.hexdigest()
