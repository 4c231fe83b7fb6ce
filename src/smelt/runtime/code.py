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
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache
from time import perf_counter
from typing import Any, Final
from weakref import WeakValueDictionary

from smelt import knobs
from smelt.errors import CodegenError
from smelt.journal.facts import CacheHit, CacheMiss, CacheStored, Journal
from smelt.kernel.artifact import CompiledKernel, Variant
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
