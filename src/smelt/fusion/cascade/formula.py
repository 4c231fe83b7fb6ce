"""Cut a mixed factor of a reduction's element into a formula with a canonical text.

An element of a reduction may read finished and unfinished reductions through operators that no
table column describes. Such a factor f(v; r, ..) is cut at the largest parts that only vary (v),
only move (r) or are fixed (p). The formula can be evaluated at any numbers.

>>> from smelt.fusion.cascade.forms import Dependence
>>> from smelt.fusion.cascade.term import Terms
>>> from smelt.types.dtype import f32
>>> terms = Terms()
>>> x = terms.leaf("x", {"n"}, f32)
>>> m = terms.reduce("max", terms.apply("abs", x), ("n",), f32)
>>> t = terms.apply("pow", terms.div(terms.apply("abs", x), m), terms.const(2.5, f32))
>>> found = to_formula(t, Dependence(lambda t: "n" in t.axes, lambda t: t is m or m in cone(t)))
>>> found.key
'pow(div(v:+,r0:+),2.5)'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product as every
from typing import Any, TypeAlias

import numpy as np

from smelt.fusion.cascade.forms import Dependence
from smelt.fusion.cascade.term import Term, Terms, cone
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_

Array: TypeAlias = np.ndarray[Any, Any]
MAX_MOVING = 3
"""Maximum moving parts of a formula."""
PLAIN_FRACTIONS = (0.25, 0.5, 0.75, 1.5, 2.5)
"""Fractions that keep their value in a formula's text, besides small integers."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A factor f of one varying part and some moving ones."""

    term: Term
    varying: Term
    moving: tuple[Term, ...]
    fixed: tuple[Term, ...]
    signs: Mapping[Term, bool]
    """Whether each part is never negative."""
    key: str

    @property
    def atoms(self) -> tuple[Term, ...]:
        """Return the varying part, the moving parts and the fixed part."""
        return (self.varying, *self.moving, *self.fixed)

    def evaluate(self, values: Mapping[Term, Array | float]) -> Array:
        """Return its value in double precision."""
        return _value(self.term, dict(values))

    def instantiate(self, terms: Terms, replacements: Mapping[Term, Term], dtype: DType) -> Term:
        """Return the same operators on other terms, computed in a type."""
        translated: dict[Term, Term] = {a: terms.cast(a, dtype) for a in self.atoms}
        translated |= {a: terms.cast(t, dtype) for a, t in replacements.items()}

        def walk(t: Term) -> Term:
            result = translated.get(t)
            if result is None:
                if t.kind == "const":
                    result = terms.const(t.value, dtype)
                elif t.kind == "cast":
                    result = walk(t.args[0])
                else:
                    result = _applied(terms, t.op, [walk(a) for a in t.args])
                translated[t] = result
            return result

        return walk(self.term)


def _applied(terms: Terms, op: str, args: list[Term]) -> Term:
    """Apply an operator, dropping factors of 1."""
    remaining = [
        (a, p) for a, p in zip(args, SCALARS[op].powers) if a.kind != "const" or a.value != 1
    ]
    return (
        remaining[0][0] if len(remaining) == 1 and remaining[0][1] == 1 else terms.apply(op, *args)
    )


def to_formula(term: Term, sorts: Dependence) -> Formula | None:
    """Return the formula of a mixed term; None unless it has exactly one varying part."""
    parts: dict[Term, None] = {}
    if not _collect_parts(term, sorts, parts):
        return None
    varying = [t for t in parts if sorts.varies(t)]
    moving = tuple(t for t in parts if sorts.moves(t))
    fixed = tuple(t for t in parts if sorts.is_fixed(t))
    if len(varying) != 1 or not 0 < len(moving) <= MAX_MOVING or len(fixed) > 1:
        return None
    known_signs: dict[Term, bool] = {}
    signs = {t: is_nonnegative(t, known_signs) for t in parts}
    names = {varying[0]: "v"} | {t: f"r{k}" for k, t in enumerate(moving)}
    names |= {t: f"p{k}" for k, t in enumerate(fixed)}
    labels = {t: f"{n}:{'+' if signs[t] else '~'}" for t, n in names.items()}
    return Formula(term, varying[0], moving, fixed, signs, formula_text(term, labels))


