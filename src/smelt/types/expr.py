"""Implement integer expressions over sizes and axes, for shapes and index maps.

A value is a Python int or an `Expr`, a polynomial over atoms in a normal form, so that expressions
are equal exactly if their normal forms are, as far as the rules below can see. Atoms are variables
(a *size*, fixed during a call, an *axis*, which takes the values 0 .. extent-1, or a *value* that a
program computes) and floor divisions, remainders, minima and maxima of expressions.

>>> n, i = size("n"), axis("i", size("n") * 4)
>>> (i // 4) * 4 + i % 4 == i, i // (n * 4), (n * 4 + i) // 4
(True, 0, n + i//4)

Inside index maps every size may be taken to be at least 1: an empty array runs no iteration.

>>> evaluate(size("n") * 4 - axis("i", 8) // 2, {"n": 3}, {"i": 5})
10

>>> coefficient(i * 4 + n, "i"), split_constant(i + 3)[0] == split_constant(i + 1)[0]
(4, True)

>>> expr_text(size("n") * 4 - axis("i", 8) // 2 + 1, True)
'size(n)*4 - i//2 + 1'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from itertools import chain
from math import prod
from typing import Any, Final, Literal, TypeAlias

from smelt.types.polynomial import divide, divide_term, factorizations, is_nonnegative

AtomKind = Literal["size", "axis", "value", "//", "%", "min", "max"]


class Atom:
    """A variable or an opaque sub-expression; compared by value, ordered by text."""

    __slots__ = (
        "_order",
        "args",
        "bounds",
        "divisible_part",
        "extent",
        "hash",
        "key",
        "kind",
        "name",
    )

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
        """Cached by `_atom_bounds`; not part of the key, as an equal atom may have another extent.
        """
        self.divisible_part: Index | None = None
        """For a remainder e % d: d*(e//d), cached for `_join_divisions`."""

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.key == other.key)

    def order(self) -> tuple[str, str]:
        """Return the sort key of the atom among the factors of a product, cached."""
        if self._order is None:
            kind = {"size": "0", "axis": "1"}.get(self.kind, "2")
            self._order = kind, self.name or atom_text(self, True)
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
        """Caches of the functions `atoms` and `extents`."""

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __repr__(self) -> str:
        return expr_text(self, False)

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

UNKNOWN: Final = -1
"""Extent of an axis or a value that may be any integer."""


