"""Prove that a factor can be rescaled: by built-in, cached or new SymPy proofs.

A claim is written so that one proof covers all constants of a sign, so few proofs serve many
programs. Claims about common factors are listed in `PROVED` (a test proves them again). Others need
the package sympy (`pip install 'smelt-compiler[derive]'`), which is imported for the first new
claim only; their results are kept in the user's cache. Nothing is carried without a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.fusion.cascade.formula import Formula, is_plain_constant
from smelt.fusion.cascade.term import Term
from smelt.ops.symbolic import MEANINGS
from smelt.packages.installed import ALGEBRA_SYSTEM, has_algebra_system
from smelt.python.dataclass import dataclass
from smelt.python.imports import fork_safe_import

VERSION = 1
"""Version of the claims and of the prover: cached results of an older one are ignored."""
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
    """A claim about a factor that is to be proved.

    Kind "gauge": it can be carried under a gauge that replaces its moving part `number`. Kind
    "rank": it has rank `number`.
    """

    kind: str
    formula: Formula
    number: int

    @property
    def text(self) -> str:
        """Return the claim as text, valid for all constants of the recorded signs."""
        return f"{self.kind} {self.number} {self.formula.key}"


class ProofCache:
    """Cache of proofs between processes; the driver connects it to the user's cache."""

    def __init__(self) -> None:
        self.get: Callable[[str], bool | None] = lambda _: None
        self.put: Callable[[str, bool], None] = lambda _, __: None


PROOF_CACHE = ProofCache()
_RESULTS: dict[str, bool] = {}
unproved: set[str] = set()
"""Claims that sampling supports but that no prover was available for."""


def is_unproved(key: str) -> bool:
    """Return whether a formula could be carried if its claim were proved."""
    return any(text.endswith(f" {key}") for text in unproved)


def is_proved(claim: Claim) -> bool:
    """Return whether a claim that sampling supports is true."""
    text = claim.text
    if text in PROVED:
        return True
    result = _RESULTS.get(text)
    if result is None:
        result = PROOF_CACHE.get(text)
        if result is None:
            if not has_algebra_system():
                unproved.add(text)
                return False
            result = prove(claim)
            PROOF_CACHE.put(text, result)
        _RESULTS[text] = result
    return result


# ---- by SymPy ----------------------------------------------------------------------------------


def prove(claim: Claim) -> bool:
    """Return whether SymPy proves a claim for all numbers of the signs of its parts."""
    s: Any = fork_safe_import(ALGEBRA_SYSTEM)
    writer = _Writer(s, claim.formula)
    try:
        return _PROVERS[claim.kind](s, writer, claim)
    except (KeyError, ValueError, TypeError, ArithmeticError, NotImplementedError, RecursionError):
        return False


class _Writer:
    """Translates a formula into SymPy expressions."""

    def __init__(self, s: Any, f: Formula) -> None:
        self.s, self.f = s, f
        self.symbols = {t: self.symbol(f"a{k}", t) for k, t in enumerate(f.atoms)}
        self.numbers: dict[float, Any] = {}

    def symbol(self, name: str, part: Term) -> Any:
        """Return a symbol of the sign of a part."""
        return (
            self.s.Symbol(name, positive=True)
            if self.f.signs[part]
            else self.s.Symbol(name, real=True)
        )

    def at(self, replacements: dict[Term, Any]) -> Any:
        """Return the formula with parts replaced."""
        return self._translate(self.f.term, {**self.symbols, **replacements})

    def _translate(self, t: Term, symbols: dict[Term, Any]) -> Any:
        if t in symbols:
            return symbols[t]
        if t.kind == "const":
            return self._number(float(t.value))
        args = [self._translate(a, symbols) for a in t.args]
        return args[0] if t.kind == "cast" else MEANINGS[t.op](self.s, *args)

    def _number(self, value: float) -> Any:
        if is_plain_constant(value):
            return self.s.Rational(value)
        if value not in self.numbers:
            symbol = self.s.Symbol(f"c{len(self.numbers)}", positive=True)
            self.numbers[value] = symbol if value > 0 else -symbol
        return self.numbers[value]


def _is_zero(s: Any, e: Any) -> bool:
    return _simplifies_to(
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
    return _simplifies_to(
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


MAX_REWRITE_OPERATORS = 3000
"""Maximum operators of an expression that a step may rewrite; a tenth for the last, slowest step.

Longer expressions are not proved.
"""


def _simplifies_to(target: int, e: Any, steps: Sequence[Callable[[Any], Any]]) -> bool:
    """Return whether successive rewriting steps reach a number."""
    for step in steps:
        limit = MAX_REWRITE_OPERATORS // 10 if step is steps[-1] else MAX_REWRITE_OPERATORS
        if e.count_ops() > limit:
            return False
        e = step(e)
        if e == target:
            return True
    return False


def _prove_gauge(s: Any, w: _Writer, claim: Claim) -> bool:
    f = claim.formula
    slot = f.moving[claim.number]
    g = s.Symbol("g", positive=True) if f.signs[f.varying] else s.Symbol("g", real=True)
    placeholders = {t: s.Integer(1) for t in f.moving if t is not slot}
    unit = s.simplify(w.at({**placeholders, f.varying: g, slot: g}))
    if unit.has(g) or unit == 0:
        return False
    left = w.at({}) * unit
    right = w.at({**placeholders, slot: g}) * w.at({f.varying: g})
    return _is_one(s, left / right) or _is_zero(s, left - right)


def _prove_rank(s: Any, w: _Writer, claim: Claim) -> bool:
    """Prove that every (k+1) x (k+1) table of values is singular.

    Then the factor is a sum of k products, whichever points its parts are evaluated at.
    """
    f, k = claim.formula, claim.number
    rows = [w.symbol(f"x{a}", f.varying) for a in range(k + 1)]
    columns = [{t: w.symbol(f"y{b}_{n}", t) for n, t in enumerate(f.moving)} for b in range(k + 1)]
    table = s.Matrix([[w.at({f.varying: x, **c}) for c in columns] for x in rows])
    if k == 1:
        quotient = table[0, 0] * table[1, 1] / (table[0, 1] * table[1, 0])
        return _is_one(s, quotient) or _is_zero(s, table.det())
    return _is_zero(s, table.det())


_PROVERS: dict[str, Callable[[Any, _Writer, Claim], bool]] = {
    "gauge": _prove_gauge,
    "rank": _prove_rank,
}
