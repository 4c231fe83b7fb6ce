"""Implement integer expressions over sizes and axes, for shapes and index maps.

A value is a Python int or an `Expr`, a polynomial over atoms in a normal form, so that expressions
are equal exactly if their normal forms are, as far as the rules below can see. Atoms are variables
(a *size*, fixed during a call, an *axis*, which takes the values 0 .. extent-1, or a *value* that a
program computes) and floor divisions, remainders, minima and maxima of expressions.

>>> n, i = size("n"), axis("i", size("n") * 4)
>>> (i // 4) * 4 + i % 4 == i, i // (n * 4), (n * 4 + i) // 4
(True, 0, n + i//4)

Inside index maps every size may be taken to be at least 1: an empty array runs no iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from itertools import chain
from typing import Literal, TypeAlias

from smelt.types.expr_number import evaluate as evaluate
from smelt.types.expr_text import spelled, written
from smelt.types.polynomial import divide, divides, steps

AtomKind = Literal["size", "axis", "value", "//", "%", "min", "max"]


class Atom:
    """A variable or an opaque sub-expression; compared by value, ordered by text."""

    __slots__ = ("_order", "args", "bounds", "extent", "hash", "key", "kind", "name", "whole")

    def __init__(
        self, kind: AtomKind, name: str = "", extent: Index = 0, args: tuple[Index, ...] = ()
    ) -> None:
        self.kind: AtomKind = kind
        self.name = name
        self.extent = extent
        self.args = args
        self.key = (kind, name, args)
        self.hash = hash(self.key)
        self._order: tuple[str, str] | None = None
        self.bounds: tuple[Index, Index] | Literal[False] | None = None
        """As `_atom_bounds` found them: an equal atom may have another extent."""
        self.whole: Index | None = None
        """Of a remainder e % d: d*(e//d), which every sum asks for."""

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.key == other.key)

    def order(self) -> tuple[str, str]:
        """Where the atom stands among the factors of a product; kept, sums ask it all the time."""
        if self._order is None:
            kind = {"size": "0", "axis": "1"}.get(self.kind, "2")
            self._order = kind, self.name or spelled(self, True)
        return self._order


Monomial: TypeAlias = tuple[Atom, ...]


