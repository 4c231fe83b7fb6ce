"""Map scalar operators to a computer algebra system, for proofs about formulas.

Only operators that proofs need are included; a test compares each with its reference.  The system
is an argument, so that nothing imports it before there is something to prove.

    MEANINGS["sigmoid"](sympy, x)      # 1/(exp(-x) + 1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

SYSTEM = "sympy"
"""The package of the computer algebra system."""


@cache
def has_system() -> bool:
    """Whether the computer algebra system is installed."""
    return find_spec(SYSTEM) is not None


Meaning = Callable[..., Any]

MEANINGS: Mapping[str, Meaning] = {
    "add": lambda s, x, y: x + y,
    "sub": lambda s, x, y: x - y,
    "mul": lambda s, x, y: x * y,
    "div": lambda s, x, y: x / y,
    "neg": lambda s, x: -x,
    "abs": lambda s, x: s.Abs(x),
    "square": lambda s, x: x**2,
    "reciprocal": lambda s, x: 1 / x,
    "sqrt": lambda s, x: s.sqrt(x),
    "rsqrt": lambda s, x: 1 / s.sqrt(x),
    "pow": lambda s, x, y: x**y,
    "exp": lambda s, x: s.exp(x),
    "exp2": lambda s, x: s.Integer(2) ** x,
    "expm1": lambda s, x: s.exp(x) - 1,
    "log": lambda s, x: s.log(x),
    "log1p": lambda s, x: s.log(1 + x),
    "log2": lambda s, x: s.log(x) / s.log(2),
    "log10": lambda s, x: s.log(x) / s.log(10),
    "sin": lambda s, x: s.sin(x),
    "cos": lambda s, x: s.cos(x),
    "sinh": lambda s, x: s.sinh(x),
    "cosh": lambda s, x: s.cosh(x),
    "tanh": lambda s, x: s.tanh(x),
    "sigmoid": lambda s, x: 1 / (1 + s.exp(-x)),
}
"""Functions of the system and the operands, by operator name."""
