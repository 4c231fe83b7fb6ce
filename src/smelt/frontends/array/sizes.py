"""Symbolic sizes: hints, equalities, and the guards that a program relies on.

Inside `jit`, and when a pending program is compiled, every dimension other than 0 and 1 is a symbol
with a *hint*, its value in the present call.  Where the program needs sizes to be equal, or Python
inspects one, the hint decides, and a *guard* records under which condition the answer is valid.  An
equality also *binds* a symbol, so that types created later mention the remaining symbol only.

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

from smelt.errors import ShapeError
from smelt.errors.array import BROADCAST_HINT, CONTRACTION_HINT
from smelt.frontends.array.value import intern
from smelt.graph import build
from smelt.graph.ir import Fact, Node
from smelt.graph.walk import map_indices
from smelt.ops.create import Constant, SizeOf
from smelt.python.origin import here
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
from smelt.types.formula import Formula, Guard
from smelt.types.tensor import Shape, TensorType

RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Relations of guards, as functions."""


class Sizes:
    """Symbols with their hints, the equalities among them, and guards."""

    def __init__(self) -> None:
        self.hints: dict[str, int] = {}
        """Values of the symbols in the present call."""
        self.bound: dict[str, Index] = {}
        """Symbols that are expressed by others."""
        self.quotient_of: dict[str, Index] = {}
        """Symbols that stand for a quotient of others, and these quotients."""
        self.replaceable: set[str] = set()
        """Symbols to eliminate first: others replace them where possible."""
        self.guards: list[Guard] = []
        self._canonical: dict[int, tuple[TensorType, TensorType]] = {}
        """Canonical types by identity; entries keep the types alive."""
        self._canonical_exprs: dict[Expr, Index] = {}
        """Canonical expressions, cached until a symbol is bound."""
        self._values: dict[Expr, int] = {}
        """Values of expressions in the present call, cached."""
        self._answers: dict[tuple[Index, str, Index], tuple[bool, bool]] = {}
        """Answers to comparisons, each with whether it needed a guard; cached until a symbol is
        bound.
        """
        self.memo: dict[Hashable, Any] = {}
        """Cache for callers' results on types, cleared when a symbol is bound."""
        self._readers: dict[str, set[str]] = {}
        """For each symbol, the bound symbols that are expressed by it."""

    # Symbols

    def symbol(self, hint: int, name: str = "") -> Index:
        """Create a size symbol whose value in the present call is `hint`."""
        if not name:
            number = len(self.hints)
            while f"n{number}" in self.hints:
                number += 1
            name = f"n{number}"
        self.hints[name] = hint
        return size(name)

    def canon(self, e: Index) -> Index:
        """Return `e` in terms of the symbols that are not bound."""
        if isinstance(e, int) or not self.bound:
            return e
        canonical = self._canonical_exprs.get(e)
        if canonical is None:
            canonical = self._canonical_exprs[e] = substitute(e, self.bound, "size")
        return canonical

    def hint(self, e: Index) -> int:
        """Return the value of `e` in the call that is recorded."""
        if isinstance(e, int):
            return e
        value = self._values.get(e)
        if value is None:
            value = self._values[e] = int(evaluate(e, self.hints))
        return value

    def shape(self, shape: Shape) -> Shape:
        """Return a shape in terms of the symbols that are not bound."""
        return tuple(self.canon(d) for d in shape)

    def type(self, type: TensorType) -> TensorType:
        """Return `type` with canonical dimensions."""
        if not self.bound:
            return type
        entry = self._canonical.get(id(type))
        if entry is None:
            canonical = intern(type.dtype, self.shape(type.shape))
            entry = self._canonical[id(type)] = canonical, type
        return entry[0]

    def concrete(self, type: TensorType) -> TensorType:
        """Return `type` with the sizes of the call that is recorded."""
        return TensorType(type.dtype, tuple(self.hint(d) for d in type.shape))

    def _bind(self, name: str, e: Index) -> None:
        for k in self._readers.pop(name, ()):
            self.bound[k] = substitute(self.bound[k], {name: e}, "size")
            self._note_readers(k)
        self.bound[name] = e
        self._note_readers(name)
        self._canonical.clear()
        self._canonical_exprs.clear()
        self._answers.clear()
        self.memo.clear()

    def _note_readers(self, name: str) -> None:
        """Register a bound symbol with the symbols in its expression.

        It is updated when they are bound.
        """
        for used in sizes_of(self.bound[name]):
            self._readers.setdefault(used, set()).add(name)

    def _guard(self, left: Index, relation: str, right: Index) -> None:
        self.before_guard()
        self.guards.append(Guard(left, relation, right, here()))

    def before_guard(self) -> None:
        """Called before a guard is added; a recording that has ended raises LeakError."""

    # Queries: each answer is either proved or becomes a guard

    def same(self, a: Index, b: Index) -> bool:
        """Return whether two sizes are equal; equal sizes become the same expression."""
        equal = self._equal(a, b)
        if equal and self.canon(a) != self.canon(b):
            if self._unify_factors(*_cancel(self.canon(a), self.canon(b))):
                self._equal(a, b)  # the remainder may be solvable now
            for rest in _cancel(self.canon(a), self.canon(b)):  # common factors may vary
                self.pin(rest)
        return equal

    def _unify_factors(self, a: Index, b: Index) -> bool:
        """Unify symbols with equal values in two products, in order; return whether there are any.

        k.reshape(b, n, h, d // h) with the sizes of q suggests that; the recording then holds for
        all of them.
        """
        left, right = _factors(a), _factors(b)
        any_equal = False
        for name in left:
            twin = next((t for t in right if self.hints[t] == self.hints[name]), None)
            if twin is not None:
                right.remove(twin)
                any_equal = self._equal(size(name), size(twin))
        return any_equal

    def _equal(self, a: Index, b: Index) -> bool:
        """Return whether two sizes are equal; if so, express one by the other where possible."""
        a, b = self.canon(a), self.canon(b)
        if a == b:
            return True
        if self._is_provably_nonnegative(sub(sub(a, b), 1)) or self._is_provably_nonnegative(
            sub(sub(b, a), 1)
        ):
            return False
        rest = _remainder(a, b)
        if rest is not None:
            return self.divisible(*rest)
        if self.hint(a) != self.hint(b):
            self._guard(a, "!=", b)
            return False
        for dividend, divisor in _quotients(a, b):
            if self.hint(mod(dividend, divisor)) == 0:
                self.divisible(dividend, divisor)
        a, b = _cancel(self.canon(a), self.canon(b))
        if a != b:
            self._guard(a, "==", b)
            solved = _solve(a, b, self._rank)
            if solved is not None:
                self._bind(*solved)
        return True

    def _is_provably_nonnegative(self, e: Index) -> bool:
        """Return whether `e` is nonnegative for all sizes.

        Symbols of arguments are at least 2 here, quotients of them at least 1.
        """
        if isinstance(e, Expr):
            shifted = {n: add(size(n), 1) for n in sizes_of(e) if n not in self.quotient_of}
            e = substitute(e, shifted, "size")
        return nonnegative(e)

    def _rank(self, name: str) -> tuple[bool, int]:
        """Return the priority for eliminating a symbol: guests first, then the youngest."""
        return name in self.replaceable, list(self.hints).index(name)

    def pin(self, e: Index) -> int:
        """Return the value of `e` and make the recording valid for this value only."""
        value = self.hint(e)
        for name in sizes_of(self.canon(e)):
            self._guard(size(name), "==", self.hints[name])
            self._bind(name, self.hints[name])
        return value

    def divisible(self, e: Index, divisor: Index) -> bool:
        """Return whether `divisor` divides `e`; if so, make `e` a multiple of it."""
        e, divisor = self.canon(e), self.canon(divisor)
        rest = mod(e, divisor)
        if rest == 0:
            return True
        reduced = _cancel(e, divisor)  # symbols are never 0
        if reduced != (e, divisor):
            return self.divisible(*reduced)
        if self.hint(divisor) == 0 or self.hint(rest) != 0:
            self._guard(rest, "!=", 0)
            return False
        for name in sizes_of(e):
            remainder = mod(size(name), divisor)
            if name in sizes_of(divisor) or self.hint(remainder) != 0:
                continue
            if mod(substitute(e, {name: mul(divisor, size("?"))}, "size"), divisor) == 0:
                self._guard(remainder, "==", 0)
                quotient_name = (
                    f"{name}_{text(divisor)}" if isinstance(divisor, int) else f"{name}_"
                )
                self.quotient_of[quotient_name] = floordiv(size(name), divisor)
                if name in self.replaceable:
                    self.replaceable.add(quotient_name)
                quotient = self.symbol(self.hints[name] // self.hint(divisor), quotient_name)
                self._bind(name, mul(divisor, quotient))
                return True
        if self._unify_factors(e, divisor):
            return self.divisible(e, divisor)
        self.pin(e)
        self.pin(divisor)
        return True

    def prepare_stride(self, e: Index, step: int) -> None:
        """Prepare a size for strided windows, so that quotients do not nest.

        A multiple of the step is expressed as one; a size that contains a quotient is pinned.
        """
        e = self.canon(e)
        if isinstance(e, int) or step == 1:
            return
        if any(a.kind == "//" for a in atoms(e)):
            self.pin(e)
        elif self.hint(e) % step == 0:
            self.divisible(e, step)

    def holds(self, left: Index, relation: str, right: Index) -> bool:
        """Return whether `left relation right`; relations are == != < <=."""
        if relation == "==":
            return self._equal(left, right)
        if relation == "!=":
            return not self._equal(left, right)
        query = left, relation, right
        cached = self._answers.get(query)
        if cached is None:
            guards = len(self.guards)
            answer = self._ordered(left, relation, right)
            cached = self._answers[query] = answer, len(self.guards) > guards
        elif cached[1]:
            self.before_guard()
        return cached[0]

    def _ordered(self, left: Index, relation: str, right: Index) -> bool:
        """Return the answer of `holds` for < and <=, not cached."""
        left, right = self.canon(left), self.canon(right)
        gap = sub(sub(right, left), 1 if relation == "<" else 0)
        if self._is_provably_nonnegative(gap):
            return True
        if self._is_provably_nonnegative(sub(-1, gap)):
            return False
        truth = RELATIONS[relation](self.hint(left), self.hint(right))
        if truth:
            self._guard(left, relation, right)
        else:
            self._guard(right, "<" if relation == "<=" else "<=", left)
        return truth

    def broadcast(self, what: str, *types: TensorType) -> tuple[TensorType, ...]:
        """Return canonical types whose dimensions agree or are 1.

        Raises ShapeError for sizes that do not broadcast.
        """
        types = tuple(self.type(t) for t in types)
        if all(t.shape == types[0].shape for t in types):
            return types
        rank = max(len(t.shape) for t in types)
        for from_end in range(1, rank + 1):
            common: Index = 1
            for t in types:
                dim = self.canon(t.shape[-from_end]) if from_end <= len(t.shape) else 1
                joined = self.broadcast_dim(common, dim)
                if joined is None:
                    raise mismatch(what, types, -from_end, (common, dim), self)
                common = joined
        return tuple(self.type(t) for t in types)

    def broadcast_dim(self, a: Index, b: Index) -> Index | None:
        """Return the size that two dimensions broadcast to, None if they do not."""
        a, b = self.canon(a), self.canon(b)
        if b in (1, a):
            return a
        if a == 1:
            return b
        if self.hint(b) == 1 != self.hint(a):
            self.pin(b)  # it is broadcast in this call only
            return a
        if self.hint(a) == 1 != self.hint(b):
            self.pin(a)
            return b
        return self.canon(a) if self.same(b, a) else None

    # Code that evaluates symbols and guards for a later call

    def source(self, e: Index) -> str:
        """Return `e` as Python text over symbols that stand for no quotient."""
        while any(name in self.quotient_of for name in sizes_of(e)):
            e = substitute(e, self.quotient_of, "size")
        return text(e)

    def matcher(
        self,
        parameters: str,
        names: tuple[str, ...],
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> Formula:
        """Return a formula of `parameters`: the values of `names`, or None if a guard fails.

        `before` and `after` are further conditions as Python text, evaluated before the guards
        (which may rely on them, for instance to not divide by 0) and after them.
        """
        tests = dict.fromkeys(
            f"{self.source(g.left)} {g.relation} {self.source(g.right)}" for g in self.guards
        )
        values = "".join(f"({self.source(size(name))}), " for name in names)
        body = f"({values})"
        if tests or before or after:
            body = f"{body} if {' and '.join([*before, *tests, *after])} else None"
        return Formula(parameters, body)


def mismatch(
    what: str,
    types: tuple[TensorType, ...],
    dim: int,
    dims: tuple[Index, Index],
    sizes: Sizes | None = None,
    summed: int | None = None,
) -> ShapeError:
    """Return the ShapeError for two dimensions that should be equal.

    The message has the sizes of the call that is recorded.  `summed` is the position of the first
    dimension if both are summed over, in a product.
    """
    a, b = dims if sizes is None else [sizes.hint(d) for d in dims]
    named = types if sizes is None else [sizes.concrete(t) for t in types]
    return ShapeError(
        op=what,
        operands=", ".join(map(str, named)),
        reason=f"dimension {dim} is {text(a)} in one and {text(b)} in another"
        if summed is None
        else f"dimension {summed} of one is {text(a)}, dimension {dim} of the other {text(b)}",
        hint=BROADCAST_HINT if summed is None else CONTRACTION_HINT,
    )


def _remainder(a: Index, b: Index) -> tuple[Index, Index] | None:
    """Return x and d if a == b means x % d == 0.

    Else None.
    """
    for e, other in ((a, b), (b, a)):
        if other == 0 and isinstance(e, Expr) and len(e.terms) == 1:
            (monomial, c), *_ = e.terms
            if len(monomial) == 1 and monomial[0].kind == "%" and c in (1, -1):
                return monomial[0].args[0], monomial[0].args[1]
    return None


def _quotients(a: Index, b: Index) -> list[tuple[Index, Index]]:
    """Return dividends and divisors in two expressions; exact divisions can be cancelled."""
    return [(atom.args[0], atom.args[1]) for e in (a, b) for atom in atoms(e) if atom.kind == "//"]


def _factors(e: Index) -> list[str]:
    """Return the symbols of a product in order, none for a sum."""
    return [atom.name for atom in _product(e)[0] if atom.kind == "size"]


def _cancel(a: Index, b: Index) -> tuple[Index, Index]:
    """Divide both sides by their common factors, if each is one product."""
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
    """Return the factors of a product and its coefficient; none and 0 for a sum."""
    if isinstance(e, int):
        return (), e
    return e.terms[0] if len(e.terms) == 1 else ((), 0)


def _solve(a: Index, b: Index, rank: Callable[[str], tuple[bool, int]]) -> tuple[str, Index] | None:
    """Solve a == b for the symbol of highest `rank`, the one to eliminate.

    None if no symbol stands alone in a term.
    """
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


def rebuild_node(sizes: Sizes, x: Node, rebuilt: dict[Node, Node]) -> Node:
    """Return a node with canonical sizes and its type inferred again."""
    if isinstance(x.op, Constant):
        return x
    if isinstance(x.op, SizeOf) and isinstance(sizes.canon(x.op.expr), int):
        number = sizes.canon(x.op.expr)
        assert isinstance(number, int)
        value = float(number) if x.op.dtype.is_float else number
        return build.constant(value, x.op.dtype, x.origin)
    op = map_indices(x.op, sizes.canon)
    return build.apply(op, *(rebuilt[i] for i in x.inputs), origin=x.origin)


def facts(sizes: Sizes, names: tuple[str, ...]) -> tuple[Fact, ...]:
    """Return the guards about `names` other than equalities, which the types express."""
    by_text: dict[tuple[str, str, str], Fact] = {}
    for g in sizes.guards:
        left, right = sizes.canon(g.left), sizes.canon(g.right)
        used = {*sizes_of(left), *sizes_of(right)}
        if g.relation != "==" and used and used <= set(names):
            by_text[text(left), g.relation, text(right)] = Fact(left, g.relation, right)
    return tuple(by_text.values())