class Expr:
    """A polynomial with integer coefficients: `terms` maps sorted tuples of atoms to numbers."""

    __slots__ = ("atoms", "extents", "hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self.hash = hash(terms)
        self.atoms: tuple[Atom, ...] | None = None
        self.extents: tuple[Index, ...] | None = None
        """As the functions of these names found them."""

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __repr__(self) -> str:
        return written(self, False)

    def __add__(self, other: Index) -> Index:
        return add(self, other)

    __radd__ = __add__

    def __mul__(self, other: Index) -> Index:
        return mul(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return mul(self, -1)

    def __sub__(self, other: Index) -> Index:
        return add(self, mul(other, -1))

    def __rsub__(self, other: Index) -> Index:
        return add(other, mul(self, -1))

    def __floordiv__(self, other: Index) -> Index:
        return floordiv(self, other)

    def __mod__(self, other: Index) -> Index:
        return mod(self, other)


Index: TypeAlias = int | Expr


def _atom(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


@lru_cache(maxsize=4096)
def size(name: str) -> Expr:
    """A size symbol: a number >= 0 that is known when the program is called."""
    return _atom(Atom("size", name))


def axis(name: str, extent: Index) -> Expr:
    """An axis variable, which takes the values 0 .. extent-1."""
    return _atom(Atom("axis", name, extent))


def value(name: str, extent: Index) -> Expr:
    """A position computed by the program (a gather's index), somewhere in 0 .. extent-1."""
    return _atom(Atom("value", name, extent))


def terms_of(e: Index) -> tuple[tuple[Monomial, int], ...]:
    """The terms in the normal form's order: a constant is the last."""
    return e.terms if isinstance(e, Expr) else (((), e),) if e else ()


def build(terms: Mapping[Monomial, int]) -> Index:
    """The sum of terms, numbers by sorted tuples of atoms, in normal form."""
    kept = [t for t in terms.items() if t[1]]
    if len(kept) < 2:  # too few to be joined or ordered
        return 0 if not kept else Expr((kept[0],)) if kept[0][0] else kept[0][1]
    if _has_remainder(kept):
        joined = _join_divisions(dict(kept))
        if joined is not None:
            return joined
    kept.sort(key=_order)
    return Expr(tuple(kept))


def _order(term: tuple[Monomial, int]) -> tuple[bool, list[tuple[str, str]]]:
    return not term[0], [a.order() for a in term[0]]


def _has_remainder(terms: Iterable[tuple[Monomial, int]]) -> bool:
    """Whether a factor of a term is a remainder: then terms may join."""
    return "%" in [a.kind for m, _ in terms for a in m]


def _join_divisions(terms: dict[Monomial, int]) -> Index | None:
    """c*d*(e//d) + c*(e%d)  ->  c*e"""
    for monomial, c in terms.items():
        for place, atom in enumerate(monomial):
            if atom.kind != "%":
                continue
            rest = monomial[:place] + monomial[place + 1 :]
            numerator, divisor = atom.args
            if atom.whole is None:
                atom.whole = mul(floordiv(numerator, divisor), divisor)
            wanted = terms_of(mul(atom.whole, Expr(((rest, c),)) if rest else c))
            if wanted and all(terms.get(m) == k for m, k in wanted):
                gone = {monomial, *(m for m, _ in wanted)}
                left = {m: k for m, k in terms.items() if m not in gone}
                whole = mul(numerator, Expr(((rest, c),)) if rest else c)
                return add(build(left), whole)
    return None


def add(a: Index, b: Index) -> Index:
    """a + b"""
    if isinstance(b, int):
        return a + b if isinstance(a, int) else _shifted(a, b) if b else a
    if isinstance(a, int):
        return _shifted(b, a) if a else b
    total = dict(a.terms)
    for m, c in b.terms:
        total[m] = total.get(m, 0) + c
    return build(total)


def _shifted(e: Expr, number: int) -> Index:
    """The sum with a number: the rest keeps its order, unless a remainder waits for the number."""
    *rest, (last, c) = e.terms
    total = number if last else c + number
    if _has_remainder(e.terms):
        return build({**dict(e.terms), (): total})
    kept = e.terms if last else tuple(rest)
    if not kept:
        return total
    return Expr((*kept, ((), total)) if total else kept)


def mul(a: Index, b: Index) -> Index:
    """a * b"""
    if isinstance(b, int):
        return a * b if isinstance(a, int) else _scaled(a, b)
    if isinstance(a, int):
        return _scaled(b, a)
    total: dict[Monomial, int] = {}
    for m, c in a.terms:
        for k, d in b.terms:
            both = tuple(sorted(m + k, key=Atom.order)) if m and k else m or k
            total[both] = total.get(both, 0) + c * d
    return build(total)


def _scaled(e: Expr, number: int) -> Index:
    """The product with a number, of which no terms join that did not before."""
    if number in (0, 1):
        return e if number else 0
    (first, c), *rest = e.terms
    if not rest and not first:
        return c * number
    return Expr(tuple([(m, c * number) for m, c in e.terms]))


def sub(a: Index, b: Index) -> Index:
    """a - b"""
    return add(a, -b if isinstance(b, int) else _scaled(b, -1))


def _split(e: Index, divisor: Index) -> tuple[Index, Index]:
    """(q, r) with e = q*divisor + r, where q takes every term that divides exactly; of a sum, where
    r is seen to be the remainder."""
    if isinstance(divisor, Expr) and len(divisor.terms) > 1:
        whole, rest = map(build, divide(terms_of(e), divisor.terms))
        below = add(rest, divisor)
        if rest == 0 or _within(rest, divisor):
            return whole, rest
        return (add(whole, -1), below) if _within(below, divisor) else (0, e)
    q: dict[Monomial, int] = {}
    r: dict[Monomial, int] = {}
    (by, *_) = terms_of(divisor) or (((), 0),)
    for m, c in terms_of(e):
        part = divides(by, m, c)
        if part is not None:
            q[part[0]] = q.get(part[0], 0) + part[1]
        elif not m and isinstance(divisor, int) and divisor > 0:
            q[()] = q.get((), 0) + c // divisor
            r[()] = c % divisor
        else:
            r[m] = c
    return build(q), build(r)


def floordiv(a: Index, b: Index) -> Index:
    """a // b, rounded down.  Raises ZeroDivisionError for a literal zero divisor."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 0:
        raise ZeroDivisionError("division of a size by zero")
    return a if b == 1 or a == 0 else _floordiv(a, b, extents(a), extents(b))


@lru_cache(maxsize=8192)
def _floordiv(a: Index, b: Index, *over: tuple[Index, ...]) -> Index:
    """The same, for axes of these extents: every copy of a layer divides alike."""
    q, r = _split(a, b)
    if r == 0 or _within(r, b):
        return q
    if _within(add(r, b), b):
        return add(q, -1)
    if isinstance(r, Expr) and len(r.terms) == 1 and positive(b):  # (x//p)//q -> x//(p*q)
        (m, c), *_ = r.terms
        if c == 1 and len(m) == 1 and m[0].kind == "//" and positive(m[0].args[1]):
            return add(q, floordiv(m[0].args[0], mul(m[0].args[1], b)))
    if found := _coarser(r, b):  # (x*p + y)//(p*k) -> x//k for 0 <= y < p
        return add(q, floordiv(*found[:2]))
    return add(q, _atom(Atom("//", args=(r, b))))


def _coarser(e: Index, divisor: Index) -> tuple[Index, Index, Index, Index] | None:
    """(x, k, p, y) with e = x*p + y and divisor = p*k, where y is seen to be in [0, p)."""
    for p, k in steps(terms_of(e), terms_of(divisor), lambda a: a.kind == "size"):
        coarse, rest = _split(e, fine := build(p))
        if coarse != 0 and _within(rest, fine):
            return coarse, build(k), fine, rest
    return None


def mod(a: Index, b: Index) -> Index:
    """a % b, with the sign of b."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 0 and a != 0:
        raise ZeroDivisionError("remainder of a size by zero")
    return 0 if b == 1 or a == 0 else _mod(a, b, extents(a), extents(b))


@lru_cache(maxsize=8192)
def _mod(a: Index, b: Index, *over: tuple[Index, ...]) -> Index:
    """The same, for axes of some extents."""
    _, r = _split(a, b)
    if r == 0:
        return 0
    if _within(r, b):
        return r
    if found := _coarser(r, b):  # (x*p + y)%(p*k) -> (x%k)*p + y for 0 <= y < p
        coarse, times, fine, rest = found
        return add(mul(mod(coarse, times), fine), rest)
    return _atom(Atom("%", args=(r, b)))


def minimum(a: Index, b: Index) -> Index:
    """min(a, b)"""
    return _extreme("min", a, b)


def maximum(a: Index, b: Index) -> Index:
    """max(a, b)"""
    return _extreme("max", a, b)


def _extreme(kind: Literal["min", "max"], a: Index, b: Index) -> Index:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if kind == "min" else max(a, b)
    if nonnegative(sub(a, b)):
        return b if kind == "min" else a
    if nonnegative(sub(b, a)):
        return a if kind == "min" else b
    return _atom(Atom(kind, args=tuple(sorted((a, b), key=str))))


def bounds(e: Index) -> tuple[Index, Index] | None:
    """Inclusive symbolic bounds of `e` over its axes (sizes stay), or None if unknown."""
    low: Index = 0
    high: Index = 0
    for m, c in terms_of(e):
        least: Index = c
        most: Index = c
        for atom in m:
            span = _atom_bounds(atom)
            if span is None:
                return None
            least, most = mul(least, span[0]), mul(most, span[1])
        if c < 0:
            least, most = most, least
        low, high = add(low, least), add(high, most)
    return low, high


def _atom_bounds(atom: Atom) -> tuple[Index, Index] | None:
    """Bounds of an atom that is never negative; None for others.  Kept: each level asks twice."""
    if atom.bounds is None:
        atom.bounds = _find_bounds(atom) or False
    return atom.bounds or None


def _find_bounds(atom: Atom) -> tuple[Index, Index] | None:
    if atom.kind in ("axis", "value"):
        return 0, add(atom.extent, -1)
    if atom.kind == "size":
        return _atom(atom), _atom(atom)
    if atom.kind == "%":
        return (0, add(atom.args[1], -1)) if _divides_by_one_or_more(*atom.args) else None
    if atom.kind == "//":
        inner = bounds(atom.args[0])
        if inner is None or not nonnegative(inner[0]) or not _divides_by_one_or_more(*atom.args):
            return None
        return floordiv(inner[0], atom.args[1]), _quotient(inner[1], atom.args[1])
    fixed = all(nonnegative(a) for a in atom.args) and not axes_of(_atom(atom))
    return (_atom(atom), _atom(atom)) if fixed else None


def _divides_by_one_or_more(e: Index, divisor: Index) -> bool:
    """Whether e // divisor is only asked for where the divisor is at least 1: always, or because an
    axis of e runs over a multiple of it, and runs at all (n*(m - 1) positions are some only where
    m - 1 is)."""
    if positive(divisor):
        return True
    if not isinstance(divisor, Expr):
        return False
    over = [a.extent for a in atoms(e) if a.kind == "axis" and isinstance(a.extent, Expr)]
    parts = (map(build, divide(terms_of(n), divisor.terms)) for n in over)
    return any(rest == 0 and nonnegative(times) for times, rest in parts)


def _quotient(e: Index, divisor: Index) -> Index:
    """e // divisor for a divisor of at least 1."""
    if isinstance(e, Expr) and isinstance(divisor, Expr):
        whole, rest = map(build, divide(e.terms, divisor.terms))
        if rest == -1:
            return add(whole, -1)
    return floordiv(e, divisor)


def _within(e: Index, limit: Index) -> bool:
    """0 <= e < limit for all values of the axes, sizes >= 1"""
    low, high = bounds(e) or (-1, 0)
    return nonnegative(low) and nonnegative(sub(add(limit, -1), high))


def nonnegative(e: Index) -> bool:
    """Provably >= 0 when every size is >= 1 and every axis is inside its extent."""
    if isinstance(e, int):
        return e >= 0
    if any(a.kind in ("axis", "value") for a in atoms(e)):
        span = bounds(e)
        return span is not None and nonnegative(span[0])
    return _nonnegative(e)


@lru_cache(maxsize=8192)
def _nonnegative(e: Expr) -> bool:
    """The same of sizes alone; plans ask it of the same sums again and again."""
    if any(a.kind != "size" and _atom_bounds(a) is None for m, _ in e.terms for a in m):
        return False
    shifted: Index = 0  # n -> n' + 1: then all-nonnegative coefficients suffice
    for m, c in e.terms:
        above = [add(_atom(a), 1 if a.kind == "size" else 0) for a in m]
        shifted = add(shifted, reduce(mul, above, c))
    return all(c >= 0 for _, c in terms_of(shifted))


def positive(e: Index) -> bool:
    """Provably >= 1 when every size is >= 1."""
    return nonnegative(sub(e, 1))


def atoms(e: Index) -> tuple[Atom, ...]:
    """Every atom of `e`, nested ones too; kept, for all that is asked walks them."""
    if isinstance(e, int):
        return ()
    if e.atoms is None:
        inner = [(a, *(b for arg in a.args for b in atoms(arg))) for m, _ in e.terms for a in m]
        e.atoms = tuple(chain.from_iterable(inner))
    return e.atoms


def extents(e: Index) -> tuple[Index, ...]:
    """The extents of its axes and values, in order: equal expressions may differ in these."""
    if isinstance(e, int):
        return ()
    if e.extents is None:
        over = [a.extent for a in atoms(e) if a.kind in ("axis", "value")]
        e.extents = tuple(chain.from_iterable((n, *extents(n)) for n in over))
    return e.extents


@lru_cache(maxsize=8192)
def axes_of(e: Index) -> tuple[str, ...]:
    """Names of the axes that `e` depends on, in order of first appearance."""
    return tuple(dict.fromkeys(a.name for a in atoms(e) if a.kind == "axis"))


@lru_cache(maxsize=8192)
def sizes_of(e: Index) -> tuple[str, ...]:
    """Names of the size symbols in `e`, in order of first appearance."""
    return tuple(dict.fromkeys(a.name for a in atoms(e) if a.kind == "size"))


def rebuild(e: Index, leaf: Callable[[Atom], Index]) -> Index:
    """`e` with each variable replaced by `leaf(variable)`, simplified again."""
    if isinstance(e, int):
        return e
    total: Index = 0
    for m, c in e.terms:
        total = add(total, reduce(mul, [_rebuild_atom(a, leaf) for a in m], c))
    return total


_COMBINE: dict[str, Callable[[Index, Index], Index]] = {
    "//": floordiv,
    "%": mod,
    "min": minimum,
    "max": maximum,
}


def _rebuild_atom(atom: Atom, leaf: Callable[[Atom], Index]) -> Index:
    if atom.kind in ("size", "axis", "value"):
        return leaf(atom)
    return _COMBINE[atom.kind](*(rebuild(a, leaf) for a in atom.args))


def substitute(e: Index, values: Mapping[str, Index], kind: AtomKind = "axis") -> Index:
    """`e` with variables of one kind replaced by name."""
    return rebuild(e, lambda a: values.get(a.name, _atom(a)) if a.kind == kind else _atom(a))


def product(values: Iterable[Index]) -> Index:
    """The product of sizes; 1 for none."""
    one: Index = 1
    return reduce(mul, values, one)


def text(e: Index, *, index: bool = False) -> str:
    """Source text, which `smelt.types.parse_expr` reads back; `index` marks sizes as `size(n)`."""
    return written(e, index)
