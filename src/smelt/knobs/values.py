"""What the values of settings look like: parsers from text or Python values, and printers.

A parser takes what was given and returns the typed value, or raises `ValueError` whose only
argument completes the sentence *... is not ...*.

>>> size("64MiB"), flag("off"), pairs("exp+sum")
(67108864, False, (('exp', 'sum'),))
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

Pairs = tuple[tuple[str, str], ...]
EVERYTHING: Pairs = (("*", "*"),)
"""The pair that stands for all operators of a program."""


def flag(value: object) -> bool:
    """A switch: booleans and the usual words for them."""
    text = str(value).strip().lower()
    if isinstance(value, bool) or text in ("0", "1", "on", "off", "true", "false", "yes", "no"):
        return text in ("1", "on", "true", "yes")
    raise ValueError("on or off")


def integer(low: int, high: int) -> Callable[[object], int]:
    """A parser of integers within inclusive bounds."""

    def parse(value: object) -> int:
        expected = f"an integer from {low} to {high}"
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(expected)
        return value

    return parse


def threads(value: object) -> int:
    """A number of threads; 0 and auto mean as many as there are."""
    return 0 if isinstance(value, str) and value.strip().lower() == "auto" else _count(value)


_count = integer(0, 1024)
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS = {"": 1, "b": 1, **_DECIMAL, **{name.lower(): size for name, size in _BINARY.items()}}


def size(value: object) -> int:
    """A number of bytes, with a unit or without; KiB are binary, KB decimal."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    written = value if isinstance(value, str) else ""
    found = re.fullmatch(r"\s*(\d{1,20})(?:\.(\d{1,20}))?\s*([a-zA-Z]*)\s*", written)
    unit = _UNITS.get(found[3].lower()) if found else None
    if found is not None and unit is not None:
        part = found[2] or "0"  # exact integers: a float has 53 bits
        count = int(found[1]) * unit + int(part) * unit // 10 ** len(part)
        if count < 2**63:
            return count
    raise ValueError("a number of bytes such as 4096, '64MiB' or '1GiB'")


def limit(value: object) -> int | None:
    """A number of bytes, or None for no limit."""
    none = value is None or str(value).strip().lower() in ("none", "")
    return None if none else size(value)


def choice(*names: str) -> Callable[[object], Any]:
    """A parser of one word of several."""

    def parse(value: object) -> str:
        text = str(value).strip().lower()
        if isinstance(value, bool):  # on and off may be written as what they are
            text = "on" if value else "off"
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return parse


def directory(value: object) -> Path | None:
    """A path with `~` expanded, or None."""
    if value is None or value == "":
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("a path")
    try:
        return Path(cast("str", value)).expanduser()
    except RuntimeError:  # ~nobody
        raise ValueError("a directory of a known user") from None


def text(value: object) -> str:
    """Any string."""
    if not isinstance(value, str):
        raise ValueError("a string")
    return value.strip()


def _listed(value: object, expected: str) -> list[Any]:
    """The groups in a text, or in a list of texts or of tuples; names alone are one group."""
    if isinstance(value, str):
        value = value.replace(" ", "").split(",")
    elif isinstance(value, Iterable):
        value = list(cast("Iterable[Any]", value))
        if value and all(isinstance(name, str) and "+" not in name for name in value):
            return [value]
    else:
        raise ValueError(expected)
    return [group.split("+") if isinstance(group, str) else group for group in value if group != ""]


def pairs(value: object) -> Pairs:
    """Pairs of names, as `a+b,c+d`, as a list of tuples, or one pair alone.

    >>> pairs("a+b, c+d"), pairs([("a", "b")]), pairs(("a", "b"))
    ((('a', 'b'), ('c', 'd')), (('a', 'b'),), (('a', 'b'),))
    """
    expected = "pairs of names: 'a+b,c+d' or [('a', 'b'), ('c', 'd')]"
    found: list[tuple[str, str]] = []
    for pair in _listed(value, expected):
        names = tuple(pair) if isinstance(pair, (tuple, list)) else ()
        if len(names) != 2 or not all(isinstance(name, str) and name for name in names):
            raise ValueError(expected)
        found.append((names[0], names[1]))
    return tuple(found)


def groups(value: object) -> Pairs:
    """Names that belong together, as pairs of neighbours; `all` for everything.

    >>> groups("a+b+c,d+e"), groups([("a", "b", "c")]), groups("all")
    ((('a', 'b'), ('b', 'c'), ('d', 'e')), (('a', 'b'), ('b', 'c')), (('*', '*'),))
    >>> groups(("a", "b", "c")), groups(["a+b", "d+e"])
    ((('a', 'b'), ('b', 'c')), (('a', 'b'), ('d', 'e')))
    """
    if value is True or (isinstance(value, str) and value.strip().lower() in ("all", "*+*")):
        return EVERYTHING
    expected = "all, or groups of names: 'a+b+c,d+e' or [('a', 'b', 'c'), ('d', 'e')]"
    found: list[tuple[str, str]] = []
    for group in _listed(value, expected):
        names: list[Any] = list(group) if isinstance(group, (tuple, list)) else []
        if len(names) < 2:
            raise ValueError(expected)
        try:
            found += pairs(list(pairwise(names)))
        except ValueError:
            raise ValueError(expected) from None
    return tuple(found)


def show_bytes(count: int | None) -> str:
    """A number of bytes for people.

    >>> show_bytes(1610612736), show_bytes(4096), show_bytes(17), show_bytes(None)
    ('1.5 GiB', '4 KiB', '17 B', 'none')
    """
    if count is None:
        return "none"
    for unit, size_of_unit in reversed(_BINARY.items()):
        if count >= size_of_unit:
            number = count / size_of_unit
            return f"{number:.4g} {unit}" if number < 9999 else f"{number:.0f} {unit}"
    return f"{count} B"


def show_flag(value: bool) -> str:
    """on or off."""
    return "on" if value else "off"


def show_pairs(value: Pairs) -> str:
    """The text that `pairs` reads."""
    return ",".join(f"{a}+{b}" for a, b in value) or "none"
