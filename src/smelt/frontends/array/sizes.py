"""Size symbols: what is known of them, and what a program had to assume about them.

Inside `jit`, and when a pending program is compiled, every dimension that is not 0 or 1 is a symbol
with a *hint*, its value in the call at hand.  Where the program needs sizes to be equal, or Python
looks at one, the hint decides and a *guard* is written down under which the answer is valid.  An
equality also *binds* a symbol, so that types made later mention only the survivor.

>>> s = Sizes()
>>> n, m = s.symbol(6), s.symbol(6)
>>> s.same(n, m), s.canon(m), [str(g) for g in s.guards]
(True, n0, ['n0 == n1'])
>>> s.divisible(n, 3), s.canon(n), s.canon(m // 3)
(True, n0_3*3, n0_3)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from math import gcd
from typing import Any

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import ShapeError
from smelt.errors.array import STRETCHES, SUMMED
from smelt.frontends.array.value import intern
from smelt.origin import Origin, here
from smelt.types.expr import (
    Expr,
    Index,
    Monomial,
    add,
    atoms,
    evaluate,
    floordiv,
    mod,
    mul,
    nonnegative,
    size,
    sizes_of,
    sub,
    substitute,
    text,
)
from smelt.types.tensor import Shape, TensorType

__all__ = ["Guard", "Sizes", "mismatch"]

RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class Guard:
    """`left relation right` holds for the sizes this recording was made for."""

    left: Index
    relation: str
    right: Index
    origin: Origin

    def __str__(self) -> str:
        return f"{text(self.left)} {self.relation} {text(self.right)}"


class Sizes:
    """Symbols, their hints, the equalities found among them, and the guards of all answers."""

    def __init__(self) -> None:
        self.hints: dict[str, int] = {}
        self.bound: dict[str, Index] = {}
        self.meaning: dict[str, Index] = {}
        """Symbols that stand for a quotient of others."""
        self.guests: set[str] = set()
        """Symbols that should not survive: another one takes their place where it can."""
        self.guards: list[Guard] = []
        self._canonical: dict[int, tuple[TensorType, TensorType]] = {}
        """Types by their identity, which is theirs as long as they are kept, as canonical ones."""
        self._told: dict[Expr, Index] = {}
        """What has been asked before, until a symbol is bound: expressions as canonical ones,"""
        self._values: dict[Expr, int] = {}
        """their values in this call,"""
        self._answers: dict[tuple[Index, str, Index], tuple[bool, bool]] = {}
        """and comparisons, each with its answer and whether that took a guard."""
        self.repeats: dict[Hashable, Any] = {}
        """What callers remember of their work on types, until a symbol is bound."""
        self._readers: dict[str, set[str]] = {}

    # Symbols

    def symbol(self, hint: int, name: str = "") -> Index:
        """A new size symbol whose value in this call is `hint`."""
        if not name:
            number = len(self.hints)
            while f"n{number}" in self.hints:
                number += 1
            name = f"n{number}"
        self.hints[name] = hint
        return size(name)

    def canon(self, e: Index) -> Index:
        """`e` in terms of the symbols that are not bound."""
        if isinstance(e, int) or not self.bound:
            return e
        found = self._told.get(e)
        if found is None:
            found = self._told[e] = substitute(e, self.bound, "size")
        return found

    def hint(self, e: Index) -> int:
        """The value of `e` in the call that is being recorded."""
        if isinstance(e, int):
            return e
        found = self._values.get(e)
        if found is None:
            found = self._values[e] = int(evaluate(e, self.hints))
        return found

    def shape(self, shape: Shape) -> Shape:
        return tuple(self.canon(d) for d in shape)

    def type(self, type: TensorType) -> TensorType:
        """`type` with canonical dimensions."""
        if not self.bound:
            return type
        known = self._canonical.get(id(type))
        if known is None:
            found = intern(type.dtype, self.shape(type.shape))
            known = self._canonical[id(type)] = found, type
        return known[0]

    def concrete(self, type: TensorType) -> TensorType:
        """`type` with the sizes of the call that is being recorded."""
        return TensorType(type.dtype, tuple(self.hint(d) for d in type.shape))

    def _bind(self, name: str, e: Index) -> None:
        for k in self._readers.pop(name, ()):
            self.bound[k] = substitute(self.bound[k], {name: e}, "size")
            self._note(k)
        self.bound[name] = e
        self._note(name)
        self._canonical.clear()
        self._told.clear()
        self._answers.clear()
        self.repeats.clear()

    def _note(self, name: str) -> None:
        """Remember by which symbols a bound one is expressed, for when they are bound too."""
        for used in sizes_of(self.bound[name]):
            self._readers.setdefault(used, set()).add(name)

    def _guard(self, left: Index, relation: str, right: Index) -> None:
        self.allowed()
        self.guards.append(Guard(left, relation, right, here()))

    def allowed(self) -> None:
        """Called before a guard is added; a recording that has ended raises."""

    # Questions; each answer is either provable or becomes a guard

    def same(self, a: Index, b: Index) -> bool:
        """Whether two sizes are equal; if they are, they are the same expression from now on."""
        equal = self._equal(a, b)
        if equal and self.canon(a) != self.canon(b):
            if self._pair(*_cancel(self.canon(a), self.canon(b))):
                self._equal(a, b)  # what is left may be solved now
            for rest in _cancel(self.canon(a), self.canon(b)):  # what both share may vary
                self.pin(rest)
        return equal

    def _pair(self, a: Index, b: Index) -> bool:
        """Symbols of equal values in two products are equal from now on, the first with the first:
        k.reshape(b, n, h, d // h) with the sizes of q says so, and then holds for all of them.
        Whether there are any."""
        left, right = _factors(a), _factors(b)
        found = False
        for name in left:
            twin = next((t for t in right if self.hints[t] == self.hints[name]), None)
            if twin is not None:
                right.remove(twin)
                found = self._equal(size(name), size(twin))
        return found

    def _equal(self, a: Index, b: Index) -> bool:
        """Whether two sizes are equal; if they are, one is expressed by the other where it can."""
        a, b = self.canon(a), self.canon(b)
        if a == b:
            return True
        if self._never_negative(sub(sub(a, b), 1)) or self._never_negative(sub(sub(b, a), 1)):
            return False
        rest = _remainder(a, b)
        if rest is not None:
            return self.divisible(*rest)
        if self.hint(a) != self.hint(b):
            self._guard(a, "!=", b)
            return False
        for whole, part in _quotients(a, b):
            if self.hint(mod(whole, part)) == 0:
                self.divisible(whole, part)
        a, b = _cancel(self.canon(a), self.canon(b))
        if a != b:
            self._guard(a, "==", b)
            solved = _solve(a, b, self._rank)
            if solved is not None:
                self._bind(*solved)
        return True

    def _never_negative(self, e: Index) -> bool:
        """Provable for all sizes: arguments' are at least 2 here, quotients of them at least 1."""
        if isinstance(e, Expr):
            own = {n: add(size(n), 1) for n in sizes_of(e) if n not in self.meaning}
            e = substitute(e, own, "size")
        return nonnegative(e)

    def _rank(self, name: str) -> tuple[bool, int]:
        """Which symbol to express by others: guests first, then the youngest."""
        return name in self.guests, list(self.hints).index(name)

    def pin(self, e: Index) -> int:
        """The value of `e`; the recording is valid for this value only."""
        value = self.hint(e)
        for name in sizes_of(self.canon(e)):
            self._guard(size(name), "==", self.hints[name])
            self._bind(name, self.hints[name])
        return value

    def divisible(self, e: Index, divisor: Index) -> bool:
        """Whether `divisor` divides `e`; if so, `e` is a multiple of it as an expression."""
        e, divisor = self.canon(e), self.canon(divisor)
        rest = mod(e, divisor)
        if rest == 0:
            return True
        fewer = _cancel(e, divisor)  # symbols are never 0
        if fewer != (e, divisor):
            return self.divisible(*fewer)
        if self.hint(divisor) == 0 or self.hint(rest) != 0:
            self._guard(rest, "!=", 0)
            return False
        for name in sizes_of(e):
            left = mod(size(name), divisor)
            if name in sizes_of(divisor) or self.hint(left) != 0:
                continue
            if mod(substitute(e, {name: mul(divisor, size("?"))}, "size"), divisor) == 0:
                self._guard(left, "==", 0)
                part = f"{name}_{text(divisor)}" if isinstance(divisor, int) else f"{name}_"
                self.meaning[part] = floordiv(size(name), divisor)
                if name in self.guests:
                    self.guests.add(part)
                quotient = self.symbol(self.hints[name] // self.hint(divisor), part)
                self._bind(name, mul(divisor, quotient))
                return True
        if self._pair(e, divisor):
            return self.divisible(e, divisor)
        self.pin(e)
        self.pin(divisor)
        return True

    def stepped(self, e: Index, step: int) -> None:
        """Prepares a size for being walked in steps, so that quotients do not pile up: a multiple
        of the step is one from now on, and what is a quotient already becomes a number."""
        e = self.canon(e)
        if isinstance(e, int) or step == 1:
            return
        if any(a.kind == "//" for a in atoms(e)):
            self.pin(e)
        elif self.hint(e) % step == 0:
            self.divisible(e, step)

    def holds(self, left: Index, relation: str, right: Index) -> bool:
        """Whether `left relation right`; relations are == != < <=."""
        if relation == "==":
            return self._equal(left, right)
        if relation == "!=":
            return not self._equal(left, right)
        asked = left, relation, right
        known = self._answers.get(asked)
        if known is None:
            guards = len(self.guards)
            answer = self._ordered(left, relation, right)
            known = self._answers[asked] = answer, len(self.guards) > guards
        elif known[1]:
            self.allowed()
        return known[0]

    def _ordered(self, left: Index, relation: str, right: Index) -> bool:
        """`holds` for < and <=, where it was not asked before."""
        left, right = self.canon(left), self.canon(right)
        gap = sub(sub(right, left), 1 if relation == "<" else 0)
        if self._never_negative(gap):
            return True
        if self._never_negative(sub(-1, gap)):
            return False
        truth = RELATIONS[relation](self.hint(left), self.hint(right))
        if truth:
            self._guard(left, relation, right)
        else:
            self._guard(right, "<" if relation == "<=" else "<=", left)
        return truth

    def broadcast(self, what: str, *types: TensorType) -> tuple[TensorType, ...]:
        """Canonical types whose dimensions agree or are 1.  Raises ShapeError."""
        types = tuple(self.type(t) for t in types)
        if all(t.shape == types[0].shape for t in types):
            return types
        rank = max(len(t.shape) for t in types)
        for place in range(1, rank + 1):
            kept: Index = 1
            for t in types:
                dim = self.canon(t.shape[-place]) if place <= len(t.shape) else 1
                joined = self.stretched(kept, dim)
                if joined is None:
                    raise mismatch(what, types, -place, (kept, dim), self)
                kept = joined
        return tuple(self.type(t) for t in types)

    def stretched(self, a: Index, b: Index) -> Index | None:
        """The size that two dimensions broadcast to, None where they do not."""
        a, b = self.canon(a), self.canon(b)
        if b in (1, a):
            return a
        if a == 1:
            return b
        if self.hint(b) == 1 != self.hint(a):
            self.pin(b)  # it stretches in this call, and may not in another
            return a
        if self.hint(a) == 1 != self.hint(b):
            self.pin(a)
            return b
        return self.canon(a) if self.same(b, a) else None

    # The other way round: from the symbols to numbers of a later call

    def source(self, e: Index) -> str:
        """`e` as Python text over the symbols that stand for no quotient."""
        while any(name in self.meaning for name in sizes_of(e)):
            e = substitute(e, self.meaning, "size")
        return text(e)

    def matcher(
        self,
        parameters: str,
        names: tuple[str, ...],
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> Callable[..., Any]:
        """A function of `parameters`: the values of `names`, or None where a guard fails.

        `before` and `after` are further conditions as Python text: what guards rely on, so that
        nothing is divided by 0, and what relies on guards.
        """
        tests = dict.fromkeys(
            f"{self.source(g.left)} {g.relation} {self.source(g.right)}" for g in self.guards
        )
        values = "".join(f"({self.source(size(name))}), " for name in names)
        body = f"({values})"
        if tests or before or after:
            body = f"{body} if {' and '.join([*before, *tests, *after])} else None"
        return self.formula(parameters, body)

    @staticmethod
    def formula(parameters: str, body: str) -> Callable[..., Any]:
        """A function from Python text that was printed from expressions."""
        return eval(f"lambda {parameters}: {body}", {"inf": np.inf, "nan": np.nan})  # noqa: S307


def mismatch(
    what: str,
    types: tuple[TensorType, ...],
    place: int,
    dims: tuple[Index, Index],
    known: Sizes | None = None,
    summed: int | None = None,
) -> ShapeError:
    """The error for two dimensions that should be equal; sizes are those of the call at hand.
    `summed` is the place of the first one where both are summed over, in a product."""
    a, b = dims if known is None else [known.hint(d) for d in dims]
    named = types if known is None else [known.concrete(t) for t in types]
    return ShapeError(
        op=what,
        operands=", ".join(map(str, named)),
        reason=f"dimension {place} is {text(a)} in one and {text(b)} in another"
        if summed is None
        else f"dimension {summed} of one is {text(a)}, dimension {place} of the other {text(b)}",
        hint=STRETCHES if summed is None else SUMMED,
    )


def _remainder(a: Index, b: Index) -> tuple[Index, Index] | None:
    """x and d, if the question is whether x % d is 0."""
    for e, other in ((a, b), (b, a)):
        if other == 0 and isinstance(e, Expr) and len(e.terms) == 1:
            (monomial, c), *_ = e.terms
            if len(monomial) == 1 and monomial[0].kind == "%" and c in (1, -1):
                return monomial[0].args[0], monomial[0].args[1]
    return None


def _quotients(a: Index, b: Index) -> list[tuple[Index, Index]]:
    """Divisions inside two expressions: exact ones let the whole cancel."""
    return [(atom.args[0], atom.args[1]) for e in (a, b) for atom in atoms(e) if atom.kind == "//"]


def _factors(e: Index) -> list[str]:
    """The symbols that a product is made of, in their order; none of what is no product."""
    return [atom.name for atom in _product(e)[0] if atom.kind == "size"]


def _cancel(a: Index, b: Index) -> tuple[Index, Index]:
    """Both sides without the factors they share, where each is one product."""
    (left, c), (right, k) = _product(a), _product(b)
    if not c or not k:
        return a, b
    left_rest, right_rest = list(left), list(right)
    for atom in left:
        if atom in right_rest:
            left_rest.remove(atom)
            right_rest.remove(atom)
    common = gcd(c, k)
    return (
        Expr(((tuple(left_rest), c // common),)) if left_rest else c // common,
        Expr(((tuple(right_rest), k // common),)) if right_rest else k // common,
    )


def _product(e: Index) -> tuple[Monomial, int]:
    """The factors of one product and its number; none and 0 for a sum."""
    if isinstance(e, int):
        return (), e
    return e.terms[0] if len(e.terms) == 1 else ((), 0)


def _solve(a: Index, b: Index, rank: Callable[[str], tuple[bool, int]]) -> tuple[str, Index] | None:
    """A symbol and what it must equal so that a == b; the youngest symbol that stands alone."""
    gap = sub(a, b)
    best: tuple[tuple[bool, int], str, Index] | None = None
    for monomial, c in gap.terms if isinstance(gap, Expr) else ():
        if len(monomial) != 1 or monomial[0].kind != "size" or abs(c) != 1:
            continue
        name = monomial[0].name
        rest = mul(sub(mul(size(name), c), gap), c)
        if name not in sizes_of(rest) and (best is None or rank(name) > best[0]):
            best = (rank(name), name, rest)
    return None if best is None else best[1:]
