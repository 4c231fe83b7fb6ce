"""What has been proved about formulas, kept in the user's cache under the claim's text.

shelve(SHELF)     # where `smelt.fusion.cascade.proofs` looks before it proves anything
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

from smelt import knobs
from smelt.runtime.cache import Cache


class Shelf(Protocol):
    """Where claims are looked up and put."""

    get: Callable[[str], bool | None]
    put: Callable[[str, bool], None]


def shelve(shelf: Shelf, version: int) -> None:
    """Keeps the claims of a shelf in the cache; those of another version are not seen."""

    def key(text: str) -> bytes:
        return b"smelt proof " + hashlib.sha256(f"{version} {text}".encode()).digest()

    def get(text: str) -> bool | None:
        entry = Cache.default().get(key(text)) if knobs.CACHE.get() else None
        found = None if entry is None else entry.meta.get("holds")
        return found if isinstance(found, bool) else None

    def put(text: str, holds: bool) -> None:
        if knobs.CACHE.get():
            Cache.default().put(key(text), {"what": "proof", "holds": holds}, b"")

    shelf.get, shelf.put = get, put
