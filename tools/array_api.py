"""Say what each function of the array API standard is here, for docs/array_api.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import array_api_strict as strict

__all__ = ["EXCEPTIONS", "Exception_", "functions", "named"]

LATER = {"isin", "broadcast_shapes", "linalg.eig", "linalg.eigvals"}
"""Functions of the standard of 2025."""


class named(NamedTuple):
    """A dtype by its name in the standard."""

    name: str


def functions() -> list[str]:
    """Return the functions of the standard, those of extensions with their module."""
    names: list[str] = []
    for prefix, space in (("", strict), ("linalg.", strict.linalg), ("fft.", strict.fft)):
        for name in space.__all__:
            function = getattr(space, name)
            known = inspect.isfunction(function) and "strict_flags" not in name
            if known and prefix + name not in LATER:
                names.append(prefix + name)
    return names


class Exception_(NamedTuple):
    functions: tuple[str, ...]
    holds: Callable[..., bool]
    what: str


EXCEPTIONS: tuple[Exception_, ...] = ()
