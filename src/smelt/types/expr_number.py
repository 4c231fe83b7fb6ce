"""Evaluate integer expressions once their variables have numbers.

>>> from smelt.types.expr import axis, size
>>> evaluate(size("n") * 4 - axis("i", 8) // 2, {"n": 3}, {"i": 5})
10
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smelt.types.expr import Atom, Index

__all__ = ["evaluate"]


def evaluate(e: Index, sizes: Mapping[str, Any], axes: Mapping[str, Any] | None = None) -> Any:
    """Return the value of `e`, an array if axes are arrays.

    Raises KeyError for a variable without a value.
    """
    if isinstance(e, int):
        return e
    total: Any = 0
    for m, c in e.terms:
        part: Any = c
        for atom in m:
            part = part * _evaluate_atom(atom, sizes, axes)
        total = total + part
    return total


def _evaluate_atom(atom: Atom, sizes: Mapping[str, Any], axes: Mapping[str, Any] | None) -> Any:
    if atom.kind == "size":
        return sizes[atom.name]
    if atom.kind in ("axis", "value"):
        return (axes or {})[atom.name]
    a, b = (evaluate(x, sizes, axes) for x in atom.args)
    if atom.kind in ("//", "%"):
        return a // b if atom.kind == "//" else a % b
    return (a + b - abs(a - b)) // 2 if atom.kind == "min" else (a + b + abs(a - b)) // 2