def _collect_parts(t: Term, sorts: Dependence, parts: dict[Term, None]) -> bool:
    if t.kind == "const":
        return t.dtype.is_float
    if not sorts.is_mixed(t):
        parts[t] = None
        return t.dtype.is_float
    if t.kind == "cast":
        return (
            t.value is None and t.args[0].dtype.is_float and _collect_parts(t.args[0], sorts, parts)
        )
    return (
        t.kind == "apply"
        and t.dtype != bool_
        and all(_collect_parts(a, sorts, parts) for a in t.args)
    )


def formula_text(t: Term, labels: Mapping[Term, str]) -> str:
    """Return a formula as text; constants that are not plain are numbered."""
    numbers: dict[float, str] = {}

    def walk(t: Term) -> str:
        if t in labels:
            return labels[t]
        if t.kind == "const":
            value = float(t.value)
            if is_plain_constant(value):
                return f"{value:g}"
            return numbers.setdefault(value, f"c{len(numbers)}:{'+' if value > 0 else '-'}")
        if t.kind == "cast":
            return walk(t.args[0])
        return f"{t.op}({','.join(map(walk, t.args))})"

    return walk(t)


def is_plain_constant(value: float) -> bool:
    """Return whether a constant is kept by value: a small integer or a simple fraction.

    Results about another constant hold for all constants of its sign.
    """
    return abs(value) in PLAIN_FRACTIONS or (abs(value) <= 16 and value == int(value))


def constants(t: Term, atoms: tuple[Term, ...]) -> Iterator[Term]:
    """Iterate over the constants of a formula in the order of its text."""
    if t in atoms:
        return
    if t.kind == "const":
        yield t
    for a in t.args:
        yield from constants(a, atoms)


def _value(t: Term, values: dict[Term, Any]) -> Array:
    if t not in values:
        if t.kind == "const":
            values[t] = np.float64(t.value)
        elif t.kind == "cast":
            values[t] = _value(t.args[0], values)
        else:
            args = [_value(a, values) for a in t.args]
            with np.errstate(all="ignore"):
                values[t] = SCALARS[t.op].numpy(*args)
    return values[t]


# ---- signs -------------------------------------------------------------------------------------

_PROBES = (-np.inf, -700.5, -3.0, -1.0, -0.5, 0.0, 1e-30, 0.5, 1.0, 3.0, 700.5, np.inf)
_NONNEGATIVE_OPS: dict[tuple[str, tuple[bool, ...]], bool] = {}


def is_nonnegative(t: Term, results: dict[Term, bool]) -> bool:
    """Return whether a term is never negative (it may be NaN).

    Operators are evaluated at numbers of all magnitudes and signs that their operands may have.
    """
    if t not in results:
        for x in reversed(list(cone(t))):
            if x not in results:
                results[x] = _is_positive(x, results)
    return results[t]


def _is_positive(t: Term, results: dict[Term, bool]) -> bool:
    if t.kind == "const":
        return t.dtype != bool_ and float(t.value) >= 0
    if t.kind == "cast":
        return t.args[0].dtype == bool_ or (t.dtype.is_float and _lookup(t.args[0], results))
    if t.kind == "count":
        return True
    if t.kind == "reduce":
        keeps = COMBINES[t.op].grow == "same" or SCALARS[COMBINES[t.op].scalar].linear == (1, 1)
        return keeps and t.dtype.is_float and _lookup(t.args[0], results)
    if t.kind == "dot":
        return all(_lookup(a, results) for a in t.args)
    if t.kind != "apply" or not t.dtype.is_float or not all(a.dtype.is_float for a in t.args):
        return False
    return _is_nonnegative_op(t.op, tuple(_lookup(a, results) for a in t.args))


def _lookup(t: Term, results: dict[Term, bool]) -> bool:
    return results[t] if t in results else is_nonnegative(t, results)


def _is_nonnegative_op(op: str, positive: tuple[bool, ...]) -> bool:
    key = op, positive
    if key not in _NONNEGATIVE_OPS:
        grids = [[v for v in _PROBES if v >= 0 or not p] for p in positive]
        with np.errstate(all="ignore"):
            results = [SCALARS[op].numpy(*map(np.float64, v)) for v in every(*grids)]
        _NONNEGATIVE_OPS[key] = not any(f < 0 for f in results)
    return _NONNEGATIVE_OPS[key]
