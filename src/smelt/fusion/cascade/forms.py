"""Normalise terms: sums of atoms with coefficients, products of factors.

The forms do not depend on how an expression was written: (x - m) * c and x*c - m*c have one linear
form, e / l * v and v * e * (1 / l) one product. Operators are known by the columns of their table
row alone (`linear`, `powers`, `base`, `is_select`).

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

from smelt.fusion.cascade.term import Term, Terms, cone
from smelt.ops.combine import COMBINES
from smelt.ops.reduce import accumulator
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f64

RELATIVE_TOLERANCE = 1e-6
"""Threshold on the relative distance of two equal coefficients: constant folding rounds."""
MAX_ATOMS = 24
"""Maximum atoms of a linear form; further sums are kept as single atoms."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A number times powers of fixed terms, ordered by term number."""

    number: float
    fixed: tuple[tuple[Term, int], ...] = ()

    def times(self, other: Coefficient) -> Coefficient:
        """Return the product of two coefficients."""
        powers: dict[Term, int] = dict(self.fixed)
        for t, p in other.fixed:
            powers[t] = powers.get(t, 0) + p
        fixed = sorted(((t, p) for t, p in powers.items() if p), key=lambda f: f[0].number)
        return Coefficient(self.number * other.number, tuple(fixed))

    def close(self, other: Coefficient) -> bool:
        """Return whether two coefficients are equal up to the rounding of constants."""
        error = abs(self.number - other.number)
        return self.fixed == other.fixed and error <= RELATIVE_TOLERANCE * abs(other.number)

    @property
    def inverse(self) -> Coefficient:
        return Coefficient(1.0 / self.number, tuple((t, -p) for t, p in self.fixed))


ONE = Coefficient(1.0)
Linear: TypeAlias = dict[Term | None, Coefficient]
"""A linear form: the coefficient of each atom; that of None is the constant term."""


def linear(term: Term, is_fixed: Callable[[Term], bool]) -> Linear:
    """Return the term as a sum of atoms times coefficients made of fixed terms.

    `is_fixed` says which terms are the same for every element and every block.
    """
    form: Linear = {}
    pending = [(term, ONE)]
    while pending:
        t, c = pending.pop()
        row = SCALARS[t.op] if t.kind == "apply" else None
        if t.kind == "const":
            _collect(form, None, c.times(Coefficient(float(t.value))))
        elif row is not None and row.linear and len(form) < MAX_ATOMS:
            pending += [(a, c.times(Coefficient(float(s)))) for a, s in zip(t.args, row.linear)]
        elif row is not None and (scaled := _scaled(t, row.powers, is_fixed)) is not None:
            pending.append((scaled[0], c.times(scaled[1])))
        else:
            _collect(form, t, c)
    return {a: c for a, c in form.items() if c.number != 0.0}


def _collect(into: Linear, atom: Term | None, c: Coefficient) -> None:
    present = into.get(atom)
    if present is None:
        into[atom] = c
    elif present.fixed == c.fixed:
        into[atom] = Coefficient(present.number + c.number, c.fixed)
    elif atom is not None and present.number == -c.number:
        into[atom] = present  # coefficients with different fixed terms: no linear form
        into[None] = Coefficient(float("nan"))
    else:
        into[None] = Coefficient(float("nan"))


def _scaled(
    t: Term, powers: tuple[int, ...], is_fixed: Callable[[Term], bool]
) -> tuple[Term, Coefficient] | None:
    """Split a product into its one factor that is not fixed, and a coefficient."""
    variable = [(a, p) for a, p in zip(t.args, powers) if not is_fixed(a)]
    if len(variable) != 1 or variable[0][1] != 1:
        return None
    c = ONE
    for a, p in zip(t.args, powers):
        if a is variable[0][0]:
            continue
        if a.kind == "const":
            if float(a.value) == 0.0:
                return None
            c = c.times(Coefficient(float(a.value) ** p))
        else:
            c = c.times(Coefficient(1.0, ((a, p),)))
    return variable[0][0], c


def is_unrepresentable(form: Linear) -> bool:
    """Return whether a term had no linear form."""
    return any(c.number != c.number for c in form.values())


def scale_form(form: Linear, c: Coefficient) -> Linear:
    """Return a linear form times a coefficient."""
    return {a: k.times(c) for a, k in form.items()}


