"""Proofs that a factor can follow what it reads: known ones, kept ones, and new ones by SymPy.

A claim is spelled so that equal ones agree for all constants of a sign, so that few proofs serve
many programs.  Those of common factors are written down here (a test proves them again); others
need the package sympy (`pip install smelt[derive]`), which is imported for the first new claim and
never before, and are kept in the user's cache.  Without a proof nothing is carried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.dataclass import dataclass
from smelt.fusion.cascade.formula import Formula, is_plain
from smelt.fusion.cascade.term import Term
from smelt.imports import imported
from smelt.ops.symbolic import MEANINGS, SYSTEM, has_system

VERSION = 1
"""Of claims and of how they are proved: what an older one kept is not believed."""
PROVED = frozenset(
    {
        "gauge 0 exp(sub(v:~,r0:~))",
        "gauge 0 exp(sub(v:~,r0:+))",
        "gauge 0 exp(sub(r0:~,v:~))",
        "gauge 0 exp2(sub(v:~,r0:~))",
        "gauge 0 pow(2,sub(v:~,r0:~))",
        "gauge 0 pow(3,sub(v:~,r0:~))",
        "gauge 0 pow(10,sub(v:~,r0:~))",
        "gauge 0 pow(c0:+,sub(v:~,r0:~))",
        "gauge 0 pow(2,sub(r0:~,v:~))",
        "gauge 0 pow(div(v:+,r0:+),c0:+)",
        "gauge 0 pow(div(v:+,r0:+),0.5)",
        "gauge 0 pow(div(v:+,r0:+),1.5)",
        "gauge 0 pow(div(v:+,r0:+),2.5)",
        "gauge 0 sqrt(div(v:+,r0:+))",
        "gauge 0 sqrt(div(exp(sub(v:~,r0:~)),r1:+))",
        "gauge 0 pow(div(exp(sub(v:~,r0:~)),r1:+),c0:+)",
        "gauge 0 pow(div(exp(sub(v:~,r0:~)),r1:+),0.5)",
        "gauge 0 pow(div(exp(sub(v:~,r0:~)),r1:+),1.5)",
        "gauge 0 pow(div(exp(sub(v:~,r0:~)),r1:+),2.5)",
        "rank 1 reciprocal(mul(v:~,r0:~))",
        "rank 2 cos(sub(v:~,r0:~))",
        "rank 2 log(div(v:+,r0:+))",
    }
)


@dataclass(frozen=True, slots=True)
class Claim:
    """That a factor follows a gauge in place of the thing number `number` that moves, or that it
    has the rank `number`."""

    kind: str
    formula: Formula
    number: int

    @property
    def text(self) -> str:
        """The claim, for all constants of the signs that it tells."""
        return f"{self.kind} {self.number} {self.formula.key}"


class Shelf:
    """Where proofs are kept between processes: the driver puts the user's cache here."""

    def __init__(self) -> None:
        self.get: Callable[[str], bool | None] = lambda _: None
        self.put: Callable[[str, bool], None] = lambda _, __: None


SHELF = Shelf()
_KNOWN: dict[str, bool] = {}
wanting: set[str] = set()
"""Claims that numbers speak for and nobody could prove, for want of a prover."""


def is_wanting(key: str) -> bool:
    """Whether a formula would follow if somebody could prove it."""
    return any(text.endswith(f" {key}") for text in wanting)


def is_proved(claim: Claim) -> bool:
    """Whether a claim that numbers speak for is true."""
    text = claim.text
    if text in PROVED:
        return True
    found = _KNOWN.get(text)
    if found is None:
        found = SHELF.get(text)
        if found is None:
            if not has_system():
                wanting.add(text)
                return False
            found = prove(claim)
            SHELF.put(text, found)
        _KNOWN[text] = found
    return found


# ---- by SymPy ----------------------------------------------------------------------------------


def prove(claim: Claim) -> bool:
    """Whether SymPy finds a claim true for all numbers of the signs that its parts have."""
    s: Any = imported(SYSTEM)
    writer = _Writer(s, claim.formula)
    try:
        return _PROVERS[claim.kind](s, writer, claim)
    except (KeyError, ValueError, TypeError, ArithmeticError, NotImplementedError, RecursionError):
        return False


