"""Say what scalar operators mean, for proofs: as formulas of an algebra system, as truth tables.

Only operators that proofs need have formulas; a test compares each with its reference.  The system
is an argument, so that nothing imports it before there is something to prove.  What an operator
says about signs and truth values is read off by evaluating its reference.

    MEANINGS["sigmoid"](sympy, x)      # 1/(exp(-x) + 1)

>>> sorted(sign_table("le"))
[(-1, True), (0, True), (1, False)]
>>> prime_implicants("or", 2, True)
(((0, True),), ((1, True),))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product as every
from typing import Any, TypeAlias

import numpy as np

from smelt.ops.scalar import SCALARS

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


Implicant: TypeAlias = tuple[tuple[int, bool], ...]
"""Operands by number with values that together imply a result."""


@cache
def sign_table(op: str) -> frozenset[tuple[int, bool]]:
    """Return the results of an operator on two integers by the sign of their difference."""
    row = SCALARS[op]
    return frozenset(
        (sign, bool(row.numpy(np.int64(sign * distance + base), np.int64(base))))
        for sign, distance, base in every((-1, 0, 1), (1, 2, 9), (0, 7, -3))
    )


@cache
def prime_implicants(op: str, arity: int, target: bool) -> tuple[Implicant, ...]:
    """Return the prime implicants of an operator on truth values being `target`."""
    return tuple(_prime_implicants(op, arity, target))


def _prime_implicants(op: str, arity: int, target: bool) -> Iterator[Implicant]:
    """Iterate over minimal operand assignments that imply the result and together cover it."""
    row = SCALARS[op]
    table = {
        values: bool(row.numpy(*map(np.bool_, values)))
        for values in every((False, True), repeat=arity)
    }
    covered: set[tuple[bool, ...]] = set()
    for cube in sorted(every((None, False, True), repeat=arity), key=lambda c: c.count(None))[::-1]:
        matching = [
            v for v in table if all(c is None or c == x for c, x in zip(cube, v, strict=True))
        ]
        if all(table[v] == target for v in matching) and not covered.issuperset(matching):
            covered.update(matching)
            yield tuple((k, c) for k, c in enumerate(cube) if c is not None)
