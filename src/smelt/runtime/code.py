"""Kernels' machine code in this process: looked up by key, in memory and on disk, loaded once.

A key is a digest: the *stem* covers what decides a kernel's code (its text, the generator, the
processor), and the key of one of its forms follows from it.  Whoever knows the stem finds the code
without knowing the kernel: that is how a stored plan names its kernels.

Code stays loaded while a plan uses it; of the rest, what was used last is kept, up to
`MOST_BYTES`.

>>> len(key_of(b"stem", "rows", streaming=False))
32
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from time import perf_counter
from typing import Final
from weakref import WeakValueDictionary

from smelt import knobs
from smelt.journal import CacheHit, CacheMiss, CacheStored, Journal
from smelt.kernel.artifact import Built, Form
from smelt.runtime.cache import Cache
from smelt.runtime.loader import Loaded, load

__all__ = ["Code", "add", "find", "forget", "key_of"]

MOST_BYTES: Final = 32 << 20
"""Of code that is kept although nothing may be using it."""


class Code:
    """Code of one kernel in memory, and how it is called."""

    __slots__ = ("__weakref__", "built", "loaded")

    def __init__(self, built: Built, loaded: Loaded) -> None:
        self.built = built
        self.loaded = loaded

    @property
    def nbytes(self) -> int:
        """Bytes of the object."""
        return self.loaded.nbytes


_LOCK = threading.RLock()
_ALIVE: WeakValueDictionary[bytes, Code] = WeakValueDictionary()
_RECENT: OrderedDict[bytes, Code] = OrderedDict()


def key_of(stem: bytes, form: Form, streaming: bool) -> bytes:
    """The key of one form of the kernel that `stem` stands for."""
    return hashlib.sha256(b"%s\0%d\0%s" % (stem, streaming, form.encode())).digest()


def find(key: bytes, journal: Journal) -> Code | None:
    """The code of a key; None if it must be generated.  Says in the journal where it came from."""
    with _LOCK:
        known = _ALIVE.get(key)
        if known is not None:
            _use(key, known)
    if known is not None:
        journal.record(CacheHit(key.hex(), "memory"))
        return known
    start = perf_counter()
    cache = _cache()
    entry = None if cache is None else cache.get(key)
    if entry is not None:
        try:
            found = _keep(key, _loaded(Built.read(entry.meta, entry.code)))
        except (KeyError, TypeError, ValueError):  # whole, but nothing of ours
            pass
        else:
            journal.record(CacheHit(key.hex(), "disk", perf_counter() - start))
            return found
    journal.record(CacheMiss(key.hex(), "no cache" if cache is None else cache.why(key)))
    return None


def add(key: bytes, built: Built, journal: Journal) -> Code:
    """Load what was just generated and store it for the next process."""
    cache = _cache()
    if cache is not None:
        cache.put(key, built.facts(), built.code)
        journal.record(CacheStored(key.hex(), len(built.code)))
    return _keep(key, _loaded(built))


def forget() -> None:
    """Know of nothing, as a new process does; code in use stays where it is."""
    with _LOCK:
        _ALIVE.clear()
        _RECENT.clear()


def _cache() -> Cache | None:
    return Cache.default() if knobs.CACHE.get() else None


def _loaded(built: Built) -> Code:
    return Code(built, load(built.code, [f.symbol for f in built.functions]))


def _keep(key: bytes, code: Code) -> Code:
    """`code`, or the same that another thread has loaded meanwhile."""
    with _LOCK:
        code = _ALIVE.setdefault(key, code)
        _use(key, code)
    return code


def _use(key: bytes, code: Code) -> None:
    _RECENT[key] = code
    _RECENT.move_to_end(key)
    held = sum(c.nbytes for c in _RECENT.values()) if len(_RECENT) % 64 == 0 else 0
    while held > MOST_BYTES and len(_RECENT) > 1:
        held -= _RECENT.popitem(last=False)[1].nbytes