def _atom(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


@lru_cache(maxsize=4096)
def size(name: str) -> Expr:
    """Return a size symbol: a number >= 0, known at the call."""
    return _atom(Atom("size", name))


def axis(name: str, extent: Index) -> Expr:
    """Return an axis variable, which takes the values 0 .. extent-1."""
    return _atom(Atom("axis", name, extent))


def value(name: str, extent: Index) -> Expr:
    """Return a position in 0 .. extent-1 that the program computes (a gather)."""
    return _atom(Atom("value", name, extent))


def terms_of(e: Index) -> tuple[tuple[Monomial, int], ...]:
    """Return the terms in the order of the normal form: a constant is the last."""
    return e.terms if isinstance(e, Expr) else (((), e),) if e else ()


def constant_term(e: Index) -> int:
    """Return the constant term of an index."""
    return next((c for m, c in terms_of(e) if not m), 0)


def build(terms: Mapping[Monomial, int]) -> Index:
    """Return the normal form of a sum of terms: coefficients by sorted tuples of atoms."""
    nonzero = [t for t in terms.items() if t[1]]
    if len(nonzero) < 2:  # nothing to merge or sort
        return 0 if not nonzero else Expr((nonzero[0],)) if nonzero[0][0] else nonzero[0][1]
    if _has_mod(nonzero):
        merged = _join_divisions(dict(nonzero))
        if merged is not None:
            return merged
    nonzero.sort(key=_order)
    return Expr(tuple(nonzero))


def _order(term: tuple[Monomial, int]) -> tuple[bool, list[tuple[str, str]]]:
    return not term[0], [a.order() for a in term[0]]


def _has_mod(terms: Iterable[tuple[Monomial, int]]) -> bool:
    """Whether a term has a remainder as a factor: then terms may merge."""
    return "%" in [a.kind for m, _ in terms for a in m]


def _join_divisions(terms: dict[Monomial, int]) -> Index | None:
    """Rewrite c*d*(e//d) + c*(e%d) to c*e; None if there is no such pair."""
    for monomial, c in terms.items():
        for position, atom in enumerate(monomial):
            if atom.kind != "%":
                continue
            rest = monomial[:position] + monomial[position + 1 :]
            numerator, divisor = atom.args
            if atom.divisible_part is None:
                atom.divisible_part = mul(floordiv(numerator, divisor), divisor)
            required = terms_of(mul(atom.divisible_part, Expr(((rest, c),)) if rest else c))
            if required and all(terms.get(m) == k for m, k in required):
                merged = {monomial, *(m for m, _ in required)}
                remaining = {m: k for m, k in terms.items() if m not in merged}
                product = mul(numerator, Expr(((rest, c),)) if rest else c)
                return add(build(remaining), product)
    return None


def add(a: Index, b: Index) -> Index:
    """Return a + b."""
    if isinstance(b, int):
        return a + b if isinstance(a, int) else _add_number(a, b) if b else a
    if isinstance(a, int):
        return _add_number(b, a) if a else b
    total = dict(a.terms)
    for m, c in b.terms:
        total[m] = total.get(m, 0) + c
    return build(total)


def _add_number(e: Expr, number: int) -> Index:
    """Add a number: the other terms keep their order, unless a remainder may merge."""
    *rest, (last, c) = e.terms
    total = number if last else c + number
    if _has_mod(e.terms):
        return build({**dict(e.terms), (): total})
    others = e.terms if last else tuple(rest)
    if not others:
        return total
    return Expr((*others, ((), total)) if total else others)


def mul(a: Index, b: Index) -> Index:
    """Return a * b."""
    if isinstance(b, int):
        return a * b if isinstance(a, int) else _mul_number(a, b)
    if isinstance(a, int):
        return _mul_number(b, a)
    total: dict[Monomial, int] = {}
    for m, c in a.terms:
        for k, d in b.terms:
            both = tuple(sorted(m + k, key=Atom.order)) if m and k else m or k
            total[both] = total.get(both, 0) + c * d
    return build(total)


def _mul_number(e: Expr, number: int) -> Index:
    """Multiply by a number; no terms merge that did not before."""
    if number in (0, 1):
        return e if number else 0
    (first, c), *rest = e.terms
    if not rest and not first:
        return c * number
    return Expr(tuple([(m, c * number) for m, c in e.terms]))


def sub(a: Index, b: Index) -> Index:
    """Return a - b."""
    return add(a, -b if isinstance(b, int) else _mul_number(b, -1))


def _divide(e: Index, divisor: Index) -> tuple[Index, Index]:
    """Return (q, r) with e = q*divisor + r.

    q takes every term that divides exactly; for a divisor that is a sum, r is provably the
    remainder, or q is 0.
    """
    if isinstance(divisor, Expr) and len(divisor.terms) > 1:
        quotient, rest = map(build, divide(terms_of(e), divisor.terms))
        below = add(rest, divisor)
        if rest == 0 or _is_in_range(rest, divisor):
            return quotient, rest
        return (add(quotient, -1), below) if _is_in_range(below, divisor) else (0, e)
    q: dict[Monomial, int] = {}
    r: dict[Monomial, int] = {}
    (divisor_monomial, *_) = terms_of(divisor) or (((), 0),)
    for m, c in terms_of(e):
        part = divide_term(divisor_monomial, m, c)
        if part is not None:
            q[part[0]] = q.get(part[0], 0) + part[1]
        elif not m and isinstance(divisor, int) and divisor > 0:
            q[()] = q.get((), 0) + c // divisor
            r[()] = c % divisor
        else:
            r[m] = c
    return build(q), build(r)


def floordiv(a: Index, b: Index) -> Index:
    """Return a // b, rounded down; raises ZeroDivisionError for a literal zero divisor."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 0:
        raise ZeroDivisionError("division of a size by zero")
    return a if b == 1 or a == 0 else _floordiv(a, b, extents(a), extents(b))


@lru_cache(maxsize=8192)
def _floordiv(a: Index, b: Index, *over: tuple[Index, ...]) -> Index:
    """Divide symbolically; the extents `over` of axes are part of the cache key."""
    q, r = _divide(a, b)
    if r == 0 or _is_in_range(r, b):
        return q
    if _is_in_range(add(r, b), b):
        return add(q, -1)
    if isinstance(r, Expr) and len(r.terms) == 1 and positive(b):  # (x//p)//q -> x//(p*q)
        (m, c), *_ = r.terms
        if c == 1 and len(m) == 1 and m[0].kind == "//" and positive(m[0].args[1]):
            return add(q, floordiv(m[0].args[0], mul(m[0].args[1], b)))
    if split := _split_common_factor(r, b):  # (x*p + y)//(p*k) -> x//k for 0 <= y < p
        return add(q, floordiv(*split[:2]))
    return add(q, _atom(Atom("//", args=(r, b))))


def _split_common_factor(e: Index, divisor: Index) -> tuple[Index, Index, Index, Index] | None:
    """Return (x, k, p, y) with e = x*p + y and divisor = p*k.

    0 <= y < p holds provably. None if there is no such factor p.
    """
    for p, k in factorizations(terms_of(e), terms_of(divisor), lambda a: a.kind == "size"):
        coarse, rest = _divide(e, fine := build(p))
        if coarse != 0 and _is_in_range(rest, fine):
            return coarse, build(k), fine, rest
    return None


def mod(a: Index, b: Index) -> Index:
    """Return a % b, with the sign of b."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 0 and a != 0:
        raise ZeroDivisionError("remainder of a size by zero")
    return 0 if b == 1 or a == 0 else _mod(a, b, extents(a), extents(b))


@lru_cache(maxsize=8192)
def _mod(a: Index, b: Index, *over: tuple[Index, ...]) -> Index:
    """Take the remainder symbolically; the extents `over` of axes are part of the cache key."""
    _, r = _divide(a, b)
    if r == 0:
        return 0
    if _is_in_range(r, b):
        return r
    if split := _split_common_factor(r, b):  # (x*p + y)%(p*k) -> (x%k)*p + y for 0 <= y < p
        coarse, times, fine, rest = split
        return add(mul(mod(coarse, times), fine), rest)
    return _atom(Atom("%", args=(r, b)))


def minimum(a: Index, b: Index) -> Index:
    """Return min(a, b)."""
    return _min_or_max("min", a, b)


def maximum(a: Index, b: Index) -> Index:
    """Return max(a, b)."""
    return _min_or_max("max", a, b)


def _min_or_max(kind: Literal["min", "max"], a: Index, b: Index) -> Index:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if kind == "min" else max(a, b)
    if nonnegative(sub(a, b)):
        return b if kind == "min" else a
    if nonnegative(sub(b, a)):
        return a if kind == "min" else b
    return _atom(Atom(kind, args=tuple(sorted((a, b), key=str))))


def bounds(e: Index) -> tuple[Index, Index] | None:
    """Return inclusive bounds of `e` over its axes (sizes stay symbolic); None if unknown."""
    low: Index = 0
    high: Index = 0
    for m, c in terms_of(e):
        term_low: Index = c
        term_high: Index = c
        for atom in m:
            span = _atom_bounds(atom)
            if span is None:
                return None
            term_low, term_high = mul(term_low, span[0]), mul(term_high, span[1])
        if c < 0:
            term_low, term_high = term_high, term_low
        low, high = add(low, term_low), add(high, term_high)
    return low, high


def _atom_bounds(atom: Atom) -> tuple[Index, Index] | None:
    """Return bounds of an atom that is never negative; None for others. Cached."""
    if atom.bounds is None:
        atom.bounds = _compute_bounds(atom) or False
    return atom.bounds or None


def _compute_bounds(atom: Atom) -> tuple[Index, Index] | None:
    if atom.kind in ("axis", "value"):
        return None if atom.extent == UNKNOWN else (0, add(atom.extent, -1))
    if atom.kind == "size":
        return _atom(atom), _atom(atom)
    if atom.kind == "%":
        return (0, add(atom.args[1], -1)) if _divisor_is_positive(*atom.args) else None
    if atom.kind == "//":
        inner = bounds(atom.args[0])
        if inner is None or not nonnegative(inner[0]) or not _divisor_is_positive(*atom.args):
            return None
        return floordiv(inner[0], atom.args[1]), _positive_floordiv(inner[1], atom.args[1])
    fixed = all(nonnegative(a) for a in atom.args) and not axes_of(_atom(atom))
    return (_atom(atom), _atom(atom)) if fixed else None


def _divisor_is_positive(e: Index, divisor: Index) -> bool:
    """Whether the divisor of e // divisor is at least 1 wherever it is evaluated.

    Always, or because an axis of e runs over a multiple of it: n*(m - 1) positions exist only if m
    - 1 is positive.
    """
    if positive(divisor):
        return True
    if not isinstance(divisor, Expr):
        return False
    over = [a.extent for a in atoms(e) if a.kind == "axis" and isinstance(a.extent, Expr)]
    parts = (map(build, divide(terms_of(n), divisor.terms)) for n in over)
    return any(rest == 0 and nonnegative(times) for times, rest in parts)


def _positive_floordiv(e: Index, divisor: Index) -> Index:
    """Return e // divisor for a divisor of at least 1."""
    if isinstance(e, Expr) and isinstance(divisor, Expr):
        quotient, rest = map(build, divide(e.terms, divisor.terms))
        if rest == -1:
            return add(quotient, -1)
    return floordiv(e, divisor)


def _is_in_range(e: Index, limit: Index) -> bool:
    """Whether 0 <= e < limit for all axes, with sizes >= 1."""
    low, high = bounds(e) or (-1, 0)
    return nonnegative(low) and nonnegative(sub(add(limit, -1), high))


def nonnegative(e: Index) -> bool:
    """Whether `e` is provably >= 0.

    Sizes are taken to be >= 1, and axes inside their extents.
    """
    if isinstance(e, int):
        return e >= 0
    if any(a.kind in ("axis", "value") for a in atoms(e)):
        span = bounds(e)
        return span is not None and span[0] != e and nonnegative(span[0])
    return _nonnegative(e)


@lru_cache(maxsize=8192)
def _nonnegative(e: Expr) -> bool:
    """Whether an expression of sizes alone is provably >= 0; cached."""
    if any(a.kind != "size" and _atom_bounds(a) is None for m, _ in e.terms for a in m):
        return False
    return is_nonnegative(e.terms, lambda a: a.kind == "size")


def positive(e: Index) -> bool:
    """Whether `e` is provably >= 1 when every size is >= 1."""
    return nonnegative(sub(e, 1))


def may_wrap(e: Index) -> bool:
    """Whether integers of 64 bits may be too short, with sizes and positions below 2**40.

    >>> i = axis("i", size("n"))
    >>> may_wrap(i * 1000 + size("n")), may_wrap(i * 2**30), may_wrap(i * i)
    (False, True, True)
    >>> may_wrap(axis("i", UNKNOWN) + (2**63 - 1))
    True
    """
    return _magnitude(e) >> 63 > 0


def _magnitude(e: Index) -> int:
    """Return what the absolute value of an expression does not exceed."""
    return sum(abs(factor) * prod(map(_atom_magnitude, m)) for m, factor in terms_of(e))


def _atom_magnitude(atom: Atom) -> int:
    if atom.args:
        return max(map(_magnitude, atom.args))
    if atom.kind == "axis" and isinstance(atom.extent, int) and atom.extent != UNKNOWN:
        return atom.extent
    return 1 << 40


def atoms(e: Index) -> tuple[Atom, ...]:
    """Return every atom of `e`, nested ones too; cached."""
    if isinstance(e, int):
        return ()
    if e.atoms is None:
        inner = [(a, *(b for arg in a.args for b in atoms(arg))) for m, _ in e.terms for a in m]
        e.atoms = tuple(chain.from_iterable(inner))
    return e.atoms


def extents(e: Index) -> tuple[Index, ...]:
    """Return the extents of axes and values in order: equal expressions may differ in these."""
    if isinstance(e, int):
        return ()
    if e.extents is None:
        over = [a.extent for a in atoms(e) if a.kind in ("axis", "value")]
        e.extents = tuple(chain.from_iterable((n, *extents(n)) for n in over))
    return e.extents


@lru_cache(maxsize=8192)
def symbol_of(e: Index) -> str | None:
    """Return the size that an expression is, or None."""
    names = sizes_of(e)
    return names[0] if len(names) == 1 and e == size(names[0]) else None


def axes_of(e: Index) -> tuple[str, ...]:
    """Return the names of the axes in `e`, in order of first appearance."""
    return tuple(dict.fromkeys(a.name for a in atoms(e) if a.kind == "axis"))


@lru_cache(maxsize=8192)
def sizes_of(e: Index) -> tuple[str, ...]:
    """Return the names of the size symbols in `e`, in order of first appearance."""
    return tuple(dict.fromkeys(a.name for a in atoms(e) if a.kind == "size"))


def map_variables(e: Index, leaf: Callable[[Atom], Index]) -> Index:
    """Replace each variable of `e` by `leaf(variable)`, and simplify."""
    if isinstance(e, int):
        return e
    total: Index = 0
    for m, c in e.terms:
        total = add(total, reduce(mul, [_rebuild_atom(a, leaf) for a in m], c))
    return total


def replace(e: Index, new: Mapping[str, Index]) -> Index:
    """Replace variables of `e` of any kind by name, and simplify."""
    if isinstance(e, int):
        return e
    parts: list[tuple[Index, int]] = []
    total: dict[Monomial, int] = {}
    for m, c in e.terms:
        factors = [_replaced(a, new) if a.args else new.get(a.name) for a in m]
        if factors.count(None) == len(m):
            total[m] = total.get(m, 0) + c
        elif len(m) == 1:
            parts += [(x, c) for x in factors if x is not None]
        else:
            both = zip(m, factors, strict=True)
            parts.append((reduce(mul, [_atom(a) if x is None else x for a, x in both], c), 1))
    for part, times in parts:
        for m, c in terms_of(part):
            total[m] = total.get(m, 0) + c * times
    return build(total)


def _replaced(atom: Atom, new: Mapping[str, Index]) -> Index | None:
    """Return a quotient, remainder or extreme of replaced variables; None if it has none."""
    args = [replace(a, new) for a in atom.args]
    if all(a is b for a, b in zip(args, atom.args, strict=True)):
        return None
    return _COMBINE[atom.kind](*args)


_COMBINE: dict[str, Callable[[Index, Index], Index]] = {
    "//": floordiv,
    "%": mod,
    "min": minimum,
    "max": maximum,
}


def _rebuild_atom(atom: Atom, leaf: Callable[[Atom], Index]) -> Index:
    if atom.kind in ("size", "axis", "value"):
        return leaf(atom)
    return _COMBINE[atom.kind](*(map_variables(a, leaf) for a in atom.args))


def substitute(e: Index, values: Mapping[str, Index], kind: AtomKind = "axis") -> Index:
    """Replace variables of one kind by name."""
    return map_variables(e, lambda a: values.get(a.name, _atom(a)) if a.kind == kind else _atom(a))


def product(values: Iterable[Index]) -> Index:
    """Return the product of sizes; 1 for none."""
    one: Index = 1
    return reduce(mul, values, one)


def text(e: Index, *, index: bool = False) -> str:
    """Print an expression for `smelt.types.text`; `index` marks sizes as `size(n)`."""
    return expr_text(e, index)


def evaluate(e: Index, sizes: Mapping[str, Any], axes: Mapping[str, Any] | None = None) -> Any:
    """Return the value of `e`, an array if axes are arrays.

    Raises KeyError for a variable without a value.
    """
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


def _is_simple(e: Index) -> bool:
    """Whether an operand needs no parentheses."""
    if isinstance(e, int):
        return e >= 0
    if len(e.terms) != 1 or e.terms[0][1] != 1 or len(e.terms[0][0]) != 1:
        return False
    return e.terms[0][0][0].kind not in ("//", "%")


def atom_text(atom: Atom, index: bool) -> str:
    """Print an atom; with `index`, a size is `size(name)`, unlike an axis."""
    if atom.kind in ("axis", "value"):
        return atom.name
    if atom.kind == "size":
        return f"size({atom.name})" if index else atom.name
    parts = [expr_text(a, index) for a in atom.args]
    if atom.kind in ("min", "max"):
        return f"{atom.kind}({', '.join(parts)})"
    left, right = (p if _is_simple(a) else f"({p})" for p, a in zip(parts, atom.args, strict=True))
    return f"{left}{atom.kind}{right}"


@lru_cache(maxsize=8192)
def expr_text(e: Index, index: bool) -> str:
    """Print an expression in the order of the normal form, cached.

    With `index`, sizes are marked as `size(name)`.
    """
    if isinstance(e, int):
        return str(e)
    out = ""
    for m, c in e.terms:
        is_single = len(m) == 1 and (c == 1 or (c == -1 and out != ""))
        factors = [
            f"({atom_text(a, index)})"
            if a.kind in ("//", "%") and not is_single
            else atom_text(a, index)
            for a in m
        ]
        if abs(c) != 1 or not m:
            factors.append(str(abs(c)))
        sign = (" - " if c < 0 else " + ") if out else ("-" if c < 0 else "")
        out += sign + "*".join(factors)
    return out


# ---- affine analysis -----------------------------------------------------------------------------


def dependent_axes(index: Iterable[Index], of: Callable[[str], frozenset[str]]) -> frozenset[str]:
    """Return the axes of index expressions.

    Also those that `of` returns for the computed positions in them.
    """
    axes: set[str] = set()
    for e in index:
        for atom in atoms(e):
            if atom.kind == "axis":
                axes.add(atom.name)
            elif atom.kind == "value":
                axes |= of(atom.name)
    return frozenset(axes)


# Equal axes may differ in their extents, on which the result does not depend.
@lru_cache(maxsize=8192)
def coefficient(e: Index, name: str) -> Index | None:
    """Return the stride of axis `name` in `e`, free of axes.

    None if `e` is not affine in the axis.
    """
    total: Index = 0
    for m, c in terms_of(e):
        hits = [a for a in m if a.kind == "axis" and a.name == name]
        nested = any(name in axes_of(x) for a in m for x in a.args)
        others = any(axes_of(Expr((((a,), 1),))) for a in m if a not in hits)
        if nested or len(hits) > 1 or (hits and others):
            return None
        if hits:
            rest = tuple(a for a in m if a is not hits[0])
            total = add(total, Expr(((rest, c),)) if rest else c)
    return total


def split_constant(e: Index) -> tuple[tuple[tuple[Monomial, int], ...], int]:
    """Split an expression into its terms with atoms and its constant.

    Expressions with the same terms differ by a number.
    """
    terms = terms_of(e)
    return (terms[:-1], terms[-1][1]) if terms and not terms[-1][0] else (terms, 0)


def may_overlap(e: Index) -> bool:
    """Whether different positions of the axes may give the same number, as in windows.

    Axes into which a dimension was split do not overlap: each steps over everything that shorter
    ones reach.

    >>> from smelt.types.expr import axis, size
    >>> i, j = axis("i", size("n")), axis("j", 4)
    >>> (
    ...     may_overlap(i + j),
    ...     may_overlap(i * 2 + j),
    ...     may_overlap(i * 4 + j),
    ...     may_overlap(j * size("n") + i),
    ... )
    (True, True, False, False)
    """
    axes = [a for m, _ in terms_of(e) for a in m if a.kind == "axis"]
    if len(axes) != len(set(axes)) or len(axes) != len(axes_of(e)):
        return True
    steps = {a: coefficient(e, a.name) for a in axes}
    return not _nested({a: s for a, s in steps.items() if s is not None}, len(axes))


def _nested(steps: dict[Atom, Index], count: int) -> bool:
    """Whether some order lets each axis step over all that earlier ones reach."""
    if len(steps) < count:
        return False
    reach: Index = 0
    while steps:
        outer = [a for a, s in steps.items() if nonnegative(sub(s, add(reach, 1)))]
        smallest = [a for a in outer if all(nonnegative(sub(s, steps[a])) for s in steps.values())]
        if not smallest:
            return False
        reach = add(reach, mul(steps.pop(smallest[0]), sub(smallest[0].extent, 1)))
    return True
