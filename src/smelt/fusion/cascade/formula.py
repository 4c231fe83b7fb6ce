"""A mixed factor as a formula: what varies, what moves, and a spelling in which equal ones agree.

An element of a fold may read finished and unfinished folds through operators of which no column of
the rows tells how they follow.  Here such a factor f(v; r, ..) is cut at the largest parts that
only vary (v), only move (r) or are fixed, and can be evaluated at any numbers.

>>> from smelt.fusion.cascade.forms import Sorts
>>> from smelt.fusion.cascade.term import Terms
>>> from smelt.types.dtype import f32
>>> terms = Terms()
>>> x = terms.leaf("x", {"n"}, f32)
>>> m = terms.fold("max", terms.apply("abs", x), ("n",), f32)
>>> t = terms.apply("pow", terms.div(terms.apply("abs", x), m), terms.const(2.5, f32))
>>> found = cut(t, Sorts(lambda t: "n" in t.axes, lambda t: t is m or m in cone(t)))
>>> found.key
'pow(div(v:+,r0:+),2.5)'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product as every
from typing import Any, TypeAlias

import numpy as np

from smelt.dataclass import dataclass
from smelt.fusion.cascade.forms import Sorts
from smelt.fusion.cascade.term import Term, Terms, cone
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, bool_

Array: TypeAlias = np.ndarray[Any, Any]
MOST_MOVING = 3
"""Parts that move, beyond which a factor is not looked at."""
SMALL = (0.25, 0.5, 0.75, 1.5, 2.5)
"""Constants that are spelled out beside small integers."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A factor: f of one thing that varies and some that move."""

    term: Term
    varying: Term
    moving: tuple[Term, ...]
    fixed: tuple[Term, ...]
    signs: Mapping[Term, bool]
    """Which of them are never negative."""
    key: str

    @property
    def atoms(self) -> tuple[Term, ...]:
        """What varies, what moves, what is fixed."""
        return (self.varying, *self.moving, *self.fixed)

    def at(self, values: Mapping[Term, Array | float]) -> Array:
        """Its value in double precision."""
        return _value(self.term, dict(values))

    def of(self, terms: Terms, given: Mapping[Term, Term], dtype: DType) -> Term:
        """The same operators on other things, in a type."""
        done: dict[Term, Term] = {a: terms.cast(a, dtype) for a in self.atoms}
        done |= {a: terms.cast(t, dtype) for a, t in given.items()}

        def walk(t: Term) -> Term:
            found = done.get(t)
            if found is None:
                if t.kind == "const":
                    found = terms.const(t.value, dtype)
                elif t.kind == "cast":
                    found = walk(t.args[0])
                else:
                    found = _applied(terms, t.op, [walk(a) for a in t.args])
                done[t] = found
            return found

        return walk(self.term)


def _applied(terms: Terms, op: str, args: list[Term]) -> Term:
    """An operator on operands, which a factor of 1 leaves as they are."""
    loose = [(a, p) for a, p in zip(args, SCALARS[op].powers) if a.kind != "const" or a.value != 1]
    return loose[0][0] if len(loose) == 1 and loose[0][1] == 1 else terms.apply(op, *args)


def cut(term: Term, sorts: Sorts) -> Formula | None:
    """The formula that a mixed term is; None for one that is none, of one thing that varies."""
    parts: dict[Term, None] = {}
    if not _cut(term, sorts, parts):
        return None
    varying = [t for t in parts if sorts.varies(t)]
    moving = tuple(t for t in parts if sorts.moves(t))
    fixed = tuple(t for t in parts if sorts.is_fixed(t))
    if len(varying) != 1 or not 0 < len(moving) <= MOST_MOVING or len(fixed) > 1:
        return None
    known: dict[Term, bool] = {}
    signs = {t: is_positive(t, known) for t in parts}
    names = {varying[0]: "v"} | {t: f"r{k}" for k, t in enumerate(moving)}
    names |= {t: f"p{k}" for k, t in enumerate(fixed)}
    told = {t: f"{n}:{'+' if signs[t] else '~'}" for t, n in names.items()}
    return Formula(term, varying[0], moving, fixed, signs, spelled(term, told))


