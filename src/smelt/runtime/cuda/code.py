"""Find the code of kernels for a device by key, loading it once.

A key is a digest of everything that decides the code: text, constants, architecture, compiler. On
disk, entries have the CPU's rules (`smelt.runtime.cache`): private, with a checksum, written
atomically.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from smelt import knobs
from smelt.journal import CacheHit, CacheMiss, CacheStored, Journal
from smelt.kernel.device_code import DeviceCode
from smelt.runtime.cache import Cache
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.tables import LoadedCode

__all__ = ["find_or_compile"]

_LOCK: Final = threading.Lock()
_ALIVE: Final = WeakValueDictionary[tuple[int, bytes], LoadedCode]()
"""Code in use by any plan, by the context it is loaded in and its key."""


def find_or_compile(
    device: Device, key: bytes, compile_code: Callable[[], DeviceCode], journal: Journal
) -> LoadedCode:
    """Return loaded code by its key; compile it unless it is cached.

    The journal records where it came from. Raises the compiler's errors, and DriverCallError for
    an image that the driver refuses.
    """
    place = id(device), key
    with _LOCK:
        loaded = _ALIVE.get(place)
    if loaded is not None and loaded.modules[0].device is device:
        journal.record(CacheHit(key.hex(), "memory"))
        return loaded
    store = Cache.default() if knobs.CACHE.get() else None
    code = None if store is None else _stored(store, key)
    if code is None:
        journal.record(CacheMiss(key.hex(), "no cache" if store is None else "not stored"))
        code = compile_code()
        if store is not None:
            store.put(key, code.to_data(), b"".join(code.images))
            journal.record(CacheStored(key.hex(), sum(map(len, code.images))))
    else:
        journal.record(CacheHit(key.hex(), "disk"))
    loaded = LoadedCode(code, tuple(device.load(image) for image in code.images))
    with _LOCK:
        _ALIVE[place] = loaded
    return loaded


def _stored(store: Cache, key: bytes) -> DeviceCode | None:
    """Return the code of an entry, or None if it is missing or malformed."""
    entry = store.get(key)
    if entry is None:
        return None
    try:
        return DeviceCode.from_data(entry.meta, entry.code)
    except (KeyError, TypeError, ValueError):
        return None
