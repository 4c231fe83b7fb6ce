"""Read off what an operator says about signs and truth values by evaluating its reference.

>>> sorted(sign_table("le"))
[(-1, True), (0, True), (1, False)]
>>> prime_implicants("or", 2, True)
(((0, True),), ((1, True),))
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product as every
from typing import TypeAlias

import numpy as np

from smelt.ops.scalar import SCALARS

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
