"""Load object code, and find kernels' machine code by key, in memory and on disk.

Kernels' objects are placed by the small linker `smelt.runtime.elf`, which saves a warm process
the import of LLVM; objects with unsupported features, and all objects on other systems, go to
LLVM's linker. Either way pages are written first and made executable afterwards, never both at
once, and dropping the last reference to a `Loaded` unmaps its code. Objects are trusted: LLVM
crashes the process on a damaged one, so bytes come only from the compiler or from a cache entry
whose digest was checked.

A key is a digest. The *stem* covers everything that decides a kernel's code (its text, the
generator, the processor), and the key of each variant derives from it. The stem alone suffices to
find the code, without the kernel: a stored plan names its kernels that way. Code stays loaded
while a plan uses it; of the rest, the most recently used is kept, up to `MAX_CODE_BYTES`.

>>> from smelt.runtime.jit import compile_ir
>>> code = load(compile_ir("define i64 @three() { ret i64 3 }"), ["three"])
>>> import ctypes
>>> ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("three"))()
3
>>> len(key_of(b"stem", "rows", streaming=False))
32
>>> generator_identity() != package_identity()
True
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from smelt import knobs
from smelt.errors import CodegenError
from smelt.journal.facts import CacheHit, CacheMiss, CacheStored, Journal
from smelt.kernel.artifact import CompiledKernel, Variant
from smelt.packages.version import __version__
from smelt.python.imports import fork_safe_import
from smelt.runtime import elf
from smelt.runtime.cache import Cache


class Loaded:
    """Executable code of one object; addresses are valid while this object is referenced."""

    __slots__ = ("_addresses", "_owner", "nbytes")

    def __init__(self, owner: Any, addresses: Mapping[str, int], nbytes: int) -> None:
        """Wrap addresses; `owner` unmaps the code when it is freed."""
        self._owner = owner
        self._addresses = dict(addresses)
        self.nbytes = nbytes

    def address(self, symbol: str) -> int:
        """Return where `symbol` starts; KeyError if it was not passed to `load`."""
        return self._addresses[symbol]


def load(object_code: bytes, symbols: Sequence[str]) -> Loaded:
    """Link `object_code` (ELF or Mach-O, position independent) and look up `symbols`.

    Undefined symbols resolve to those of the process (the C library's `memcpy`, `memset`, ...).
    Raises `CodegenError` if a symbol is missing. Safe to call from several threads.
    """
    if elf.can_link(object_code):
        try:
            image = elf.link(object_code, symbols)
        except elf.UnsupportedObject:
            pass
        except elf.MalformedObject as error:
            raise _link_error(object_code, error) from error
        else:
            return Loaded(image, image.addresses, image.nbytes)
    return load_by_llvm(object_code, symbols)


def load_by_llvm(object_code: bytes, symbols: Sequence[str]) -> Loaded:
    """Link any object with LLVM's linker; otherwise like `load`."""
    try:
        tracker = _jit().link(object_code, symbols)
    except RuntimeError as error:
        raise _link_error(object_code, error) from error
    return Loaded(tracker, {name: tracker[name] for name in symbols}, len(object_code))


def _link_error(object_code: bytes, error: Exception) -> CodegenError:
    return CodegenError(f"object code of {len(object_code)} bytes did not link: {error}")


@cache
def _jit() -> Any:
    """Import LLVM's linker on first use."""
    return fork_safe_import("smelt.runtime.jit")


MAX_CODE_BYTES: Final = 8 << 20
"""Limit in bytes of recently used code that stays loaded without a user.

Code takes whole pages; what is dropped is linked again.
"""


class LoadedKernel:
    """Loaded code of one kernel, and how to call it."""

    __slots__ = ("__weakref__", "compiled", "loaded")

    def __init__(self, built: CompiledKernel, loaded: Loaded) -> None:
        self.compiled = built
        self.loaded = loaded

    @property
    def nbytes(self) -> int:
        """Memory of the loaded code in bytes."""
        return self.loaded.nbytes


_LOCK = threading.RLock()
_ALIVE: WeakValueDictionary[bytes, LoadedKernel] = WeakValueDictionary()
"""Code in use by any plan, by key."""
_RECENT: OrderedDict[bytes, LoadedKernel] = OrderedDict()
"""Recently used code, oldest first."""


def key_of(stem: bytes, variant: Variant, streaming: bool) -> bytes:
    """Return the key of one variant of the kernel that `stem` identifies."""
    return hashlib.sha256(b"%s\0%d\0%s" % (stem, streaming, variant.encode())).digest()


def find(key: bytes, journal: Journal) -> LoadedKernel | None:
    """Return the code of a key, or None if it must be generated.

    Records in the journal where it came from.
    """
    with _LOCK:
        loaded = _ALIVE.get(key)
        if loaded is not None:
            _use(key, loaded)
    if loaded is not None:
        journal.record(CacheHit(key.hex(), "memory"))
        return loaded
    start = perf_counter()
    cache = _cache()
    entry = None if cache is None else cache.get(key)
    if entry is not None:
        try:
            code = _keep(key, _load_kernel(CompiledKernel.from_data(entry.meta, entry.code)))
        except (KeyError, TypeError, ValueError):  # intact, but of another format
            pass
        else:
            journal.record(CacheHit(key.hex(), "disk", perf_counter() - start))
            return code
    journal.record(CacheMiss(key.hex(), "no cache" if cache is None else cache.miss_reason(key)))
    return None


def add(key: bytes, built: CompiledKernel, journal: Journal) -> LoadedKernel:
    """Load newly generated code and store it for later processes."""
    cache = _cache()
    if cache is not None:
        cache.put(key, built.to_data(), built.code)
        journal.record(CacheStored(key.hex(), len(built.code)))
    return _keep(key, _load_kernel(built))


def forget() -> None:
    """Drop all lookups, as in a new process; code in use stays loaded."""
    with _LOCK:
        _ALIVE.clear()
        _RECENT.clear()


def _cache() -> Cache | None:
    return Cache.default() if knobs.CACHE.get() else None


def _load_kernel(built: CompiledKernel) -> LoadedKernel:
    return LoadedKernel(built, load(built.code, [f.symbol for f in built.functions]))


def _keep(key: bytes, code: LoadedKernel) -> LoadedKernel:
    """Return `code`, or the equal code that another thread loaded meanwhile."""
    with _LOCK:
        code = _ALIVE.setdefault(key, code)
        _use(key, code)
    return code


def _use(key: bytes, code: LoadedKernel) -> None:
    _RECENT[key] = code
    _RECENT.move_to_end(key)
    nbytes = sum(c.nbytes for c in _RECENT.values()) if len(_RECENT) % 64 == 0 else 0
    while nbytes > MAX_CODE_BYTES and len(_RECENT) > 1:
        nbytes -= _RECENT.popitem(last=False)[1].nbytes


# ---- identity of the code generator -------------------------------------------------------------
#
# There are two digests: of all modules, which decide a plan, and of those that decide the machine
# code for a kernel's text, so that changes to the planner keep compiled kernels valid. The latter
# are what the code generator imports, directly or not. Reading every module is too slow for a warm
# start, so both are cached under the modules' sizes and modification times, as Python caches byte
# code.

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
