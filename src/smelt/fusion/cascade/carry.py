"""How a fold is carried while the folds it reads still move: states, transports and finals.

An element f(x, r) of a sum that reads a gauge r is taken apart into factors.  What is the same for
all elements leaves the sum (hoist).  A factor b^(c(z - m)), where m is the running maximum of z, is
at most 1 and shrinks by b^(c(m - m')) when the maximum moves (dynamic gauge).  A sum v(x) + u(r) in
a product is shifted by the binomial theorem: from a fixed anchor once at the end (static gauge), or
with m (ALGORITHMS 1.1-1.5; for one power of one exponential this is the online softmax of
M. Milakov and N. Gimelshein, 2018, for powers of a sum the update of T. Chan et al., 1983).

    sum(exp(x - m))            l' = l * exp(m - m') + sum(exp(x - m'))
    sum(exp(x - max(m, c)))    the same sum, at the end times exp(m - max(m, c))
    sum((x - mu)**2)           q = sum((x - a)**2), s = sum(x - a)
                               at the end q + 2(a - mu)s + n(a - mu)^2
    sum((x - m) * exp(x - m))  e' = exp(m - m') * (e + (m - m')*l) + sum(...)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import product as every

from smelt.dataclass import dataclass
from smelt.fusion.cascade.anchor import anchor, in_range
from smelt.fusion.cascade.follow import Followed, finished, follow, in_parts
from smelt.fusion.cascade.forms import (
    Coefficient,
    Growing,
    Linear,
    NotSeparable,
    Product,
    Sorts,
    build,
    check_range,
    is_odd,
    linear,
    narrow,
    products,
    same,
    scaled,
    without,
)
from smelt.fusion.cascade.gauge import Gauge, as_gauge, is_beyond, is_total, opposite
from smelt.fusion.cascade.monotone import outside
from smelt.fusion.cascade.powers import greatest, moved, over
from smelt.fusion.cascade.states import States
from smelt.fusion.cascade.term import Term, folds_in
from smelt.fusion.cascade.weighted_means import weighed
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.reduce import accumulator
from smelt.ops.scalar import SCALARS
from smelt.ops.spec_scalar import ScalarOp
from smelt.types.dtype import DType, f64

MOST_STATES = 8
"""States that one fold may need: more are dearer than visiting the elements again."""


@dataclass(frozen=True, slots=True)
class _Shift:
    """A factor v(x) + u(r): its element, how it moves from block to block, what is added last."""

    lift: Term
    delta: Term | None
    rest: Term | None


class Carrier(States):
    """Makes the states of one sweep after the other."""

    def plain(self, fold: Term, sweep: int, *, last: bool = False) -> Term:
        """A fold whose elements do not move; gives its final value.  Of the `last` one, which no
        other fold reads, monotone functions of the elements are computed at the end."""
        if fold.kind == "dot":
            return self.state(fold, SUM_OF_PRODUCTS[0], None, fold.dtype.compute, sweep, fold)
        if COMBINES[fold.op].positional:
            return self.winner(fold, sweep)
        if last and (way := outside(self.terms, fold)).layers:
            x, combine = way.element, way.combine
            block = self.terms.fold(combine, x, fold.over, x.dtype)
            return way.of(self.terms, self.state(block, combine, None, x.dtype, sweep, fold))
        wide = accumulator(COMBINES[fold.op], fold.dtype)
        block = self.terms.fold(fold.op, fold.args[0], fold.over, wide)
        return self.terms.cast(
            self.state(block, fold.op, None, wide, sweep, fold), fold.dtype.compute
        )

    def gauge(self, fold: Term, sorts: Sorts) -> Gauge | None:
        """The gauge that a fold of elements which do not move is, if it is one."""
        if fold.kind != "fold" or sorts.moves(fold.args[0]) or not fold.dtype.is_float:
            return None
        row = COMBINES[fold.op]
        bottom = row.identity(fold.dtype)
        block = self.terms.fold(fold.op, fold.args[0], fold.over, fold.dtype.compute)
        for number, state in enumerate(self.states):
            if state.block is block and row.idempotent and not math.isfinite(bottom):
                form = linear(fold.args[0], sorts.is_fixed)
                return None if is_odd(form) else Gauge(fold, number, float(bottom), form)
        return None

    # ---- monotone functions of a maximum -------------------------------------------------------

    def monotone(self, fold: Term, sorts: Sorts, sweep: int) -> Term:
        """max_j h(v(x_j), r) = h(max_j v(x_j), r) for an h that never falls.  Raises
        NotSeparable."""
        row = COMBINES[fold.op]
        if not row.idempotent or row.grow != "same" or not fold.dtype.is_float:
            raise NotSeparable(fold.op)
        inner, rising = fold.args[0], True
        while sorts.moves(inner):
            places = [k for k, a in enumerate(inner.args) if sorts.varies(a)]
            if inner.kind != "apply" or len(places) != 1 or not is_total(inner.op):
                raise NotSeparable(inner.op or inner.kind)
            slope = (SCALARS[inner.op].monotone or (0,) * len(inner.args))[places[0]]
            if slope == 0:
                raise NotSeparable(inner.op)
            rising ^= slope < 0
            inner = inner.args[places[0]]
        if not inner.dtype.is_float:
            raise NotSeparable(fold.op)
        combine = fold.op if rising else opposite(fold.op)
        block = self.terms.fold(combine, inner, fold.over, inner.dtype)
        found = self.state(block, combine, None, inner.dtype, sweep, fold)
        return self.terms.swap(fold.args[0], {inner: found})

    # ---- sums ----------------------------------------------------------------------------------

    def summed(self, fold: Term, sorts: Sorts, gauges: list[Gauge], sweep: int) -> Term:
        """The final value of a sum whose elements move, by states.  Raises NotSeparable."""
        if fold.kind == "fold" and SCALARS[COMBINES[fold.op].scalar].linear != (1, 1):
            raise NotSeparable(fold.op)
        if not fold.dtype.is_float:
            raise NotSeparable(fold.op)
        if fold.kind == "dot":
            sides = [list(products(side, sorts)) for side in fold.args]
            pairs = every(*sides)
            parts = (_Sum(self, fold, sorts, gauges, sweep).of_products(pair) for pair in pairs)
        else:
            whole = products(narrow(fold), sorts)
            own = [q for p in whole for q in in_parts(self.terms, p, sorts, fold.dtype)]
            parts = (_Sum(self, fold, sorts, gauges, sweep).of(product) for product in own)
        found: Term | None = None
        for part in parts:
            found = part if found is None else self._plus(found, part)
        assert found is not None
        return self.terms.cast(found, fold.dtype.compute)

    def _plus(self, one: Term, other: Term) -> Term:
        """A sum in the wider type of both: what cancels was not rounded."""
        wide = max((one.dtype, other.dtype), key=lambda d: d.bits)
        return self.terms.add(self.terms.cast(one, wide), self.terms.cast(other, wide))


class _Sum:
    """One sum of one product."""

    def __init__(
        self, carrier: Carrier, fold: Term, sorts: Sorts, gauges: list[Gauge], sweep: int
    ) -> None:
        self.carrier, self.terms, self.fold = carrier, carrier.terms, fold
        self.sorts, self.gauges, self.sweep = sorts, gauges, sweep
        self.product = Product()
        self.rescaling: Term | None = None
        self.made_up: Term | None = None
        """What brings a sum under powers of 2 to the gauges themselves, at the end."""
        self.power: Term | None = None
        """The power of 2 of weights: applied with what has left the sum, at the end."""
        self.bare: dict[Gauge, bool] = {}
        self.hoisted: list[tuple[Term, int]] = []
        self.followed: list[Followed] = []
        self.wide = False
        """Whether elements are computed in double precision."""
        self.doubles = False
        """Whether differences from an anchor are as wide as what they are summed in."""
        self.last_wide = False
        """Whether what left the sum is applied before the sum is rounded: it may bring it back
        into the range of the type."""

    def of(self, product: Product) -> Term:
        """The final value."""
        check_range(product, self.fold.dtype, self.fold.op)
        growing = self._under_gauges(product)
        self.product = product
        shifts = [self._shift(s, bool(growing)) for s in product.sums]
        factors = [*((g, 1) for g in growing), *product.plain]  # first what is at most 1
        self.hoisted += product.hoisted
        self.wide |= not growing and (bool(shifts) or len(factors) > 1)
        self.last_wide = not growing and bool(self.hoisted)
        groups = {s: shifts.count(s) for s in shifts}
        if math.prod(n + 1 for n in groups.values()) > MOST_STATES:
            raise NotSeparable(self.fold.op)
        total = self._total(factors, product.masks, groups)
        return self._finished(total, product)

    def of_products(self, pair: tuple[Product, ...]) -> Term:
        """The final value of a contraction of one product on either side, where factors stay."""
        sides: list[Term] = []
        whole = Product()
        for side, product in zip(self.fold.args, pair, strict=True):
            if product.sums:
                raise NotSeparable(self.fold.kind)
            growing = self._under_gauges(product, alone=False)
            self.hoisted += product.hoisted
            factors = [*((g, 1) for g in growing), *product.plain]
            sides.append(self._element(factors, product.masks, side))
            if product.hoisted and not growing:  # only that has kept the element in range
                by = weighed(self.terms, product, sides[-1], self.fold.over, self._plain)
                self.rescaling = self._with(self.rescaling, by.moved)
                self.power, sides[-1] = self._with(self.power, by.power), by.element
            whole = whole.times(product)
        block = self.terms.dot(
            sides[0], sides[1], self.fold.over, self.fold.value or self.fold.dtype
        )
        dtype = self.fold.dtype.compute
        number = len(self.carrier.states)
        carry = None
        if self.rescaling is not None:
            carry = self._rescaled(self.terms.state(number, block.axes, dtype))
        total = self._state(block, carry, dtype)
        return self._finished(total, whole)

    # ---- factors -------------------------------------------------------------------------------

    def _gauge_of(self, atom: Term) -> tuple[Gauge, bool] | None:
        """The gauge that an atom is, and whether it stays finite before any element."""
        for g in self.gauges:
            if atom is g.fold:
                return g, False
            if folds_in(atom) == {g.fold} and (bottom := as_gauge(atom, g)) is not None:
                return g, math.isfinite(bottom)
        return None

    def _at(self, atom: Term, g: Gauge, finite: bool, *, new: bool) -> Term:
        """A gauge's value before or after the present block, 0 where there was no element."""
        state = self.terms.state(g.state, g.fold.axes, g.fold.dtype.compute, new=new)
        if finite:
            return self.terms.swap(atom, {g.fold: state})
        safe = self.terms.where_equal(state, g.bottom, self.terms.const(0.0, state.dtype), state)
        return self.terms.swap(atom, {g.fold: safe})

    def _under_gauges(self, product: Product, *, alone: bool = True) -> list[Term]:
        """The elements of factors that shrink as a gauge moves."""
        several = len(product.growing) + len(product.derived) > 1
        alone = alone and not (several or product.plain)
        if product.derived and (product.sums or product.masks):
            raise NotSeparable(product.derived[0].op)
        found: list[Term] = []
        for g in product.growing:
            try:
                found.append(self._growing(g))
            except NotSeparable:
                if product.sums or product.masks:
                    raise
                found.append(self._followed(g.term, alone))
        return found + [self._followed(t, alone) for t in product.derived]

    def _followed(self, t: Term, alone: bool) -> Term:
        """The element of a factor that has been derived; notes how sums move with it."""
        by = follow(self.terms, t, self.fold, self.sorts, self._plain, alone=alone)
        self.rescaling = self._with(self.rescaling, by.moved)
        self.followed.append(by)
        return by.element

    def _growing(self, factor: Growing) -> Term:
        """The element of an exponential under its gauge; notes how old ones shrink."""
        form = dict(factor.exponent)
        terms, row = self.terms, SCALARS[factor.term.op]
        for atom, k in form.items():
            if atom is None or not self.sorts.moves(atom):
                continue
            c = Coefficient(-k.number, k.fixed)
            known = self._gauge_of(atom)
            beyond = next((g for g in self.gauges if known is None and is_beyond(atom, g)), None)
            gauge, finite = known or (beyond, True)
            if gauge is None or not self._is_bound(form, gauge, c):
                continue
            moving: Linear = {a: form[a] for a in form if a is not None and self.sorts.moves(a)}
            rest: Linear = {a: k for a, k in moving.items() if a is not atom}
            stead = atom if finite else None
            if beyond is not None:  # the gauge itself, and at the end what is between the two
                stead = terms.where_equal(gauge.fold, gauge.bottom, atom, gauge.fold)
                rest |= {atom: k, stead: c}
            self._rescale(row, gauge, c, stead)
            self.bare[gauge] = self.bare.get(gauge, False) or not finite
            if rest:
                self.hoisted.append((terms.apply(row.name, build(terms, rest, factor.term)), 1))
            power = self._left(factor.term.args[0], form, moving, {})
            bound = c == Coefficient(1.0) and stead is None and power is gauge.fold.args[0]
            return over(terms, row, power, greatest(terms, gauge, c, stead, new=True), bound=bound)
        raise NotSeparable(row.name)

    def _rescale(self, row: ScalarOp, gauge: Gauge, c: Coefficient, stead: Term | None) -> None:
        """Notes how what was summed shrinks when a gauge moves, and what makes up for the
        difference between the gauge and a power of 2 at the end."""
        last = greatest(self.terms, gauge, c, stead, new=False)
        self.rescaling = self._with(self.rescaling, moved(self.terms, row, gauge, c, stead))
        self.made_up = self._with(self.made_up, over(self.terms, row, last, last, bound=True))

    def _with(self, known: Term | None, factor: Term) -> Term:
        return factor if known is None else self.terms.mul(known, factor)

    def _is_bound(self, form: Linear, gauge: Gauge, c: Coefficient) -> bool:
        """Whether what varies in an exponent is at most c times the gauge."""

        def varying(sum_: Linear) -> Linear:
            return {a: k for a, k in sum_.items() if a is not None and self.sorts.varies(a)}

        above = gauge.bottom < 0
        return (c.number > 0) == above and same(varying(form), scaled(varying(gauge.form), c))

    def _shift(self, term: Term, growing: bool) -> _Shift:
        """A sum of what varies and what moves."""
        terms = self.terms
        form = linear(term, self.sorts.is_fixed)
        if is_odd(form):
            raise NotSeparable(term.op)
        moving: Linear = {a: c for a, c in form.items() if a is not None and self.sorts.moves(a)}
        if not growing:
            return self._anchored(self._left(term, form, moving, {}), build(terms, moving, term))
        shown: dict[Term, Term] = {}
        delta: Linear = {}
        rest = dict(moving)
        for atom in moving:
            known = None if atom is None else self._gauge_of(atom)
            if atom is not None and known is not None:
                old, new = (self._at(atom, *known, new=n) for n in (False, True))
                shown[atom] = new
                delta[terms.sub(new, old)] = rest.pop(atom)
                self.bare[known[0]] = self.bare.get(known[0], False) or not known[1]
        if rest and not delta:
            self.wide = True
            return self._anchored(self._left(term, form, moving, {}), build(terms, rest, term))
        return _Shift(
            self._left(term, form, rest, shown),
            build(terms, delta, term) if delta else None,
            build(terms, rest, term) if rest else None,
        )

    def _left(self, t: Term, form: Linear, gone: Linear, shown: Mapping[Term, Term]) -> Term:
        """A sum without atoms that move, others of them `shown` at a gauge."""
        found = without(self.terms, t, gone, shown)
        if self.sorts.moves(found):  # atoms that cancel are still there
            own = {shown.get(a, a) if a else a: c for a, c in form.items() if a not in gone}
            found = build(self.terms, own, t)
        return found

    def _anchored(self, element: Term, rest: Term) -> _Shift:
        """Elements minus one of them, in double precision."""
        terms, wide = self.terms, self.terms.cast(element, f64)
        origin = anchor(terms, element, self.fold.over, self.product)
        self.doubles |= element.dtype.bits == f64.bits
        return _Shift(terms.sub(wide, origin), None, terms.add(origin, terms.cast(rest, f64)))

    # ---- states --------------------------------------------------------------------------------

    def _element(
        self, factors: Iterable[tuple[Term, int]], masks: Iterable[Term], like: Term
    ) -> Term:
        """The product of factors, 0 outside of masks."""
        terms = self.terms
        found: Term | None = None
        for t, p in factors:
            t = terms.cast(t, f64) if self.wide else t
            for _ in range(abs(p)):
                if found is None:
                    found = t if p > 0 else terms.div(terms.const(1.0, t.dtype), t)
                else:
                    found = terms.mul(found, t) if p > 0 else terms.div(found, t)
        if found is None:
            found = terms.const(1.0, f64 if self.wide else like.dtype.compute)
        for mask in masks:
            found = terms.choose(mask, found, terms.const(0.0, found.dtype))
        return found

    def _total(
        self, factors: list[tuple[Term, int]], masks: tuple[Term, ...], groups: dict[_Shift, int]
    ) -> Term:
        """The sum at the last gauge: the binomial theorem over states."""
        shifts, powers = list(groups), tuple(groups.values())
        blocks: dict[tuple[int, ...], Term | None] = {}
        for e in every(*(range(n + 1) for n in powers)):
            own = [*factors, *((s.lift, n) for s, n in zip(shifts, e) if n)]
            alone = not own and not masks
            element = None if alone else self._element(own, masks, self.fold.args[0])
            blocks[e] = (
                None
                if element is None
                else self.terms.fold(self.fold.op, element, self.fold.over, self._wide())
            )
        states: dict[tuple[int, ...], Term] = {}
        for e in sorted(blocks, key=sum):
            states[e] = self._one(e, blocks[e], states, shifts)
        total = self._binomial(powers, states, [s.rest for s in shifts])
        if self.doubles and sum(powers) > 1:
            firsts = (t for e, t in states.items() if sum(e) == 1)
            total = in_range(self.terms, total, states[powers], firsts)
        return total

    def _one(
        self,
        e: tuple[int, ...],
        block: Term | None,
        states: dict[tuple[int, ...], Term],
        shifts: list[_Shift],
    ) -> Term:
        terms = self.terms
        if block is None:
            return terms.count(self.fold.over, self._wide())
        if (total := self._known_total(e, block, shifts)) is not None:
            return total
        carry = None
        if self.rescaling is not None:
            # its own number is told below, where it is known whether the state exists
            known = self._numbered(block)
            number = len(self.carrier.states) if known is None else known
            own = self.terms.state(number, block.axes, self._wide())
            older = self._binomial(e, {**states, e: own}, [s.delta for s in shifts])
            carry = self._rescaled(older)
        return self._state(block, carry, self._wide())

    def _known_total(self, e: tuple[int, ...], block: Term, shifts: list[_Shift]) -> Term | None:
        """The sum of differences from an anchor, if that of the elements is carried already, and
        they have fewer bits than it: the more alike they are the longer it stays exact.  A total of
        doubles has rounded away what they differ by."""
        if sum(e) != 1 or not self.wide or block.args[0] is not (s := shifts[e.index(1)]).lift:
            return None
        terms, (element, anchor) = self.terms, s.lift.args
        plain = element.args[0] if element.kind == "cast" else element
        if plain.dtype.bits >= element.dtype.bits:
            return None
        same = terms.fold(self.fold.op, plain, self.fold.over, self._wide())
        if (number := self._numbered(same)) is None:
            return None
        count = terms.count(self.fold.over, self._wide())
        total = terms.state(number, same.axes, self._wide())
        return terms.sub(total, terms.mul(count, anchor))

    def _numbered(self, block: Term) -> int | None:
        """The state that holds sums of this block already."""
        for number, state in enumerate(self.carrier.states):
            if state.block is block and state.sweep == self.sweep:
                return number
        return None

    def _state(self, block: Term, carry: Term | None, dtype: DType) -> Term:
        combine = SUM_OF_PRODUCTS[0] if block.kind == "dot" else block.op
        return self.carrier.state(block, combine, carry, dtype, self.sweep, self.fold)

    def _plain(self, block: Term) -> Term:
        return self._state(block, None, block.dtype)

    def _binomial(
        self, e: tuple[int, ...], states: dict[tuple[int, ...], Term], shifts: list[Term | None]
    ) -> Term:
        """Sum over d ≤ e of the states d, times binomials and powers of the shifts."""
        terms = self.terms
        found: Term | None = None
        for d in every(*(range(n + 1) if s is not None else (n,) for n, s in zip(e, shifts))):
            part = terms.cast(states[d], self._wide())
            for n, k, s in zip(e, d, shifts, strict=True):
                for _ in range(n - k):
                    assert s is not None
                    part = terms.mul(part, terms.cast(s, part.dtype))
                if math.comb(n, k) != 1:
                    part = terms.mul(part, terms.const(math.comb(n, k), part.dtype))
            found = part if found is None else terms.add(found, part)
        assert found is not None
        return found

    def _rescaled(self, old: Term) -> Term:
        assert self.rescaling is not None
        return self.terms.mul(old, self.terms.cast(self.rescaling, old.dtype))

    def _wide(self) -> DType:
        """The type that this sum is carried in."""
        return accumulator(COMBINES[self.fold.op], self.fold.dtype)

    def _finished(self, total: Term, product: Product) -> Term:
        """The total with what left the sum."""
        moved = {g.fold for g in self.bare} | {f.slot for f in self.followed}
        self.carrier.moved_by.setdefault(self.fold, set()).update(moved)
        terms = self.terms
        found = total if self.wide or self.last_wide else terms.cast(total, self.fold.dtype.compute)
        if self.made_up is not None:
            once = terms.div(terms.const(1.0, self.made_up.dtype), self.made_up)
            found = terms.mul(found, terms.cast(once, found.dtype))
        if product.number != 1.0:
            found = terms.mul(found, terms.const(product.number, found.dtype))
        left = found if self.power is None else terms.cast(self.power, found.dtype)
        for t, p in self.hoisted:
            wide = terms.cast(t, found.dtype)
            for _ in range(abs(p)):
                left = terms.mul(left, wide) if p > 0 else terms.div(left, wide)
        found = left if self.power is None else terms.mul(found, left)
        for by in self.followed:
            found = finished(terms, found, by)
        for gauge, bare in self.bare.items():
            if bare:
                if product.masks:
                    raise NotSeparable(self.fold.op)
                nothing = terms.const(math.nan, found.dtype)
                found = terms.where_equal(gauge.fold, gauge.bottom, nothing, found)
        return found
