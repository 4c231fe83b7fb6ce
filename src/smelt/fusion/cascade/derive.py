"""How a factor that no column tells about follows the folds it reads: found by trying, then proved.

Two ways for a factor f(v; r) to leave behind what it has been summed at (ALGORITHMS 1.1-1.3):

*Under a gauge.*  Let g be the greatest (or least) v so far.  If f(g; g) is one number c and

    f(v; r) * c = f(v; g) * f(g; r)        for all v, g, r

then sums of f(v; g) follow g when it moves from g to h by f(g; h) / c, and are brought to what was
asked for by f(g; r) / c: the factor itself is its transport.  Where no |f(v; g)| exceeds |c|,
nothing overflows.  2^(v - r), (v/r)^2.5 for v >= 0, sqrt(e^(v - r) / s) are like that.

*From fixed places.*  If f has rank k, it is the sum of k products u(r) * f(v; b) at constants b,
and the u(r) follow from f(a; r) at k constants a.  cos(v - r) has rank 2, and so has log(v/r)
for v >= 0.

Numbers tell in microseconds that most factors are neither (tanh(v - r), round(v/r)); what passes is
proved (`proofs.py`) before anybody relies on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, islice
from itertools import product as every
from typing import Any

import numpy as np

from smelt.dataclass import dataclass
from smelt.fusion.cascade.formula import Array, Formula, constants
from smelt.fusion.cascade.proofs import Claim, is_proved
from smelt.fusion.cascade.term import Term
from smelt.types.dtype import DType, f64

CLOSE = 1e-9
"""Relative distance of two sides of an equation that holds, computed in double precision."""
FALLBACK = 1.0
"""A gauge that does no harm, in place of one at which a factor is no number."""
HELD = 1.0
"""What other things that move are taken to be until they have stopped."""
SPREAD = (1e-3, 0.1, 0.5, 1.0, 1.5, 3.0, 10.0, 80.0, 1e3, 1e5)
"""Sizes of gauges and elements for which it is tried whether a factor is bounded."""
EXTREMES = (0.0, 1e-45, 1e-30, 1e-12, 3.4e38)
"""Elements of single precision at which parts in double precision must not overflow."""
MOST_RANK = 3
PLACES = (1.0, 2.0, 0.5, 3.0, 1.25)
"""Constants at which factors of some rank are looked at."""
SINGLE, DOUBLE = 2.0**-24, 2.0**-53
MOST_LOST = 8.0
"""How much more than the factor itself its parts may lose by rounding."""


@dataclass(frozen=True, slots=True)
class Gauged:
    """A factor under a gauge of its own."""

    slot: Term
    """Which of the things that move the gauge stands in for."""
    least: bool
    unit: float
    """c = f(g; g)."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A factor as a sum of products: f(v; r) = sum over b of (sum over a of weights[a][b] *
    f(places[a]; r)) * f(v; anchors[b]), where all that moves is at one anchor."""

    anchors: tuple[float, ...]
    places: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    wide: bool = False
    """Whether it takes double precision not to lose what cancels."""


_GAUGED: dict[object, tuple[int, bool, float] | None] = {}
_RANKED: dict[object, Ranked | None] = {}


def gauged(f: Formula) -> Gauged | None:
    """The gauge under which a factor can be carried, if there is one."""
    key = _key(f)
    if key not in _GAUGED:
        found = next(islice(_gauges(f), 1), None)
        proved = found is not None and is_proved(Claim("gauge", f, found[0]))
        _GAUGED[key] = found if proved else None
    known = _GAUGED[key]
    return None if known is None else Gauged(f.moving[known[0]], *known[1:])


def ranked(f: Formula, dtype: DType) -> Ranked | None:
    """The products that a factor of elements of a type is the sum of, if it is one."""
    key = _key(f), dtype.bits < f64.bits
    if key not in _RANKED:
        found = _ranks(f, dtype)
        proved = found is not None and is_proved(Claim("rank", f, len(found.anchors)))
        _RANKED[key] = found if proved else None
    return _RANKED[key]


def _key(f: Formula) -> object:
    return f.key, tuple(float(c.value) for c in constants(f.term, f.atoms))


# ---- under a gauge -----------------------------------------------------------------------------


def _gauges(f: Formula) -> Iterator[tuple[int, bool, float]]:
    """Which slot takes a gauge, whether it is the least element, and the unit."""
    for k, slot in enumerate(f.moving):
        if f.varying.dtype != slot.dtype:
            continue
        unit = _unit(f, slot)
        if unit is None or not _follows(f, slot, unit):
            continue
        for least in (False, True):
            if _is_bounded(f, slot, unit, least) and _is_safe(f, slot, unit, least):
                yield k, least, unit


def _held(f: Formula, slot: Term) -> dict[Term, Array | float]:
    found: dict[Term, Array | float] = {t: HELD for t in f.moving if t is not slot}
    return found | dict.fromkeys(f.fixed, 0.75)


def _unit(f: Formula, slot: Term) -> float | None:
    """f(g; g), where it is one number for all g that do."""
    values = {float(f.at({**_held(f, slot), f.varying: g, slot: g})) for g in SPREAD}
    (unit, *rest) = values
    return unit if not rest and np.isfinite(unit) and unit != 0 else None


def _drawn(f: Formula, seed: int, count: int = 64) -> dict[Term, Array | float]:
    """Moderate numbers for all parts, of the signs that they may have."""
    rng = np.random.default_rng(seed)
    found: dict[Term, Array | float] = {}
    for t in f.atoms:
        size = np.exp(rng.uniform(-1.5, 1.5, count))
        found[t] = size if f.signs[t] else size * rng.choice((-1.0, 1.0), count)
    return found


def _same(one: Array, other: Array) -> bool:
    """Equal but for rounding, NaN where the other is NaN; and numbers often enough to tell."""
    fine = np.isfinite(one) & np.isfinite(other)
    with np.errstate(all="ignore"):
        close = np.abs(one - other) <= CLOSE * np.maximum(np.abs(one), np.abs(other))
    alike = np.isnan(one) & np.isnan(other) | (one == other) | (fine & close)
    return bool(np.all(alike)) and bool(fine.mean() > 0.2)


def _follows(f: Formula, slot: Term, unit: float) -> bool:
    """Whether the equation holds for numbers."""
    at = _drawn(f, 1)
    g = np.exp(np.random.default_rng(2).uniform(-1.5, 1.5, 64))
    held = {t: v for t, v in _held(f, slot).items() if t not in f.fixed}
    left = f.at(at) * unit
    right = f.at({**at, **held, slot: g}) * f.at({**at, f.varying: g})
    return _same(left, right)


def _is_bounded(f: Formula, slot: Term, unit: float, least: bool) -> bool:
    """Whether no element on its side of a gauge gives more than the unit."""
    own = (0.0, *SPREAD) if f.signs[f.varying] else (*(-x for x in SPREAD), 0.0, *SPREAD)
    v, g = (a.ravel() for a in np.meshgrid(own, own))
    fixed = [dict.fromkeys(f.fixed, s) for s in (-0.75, 0.75)] if f.fixed else [{}]
    for values in fixed:
        ok = f.at({**_held(f, slot), **values, f.varying: g, slot: g}) == unit
        inside = ok & ((v >= g) if least else (v <= g))
        found = f.at({**_held(f, slot), **values, f.varying: v, slot: g})[inside]
        if not np.all(np.abs(found) <= abs(unit) * (1 + CLOSE)):
            return False
    return True


def _is_safe(f: Formula, slot: Term, unit: float, least: bool) -> bool:
    """Whether nothing has been summed as long as the gauge is none, and whether a gauge is none
    only before there are elements, where all are zero, or where something is infinite."""
    end = np.inf if least else -np.inf
    own = (0.0, *SPREAD) if f.signs[f.varying] else (*(-x for x in SPREAD), 0.0, *SPREAD)
    ends = () if f.signs[f.varying] and not least else (end,)  # else no element is there
    for s in (*ends, *own):
        at = {**_held(f, slot), f.varying: s}
        if f.at({**at, slot: s}) == unit:
            continue
        if s not in (end, 0.0) or f.at({**at, slot: FALLBACK}) != 0:
            return False
        later = [float(f.at({**_drawn(f, k, 1), f.varying: np.float64(s)})[0]) for k in range(8)]
        if any(x == x and x != 0 for x in later):
            return False
    return True


# ---- from fixed places -------------------------------------------------------------------------


def _at_all(f: Formula, v: Any, r: Any) -> Array:
    at: dict[Term, Any] = {f.varying: v, **dict.fromkeys(f.moving, r)}
    return f.at(at)


def _ranks(f: Formula, dtype: DType) -> Ranked | None:
    """The least number of products that give the factor for numbers."""
    if f.fixed or not _is_low(f):
        return None
    table = np.array([[_at_all(f, a, b) for b in PLACES] for a in PLACES], float)
    for k in range(1, MOST_RANK + 1):
        ways = list(every(combinations(range(len(PLACES)), k), repeat=2))
        parts = np.array([table[np.ix_(*way)] for way in ways])
        off = np.full(len(ways), np.inf)
        finite = np.isfinite(parts).all(axis=(1, 2))
        off[finite] = np.linalg.cond(parts[finite])
        best = int(off.argmin())
        if off[best] > 1e4:
            continue
        places, anchors = (tuple(PLACES[n] for n in which) for which in ways[best])
        weights = np.linalg.inv(parts[best]).T
        made = Ranked(anchors, places, tuple(tuple(map(float, w)) for w in weights))
        if _holds(f, made):
            return _kept(f, made, dtype)
    return None


def _is_low(f: Formula) -> bool:
    """Whether values at a few places are those of a factor of a rank that is looked for."""
    rng = np.random.default_rng(4)
    v, r = np.meshgrid(*np.exp(rng.uniform(-1.5, 1.5, (2, 8))))
    table = _at_all(f, v, r)
    if not np.isfinite(table).all():
        return False
    sizes = np.linalg.svd(table, compute_uv=False)
    return bool(sizes[MOST_RANK] <= CLOSE * sizes[0])


def _shares(f: Formula, known: Ranked, at: Mapping[Term, Array | float]) -> list[Array]:
    """The products."""
    moved = [f.at({**at, f.varying: a}) for a in known.places]
    found: list[Array] = []
    with np.errstate(all="ignore"):
        for b, anchor in enumerate(known.anchors):
            u: Array | float = 0.0
            for row, m in zip(known.weights, moved, strict=True):
                u = u + row[b] * m
            found.append(u * f.at({**at, **dict.fromkeys(f.moving, anchor)}))
    return found


def _holds(f: Formula, known: Ranked) -> bool:
    at = _drawn(f, 3)
    want, parts = f.at(at), _shares(f, known, at)
    most = np.maximum.reduce([np.abs(p) for p in parts])
    fine = np.isfinite(want)
    if np.any(np.isnan(sum(parts)) != np.isnan(want)) or fine.mean() <= 0.2:
        return False
    near = np.abs(sum(parts) - want)[fine] <= 1e-11 * np.maximum(most, np.abs(want))[fine]
    return bool(np.all(near))


def _kept(f: Formula, known: Ranked, dtype: DType) -> Ranked | None:
    """The products, if they lose no more than the factor itself does by the rounding of what it is
    computed from: in the type of the elements, or in double precision where that is wider."""
    signs = (1.0,) if f.signs[f.varying] else (1.0, -1.0)
    own = np.array([s * x for s in signs for x in (*EXTREMES, *SPREAD)])
    rest = np.array([s * x for s in (1.0, -1.0) for x in (*EXTREMES, *SPREAD)])
    v, r = (a.ravel() for a in np.meshgrid(own, rest))
    at: dict[Term, Array | float] = {f.varying: v, **dict.fromkeys(f.moving, r)}
    want, parts = f.at(at), _shares(f, known, at)
    most = np.maximum.reduce([np.abs(p) for p in parts])
    fine = np.isfinite(want)
    if not np.all(np.isfinite(most[fine])):
        return None
    with np.errstate(all="ignore"):
        shaken = np.abs(f.at({**at, f.varying: v * (1 + SINGLE)}) - want)[fine]
    own_error = shaken + SINGLE * np.abs(want[fine])
    for wide, unit in ((False, SINGLE), (True, DOUBLE)):
        if np.all(most[fine] * unit <= MOST_LOST * own_error):
            lost = wide and dtype.bits >= f64.bits
            return None if lost else replace(known, wide=wide)
    return None
