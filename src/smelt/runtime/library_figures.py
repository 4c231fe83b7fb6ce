"""Figures of a library's products against ours, stored with the machine's other figures.

`smelt doctor --probe` measures them (`smelt.tune.library_speed`); nothing else does, and without
them every product is ours. They are stored in a file of their own next to the machine's, by
library, number of threads, shape class and type, as the nanoseconds of both.

>>> ratios({"numpy": {"2": {"large f32": (200.0, 100.0)}}}, "numpy", 2)
{'large f32': 0.5}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, cast

from smelt.runtime.cache import Cache
from smelt.runtime.cache_files import Folder, Refused
from smelt.runtime.host import MAX_STORED_BYTES, machine_id
from smelt.target import Target

__all__ = ["Figures", "load", "ratios", "store"]

FORMAT = 1
"""Version of the stored file and of the way of measuring."""

Figures: TypeAlias = Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]
"""Nanoseconds of our product and of the library's: by library, threads, and class with type."""


def ratios(figures: Figures, library: str, threads: int) -> dict[str, float]:
    """Return a library's times as shares of ours, by class and type."""
    measured = figures.get(library, {}).get(str(threads), {})
    return {name: theirs / ours for name, (ours, theirs) in measured.items()}


def load(target: Target) -> Figures:
    """Return the stored figures of a machine; empty if it was not measured."""
    place = Cache.default().path
    return {} if place is None else _load(place, machine_id(target))


@lru_cache(maxsize=16)
def _load(place: Path, machine: str) -> Figures:
    try:
        with Folder(place).open(create=False) as files:
            data: Any = json.loads(files.read(_file_name(machine), MAX_STORED_BYTES))
        if data["format"] != FORMAT or data["machine"] != machine:
            return {}
        return _checked(data["figures"])
    except (Refused, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _checked(data: Any) -> Figures:
    """Return figures read from a file; raise ValueError if one is impossible."""
    figures = {
        str(library): {
            str(threads): {
                str(name): (float(pair[0]), float(pair[1]))
                for name, pair in cast("dict[str, Any]", rows).items()
            }
            for threads, rows in cast("dict[str, Any]", by_threads).items()
        }
        for library, by_threads in cast("dict[str, Any]", data).items()
    }
    for by_threads in figures.values():
        for rows in by_threads.values():
            if not all(0 < ns < 1e15 for pair in rows.values() for ns in pair):
                raise ValueError("an impossible time of a product")
    return figures


def store(target: Target, figures: Figures) -> Path | None:
    """Store figures, keeping those of other libraries; None if the folder cannot be used."""
    place, machine = Cache.default().path, machine_id(target)
    if place is None:
        return None
    data = {"format": FORMAT, "machine": machine, "figures": {**load(target), **figures}}
    try:
        with Folder(place).open(create=True) as files:
            files.publish(_file_name(machine), json.dumps(data, indent=1).encode())
    except (Refused, OSError):
        return None
    _load.cache_clear()
    return place / _file_name(machine)


def _file_name(machine: str) -> str:
    return f"libraries-{machine}.json"