def is_close(one: Linear, other: Linear) -> bool:
    """Return whether two linear forms are equal up to the rounding of constants."""
    return one.keys() == other.keys() and all(c.close(other[a]) for a, c in one.items())


def build(terms: Terms, form: Mapping[Term | None, Coefficient], like: Term) -> Term:
    """Return the term of a linear form, in the type of `like`.

    It is 0 for an empty form.
    """
    result: Term | None = None
    order = sorted(
        form.items(), key=lambda p: (p[1].number < 0, -1 if p[0] is None else p[0].number)
    )
    for atom, c in order:
        base = terms.const(1.0, like.dtype) if atom is None else atom
        part = multiply(terms, base, c)
        if result is None:
            result = part
        else:
            result = (
                terms.sub(result, _positive(terms, base, c))
                if c.number < 0
                else terms.add(result, part)
            )
    return terms.const(0.0, like.dtype) if result is None else result


def remove_atoms(
    terms: Terms, term: Term, removed: Collection[Term | None], replacements: Mapping[Term, Term]
) -> Term:
    """Remove atoms from a sum and replace others, keeping the order of its operations.

    The order matters: large numbers may have to cancel before a small one is added.
    """
    remaining = _remaining(terms, term, removed)
    return (
        terms.const(0.0, term.dtype)
        if remaining is None
        else terms.substitute(remaining, replacements)
    )


def _remaining(terms: Terms, t: Term, removed: Collection[Term | None]) -> Term | None:
    """Return a sum without the removed atoms; None if nothing remains."""
    if t in removed:
        return None
    row = SCALARS[t.op] if t.kind == "apply" else None
    if row is None or not (row.linear or row.powers):
        return t
    parts = [_remaining(terms, a, removed) for a in t.args]
    present = [p for p in parts if p is not None]
    if len(present) == len(parts):
        return t if tuple(present) == t.args else terms.apply(t.op, *present)
    if not row.linear or not present:
        return None
    (number,) = [k for p, k in zip(parts, row.linear, strict=True) if p is not None]
    return multiply(terms, present[0], Coefficient(float(number)))


def _positive(terms: Terms, base: Term, c: Coefficient) -> Term:
    return multiply(terms, base, Coefficient(-c.number, c.fixed))


def multiply(terms: Terms, base: Term, c: Coefficient) -> Term:
    """Return a term times a coefficient."""
    if c.number == -1.0:
        result = terms.neg(base)
    else:
        result = base if c.number == 1.0 else terms.mul(base, terms.const(c.number, base.dtype))
    for t, p in c.fixed:
        for _ in range(abs(p)):
            result = terms.mul(result, t) if p > 0 else terms.div(result, t)
    return result


def strip_widening(reduction: Term) -> Term:
    """Return the summed elements without conversions to the type they are accumulated in anyway."""
    (x,) = reduction.args
    accumulator_type = accumulator(COMBINES[reduction.op], reduction.dtype)
    while (
        x.kind == "cast"
        and x.value is None
        and x.dtype == accumulator_type
        and x.args[0].dtype.is_float
    ):
        (x,) = x.args
    return x


