"""Gauges: running maxima and minima that bound exponentials.

>>> opposite("max"), is_total("exp"), is_total("log")
('min', True, False)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product as every
from typing import Any

import numpy as np

from smelt.fusion.cascade.forms import Linear, NotSeparable
from smelt.fusion.cascade.term import Term, cone, evaluate
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f64

GAUGE_PROBES = (-50.5, -1.0, 0.0, 0.25, 3.0, 100.0)
"""Values at which a term is compared with its gauge."""


@dataclass(frozen=True, slots=True, eq=False)
class Gauge:
    """A running maximum or minimum by which exponentials are bounded."""

    reduction: Term
    state: int
    bottom: float
    """Its value before any element (the identity of the reduction)."""
    form: Linear
    """The reduced elements as a linear form."""


def as_gauge(atom: Term, gauge: Gauge) -> float | None:
    """Return the value of `atom` before any element, if elsewhere it equals the gauge."""
    if any(
        t.kind not in ("const", "apply", "cast") and t is not gauge.reduction for t in cone(atom)
    ):
        return None
    if any(_at(atom, gauge, p) != p for p in GAUGE_PROBES):
        return None
    return _at(atom, gauge, gauge.bottom)


def is_at_top(atom: Term, gauge: Gauge) -> bool:
    """Return whether an atom is the gauge's other infinity where the gauge is."""
    return _at(atom, gauge, -gauge.bottom) == -gauge.bottom


def _at(atom: Term, gauge: Gauge, number: float) -> float:
    """Return the value of a term of a gauge where that is a number."""
    dtype = gauge.reduction.dtype.compute.numpy
    return float(evaluate(atom, lambda _: np.asarray(number, dtype)))


def is_clamped_gauge(atom: Term, gauge: Gauge) -> bool:
    """Return whether `atom` is the maximum of a running-maximum gauge and something else.

    For a minimum likewise. Then it bounds whatever the gauge bounds.
    """
    if atom.kind != "apply" or atom.op != COMBINES[gauge.reduction.op].scalar:
        return False
    return any(a is gauge.reduction or is_clamped_gauge(a, gauge) for a in atom.args)


_TOTAL: dict[str, bool] = {}
_GRID = (-math.inf, -700.5, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 700.5, math.inf)


def is_total(op: str) -> bool:
    """Return whether an operator on finite numbers never yields NaN.

    Unary operators are tried at infinities too.
    """
    result = _TOTAL.get(op)
    if result is None:
        row = SCALARS[op]
        grid = _GRID if row.arity == 1 else _GRID[1:-1]
        try:
            with np.errstate(all="ignore"):
                result = not any(bool(np.isnan(row.numpy(*a))) for a in _samples(row.arity, grid))
        except TypeError:
            result = False
        _TOTAL[op] = result
    return result


def _samples(arity: int, grid: Iterable[float]) -> Iterator[tuple[Any, ...]]:
    return every(*([[np.float64(v) for v in grid]] * arity))


def opposite(combine: str) -> str:
    """Return the reduction for the other end: the minimum for the maximum."""
    row = COMBINES[combine]
    for name, other in COMBINES.items():
        is_mirrored = other.identity(f64) == -float(row.identity(f64))
        if other.grow == row.grow == "same" and other.idempotent and is_mirrored:
            return name
    raise NotSeparable(combine)