def _cut(t: Term, sorts: Sorts, parts: dict[Term, None]) -> bool:
    if t.kind == "const":
        return t.dtype.is_float
    if not sorts.is_mixed(t):
        parts[t] = None
        return t.dtype.is_float
    if t.kind == "cast":
        return t.value is None and t.args[0].dtype.is_float and _cut(t.args[0], sorts, parts)
    return t.kind == "apply" and t.dtype != bool_ and all(_cut(a, sorts, parts) for a in t.args)


def spelled(t: Term, told: Mapping[Term, str]) -> str:
    """A formula as text; its constants are numbered, but for those that are plain."""
    numbers: dict[float, str] = {}

    def walk(t: Term) -> str:
        if t in told:
            return told[t]
        if t.kind == "const":
            value = float(t.value)
            if is_plain(value):
                return f"{value:g}"
            return numbers.setdefault(value, f"c{len(numbers)}:{'+' if value > 0 else '-'}")
        if t.kind == "cast":
            return walk(t.args[0])
        return f"{t.op}({','.join(map(walk, t.args))})"

    return walk(t)


def is_plain(value: float) -> bool:
    """Whether a constant is told from all others: a small integer, or a half or quarter or so.
    What is found for another one holds for all of its sign."""
    return abs(value) in SMALL or (abs(value) <= 16 and value == int(value))


def constants(t: Term, atoms: tuple[Term, ...]) -> Iterator[Term]:
    """The constants of a formula, in the order of its text."""
    if t in atoms:
        return
    if t.kind == "const":
        yield t
    for a in t.args:
        yield from constants(a, atoms)


def _value(t: Term, known: dict[Term, Any]) -> Array:
    if t not in known:
        if t.kind == "const":
            known[t] = np.float64(t.value)
        elif t.kind == "cast":
            known[t] = _value(t.args[0], known)
        else:
            args = [_value(a, known) for a in t.args]
            with np.errstate(all="ignore"):
                known[t] = SCALARS[t.op].numpy(*args)
    return known[t]


# ---- signs -------------------------------------------------------------------------------------

_ALL = (-np.inf, -700.5, -3.0, -1.0, -0.5, 0.0, 1e-30, 0.5, 1.0, 3.0, 700.5, np.inf)
_SIGNED: dict[tuple[str, tuple[bool, ...]], bool] = {}


def is_positive(t: Term, known: dict[Term, bool]) -> bool:
    """Whether a term is never negative (it may be NaN): by asking the references of its operators
    for numbers of all sizes and signs that their operands may have."""
    if t not in known:
        for x in reversed(list(cone(t))):
            if x not in known:
                known[x] = _is_positive(x, known)
    return known[t]


def _is_positive(t: Term, known: dict[Term, bool]) -> bool:
    if t.kind == "const":
        return t.dtype != bool_ and float(t.value) >= 0
    if t.kind == "cast":
        return t.args[0].dtype == bool_ or (t.dtype.is_float and _known(t.args[0], known))
    if t.kind == "count":
        return True
    if t.kind == "fold":
        keeps = COMBINES[t.op].grow == "same" or SCALARS[COMBINES[t.op].scalar].linear == (1, 1)
        return keeps and t.dtype.is_float and _known(t.args[0], known)
    if t.kind == "dot":
        return all(_known(a, known) for a in t.args)
    if t.kind != "apply" or not t.dtype.is_float or not all(a.dtype.is_float for a in t.args):
        return False
    return _signed(t.op, tuple(_known(a, known) for a in t.args))


def _known(t: Term, known: dict[Term, bool]) -> bool:
    return known[t] if t in known else is_positive(t, known)


def _signed(op: str, positive: tuple[bool, ...]) -> bool:
    key = op, positive
    if key not in _SIGNED:
        grids = [[v for v in _ALL if v >= 0 or not p] for p in positive]
        with np.errstate(all="ignore"):
            found = [SCALARS[op].numpy(*map(np.float64, v)) for v in every(*grids)]
        _SIGNED[key] = not any(f < 0 for f in found)
    return _SIGNED[key]
