"""Integer expressions over sizes and axes: the algebra of shapes and of index maps.

A value is a Python int or an `Expr`, a polynomial over atoms in a normal form, so that equality of
text is equality of value for everything the rules below can see.  Atoms are variables (a *size*,
fixed during a call, an *axis*, which runs over 0 .. extent-1, or a *value* that a program computes)
and floor divisions, remainders, minima and maxima of expressions.

>>> n, i = size("n"), axis("i", size("n") * 4)
>>> (i // 4) * 4 + i % 4 == i, i // (n * 4), (n * 4 + i) // 4
(True, 0, n + i//4)

Inside index maps every size may be taken to be at least 1: an empty array runs no iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, reduce
from math import prod
from typing import Any, Literal, TypeAlias

from smelt.types.expr_text import is_simple, written
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
            self._order = kind, self.name or self.text(True)
        return self._order

    def text(self, index: bool) -> str:
        """Source text; with `index`, a size prints as `size(n)` to tell it from an axis."""
        if self.kind in ("axis", "value"):
            return self.name
        if self.kind == "size":
            return f"size({self.name})" if index else self.name
        parts = [written(a, index) for a in self.args]
        if self.kind in ("min", "max"):
            return f"{self.kind}({', '.join(parts)})"
        left, right = (
            p if is_simple(a) else f"({p})" for p, a in zip(parts, self.args, strict=True)
        )
        return f"{left}{self.kind}{right}"


Monomial: TypeAlias = tuple[Atom, ...]


class Expr:
    """A polynomial with integer coefficients: `terms` maps sorted tuples of atoms to numbers."""

    __slots__ = ("hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self.hash = hash(terms)

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
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if any(a.kind == "%" for m, _ in kept for a in m):
        joined = _join_divisions(dict(kept))
        if joined is not None:
            return joined
    kept.sort(key=lambda t: (not t[0], tuple(a.order() for a in t[0])))
    return Expr(tuple(kept))


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
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(b, int) and b == 0:
        return a
    if isinstance(a, int) and a == 0:
        return b
    total = dict(terms_of(a))
    for m, c in terms_of(b):
        total[m] = total.get(m, 0) + c
    return build(total)


def mul(a: Index, b: Index) -> Index:
    """a * b"""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(b, int) and b == 1:
        return a
    if isinstance(a, int) and a == 1:
        return b
    total: dict[Monomial, int] = {}
    for m, c in terms_of(a):
        for k, d in terms_of(b):
            both = tuple(sorted(m + k, key=Atom.order)) if m and k else m or k
            total[both] = total.get(both, 0) + c * d
    return build(total)


def sub(a: Index, b: Index) -> Index:
    """a - b"""
    return add(a, mul(b, -1))


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
    if b == 1 or a == 0:
        return a
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
    if b == 1 or a == 0:
        return 0
    if b == 0:
        raise ZeroDivisionError("remainder of a size by zero")
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
    for atom in atoms(e):
        if atom.kind == "axis" and isinstance(atom.extent, Expr):
            times, rest = map(build, divide(atom.extent.terms, divisor.terms))
            if rest == 0 and nonnegative(times):
                return True
    return False


def _quotient(e: Index, divisor: Index) -> Index:
    """e // divisor for a divisor of at least 1."""
    if isinstance(e, Expr) and isinstance(divisor, Expr):
        whole, rest = map(build, divide(e.terms, divisor.terms))
        if rest == -1:
            return add(whole, -1)
    return floordiv(e, divisor)


def _within(e: Index, limit: Index) -> bool:
    """0 <= e < limit for all values of the axes, sizes >= 1"""
    span = bounds(e)
    if span is None:
        return False
    return nonnegative(span[0]) and nonnegative(sub(add(limit, -1), span[1]))


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
    shifted: Index = 0  # n -> n' + 1: then all-nonnegative coefficients suffice
    for m, c in e.terms:
        part: Index = c
        for atom in m:
            if atom.kind != "size" and _atom_bounds(atom) is None:
                return False
            part = mul(part, add(_atom(atom), 1 if atom.kind == "size" else 0))
        shifted = add(shifted, part)
    return all(c >= 0 for _, c in terms_of(shifted))


def positive(e: Index) -> bool:
    """Provably >= 1 when every size is >= 1."""
    return nonnegative(sub(e, 1))


def atoms(e: Index) -> Iterator[Atom]:
    """Every atom of `e`, nested ones too."""
    for m, _ in terms_of(e):
        for atom in m:
            yield atom
            for arg in atom.args:
                yield from atoms(arg)


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
        part: Index = c
        for atom in m:
            part = mul(part, _rebuild_atom(atom, leaf))
        total = add(total, part)
    return total


_COMBINE: dict[str, Callable[[Index, Index], Index]] = {
    "//": floordiv, "%": mod, "min": minimum, "max": maximum,
}  # fmt: skip


def _rebuild_atom(atom: Atom, leaf: Callable[[Atom], Index]) -> Index:
    if atom.kind in ("size", "axis", "value"):
        return leaf(atom)
    return _COMBINE[atom.kind](*(rebuild(a, leaf) for a in atom.args))


def substitute(e: Index, values: Mapping[str, Index], kind: AtomKind = "axis") -> Index:
    """`e` with variables of one kind replaced by name."""
    return rebuild(e, lambda a: values.get(a.name, _atom(a)) if a.kind == kind else _atom(a))


def evaluate(e: Index, sizes: Mapping[str, Any], axes: Mapping[str, Any] | None = None) -> Any:
    """The number `e` is, an array where axes are; KeyError for a variable without a value."""
    if isinstance(e, int):
        return e
    total: Any = 0
    for m, c in e.terms:
        part: Any = c
        for atom in m:
            part = part * _evaluate_atom(atom, sizes, axes)
        total = total + part
    return total


def _evaluate_atom(atom: Atom, sizes: Mapping[str, Any], axes: Mapping[str, Any] | None) -> Any:
    if atom.kind == "size":
        return sizes[atom.name]
    if atom.kind in ("axis", "value"):
        return (axes or {})[atom.name]
    a, b = (evaluate(x, sizes, axes) for x in atom.args)
    if atom.kind in ("//", "%"):
        return a // b if atom.kind == "//" else a % b
    return (a + b - abs(a - b)) // 2 if atom.kind == "min" else (a + b + abs(a - b)) // 2


def product(values: Iterable[Index]) -> Index:
    """The product of sizes; 1 for none."""
    dims = [*values]
    number: Index = prod(n for n in dims if isinstance(n, int))
    return reduce(mul, (n for n in dims if isinstance(n, Expr)), number)


def text(e: Index, *, index: bool = False) -> str:
    """Source text, which `smelt.types.parse_expr` reads back; `index` marks sizes as `size(n)`."""
    return written(e, index)
