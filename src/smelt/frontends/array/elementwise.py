"""Elementwise functions of the array API standard, and a few beyond it.

>>> sm.add(sm.asarray([1.0, 2.0]), 1)                       # doctest: +SKIP
Array([2., 3.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.frontends.array.array import Array, operand
from smelt.frontends.array.families import BINARY, UNARY


def _unary(name: str) -> Callable[[Any], Array]:
    family = UNARY[name]

    def f(x: Any, /) -> Array:
        return Array.of(family(operand(x)))

    f.__name__ = name
    return f


def _binary(name: str) -> Callable[[Any, Any], Array]:
    family = BINARY[name]

    def f(x1: Any, x2: Any, /) -> Array:
        return Array.of(family(operand(x1), operand(x2)))

    f.__name__ = name
    return f


add = _binary("add")
maximum = _binary("maximum")
log = _unary("log")
exp = _unary("exp")
