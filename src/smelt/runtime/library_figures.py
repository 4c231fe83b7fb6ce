"""Figures of a library's products against ours, stored with the machine's other figures.

`smelt.tune.race` measures them, for `smelt doctor --probe` or in the background of
programs with such products; without them every product is ours. They are stored in a file of their
own next to the machine's, by library, number of threads, shape class and type, as the nanoseconds
of both. What is measured in the background counts once two tries agree (`settled`).

>>> ratios({"numpy": {"2": {"large f32": (200.0, 100.0)}}}, "numpy", 2)
{'large f32': 0.5}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from smelt import knobs
from smelt.machine.target import Target
from smelt.ops.library_product import CLEAR_GAIN, Library, Wish, provider
from smelt.runtime.cache import Cache, Folder, Refused
from smelt.runtime.figures import AGREEMENT
from smelt.runtime.host import MAX_STORED_BYTES, machine_id
from smelt.runtime.threads import default_threads
from smelt.types.json_data import from_data

FORMAT = 2
"""Version of the stored file and of the way of measuring."""

Figures: TypeAlias = Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]
"""Nanoseconds of our product and of the library's: by library, threads, and class with type."""


MAX_TRIES = 4
"""Tries of a class: if no two of them agree then, products of it stay ours."""

Try: TypeAlias = tuple[float, float]
Tries: TypeAlias = Mapping[str, tuple[Try, ...]]


def settled(pairs: Sequence[Try]) -> Try | None:
    """Return the best times of both sides if two tries agree on their ratio.

    >>> settled([(200.0, 100.0)]), settled([(200.0, 100.0), (220.0, 115.0), (90.0, 100.0)])
    (None, (200.0, 100.0))
    >>> settled([(200.0, 100.0), (200.0, 300.0)])
    """
    ordered = sorted(pairs, key=lambda pair: pair[1] / pair[0])
    for (a, b), (c, d) in pairwise(ordered):
        if d / c <= (1 + AGREEMENT) * b / a:
            return min(a, c), min(b, d)
    return None


def ratios(figures: Figures, library: str, threads: int) -> dict[str, float]:
    """Return a library's times as shares of ours, by class and type."""
    measured = figures.get(library, {}).get(str(threads), {})
    return {name: theirs / ours for name, (ours, theirs) in measured.items()}


def load(target: Target) -> Figures:
    """Return the stored figures of a machine; empty if it was not measured."""
    place = Cache.default().path
    return {} if place is None else _load(place, machine_id(target))


def tries(target: Target) -> Tries:
    """Return the tries of classes that are not settled, by library, threads and class."""
    place = Cache.default().path
    data = None if place is None else _read(place, machine_id(target))
    try:
        read: Tries = from_data(Tries, (data or {}).get("tries", {}))
    except (ValueError, TypeError, AttributeError):
        return {}
    return read


def add_try(target: Target, library: str, threads: int, name: str, pair: Try) -> None:
    """Store one try of a class: the times become figures once two tries agree."""
    key = f"{library} {threads} {name}"
    unsettled = dict(tries(target))
    pairs = (*unsettled.pop(key, ()), pair)
    figures: Figures = {}
    if (times := settled(pairs)) is not None:
        rows = load(target).get(library, {})
        figures = {library: {**rows, str(threads): {**rows.get(str(threads), {}), name: times}}}
    else:
        unsettled[key] = pairs
    _store(target, figures, unsettled)


@lru_cache(maxsize=16)
def _load(place: Path, machine: str) -> Figures:
    data = _read(place, machine)
    try:
        return {} if data is None else _checked(data["figures"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _read(place: Path, machine: str) -> dict[str, Any] | None:
    try:
        with Folder(place).open(create=False) as files:
            data: Any = json.loads(files.read(_file_name(machine), MAX_STORED_BYTES))
        is_current = data["format"] == FORMAT and data["machine"] == machine
    except (Refused, OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return data if is_current else None


def _checked(data: Any) -> Figures:
    """Return figures read from a file; raise ValueError if one is impossible."""
    figures: Figures = from_data(Figures, data)
    for by_threads in figures.values():
        for rows in by_threads.values():
            if not all(0 < ns < 1e15 for pair in rows.values() for ns in pair):
                raise ValueError("an impossible time of a product")
    return figures


def store(target: Target, figures: Figures) -> Path | None:
    """Store figures, keeping those of other libraries; None if the folder cannot be used."""
    return _store(target, figures, tries(target))


def _store(target: Target, figures: Figures, open_tries: Mapping[str, Any]) -> Path | None:
    place, machine = Cache.default().path, machine_id(target)
    if place is None:
        return None
    content = {"figures": {**load(target), **figures}, "tries": open_tries}
    data = {"format": FORMAT, "machine": machine, **content}
    try:
        with Folder(place).open(create=True) as files:
            files.publish(_file_name(machine), json.dumps(data, indent=1).encode())
    except (Refused, OSError):
        return None
    _load.cache_clear()
    return place / _file_name(machine)


def _file_name(machine: str) -> str:
    return f"libraries-{machine}.json"


def library_wish() -> Wish:
    """Return the setting in force: a library rounds otherwise, and is not our code."""
    if knobs.ROUNDING.get() == "exact" or knobs.STRICT.get() or not knobs.FUSE.get():
        return "never"
    return knobs.LIBRARY_PRODUCTS.get()


def usable_library(target: Target) -> Library:
    """Return the library in use, with its figures for the threads of a call.

    A library of more threads than a call may take is not called: it would take the others' cores.
    """
    library = provider()
    allowed = knobs.THREADS.get() or default_threads()
    figures = ratios(load(target), library.name, allowed)
    if not figures and library_wish() in ("auto", "never"):
        return Library(library)  # nothing is called: a library's threads are not asked for
    threads = library.get_threads()
    return Library(
        library,
        figures if threads in (None, allowed) else {},
        threads is None or threads <= allowed,
    )


def library_identity(target: Target) -> str:
    """Return what a plan depends on besides the setting; empty if it calls no library."""
    wish = library_wish()
    if wish == "never":
        return ""
    library = usable_library(target)
    if wish == "auto" and not library.ratios:
        return ""
    faster = sorted(name for name, ratio in library.ratios.items() if ratio < CLEAR_GAIN)
    if wish == "auto" and not faster:
        return ""
    return f"{library.provider.name} {library.may_run} {', '.join(faster)}"
