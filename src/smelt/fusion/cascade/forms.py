"""Forms of a term: a sum of atoms with coefficients, and a product of factors.

Both see through however the user wrote it: (x - m) * c and x*c - m*c have one linear form, and
e / l * v and v * e * (1 / l) one product.  Only the rows' columns are read (`linear`, `powers`,
`base`, `chooses`).

>>> from smelt.fusion.cascade.term import Terms
>>> from smelt.types.dtype import f32
>>> terms = Terms()
>>> x, m = terms.leaf("x", {"n"}, f32), terms.leaf("m", (), f32)
>>> two = terms.const(2.0, f32)
>>> one = linear(terms.mul(terms.sub(x, m), two), lambda t: t.kind == "const")
>>> other = linear(terms.sub(terms.mul(x, two), terms.mul(two, m)), lambda t: t.kind == "const")
>>> one == other, sorted(c.number for c in one.values())
(True, [-2.0, 2.0])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from smelt.dataclass import dataclass
from smelt.fusion.cascade.term import Term, Terms, cone
from smelt.ops.combine import COMBINES
from smelt.ops.reduce import accumulator
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, f64

CLOSE = 1e-6
"""Relative distance below which two coefficients are one: folding constants rounds."""
MOST_ATOMS = 24
"""Atoms of a sum, beyond which it is taken as it stands."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A number times fixed terms to powers, in order of their numbers."""

    number: float
    fixed: tuple[tuple[Term, int], ...] = ()

    def times(self, other: Coefficient) -> Coefficient:
        """The product."""
        powers: dict[Term, int] = dict(self.fixed)
        for t, p in other.fixed:
            powers[t] = powers.get(t, 0) + p
        fixed = sorted(((t, p) for t, p in powers.items() if p), key=lambda f: f[0].number)
        return Coefficient(self.number * other.number, tuple(fixed))

    def close(self, other: Coefficient) -> bool:
        """Equal up to the rounding of constants."""
        off = abs(self.number - other.number)
        return self.fixed == other.fixed and off <= CLOSE * abs(other.number)

    @property
    def inverse(self) -> Coefficient:
        return Coefficient(1.0 / self.number, tuple((t, -p) for t, p in self.fixed))


ONE = Coefficient(1.0)
Linear: TypeAlias = dict[Term | None, Coefficient]
"""A sum: the coefficient of each atom; that of None is the constant."""


def linear(term: Term, is_fixed: Callable[[Term], bool]) -> Linear:
    """The term as a sum of atoms times coefficients of fixed terms.

    `is_fixed` tells terms that are the same for every element and block.
    """
    found: Linear = {}
    pending = [(term, ONE)]
    while pending:
        t, c = pending.pop()
        row = SCALARS[t.op] if t.kind == "apply" else None
        if t.kind == "const":
            _collect(found, None, c.times(Coefficient(float(t.value))))
        elif row is not None and row.linear and len(found) < MOST_ATOMS:
            pending += [(a, c.times(Coefficient(float(s)))) for a, s in zip(t.args, row.linear)]
        elif row is not None and (scaled := _scaled(t, row.powers, is_fixed)) is not None:
            pending.append((scaled[0], c.times(scaled[1])))
        else:
            _collect(found, t, c)
    return {a: c for a, c in found.items() if c.number != 0.0}


def _collect(into: Linear, atom: Term | None, c: Coefficient) -> None:
    known = into.get(atom)
    if known is None:
        into[atom] = c
    elif known.fixed == c.fixed:
        into[atom] = Coefficient(known.number + c.number, c.fixed)
    elif atom is not None and known.number == -c.number:
        into[atom] = known  # two kinds of coefficients for one atom: too odd to go on
        into[None] = Coefficient(float("nan"))
    else:
        into[None] = Coefficient(float("nan"))


def _scaled(
    t: Term, powers: tuple[int, ...], is_fixed: Callable[[Term], bool]
) -> tuple[Term, Coefficient] | None:
    """A product with one factor that is not fixed, as that factor and a coefficient."""
    loose = [(a, p) for a, p in zip(t.args, powers) if not is_fixed(a)]
    if len(loose) != 1 or loose[0][1] != 1:
        return None
    c = ONE
    for a, p in zip(t.args, powers):
        if a is loose[0][0]:
            continue
        if a.kind == "const":
            if float(a.value) == 0.0:
                return None
            c = c.times(Coefficient(float(a.value) ** p))
        else:
            c = c.times(Coefficient(1.0, ((a, p),)))
    return loose[0][0], c