class _Writer:
    """A formula as expressions of SymPy."""

    def __init__(self, s: Any, f: Formula) -> None:
        self.s, self.f = s, f
        self.symbols = {t: self.symbol(f"a{k}", t) for k, t in enumerate(f.atoms)}
        self.numbers: dict[float, Any] = {}

    def symbol(self, name: str, of: Term) -> Any:
        """A number of the sign of a part."""
        return (
            self.s.Symbol(name, positive=True)
            if self.f.signs[of]
            else self.s.Symbol(name, real=True)
        )

    def at(self, given: dict[Term, Any]) -> Any:
        """The formula with parts replaced."""
        return self._walk(self.f.term, {**self.symbols, **given})

    def _walk(self, t: Term, known: dict[Term, Any]) -> Any:
        if t in known:
            return known[t]
        if t.kind == "const":
            return self._number(float(t.value))
        args = [self._walk(a, known) for a in t.args]
        return args[0] if t.kind == "cast" else MEANINGS[t.op](self.s, *args)

    def _number(self, value: float) -> Any:
        if is_plain(value):
            return self.s.Rational(value)
        if value not in self.numbers:
            made = self.s.Symbol(f"c{len(self.numbers)}", positive=True)
            self.numbers[value] = made if value > 0 else -made
        return self.numbers[value]


def _is_zero(s: Any, e: Any) -> bool:
    """Whether an expression is nothing but a way to write 0."""
    return _becomes(
        0,
        e,
        (
            s.expand,
            lambda e: s.expand(s.expand_log(e)),
            lambda e: s.expand_trig(e).expand(),
            s.powsimp,
            s.simplify,
        ),
    )


def _is_one(s: Any, e: Any) -> bool:
    """Whether a quotient is nothing but a way to write 1."""
    return _becomes(
        1,
        e,
        (
            s.powsimp,
            s.powdenest,
            lambda e: s.powsimp(s.expand_power_base(e)),
            lambda e: s.exp(s.expand(s.expand_log(s.log(e)))),
            s.simplify,
        ),
    )


MOST_WRITTEN = 3000
"""Operators of an expression that a step is asked to rewrite; a tenth of it for the last, dearest
one.  What is longer is not proved."""


def _becomes(wanted: int, e: Any, steps: Sequence[Callable[[Any], Any]]) -> bool:
    """Whether steps of rewriting, one after the other, end at a number."""
    for step in steps:
        room = MOST_WRITTEN // 10 if step is steps[-1] else MOST_WRITTEN
        if e.count_ops() > room:
            return False
        e = step(e)
        if e == wanted:
            return True
    return False


def _prove_gauge(s: Any, w: _Writer, claim: Claim) -> bool:
    f = claim.formula
    slot = f.moving[claim.number]
    g = s.Symbol("g", positive=True) if f.signs[f.varying] else s.Symbol("g", real=True)
    held = {t: s.Integer(1) for t in f.moving if t is not slot}
    unit = s.simplify(w.at({**held, f.varying: g, slot: g}))
    if unit.has(g) or unit == 0:
        return False
    left = w.at({}) * unit
    right = w.at({**held, slot: g}) * w.at({f.varying: g})
    return _is_one(s, left / right) or _is_zero(s, left - right)


def _prove_rank(s: Any, w: _Writer, claim: Claim) -> bool:
    """That no table of its values at one place more has a determinant: then it is a sum of that
    many products, whichever places its parts are told from."""
    f, k = claim.formula, claim.number
    rows = [w.symbol(f"x{a}", f.varying) for a in range(k + 1)]
    columns = [{t: w.symbol(f"y{b}_{n}", t) for n, t in enumerate(f.moving)} for b in range(k + 1)]
    table = s.Matrix([[w.at({f.varying: x, **c}) for c in columns] for x in rows])
    if k == 1:
        ways = table[0, 0] * table[1, 1] / (table[0, 1] * table[1, 0])
        return _is_one(s, ways) or _is_zero(s, table.det())
    return _is_zero(s, table.det())


_PROVERS: dict[str, Callable[[Any, _Writer, Claim], bool]] = {
    "gauge": _prove_gauge,
    "rank": _prove_rank,
}
