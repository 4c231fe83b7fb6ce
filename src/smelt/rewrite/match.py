"""Match terms against values, and list the operand orders of a term.

>>> [str(t) for t in arrangements(term("mul(add(x, 1), y)"))]
['mul(add(x, 1), y)', 'mul(y, add(x, 1))']
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from smelt.rewrite.term import Call, Num, Number, Term, V, Values, Var, term, variables

__all__ = ["arrangements", "match", "same_number", "term"]


def match(t: Term, value: V, values: Values[V]) -> dict[str, V] | None:
    """Return the value of each variable if `value` has the form of `t`, else None."""
    bound: dict[str, V] = {}
    return bound if _match(t, value, values, bound) else None


def _match(t: Term, value: V, values: Values[V], bound: dict[str, V]) -> bool:
    if isinstance(t, Call):
        if values.op(value) != t.op:
            return False
        for part, arg in zip(t.args, values.args(value), strict=True):
            if not _match(part, arg, values, bound):
                return False
        return True
    number = values.number(value)
    if isinstance(t, Num):
        if number is None:
            return False
        if isinstance(t.value, bool) and values.dtype(value).kind != "bool":
            return False  # true and false are not the numbers 1 and 0
        expected = t.value_for(values.dtype(value))
        return expected is not None and same_number(number, expected)
    if t.constant and number is None:
        return False
    previous = bound.setdefault(t.name, value)
    if previous is value:
        return True
    other = values.number(previous)
    return number is not None and other is not None and same_number(number, other)


def same_number(a: Number, b: Number) -> bool:
    """Compare numbers with the signs of 0 and NaN; 1, 1.0 and True are equal.

    NaN equals NaN of its sign.
    """
    is_nan = a != a and b != b
    if a != b and not is_nan:
        return False
    return (a != 0 and not is_nan) or math.copysign(1.0, a) == math.copysign(1.0, b)


def arrangements(t: Term) -> tuple[Term, ...]:
    """Return `t` with the operands of commutative operators in every distinct order.

    Constants stand last, and renaming variables gives no new order.
    """
    by_shape: dict[str, Term] = {}
    for order in _orders(t):
        by_shape.setdefault(_shape(order), order)
    return tuple(by_shape.values())


def _orders(t: Term) -> Iterator[Term]:
    if not isinstance(t, Call):
        yield t
        return
    for args in product(*(tuple(_orders(a)) for a in t.args)):
        yield Call(t.op, args)
        if (
            len(args) == 2
            and t.row.commutative
            and not _is_constant(args[0])
            and not _is_constant(args[1])
        ):
            yield Call(t.op, (args[1], args[0]))


def _is_constant(t: Term) -> bool:
    return isinstance(t, Num) or (isinstance(t, Var) and t.constant)


def _shape(t: Term) -> str:
    """Return the term's text with variables numbered in order of appearance."""
    names = {v.name: f"{'c' if v.constant else 'x'}{k}" for k, v in enumerate(variables(t))}

    def spell(t: Term) -> str:
        if isinstance(t, Var):
            return names[t.name]
        return f"{t.op}({','.join(map(spell, t.args))})" if isinstance(t, Call) else repr(t)

    return spell(t)