def is_odd(form: Linear) -> bool:
    """Whether a sum could not be written down."""
    return any(c.number != c.number for c in form.values())


def scaled(form: Linear, c: Coefficient) -> Linear:
    """The sum times a coefficient."""
    return {a: k.times(c) for a, k in form.items()}


def same(one: Linear, other: Linear) -> bool:
    """Whether two sums are equal up to the rounding of constants."""
    return one.keys() == other.keys() and all(c.close(other[a]) for a, c in one.items())


def build(terms: Terms, form: Mapping[Term | None, Coefficient], like: Term) -> Term:
    """The term that a sum stands for, of the type of `like`; 0 for an empty one."""
    found: Term | None = None
    order = sorted(
        form.items(), key=lambda p: (p[1].number < 0, -1 if p[0] is None else p[0].number)
    )
    for atom, c in order:
        base = terms.const(1.0, like.dtype) if atom is None else atom
        part = multiplied(terms, base, c)
        if found is None:
            found = part
        else:
            found = (
                terms.sub(found, _positive(terms, base, c))
                if c.number < 0
                else terms.add(found, part)
            )
    return terms.const(0.0, like.dtype) if found is None else found


def without(
    terms: Terms, term: Term, gone: Collection[Term | None], shown: Mapping[Term, Term]
) -> Term:
    """A sum without some of its atoms, others replaced, otherwise as it was written: large numbers
    may have to cancel before a small one is added."""
    found = _left(terms, term, gone)
    return terms.const(0.0, term.dtype) if found is None else terms.swap(found, shown)


def _left(terms: Terms, t: Term, gone: Collection[Term | None]) -> Term | None:
    """What remains of a sum; None if nothing does."""
    if t in gone:
        return None
    row = SCALARS[t.op] if t.kind == "apply" else None
    if row is None or not (row.linear or row.powers):
        return t
    parts = [_left(terms, a, gone) for a in t.args]
    kept = [p for p in parts if p is not None]
    if len(kept) == len(parts):
        return t if tuple(kept) == t.args else terms.apply(t.op, *kept)
    if not row.linear or not kept:
        return None
    (number,) = [k for p, k in zip(parts, row.linear, strict=True) if p is not None]
    return multiplied(terms, kept[0], Coefficient(float(number)))


def _positive(terms: Terms, base: Term, c: Coefficient) -> Term:
    return multiplied(terms, base, Coefficient(-c.number, c.fixed))


def multiplied(terms: Terms, base: Term, c: Coefficient) -> Term:
    """A term times a coefficient."""
    if c.number == -1.0:
        found = terms.neg(base)
    else:
        found = base if c.number == 1.0 else terms.mul(base, terms.const(c.number, base.dtype))
    for t, p in c.fixed:
        for _ in range(abs(p)):
            found = terms.mul(found, t) if p > 0 else terms.div(found, t)
    return found


def narrow(fold: Term) -> Term:
    """The elements of a sum before they are made as wide as what it is carried in anyway."""
    (x,) = fold.args
    wide = accumulator(COMBINES[fold.op], fold.dtype)
    while x.kind == "cast" and x.value is None and x.dtype == wide and x.args[0].dtype.is_float:
        (x,) = x.args
    return x


