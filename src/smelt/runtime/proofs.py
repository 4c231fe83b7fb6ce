"""Persist proofs about formulas in the user's cache, keyed by the claim's text.

shelve(SHELF, VERSION)     # `smelt.fusion.cascade.proofs` looks there before proving
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

from smelt import knobs
from smelt.runtime.cache import Cache


class ClaimStore(Protocol):
    """Store of claims that is looked up and filled through `get` and `put`."""

    get: Callable[[str], bool | None]
    put: Callable[[str, bool], None]


def persist_claims(shelf: ClaimStore, version: int) -> None:
    """Back a shelf with the cache; entries of other versions are ignored."""

    def key(text: str) -> bytes:
        return b"smelt proof " + hashlib.sha256(f"{version} {text}".encode()).digest()

    def get(text: str) -> bool | None:
        entry = Cache.default().get(key(text)) if knobs.CACHE.get() else None
        holds = None if entry is None else entry.meta.get("holds")
        return holds if isinstance(holds, bool) else None

    def put(text: str, holds: bool) -> None:
        if knobs.CACHE.get():
            Cache.default().put(key(text), {"what": "proof", "holds": holds}, b"")

    shelf.get, shelf.put = get, put
