"""Derive how a factor that no table column describes is rescaled: sampled, then proved.

There are two ways for a factor f(v; r) of a summed element to be corrected later
(`docs/derivations.md`, running-shift and rescaling):

*Under a gauge.* Let g be the maximum (or minimum) of v so far. If f(g; g) is one number c and

    f(v; r) * c = f(v; g) * f(g; r)        for all v, g, r

then sums of f(v; g) are rescaled by f(g; h) / c when the gauge moves from g to h, and by f(g; r) /
c at the end: the factor itself is its transport. Nothing overflows if no |f(v; g)| exceeds |c|.
Examples: 2^(v - r), (v/r)^2.5 for v >= 0, sqrt(e^(v - r) / s).

*As a low-rank factor.* If f has rank k, it is a sum of k products u(r) * f(v; b) at constants b;
the u(r) follow from f(a; r) at k constants a. cos(v - r) has rank 2, and so has log(v/r) for v >=
0.

Sampling rejects most factors within microseconds (tanh(v - r), round(v/r)). A factor that passes is
proved (`proofs.py`) before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, islice
from itertools import product as every
from typing import Any

import numpy as np

from smelt.fusion.cascade.formula import Array, Formula, constants
from smelt.fusion.cascade.proofs import Claim, is_proved
from smelt.fusion.cascade.term import Term
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f64

EQUATION_TOLERANCE = 1e-9
"""Maximum relative error of an equation that holds, computed in double precision."""
FALLBACK = 1.0
"""Harmless gauge value where the factor is undefined at the true gauge."""
PLACEHOLDER = 1.0
"""Stands in for other unfinished reductions until they are finished."""
SPREAD = (1e-3, 0.1, 0.5, 1.0, 1.5, 3.0, 10.0, 80.0, 1e3, 1e5)
"""Magnitudes of gauges and elements at which boundedness is sampled."""
EXTREMES = (0.0, 1e-45, 1e-30, 1e-12, 3.4e38)
"""Single-precision elements at which parts in double precision must not overflow."""
MAX_RANK = 3
SAMPLE_POINTS = (1.0, 2.0, 0.5, 3.0, 1.25)
"""Constants at which low-rank factors are evaluated."""
SINGLE, DOUBLE = 2.0**-24, 2.0**-53
MAX_ERROR_RATIO = 8.0
"""Maximum rounding error of the parts, relative to that of the factor itself."""


@dataclass(frozen=True, slots=True)
class Gauged:
    """A factor that is carried under a gauge of its own."""

    slot: Term
    """The moving part that the gauge replaces."""
    least: bool
    unit: float
    """c = f(g; g)."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """A low-rank factor as a sum of products.

    f(v; r) = sum over b of (sum over a of weights[a][b] * f(places[a]; r)) * f(v; anchors[b]),
    where every moving part of the last factor is at the anchor.
    """

    anchors: tuple[float, ...]
    sample_points: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    wide: bool = False
    """Whether cancellation requires double precision."""


_GAUGED: dict[object, tuple[int, bool, float] | None] = {}
_RANKED: dict[object, LowRank | None] = {}


def find_gauge(f: Formula) -> Gauged | None:
    """Return the gauge under which a factor can be carried, None if there is none."""
    key = _key(f)
    if key not in _GAUGED:
        candidate = next(islice(_gauges(f), 1), None)
        is_valid = candidate is not None and is_proved(Claim("gauge", f, candidate[0]))
        _GAUGED[key] = candidate if is_valid else None
    entry = _GAUGED[key]
    return None if entry is None else Gauged(f.moving[entry[0]], *entry[1:])


def find_low_rank(f: Formula, dtype: DType) -> LowRank | None:
    """Return a factor as a sum of products, None if its rank is too high.

    `dtype` is the type of its elements.
    """
    key = _key(f), dtype.bits < f64.bits
    if key not in _RANKED:
        candidate = _ranks(f, dtype)
        is_valid = candidate is not None and is_proved(Claim("rank", f, len(candidate.anchors)))
        _RANKED[key] = candidate if is_valid else None
    return _RANKED[key]


def _key(f: Formula) -> object:
    return f.key, tuple(float(c.value) for c in constants(f.term, f.atoms))


# ---- under a gauge -----------------------------------------------------------------------------


def _gauges(f: Formula) -> Iterator[tuple[int, bool, float]]:
    """Iterate over valid gauges: number of the slot, whether it is a minimum, the unit."""
    for k, slot in enumerate(f.moving):
        if f.varying.dtype != slot.dtype:
            continue
        unit = _unit(f, slot)
        if unit is None or not _satisfies_transport(f, slot, unit):
            continue
        for least in (False, True):
            if _is_bounded(f, slot, unit, least) and _is_safe(f, slot, unit, least):
                yield k, least, unit


def _placeholders(f: Formula, slot: Term) -> dict[Term, Array | float]:
    values: dict[Term, Array | float] = {t: PLACEHOLDER for t in f.moving if t is not slot}
    return values | dict.fromkeys(f.fixed, 0.75)


def _unit(f: Formula, slot: Term) -> float | None:
    """Return f(g; g) if it is the same number for all sampled g."""
    values = {float(f.evaluate({**_placeholders(f, slot), f.varying: g, slot: g})) for g in SPREAD}
    (unit, *rest) = values
    return unit if not rest and np.isfinite(unit) and unit != 0 else None


def _samples(f: Formula, seed: int, count: int = 64) -> dict[Term, Array | float]:
    """Return moderate random values for all parts, of the signs that they may have."""
    rng = np.random.default_rng(seed)
    values: dict[Term, Array | float] = {}
    for t in f.atoms:
        size = np.exp(rng.uniform(-1.5, 1.5, count))
        values[t] = size if f.signs[t] else size * rng.choice((-1.0, 1.0), count)
    return values


def _agree(left: Array, right: Array) -> bool:
    """Return whether two arrays agree up to rounding, with enough finite values."""
    finite = np.isfinite(left) & np.isfinite(right)
    with np.errstate(all="ignore"):
        close = np.abs(left - right) <= EQUATION_TOLERANCE * np.maximum(np.abs(left), np.abs(right))
    equal = np.isnan(left) & np.isnan(right) | (left == right) | (finite & close)
    return bool(np.all(equal)) and bool(finite.mean() > 0.2)


def _satisfies_transport(f: Formula, slot: Term, unit: float) -> bool:
    """Return whether the transport equation holds for sampled values."""
    values = _samples(f, 1)
    g = np.exp(np.random.default_rng(2).uniform(-1.5, 1.5, 64))
    placeholders = {t: v for t, v in _placeholders(f, slot).items() if t not in f.fixed}
    left = f.evaluate(values) * unit
    right = f.evaluate({**values, **placeholders, slot: g}) * f.evaluate({**values, f.varying: g})
    return _agree(left, right)


def _is_bounded(f: Formula, slot: Term, unit: float, least: bool) -> bool:
    """Return whether no element on its side of the gauge yields more than the unit."""
    elements = (0.0, *SPREAD) if f.signs[f.varying] else (*(-x for x in SPREAD), 0.0, *SPREAD)
    v, g = (a.ravel() for a in np.meshgrid(elements, elements))
    fixed = [dict.fromkeys(f.fixed, s) for s in (-0.75, 0.75)] if f.fixed else [{}]
    for fixed_values in fixed:
        at_unit = (
            f.evaluate({**_placeholders(f, slot), **fixed_values, f.varying: g, slot: g}) == unit
        )
        on_side = at_unit & ((v >= g) if least else (v <= g))
        values = f.evaluate({**_placeholders(f, slot), **fixed_values, f.varying: v, slot: g})[
            on_side
        ]
        if not np.all(np.abs(values) <= abs(unit) * (1 + EQUATION_TOLERANCE)):
            return False
    return True


def _is_safe(f: Formula, slot: Term, unit: float, least: bool) -> bool:
    """Return whether an undefined gauge is harmless.

    Nothing may have been summed while the gauge is undefined, and it may be undefined only before
    there are elements, where all are zero, or where one is infinite.
    """
    end = np.inf if least else -np.inf
    elements = (0.0, *SPREAD) if f.signs[f.varying] else (*(-x for x in SPREAD), 0.0, *SPREAD)
    limits = () if f.signs[f.varying] and not least else (end,)  # else no element can be there
    for s in (*limits, *elements):
        values = {**_placeholders(f, slot), f.varying: s}
        if f.evaluate({**values, slot: s}) == unit:
            continue
        if s not in (end, 0.0) or f.evaluate({**values, slot: FALLBACK}) != 0:
            return False
        sums = [
            float(f.evaluate({**_samples(f, k, 1), f.varying: np.float64(s)})[0]) for k in range(8)
        ]
        if any(x == x and x != 0 for x in sums):
            return False
    return True


# ---- low-rank factors --------------------------------------------------------------------------


def _evaluate_at(f: Formula, v: Any, r: Any) -> Array:
    values: dict[Term, Any] = {f.varying: v, **dict.fromkeys(f.moving, r)}
    return f.evaluate(values)


def _ranks(f: Formula, dtype: DType) -> LowRank | None:
    """Return the fewest products that yield the factor for sampled values."""
    if f.fixed or not _has_low_rank(f):
        return None
    table = np.array([[_evaluate_at(f, a, b) for b in SAMPLE_POINTS] for a in SAMPLE_POINTS], float)
    for k in range(1, MAX_RANK + 1):
        choices = list(every(combinations(range(len(SAMPLE_POINTS)), k), repeat=2))
        blocks = np.array([table[np.ix_(*way)] for way in choices])
        conditions = np.full(len(choices), np.inf)
        finite = np.isfinite(blocks).all(axis=(1, 2))
        conditions[finite] = np.linalg.cond(blocks[finite])
        best = int(conditions.argmin())
        if conditions[best] > 1e4:
            continue
        places, anchors = (tuple(SAMPLE_POINTS[n] for n in numbers) for numbers in choices[best])
        weights = np.linalg.inv(blocks[best]).T
        candidate = LowRank(anchors, places, tuple(tuple(map(float, w)) for w in weights))
        if _matches(f, candidate):
            return _if_accurate(f, candidate, dtype)
    return None


def _has_low_rank(f: Formula) -> bool:
    """Return whether sampled values are those of a factor of sufficiently low rank."""
    rng = np.random.default_rng(4)
    v, r = np.meshgrid(*np.exp(rng.uniform(-1.5, 1.5, (2, 8))))
    table = _evaluate_at(f, v, r)
    if not np.isfinite(table).all():
        return False
    singular_values = np.linalg.svd(table, compute_uv=False)
    return bool(singular_values[MAX_RANK] <= EQUATION_TOLERANCE * singular_values[0])


def _summands(f: Formula, form: LowRank, values: Mapping[Term, Array | float]) -> list[Array]:
    moved_parts = [f.evaluate({**values, f.varying: a}) for a in form.sample_points]
    summands: list[Array] = []
    with np.errstate(all="ignore"):
        for b, anchor in enumerate(form.anchors):
            coefficient: Array | float = 0.0
            for row, part in zip(form.weights, moved_parts, strict=True):
                coefficient = coefficient + row[b] * part
            summands.append(coefficient * f.evaluate({**values, **dict.fromkeys(f.moving, anchor)}))
    return summands


def _matches(f: Formula, form: LowRank) -> bool:
    """Return whether the products add up to the factor for sampled values."""
    values = _samples(f, 3)
    expected, parts = f.evaluate(values), _summands(f, form, values)
    largest = np.maximum.reduce([np.abs(p) for p in parts])
    finite = np.isfinite(expected)
    if np.any(np.isnan(sum(parts)) != np.isnan(expected)) or finite.mean() <= 0.2:
        return False
    close = (
        np.abs(sum(parts) - expected)[finite]
        <= 1e-11 * np.maximum(largest, np.abs(expected))[finite]
    )
    return bool(np.all(close))


def _if_accurate(f: Formula, form: LowRank, dtype: DType) -> LowRank | None:
    """Return the products if they lose hardly more than the factor itself by rounding.

    That is in the type of the elements, or in double precision where that is wider.
    """
    signs = (1.0,) if f.signs[f.varying] else (1.0, -1.0)
    elements = np.array([s * x for s in signs for x in (*EXTREMES, *SPREAD)])
    others = np.array([s * x for s in (1.0, -1.0) for x in (*EXTREMES, *SPREAD)])
    v, r = (a.ravel() for a in np.meshgrid(elements, others))
    values: dict[Term, Array | float] = {f.varying: v, **dict.fromkeys(f.moving, r)}
    expected, parts = f.evaluate(values), _summands(f, form, values)
    largest = np.maximum.reduce([np.abs(p) for p in parts])
    finite = np.isfinite(expected)
    if not np.all(np.isfinite(largest[finite])):
        return None
    with np.errstate(all="ignore"):
        perturbed = np.abs(f.evaluate({**values, f.varying: v * (1 + SINGLE)}) - expected)[finite]
    factor_error = perturbed + SINGLE * np.abs(expected[finite])
    for wide, unit in ((False, SINGLE), (True, DOUBLE)):
        if np.all(largest[finite] * unit <= MAX_ERROR_RATIO * factor_error):
            needs_more = wide and dtype.bits >= f64.bits
            return None if needs_more else replace(form, wide=wide)
    return None