# ---- products ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exponential:
    """An exponential factor b^(..): the term, and its exponent as a linear form."""

    term: Term
    exponent: tuple[tuple[Term | None, Coefficient], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """The factors of an element of a reduction."""

    direct: tuple[tuple[Term, int], ...] = ()
    """Factors that do not change with a gauge, with their powers."""
    hoisted: tuple[tuple[Term, int], ...] = ()
    """Factors that are the same for every element, with powers: they may leave the reduction."""
    exponentials: tuple[Exponential, ...] = ()
    sums: tuple[Term, ...] = ()
    """Factors that are sums in which some atoms vary and others move."""
    masks: tuple[Term, ...] = ()
    """Conditions outside of which the product is 0."""
    number: float = 1.0
    unclassified: tuple[Term, ...] = ()
    """Factors whose operators no table column describes: their transport has to be derived."""

    def times(self, other: Product) -> Product:
        """Return the product of both."""
        return Product(
            self.direct + other.direct,
            self.hoisted + other.hoisted,
            self.exponentials + other.exponentials,
            self.sums + other.sums,
            self.masks + other.masks,
            self.number * other.number,
            self.unclassified + other.unclassified,
        )


class NotSeparable(Exception):
    """A term has no form in which its gauges can be rescaled."""


WIDE_DEGREE = 6
"""Maximum single-precision factors whose product stays in the range of double precision."""


def check_range(product: Product, dtype: DType, op: str) -> None:
    """Raise NotSeparable where a hoisted factor had kept the elements in range.

    For example (x / m)^2 is at most 1, while x^2 may overflow.
    """
    if product.exponentials or product.unclassified or not product.hoisted:
        return
    degree = sum(abs(p) for _, p in product.direct) + len(product.sums)
    if dtype.bits < f64.bits:
        if degree > WIDE_DEGREE:
            raise NotSeparable(op)
    elif degree > 1 or any(map(_grows, (t for t, _ in product.direct))):
        raise NotSeparable(op)


def _grows(t: Term) -> bool:
    return any(x.kind == "apply" and SCALARS[x.op].base for x in cone(t))


@dataclass(frozen=True, slots=True)
class Dependence:
    """Classifies the terms of a reduction's elements."""

    varies: Callable[[Term], bool]
    """Differs between elements that are reduced together."""
    moves: Callable[[Term], bool]
    """Differs between blocks: it reads a reduction that is not finished."""
    negate: Callable[[Term], Term] | None = None
    """Make the opposite of a condition."""

    def is_fixed(self, t: Term) -> bool:
        """Return whether a term is the same for every element and block."""
        return not self.varies(t) and not self.moves(t)

    def is_mixed(self, t: Term) -> bool:
        """Return whether a term both varies and moves."""
        return self.varies(t) and self.moves(t)


def products(term: Term, sorts: Dependence) -> list[Product]:
    """Return the term as a sum of products. Raises NotSeparable."""
    if not sorts.moves(term):
        return [Product(direct=((term, 1),))]
    if not sorts.varies(term):
        return [Product(hoisted=((term, 1),))]
    if term.kind != "apply":
        raise NotSeparable(term.op or term.kind)
    row = SCALARS[term.op]
    if row.is_select:
        return _masked(term, sorts)
    if row.base:
        growing = _exponential(term, sorts)
        return [
            Product(unclassified=(term,)) if growing is None else Product(exponentials=(growing,))
        ]
    if row.powers:
        return _multiplied(term, row.powers, sorts)
    if row.linear:
        return _added(term, sorts)
    return [Product(unclassified=(term,))]


def _exponential(term: Term, sorts: Dependence) -> Exponential | None:
    form = linear(term.args[0], sorts.is_fixed)
    mixed = [a for a in form if a is not None and sorts.is_mixed(a)]
    if is_unrepresentable(form) or mixed:
        return None
    return Exponential(term, tuple(form.items()))


def _multiplied(term: Term, powers: tuple[int, ...], sorts: Dependence) -> list[Product]:
    result = [Product()]
    for a, p in zip(term.args, powers):
        if p < 0 and sorts.is_mixed(a):
            return [Product(unclassified=(term,))]
        if p < 0:
            factor = ((a, p),)
            inverse = Product(direct=factor) if sorts.varies(a) else Product(hoisted=factor)
            result = [inverse.times(other) for other in result]
            continue
        factors = products(a, sorts)
        for _ in range(p):
            result = [inverse.times(other) for inverse in result for other in factors]
    if len(result) > 4:
        raise NotSeparable(term.op)
    return result


def _added(term: Term, sorts: Dependence) -> list[Product]:
    """Return a sum as one factor if its atoms vary or move, else as products."""
    form = linear(term, sorts.is_fixed)
    if is_unrepresentable(form):
        raise NotSeparable(term.op)
    if not any(a is not None and sorts.is_mixed(a) for a in form):
        return [Product(sums=(term,))]
    result: list[Product] = []
    for atom, c in form.items():
        if atom is None:
            raise NotSeparable(term.op)
        scale = Product(hoisted=c.fixed, number=c.number)
        result += [scale.times(p) for p in products(atom, sorts)]
    return result


def _masked(term: Term, sorts: Dependence) -> list[Product]:
    """Split a select with a branch that is 0 into a mask and products."""
    mask, then, otherwise = term.args
    if sorts.negate is not None and _is_zero(then):
        mask, then, otherwise = sorts.negate(mask), otherwise, then
    if sorts.moves(mask) or not _is_zero(otherwise):
        raise NotSeparable(term.op)
    return [Product(masks=(mask,)).times(p) for p in products(then, sorts)]


def _is_zero(t: Term) -> bool:
    return t.kind == "const" and float(t.value) == 0.0
