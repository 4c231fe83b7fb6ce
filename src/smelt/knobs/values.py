"""Parse and format the values of settings.

A parser takes text or a Python value and returns the typed value, or raises `ValueError` whose only
argument completes the sentence *... is not ...*.

>>> size("64MiB"), flag("off"), pairs("exp+sum")
(67108864, False, (('exp', 'sum'),))
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from smelt.python.imports import fork_safe_import

if TYPE_CHECKING:
    from pathlib import Path

Pairs = tuple[tuple[str, str], ...]
EVERYTHING: Pairs = (("*", "*"),)
"""The pair that stands for all operators of a program."""


def flag(value: object) -> bool:
    """Parse a switch: a boolean or a usual word for one."""
    text = str(value).strip().lower()
    if isinstance(value, bool) or text in ("0", "1", "on", "off", "true", "false", "yes", "no"):
        return text in ("1", "on", "true", "yes")
    raise ValueError("on or off")


def integer(low: int, high: int) -> Callable[[object], int]:
    """Return a parser of integers within inclusive bounds."""

    def parse(value: object) -> int:
        expected = f"an integer from {low} to {high}"
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(expected)
        return value

    return parse


def threads(value: object) -> int:
    """Parse a number of threads; 0 and auto mean all available ones."""
    return 0 if isinstance(value, str) and value.strip().lower() == "auto" else _count(value)


_count = integer(0, 1024)
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS = {"": 1, "b": 1, **_DECIMAL, **{name.lower(): size for name, size in _BINARY.items()}}


def size(value: object) -> int:
    """Parse a number of bytes, with or without a unit; KiB are binary, KB decimal."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    source = value if isinstance(value, str) else ""
    match = re.fullmatch(r"\s*(\d{1,20})(?:\.(\d{1,20}))?\s*([a-zA-Z]*)\s*", source)
    unit = _UNITS.get(match[3].lower()) if match else None
    if match is not None and unit is not None:
        part = match[2] or "0"  # exact integers: a float has 53 bits
        count = int(match[1]) * unit + int(part) * unit // 10 ** len(part)
        if count < 2**63:
            return count
    raise ValueError("a number of bytes such as 4096, '64MiB' or '1GiB'")


def limit(value: object) -> int | None:
    """Parse a number of bytes, or None for no limit."""
    none = value is None or str(value).strip().lower() in ("none", "")
    return None if none else size(value)


def choice(*names: str) -> Callable[[object], Any]:
    """Return a parser of one word out of several."""

    def parse(value: object) -> str:
        text = str(value).strip().lower()
        if isinstance(value, bool):  # on and off may be passed as booleans
            text = "on" if value else "off"
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return parse


def directory(value: object) -> Path | None:
    """Parse a path and expand `~`; None for no path."""
    if value is None or value == "":
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("a path")
    try:
        return cast("Path", fork_safe_import("pathlib").Path(value).expanduser())
    except RuntimeError:  # ~nobody
        raise ValueError("a directory of a known user") from None


def text(value: object) -> str:
    """Parse any string."""
    if not isinstance(value, str):
        raise ValueError("a string")
    return value.strip()


def _parse_groups(value: object, expected: str) -> list[Any]:
    """Return the groups in a text or list; plain names are one group."""
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
    """Parse pairs of names: `a+b,c+d`, a list of tuples, or one pair.

    >>> pairs("a+b, c+d"), pairs([("a", "b")]), pairs(("a", "b"))
    ((('a', 'b'), ('c', 'd')), (('a', 'b'),), (('a', 'b'),))
    """
    expected = "pairs of names: 'a+b,c+d' or [('a', 'b'), ('c', 'd')]"
    result: list[tuple[str, str]] = []
    for pair in _parse_groups(value, expected):
        names = tuple(pair) if isinstance(pair, (tuple, list)) else ()
        if len(names) != 2 or not all(isinstance(name, str) and name for name in names):
            raise ValueError(expected)
        result.append((names[0], names[1]))
    return tuple(result)


def groups(value: object) -> Pairs:
    """Parse groups of names into pairs of neighbours; `all` means everything.

    >>> groups("a+b+c,d+e"), groups([("a", "b", "c")]), groups("all")
    ((('a', 'b'), ('b', 'c'), ('d', 'e')), (('a', 'b'), ('b', 'c')), (('*', '*'),))
    >>> groups(("a", "b", "c")), groups(["a+b", "d+e"])
    ((('a', 'b'), ('b', 'c')), (('a', 'b'), ('d', 'e')))
    """
    if value is True or (isinstance(value, str) and value.strip().lower() in ("all", "*+*")):
        return EVERYTHING
    expected = "all, or groups of names: 'a+b+c,d+e' or [('a', 'b', 'c'), ('d', 'e')]"
    result: list[tuple[str, str]] = []
    for group in _parse_groups(value, expected):
        names: list[Any] = list(group) if isinstance(group, (tuple, list)) else []
        if len(names) < 2:
            raise ValueError(expected)
        try:
            result += pairs(list(pairwise(names)))
        except ValueError:
            raise ValueError(expected) from None
    return tuple(result)


def show_bytes(count: int | None) -> str:
    """Format a number of bytes for people.

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
    """Format a switch as on or off."""
    return "on" if value else "off"


def show_pairs(value: Pairs) -> str:
    """Format pairs as the text that `pairs` reads."""
    return ",".join(f"{a}+{b}" for a, b in value) or "none"