# ---- products ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Growing:
    """A factor b^(..): the term, and its exponent as a sum."""

    term: Term
    exponent: tuple[tuple[Term | None, Coefficient], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Factors of an element of a fold."""

    plain: tuple[tuple[Term, int], ...] = ()
    """Factors that do not move with a gauge, with their powers."""
    hoisted: tuple[tuple[Term, int], ...] = ()
    """Factors that are the same for every element, with their powers: they may leave the fold."""
    growing: tuple[Growing, ...] = ()
    sums: tuple[Term, ...] = ()
    """Factors that are sums in which some atoms vary and others move."""
    masks: tuple[Term, ...] = ()
    """Conditions outside of which the product is 0."""
    number: float = 1.0
    derived: tuple[Term, ...] = ()
    """Factors of which no column tells how they move."""

    def times(self, other: Product) -> Product:
        """All factors of both."""
        return Product(
            self.plain + other.plain,
            self.hoisted + other.hoisted,
            self.growing + other.growing,
            self.sums + other.sums,
            self.masks + other.masks,
            self.number * other.number,
            self.derived + other.derived,
        )


class NotSeparable(Exception):
    """A term has no form in which its gauges can move."""


WIDE_DEGREE = 6
"""Factors of single precision that double precision multiplies without overflow, and without
underflow, whatever they are."""


def check_range(product: Product, dtype: DType, op: str) -> None:
    """Raises NotSeparable where what leaves a sum kept its elements in range: (x / m)^2 is at most
    1, where x^2 may be beyond all numbers."""
    if product.growing or product.derived or not product.hoisted:
        return
    degree = sum(abs(p) for _, p in product.plain) + len(product.sums)
    if dtype.bits < f64.bits:
        if degree > WIDE_DEGREE:
            raise NotSeparable(op)
    elif degree > 1 or any(map(_grows, (t for t, _ in product.plain))):
        raise NotSeparable(op)


def _grows(t: Term) -> bool:
    return any(x.kind == "apply" and SCALARS[x.op].base for x in cone(t))


@dataclass(frozen=True, slots=True)
class Sorts:
    """What the terms of one fold are, with respect to it."""

    varies: Callable[[Term], bool]
    """Differs between elements that are folded together."""
    moves: Callable[[Term], bool]
    """Differs between blocks: it reads a fold that is not finished."""

    def is_fixed(self, t: Term) -> bool:
        """The same for every element and block."""
        return not self.varies(t) and not self.moves(t)

    def is_mixed(self, t: Term) -> bool:
        """Varies and moves."""
        return self.varies(t) and self.moves(t)


def products(term: Term, sorts: Sorts) -> list[Product]:
    """The term as a sum of products.  Raises NotSeparable."""
    if not sorts.moves(term):
        return [Product(plain=((term, 1),))]
    if not sorts.varies(term):
        return [Product(hoisted=((term, 1),))]
    if term.kind != "apply":
        raise NotSeparable(term.op or term.kind)
    row = SCALARS[term.op]
    if row.chooses:
        return _chosen(term, sorts)
    if row.base:
        growing = _growing(term, sorts)
        return [Product(derived=(term,)) if growing is None else Product(growing=(growing,))]
    if row.powers:
        return _multiplied(term, row.powers, sorts)
    if row.linear:
        return _added(term, sorts)
    return [Product(derived=(term,))]


def _growing(term: Term, sorts: Sorts) -> Growing | None:
    form = linear(term.args[0], sorts.is_fixed)
    mixed = [a for a in form if a is not None and sorts.is_mixed(a)]
    if is_odd(form) or mixed:
        return None
    return Growing(term, tuple(form.items()))


def _multiplied(term: Term, powers: tuple[int, ...], sorts: Sorts) -> list[Product]:
    found = [Product()]
    for a, p in zip(term.args, powers):
        if p < 0 and sorts.is_mixed(a):
            return [Product(derived=(term,))]
        if p < 0:
            factor = ((a, p),)
            one = Product(plain=factor) if sorts.varies(a) else Product(hoisted=factor)
            found = [one.times(other) for other in found]
            continue
        factors = products(a, sorts)
        for _ in range(p):
            found = [one.times(other) for one in found for other in factors]
    if len(found) > 4:
        raise NotSeparable(term.op)
    return found


def _added(term: Term, sorts: Sorts) -> list[Product]:
    """A sum: of atoms that either vary or move it is one factor, else a sum of products."""
    form = linear(term, sorts.is_fixed)
    if is_odd(form):
        raise NotSeparable(term.op)
    if not any(a is not None and sorts.is_mixed(a) for a in form):
        return [Product(sums=(term,))]
    found: list[Product] = []
    for atom, c in form.items():
        if atom is None:
            raise NotSeparable(term.op)
        outer = Product(hoisted=c.fixed, number=c.number)
        found += [outer.times(p) for p in products(atom, sorts)]
    return found


def _chosen(term: Term, sorts: Sorts) -> list[Product]:
    """A term where a mask holds, and nothing elsewhere."""
    mask, then, otherwise = term.args
    nothing = otherwise.kind == "const" and float(otherwise.value) == 0.0
    if sorts.moves(mask) or not nothing:
        raise NotSeparable(term.op)
    return [Product(masks=(mask,)).times(p) for p in products(then, sorts)]
