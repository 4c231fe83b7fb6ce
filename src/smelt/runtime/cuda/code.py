"""Find the code of kernels for a device by key, loading it once.

A key is a digest of everything that decides the code: text, constants, architecture, compiler. On
disk, entries have the CPU's rules (`smelt.runtime.cache`): private, with a checksum, written
atomically.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

from smelt import knobs
from smelt.journal.facts import CacheHit, CacheMiss, CacheStored, Journal
from smelt.kernel.device_code import DeviceCode
from smelt.runtime.cache import Cache
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.tables import ONLY_LOADED, CodeNotLoaded, LoadedCode

_LOCK: Final = threading.Lock()
_ALIVE: Final = WeakValueDictionary[tuple[int, bytes], LoadedCode]()
"""Code in use by any plan, by the context it is loaded in and its key."""
_SEARCHES: Final = WeakValueDictionary[bytes, threading.Lock]()
"""Held by a thread that looks for code, by its name: the others find what it has compiled."""


def find_loaded(
    device: Device,
    name: bytes,
    prepare: Callable[[], tuple[bytes, Callable[[], DeviceCode]]],
    journal: Journal,
) -> LoadedCode:
    """Return loaded code by a name for its source; compile it unless cached.

    A name is a digest of all that `prepare` reads, which returns the key and what compiles the
    code: many names (sizes) may have one key, and a name that is known needs no source printed.
    The journal records where the code came from. Raises what `prepare` and the compiler raise,
    DriverCallError for an image that the driver refuses, and CodeNotLoaded under `ONLY_LOADED`.
    """
    with _LOCK:
        search = _SEARCHES.setdefault(name, threading.Lock())
    with search:
        return _find_or_compile(device, name, prepare, journal)


def _find_or_compile(
    device: Device,
    name: bytes,
    prepare: Callable[[], tuple[bytes, Callable[[], DeviceCode]]],
    journal: Journal,
) -> LoadedCode:
    store = Cache.default() if knobs.CACHE.get() else None
    named = None if store is None else store.get(name)
    if named is not None and (key := _key_of(named.meta)) is not None:
        loaded = _find(device, key, store, journal)
        if loaded is not None:
            return loaded
    key, compile_code = prepare()
    loaded = _find(device, key, store, journal)
    if loaded is None:
        journal.record(CacheMiss(key.hex(), "no cache" if store is None else "not stored"))
        code = compile_code()
        if store is not None:
            _put(store, key, code)
            journal.record(CacheStored(key.hex(), sum(map(len, code.images))))
        loaded = _load(device, key, code)
    if store is not None:
        store.put(name, {"what": "name of code for a GPU", "key": key.hex()}, b"")
    return loaded


def _key_of(meta: Mapping[str, Any]) -> bytes | None:
    """Return the key that a name stands for; None for an entry of another form."""
    try:
        return bytes.fromhex(meta["key"])
    except (KeyError, TypeError, ValueError):
        return None


def _find(device: Device, key: bytes, store: Cache | None, journal: Journal) -> LoadedCode | None:
    """Return code that is loaded, or stored and loaded now."""
    with _LOCK:
        loaded = _ALIVE.get((id(device), key))
    if loaded is not None and loaded.modules[0].device is device:
        journal.record(CacheHit(key.hex(), "memory"))
        return loaded
    if ONLY_LOADED.get():
        raise CodeNotLoaded(key.hex())
    code = None if store is None else _stored(store, key)
    if code is None:
        return None
    journal.record(CacheHit(key.hex(), "disk"))
    return _load(device, key, code)


def _load(device: Device, key: bytes, code: DeviceCode) -> LoadedCode:
    loaded = LoadedCode(code, tuple(device.load(image) for image in code.images))
    with _LOCK:
        _ALIVE[id(device), key] = loaded
    return loaded


def store_code(key: bytes, code: DeviceCode) -> None:
    """Store code under a key, in place of what is stored there or loaded."""
    if knobs.CACHE.get():
        with _LOCK:
            for loaded in [x for x in _ALIVE if x[1] == key]:
                del _ALIVE[loaded]
        _put(Cache.default(), key, code)


def stored_code(key: bytes) -> DeviceCode | None:
    """Return the code that is stored under a key, or None."""
    return _stored(Cache.default(), key) if knobs.CACHE.get() else None


def _put(store: Cache, key: bytes, code: DeviceCode) -> None:
    store.put(key, code.to_data(), b"".join(code.images))


def _stored(store: Cache, key: bytes) -> DeviceCode | None:
    """Return the code of an entry, or None if it is missing or malformed."""
    entry = store.get(key)
    if entry is None:
        return None
    try:
        return DeviceCode.from_data(entry.meta, entry.code)
    except (KeyError, TypeError, ValueError):
        return None
