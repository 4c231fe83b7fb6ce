"""Steps of folds whose states are pairs: a sum and its error, the best value and its position."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from smelt.loop import ir
from smelt.ops.combine import COMBINES
from smelt.types.dtype import f64

__all__ = ["Pair", "better", "exact", "join_sums", "no_gain", "two_sum"]

Pair: TypeAlias = tuple[ir.Value, ir.Value]
"""A sum and its rounding error, or a value and its position."""
Bound: TypeAlias = Callable[[ir.Value], ir.Value]
"""Returns a value by a name."""


def two_sum(value: ir.Value, old: ir.Value, error: ir.Value, bound: Bound) -> Pair:
    """Return old + value, and the sum of errors.

    Half of the additions are of 1 times an operand, which other ports of a processor compute.
    """

    def aside(a: ir.Value, b: ir.Value) -> ir.Value:
        return ir.Apply("fma", (a, ir.Const(1.0, f64), b))

    old = bound(old)
    total = bound(ir.Apply("add", (old, value)))
    part = bound(aside(total, ir.Apply("neg", (old,))))
    rest = ir.Apply("sub", (old, ir.Apply("sub", (total, part))))
    step = aside(rest, aside(value, ir.Apply("neg", (part,))))
    return total, bound(ir.Apply("add", (error, step)))


def join_sums(first: Pair, second: Pair, bound: Bound) -> Pair:
    """Return the sum of two sums, with the errors of both and its own."""
    return two_sum(second[0], first[0], ir.Apply("add", (first[1], second[1])), bound)


def exact(total: ir.Value, error: ir.Value) -> ir.Value:
    """Return a sum with its rounding error, unless that is NaN (of infinities)."""
    is_nan = ir.Apply("isnan", (error,))
    return ir.Apply("select", (is_nan, total, ir.Apply("add", (total, error))))


def no_gain(combine: str, value: ir.Value, old: ir.Value) -> ir.Value:
    """Return whether a value is worse than another one, or equal.

    What is neither is better, or NaN: one comparison of a processor.
    """
    op = {"gt": "ge", "lt": "le"}[COMBINES[combine].scalar]
    return ir.Apply(op, (old, value))


def better(combine: str, new: Pair, old: Pair, *, in_order: bool = False) -> Pair:
    """Return the better value and its position: NaN wins, then the first of equals.

    `in_order`: the new position is behind the old one.
    """
    (value, at), (old_value, old_at) = new, old

    def both(op: str, a: ir.Value, b: ir.Value) -> ir.Value:
        return ir.Apply(op, (a, b))

    def wins(a: ir.Value, b: ir.Value) -> ir.Value:
        return both("and", ir.Apply("not", (no_gain(combine, a, b),)), both("eq", b, b))

    takes = wins(value, old_value)
    if not in_order:
        ties = both("or", no_gain(combine, old_value, value), both("ne", value, value))
        takes = both("or", takes, both("and", ties, both("lt", at, old_at)))
    return ir.Apply("select", (takes, value, old_value)), ir.Apply("select", (takes, at, old_at))
