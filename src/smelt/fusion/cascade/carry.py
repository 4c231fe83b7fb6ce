"""Carry reductions whose elements read unfinished reductions: states, transports, final values.

An element f(x, r) of a sum that reads a gauge r (a running maximum or minimum) is split into
factors:

- A factor that is the same for all elements leaves the sum (action "hoist").
- A factor b^(c(z - m)), where m is the running maximum of z, is at most 1. When the maximum moves
  from m to m', the sum is rescaled by b^(c(m - m')) ("dynamic").
- A sum v(x) + u(r) within a product is shifted by the binomial theorem: from a fixed anchor once at
  the end ("static"), or together with m.

See `docs/derivations.md`, running-shift and rescaling. For one power of one exponential this is the
online softmax of M. Milakov and N. Gimelshein, 2018; for powers of a sum it is the update of T.
Chan et al., 1983.

    sum(exp(x - m))            l' = l * exp(m - m') + sum(exp(x - m'))
    sum(exp(x - max(m, c)))    the same sum, at the end times exp(m - max(m, c))
    sum((x - mu)**2)           q = sum((x - a)**2), s = sum(x - a)
                               at the end q + 2(a - mu)s + n(a - mu)^2
    sum((x - m) * exp(x - m))  e' = exp(m - m') * (e + (m - m')*l) + sum(...)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import product as every

from smelt.fusion.cascade.anchor import anchor, propagate_overflow
from smelt.fusion.cascade.follow import Followed, expand_low_rank, finish, follow
from smelt.fusion.cascade.forms import (
    Coefficient,
    Dependence,
    Exponential,
    Linear,
    NotSeparable,
    Product,
    build,
    check_range,
    is_close,
    is_unrepresentable,
    linear,
    products,
    remove_atoms,
    scale_form,
    strip_widening,
)
from smelt.fusion.cascade.gauge import (
    Gauge,
    as_gauge,
    is_at_top,
    is_clamped_gauge,
    is_total,
    opposite,
)
from smelt.fusion.cascade.monotone import hoist_monotone
from smelt.fusion.cascade.powers import divide_by_power, max_exponent, rescale_factor
from smelt.fusion.cascade.states import States
from smelt.fusion.cascade.term import Term, reductions_in
from smelt.fusion.cascade.weighted_means import scale_weight
from smelt.ops.combine import ANY_FAILS, COMBINES, SUM_OF_PRODUCTS
from smelt.ops.reduce import accumulator
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import ScalarOp
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, f64

MAX_STATES = 8
"""Maximum states that one reduction may need: with more, another pass is cheaper."""


@dataclass(frozen=True, slots=True)
class _Shift:
    """A factor v(x) + u(r) of a product.

    `lift` is the summed element, `delta` its change from block to block, `rest` what is added at
    the end.
    """

    lift: Term
    delta: Term | None
    rest: Term | None


class Carrier(States):
    """Creates the states of a cascade, pass by pass."""

    def plain(self, reduction: Term, pass_index: int, *, last: bool = False) -> Term:
        """Carry a reduction whose elements do not move; return its final value.

        If no other reduction reads it (`last`), monotone functions of the elements are applied to
        the result instead.
        """
        if reduction.kind == "dot":
            return self.state(
                reduction, SUM_OF_PRODUCTS[0], None, reduction.dtype.compute, pass_index, reduction
            )
        if COMBINES[reduction.op].positional:
            return self.arg_state(reduction, pass_index)
        if last and (hoisted := hoist_monotone(self.terms, reduction)).layers:
            x, combine = hoisted.element, hoisted.combine
            block = self.terms.reduce(combine, x, reduction.over, x.dtype)
            return hoisted.apply_layers(
                self.terms, self.state(block, combine, None, x.dtype, pass_index, reduction)
            )
        accumulator_type = accumulator(COMBINES[reduction.op], reduction.dtype)
        block = self.terms.reduce(reduction.op, reduction.args[0], reduction.over, accumulator_type)
        return self.terms.cast(
            self.state(block, reduction.op, None, accumulator_type, pass_index, reduction),
            reduction.dtype.compute,
        )

    def gauge(self, reduction: Term, sorts: Dependence) -> Gauge | None:
        """Return the gauge that a reduction of unmoving elements defines; None if it is none."""
        if (
            reduction.kind != "reduce"
            or sorts.moves(reduction.args[0])
            or not reduction.dtype.is_float
        ):
            return None
        row = COMBINES[reduction.op]
        identity = row.identity(reduction.dtype)
        block = self.terms.reduce(
            reduction.op, reduction.args[0], reduction.over, reduction.dtype.compute
        )
        for number, state in enumerate(self.states):
            if state.block is block and row.idempotent and not math.isfinite(identity):
                form = linear(reduction.args[0], sorts.is_fixed)
                return (
                    None
                    if is_unrepresentable(form)
                    else Gauge(reduction, number, float(identity), form)
                )
        return None

    # ---- monotone functions of a maximum -------------------------------------------------------

    def monotone(self, reduction: Term, sorts: Dependence, pass_index: int) -> Term:
        """Carry max_j h(v(x_j), r) as h(max_j v(x_j), r) for a monotone h. Raises NotSeparable."""
        row = COMBINES[reduction.op]
        if not row.idempotent or row.grow != "same" or not reduction.dtype.is_float:
            raise NotSeparable(reduction.op)
        inner, rising = reduction.args[0], True
        while sorts.moves(inner):
            operands = [k for k, a in enumerate(inner.args) if sorts.varies(a)]
            if inner.kind != "apply" or len(operands) != 1 or not is_total(inner.op):
                raise NotSeparable(inner.op or inner.kind)
            slope = (SCALARS[inner.op].monotone or (0,) * len(inner.args))[operands[0]]
            if slope == 0:
                raise NotSeparable(inner.op)
            rising ^= slope < 0
            inner = inner.args[operands[0]]
        if not inner.dtype.is_float:
            raise NotSeparable(reduction.op)
        combine = reduction.op if rising else opposite(reduction.op)
        block = self.terms.reduce(combine, inner, reduction.over, inner.dtype)
        result = self.state(block, combine, None, inner.dtype, pass_index, reduction)
        return self.terms.substitute(reduction.args[0], {inner: result})

    # ---- sums ----------------------------------------------------------------------------------

    def sum_states(
        self, reduction: Term, sorts: Dependence, gauges: list[Gauge], pass_index: int
    ) -> Term:
        """Carry a sum whose elements move; return its final value. Raises NotSeparable."""
        if reduction.kind == "reduce" and SCALARS[COMBINES[reduction.op].scalar].linear != (1, 1):
            raise NotSeparable(reduction.op)
        if not reduction.dtype.is_float:
            raise NotSeparable(reduction.op)
        if reduction.kind == "dot":
            sides = [list(products(side, sorts)) for side in reduction.args]
            pairs = every(*sides)
            parts = (
                _Sum(self, reduction, sorts, gauges, pass_index).of_products(pair) for pair in pairs
            )
        else:
            factored = products(strip_widening(reduction), sorts)
            expanded = [
                q for p in factored for q in expand_low_rank(self.terms, p, sorts, reduction.dtype)
            ]
            parts = (
                _Sum(self, reduction, sorts, gauges, pass_index).of(product) for product in expanded
            )
        total: Term | None = None
        for part in parts:
            total = part if total is None else self._plus(total, part)
        assert total is not None
        return self.terms.cast(total, reduction.dtype.compute)

    def _plus(self, left: Term, right: Term) -> Term:
        """Add in the wider of both types, so that cancelling terms are not rounded."""
        wider_type = max((left.dtype, right.dtype), key=lambda d: d.bits)
        return self.terms.add(self.terms.cast(left, wider_type), self.terms.cast(right, wider_type))


class _Sum:
    """Carries one product of a sum."""

    def __init__(
        self,
        carrier: Carrier,
        reduction: Term,
        sorts: Dependence,
        gauges: list[Gauge],
        pass_index: int,
    ) -> None:
        self.carrier, self.terms, self.reduction = carrier, carrier.terms, reduction
        self.sorts, self.gauges, self.sweep = sorts, gauges, pass_index
        self.product = Product()
        self.rescaling: Term | None = None
        self.final_divisor: Term | None = None
        """Divisor at the end that replaces powers of 2 by the gauges themselves."""
        self.power: Term | None = None
        """The power of 2 that weights are scaled by; applied at the end with hoisted factors."""
        self.bare: dict[Gauge, bool] = {}
        self.hoisted: list[tuple[Term, int]] = []
        self.followed: list[Followed] = []
        self.wide = False
        """Whether elements are computed in double precision."""
        self.doubles = False
        """Whether differences from an anchor are as wide as their accumulator."""
        self.last_wide = False
        """Whether hoisted factors are applied before the sum is rounded to its type.

        They may bring it back into the range of the type.
        """
        self.unmasked: Term | None = None
        """Whether masks have left an element so far.

        Where not, the total is that of zeros, whatever the gauge and the hoisted factors are.
        """

    def of(self, product: Product) -> Term:
        """Return the final value of a sum of one product."""
        check_range(product, self.reduction.dtype, self.reduction.op)
        gauged = self._gauged_elements(product)
        self.product = product
        shifts = [self._shifted(s, bool(gauged)) for s in product.sums]
        factors = [*((g, 1) for g in gauged), *product.direct]  # factors of at most 1 come first
        self.hoisted += product.hoisted
        self.wide |= not gauged and (bool(shifts) or len(factors) > 1)
        self.last_wide = not gauged and bool(self.hoisted)
        groups = {s: shifts.count(s) for s in shifts}
        if math.prod(n + 1 for n in groups.values()) > MAX_STATES:
            raise NotSeparable(self.reduction.op)
        if product.masks and (self.hoisted or gauged):
            self.unmasked = self._any(product.masks)
        total = self._binomial_total(factors, product.masks, groups)
        return self._finish(total, product)

    def of_products(self, pair: tuple[Product, ...]) -> Term:
        """Return the final value of a contraction with one product per operand.

        Factors stay in their operand: none of them is a shifted sum.
        """
        sides: list[Term] = []
        combined, late_masks = Product(), []
        for side, product in zip(self.reduction.args, pair, strict=True):
            if product.sums:
                raise NotSeparable(self.reduction.kind)
            gauged = self._gauged_elements(product, alone=False)
            self.hoisted += product.hoisted
            factors = [*((g, 1) for g in gauged), *product.direct]
            sides.append(self._element(factors, product.masks, side))
            if product.hoisted and not gauged:  # the hoisted factor had kept the element in range
                weight = scale_weight(
                    self.terms, product, sides[-1], self.reduction.over, self._plain
                )
                self.rescaling = self._times(self.rescaling, weight.rescale)
                self.power, sides[-1] = self._times(self.power, weight.power), weight.element
            combined = combined.times(product)
            if product.hoisted or gauged:
                late_masks.append(product.masks)
        if len(late_masks) > 1 and any(late_masks):
            raise NotSeparable(self.reduction.kind)  # each side would need its own correction
        if any(late_masks):
            self.unmasked = self._any(late_masks[0])
        block = self.terms.dot(
            sides[0], sides[1], self.reduction.over, self.reduction.value or self.reduction.dtype
        )
        dtype = self.reduction.dtype.compute
        number = len(self.carrier.states)
        carry = None
        if self.rescaling is not None:
            carry = self._rescaled(self.terms.state(number, block.axes, dtype))
        total = self._state(block, carry, dtype)
        return self._finish(total, combined)

    # ---- factors -------------------------------------------------------------------------------

    def _gauge_of(self, atom: Term) -> tuple[Gauge, bool] | None:
        """Return the gauge that an atom equals, and whether it is finite before any element."""
        for g in self.gauges:
            if atom is g.reduction:
                return g, False
            if reductions_in(atom) == {g.reduction} and (bottom := as_gauge(atom, g)) is not None:
                return g, math.isfinite(bottom)
        return None

    def _gauge_value(self, atom: Term, g: Gauge, finite: bool, *, new: bool) -> Term:
        """Return a gauge before or after the current block, 0 before any element."""
        state = self.terms.state(g.state, g.reduction.axes, g.reduction.dtype.compute, new=new)
        if finite:
            return self.terms.substitute(atom, {g.reduction: state})
        safe = self.terms.where_equal(state, g.bottom, self.terms.const(0.0, state.dtype), state)
        return self.terms.substitute(atom, {g.reduction: safe})

    def _gauged_elements(self, product: Product, *, alone: bool = True) -> list[Term]:
        """Return the elements of factors that are rescaled as a gauge moves."""
        several = len(product.exponentials) + len(product.unclassified) > 1
        alone = alone and not (several or product.direct)
        if product.unclassified and (product.sums or product.masks):
            raise NotSeparable(product.unclassified[0].op)
        elements: list[Term] = []
        for g in product.exponentials:
            try:
                elements.append(self._exponential(g))
            except NotSeparable:
                if product.sums or product.masks:
                    raise
                elements.append(self._derived(g.term, alone))
        return elements + [self._derived(t, alone) for t in product.unclassified]

    def _derived(self, t: Term, alone: bool) -> Term:
        """Return the element of a factor with a derived transport; record the rescaling of sums."""
        followed = follow(self.terms, t, self.reduction, self.sorts, self._plain, alone=alone)
        self.rescaling = self._times(self.rescaling, followed.rescale)
        self.followed.append(followed)
        return followed.element

    def _exponential(self, factor: Exponential) -> Term:
        """Return the element of an exponential relative to its gauge; record the rescaling."""
        form = dict(factor.exponent)
        terms, row = self.terms, SCALARS[factor.term.op]
        for atom, k in form.items():
            if atom is None or not self.sorts.moves(atom):
                continue
            c = Coefficient(-k.number, k.fixed)
            gauge_of_atom = self._gauge_of(atom)
            clamped_gauge = next(
                (g for g in self.gauges if gauge_of_atom is None and is_clamped_gauge(atom, g)),
                None,
            )
            gauge, finite = gauge_of_atom or (clamped_gauge, True)
            if gauge is None or not self._is_bound(form, gauge, c):
                continue
            moving: Linear = {a: form[a] for a in form if a is not None and self.sorts.moves(a)}
            rest: Linear = {a: k for a, k in moving.items() if a is not atom}
            substitute = atom if finite else None
            if clamped_gauge is not None:  # use the gauge itself; correct the difference at the end
                substitute = terms.where_equal(gauge.reduction, gauge.bottom, atom, gauge.reduction)
                rest |= {atom: k, substitute: c}
            self._record_rescaling(row, gauge, c, substitute)
            self.bare[gauge] = self.bare.get(gauge, False) or not finite
            if rest:
                self.hoisted.append((terms.apply(row.name, build(terms, rest, factor.term)), 1))
            power = self._without(factor.term.args[0], form, moving, {})
            # before any element the substitute may be any number: no power exceeds -inf then
            follows = clamped_gauge is not None or not finite or is_at_top(atom, gauge)
            bound = c == Coefficient(1.0) and follows and power is gauge.reduction.args[0]
            return divide_by_power(
                terms, row, power, max_exponent(terms, gauge, c, substitute, new=True), bound=bound
            )
        raise NotSeparable(row.name)

    def _record_rescaling(
        self, row: ScalarOp, gauge: Gauge, c: Coefficient, substitute: Term | None
    ) -> None:
        """Record a sum's rescaling when a gauge moves, and the correction at the end.

        The correction is for the difference between the gauge and the power of 2 used for it.
        """
        last = max_exponent(self.terms, gauge, c, substitute, new=False)
        self.rescaling = self._times(
            self.rescaling, rescale_factor(self.terms, row, gauge, c, substitute)
        )
        self.final_divisor = self._times(
            self.final_divisor, divide_by_power(self.terms, row, last, last, bound=True)
        )

    def _times(self, product: Term | None, factor: Term) -> Term:
        return factor if product is None else self.terms.mul(product, factor)

    def _is_bound(self, form: Linear, gauge: Gauge, c: Coefficient) -> bool:
        """Return whether the varying part of an exponent is at most c times the gauge."""

        def varying(sum_: Linear) -> Linear:
            return {a: k for a, k in sum_.items() if a is not None and self.sorts.varies(a)}

        above = gauge.bottom < 0
        return (c.number > 0) == above and is_close(
            varying(form), scale_form(varying(gauge.form), c)
        )

    def _shifted(self, term: Term, gauged: bool) -> _Shift:
        """Split a sum of varying and moving atoms into element, block-to-block change and rest."""
        terms = self.terms
        form = linear(term, self.sorts.is_fixed)
        if is_unrepresentable(form):
            raise NotSeparable(term.op)
        moving: Linear = {a: c for a, c in form.items() if a is not None and self.sorts.moves(a)}
        if not gauged:
            return self._anchored(self._without(term, form, moving, {}), build(terms, moving, term))
        replacements: dict[Term, Term] = {}
        delta: Linear = {}
        rest = dict(moving)
        for atom in moving:
            gauge_of_atom = None if atom is None else self._gauge_of(atom)
            if atom is not None and gauge_of_atom is not None:
                old, new = (self._gauge_value(atom, *gauge_of_atom, new=n) for n in (False, True))
                replacements[atom] = new
                delta[terms.sub(new, old)] = rest.pop(atom)
                self.bare[gauge_of_atom[0]] = (
                    self.bare.get(gauge_of_atom[0], False) or not gauge_of_atom[1]
                )
        if rest and not delta:
            self.wide = True
            return self._anchored(self._without(term, form, moving, {}), build(terms, rest, term))
        return _Shift(
            self._without(term, form, rest, replacements),
            build(terms, delta, term) if delta else None,
            build(terms, rest, term) if rest else None,
        )

    def _without(
        self, t: Term, form: Linear, removed: Linear, replacements: Mapping[Term, Term]
    ) -> Term:
        """Return a sum without moving atoms, some of them replaced by their gauge's value."""
        remaining = remove_atoms(self.terms, t, removed, replacements)
        if self.sorts.moves(remaining):  # atoms that cancel each other remained
            kept_form = {
                replacements.get(a, a) if a else a: c for a, c in form.items() if a not in removed
            }
            remaining = build(self.terms, kept_form, t)
        return remaining

    def _anchored(self, element: Term, rest: Term) -> _Shift:
        """Return elements minus an anchor among them, in double precision."""
        terms, widened = self.terms, self.terms.cast(element, f64)
        origin = anchor(terms, element, self.reduction.over, self.product)
        self.doubles |= element.dtype.bits == f64.bits
        return _Shift(terms.sub(widened, origin), None, terms.add(origin, terms.cast(rest, f64)))

    # ---- states --------------------------------------------------------------------------------

    def _element(
        self, factors: Iterable[tuple[Term, int]], masks: Iterable[Term], like: Term
    ) -> Term:
        """Return the product of factors, 0 outside of the masks."""
        terms = self.terms
        product: Term | None = None
        for t, p in factors:
            t = terms.cast(t, f64) if self.wide else t
            for _ in range(abs(p)):
                if product is None:
                    product = t if p > 0 else terms.div(terms.const(1.0, t.dtype), t)
                else:
                    product = terms.mul(product, t) if p > 0 else terms.div(product, t)
        if product is None:
            product = terms.const(1.0, f64 if self.wide else like.dtype.compute)
        for mask in masks:
            product = terms.select(mask, product, terms.const(0.0, product.dtype))
        return product

    def _binomial_total(
        self, factors: list[tuple[Term, int]], masks: tuple[Term, ...], groups: dict[_Shift, int]
    ) -> Term:
        """Return the sum at the last gauge, by the binomial theorem over states.

        `groups` counts how often each shifted factor occurs.
        """
        shifts, powers = list(groups), tuple(groups.values())
        blocks: dict[tuple[int, ...], Term | None] = {}
        for e in every(*(range(n + 1) for n in powers)):
            used = [*factors, *((s.lift, n) for s, n in zip(shifts, e) if n)]
            is_count = not used and not masks
            element = None if is_count else self._element(used, masks, self.reduction.args[0])
            blocks[e] = (
                None
                if element is None
                else self.terms.reduce(
                    self.reduction.op, element, self.reduction.over, self._accumulator()
                )
            )
        states: dict[tuple[int, ...], Term] = {}
        for e in sorted(blocks, key=sum):
            states[e] = self._state_for(e, blocks[e], states, shifts)
        total = self._binomial(powers, states, [s.rest for s in shifts])
        if self.doubles and sum(powers) > 1:
            first_order = (t for e, t in states.items() if sum(e) == 1)
            total = propagate_overflow(self.terms, total, states[powers], first_order)
        return total

    def _state_for(
        self,
        e: tuple[int, ...],
        block: Term | None,
        states: dict[tuple[int, ...], Term],
        shifts: list[_Shift],
    ) -> Term:
        terms = self.terms
        if block is None:
            return terms.count(self.reduction.over, self._accumulator())
        if (total := self._from_plain_total(e, block, shifts)) is not None:
            return total
        carry = None
        if self.rescaling is not None:
            # the carry refers to the state's own number: that of an equal state, or the next one
            existing = self._existing_state(block)
            number = len(self.carrier.states) if existing is None else existing
            this_state = self.terms.state(number, block.axes, self._accumulator())
            rescaled_input = self._binomial(e, {**states, e: this_state}, [s.delta for s in shifts])
            carry = self._rescaled(rescaled_input)
        return self._state(block, carry, self._accumulator())

    def _from_plain_total(
        self, e: tuple[int, ...], block: Term, shifts: list[_Shift]
    ) -> Term | None:
        """Return the sum of differences from an anchor by means of the elements' carried sum.

        None unless that one is carried and the elements have fewer bits than the accumulator: a
        total of doubles has already rounded away what they differ by.
        """
        if sum(e) != 1 or not self.wide or block.args[0] is not (s := shifts[e.index(1)]).lift:
            return None
        terms, (element, anchor) = self.terms, s.lift.args
        unwidened = element.args[0] if element.kind == "cast" else element
        if unwidened.dtype.bits >= element.dtype.bits:
            return None
        plain_block = terms.reduce(
            self.reduction.op, unwidened, self.reduction.over, self._accumulator()
        )
        if (number := self._existing_state(plain_block)) is None:
            return None
        count = terms.count(self.reduction.over, self._accumulator())
        total = terms.state(number, plain_block.axes, self._accumulator())
        return terms.sub(total, terms.mul(count, anchor))

    def _existing_state(self, block: Term) -> int | None:
        """Return the number of a state that holds sums of this block already."""
        for number, state in enumerate(self.carrier.states):
            if state.block is block and state.pass_index == self.sweep:
                return number
        return None

    def _state(self, block: Term, carry: Term | None, dtype: DType) -> Term:
        combine = SUM_OF_PRODUCTS[0] if block.kind == "dot" else block.op
        return self.carrier.state(block, combine, carry, dtype, self.sweep, self.reduction)

    def _plain(self, block: Term) -> Term:
        return self._state(block, None, block.dtype)

    def _binomial(
        self, e: tuple[int, ...], states: dict[tuple[int, ...], Term], shifts: list[Term | None]
    ) -> Term:
        """Sum states d <= e, times binomials and powers of the shifts."""
        terms = self.terms
        total: Term | None = None
        for d in every(*(range(n + 1) if s is not None else (n,) for n, s in zip(e, shifts))):
            part = terms.cast(states[d], self._accumulator())
            for n, k, s in zip(e, d, shifts, strict=True):
                for _ in range(n - k):
                    assert s is not None
                    part = terms.mul(part, terms.cast(s, part.dtype))
                if math.comb(n, k) != 1:
                    part = terms.mul(part, terms.const(math.comb(n, k), part.dtype))
            total = part if total is None else terms.add(total, part)
        assert total is not None
        return total

    def _rescaled(self, old: Term) -> Term:
        assert self.rescaling is not None
        rescaled = self.terms.mul(old, self.terms.cast(self.rescaling, old.dtype))
        return (
            rescaled if self.unmasked is None else self.terms.select(self.unmasked, rescaled, old)
        )

    def _accumulator(self) -> DType:
        return accumulator(COMBINES[self.reduction.op], self.reduction.dtype)

    def _finish(self, total: Term, product: Product) -> Term:
        """Apply hoisted factors and corrections to the total."""
        moved = {g.reduction for g in self.bare} | {f.slot for f in self.followed}
        self.carrier.moved_by.setdefault(self.reduction, set()).update(moved)
        terms = self.terms
        result = (
            total
            if self.wide or self.last_wide
            else terms.cast(total, self.reduction.dtype.compute)
        )
        if self.final_divisor is not None:
            inverse = terms.div(terms.const(1.0, self.final_divisor.dtype), self.final_divisor)
            result = terms.mul(result, terms.cast(inverse, result.dtype))
        if product.number != 1.0:
            result = terms.mul(result, terms.const(product.number, result.dtype))
        hoisted = result if self.power is None else terms.cast(self.power, result.dtype)
        for t, p in self.hoisted:
            wide = terms.cast(t, result.dtype)
            for _ in range(abs(p)):
                hoisted = terms.mul(hoisted, wide) if p > 0 else terms.div(hoisted, wide)
        result = hoisted if self.power is None else terms.mul(result, hoisted)
        for followed in self.followed:
            result = finish(terms, result, followed)
        for gauge, bare in self.bare.items():
            if bare:
                nan = terms.const(math.nan, result.dtype)
                result = terms.where_equal(gauge.reduction, gauge.bottom, nan, result)
        if self.unmasked is not None:
            result = terms.select(self.unmasked, result, terms.cast(total, result.dtype))
        return result

    def _any(self, masks: tuple[Term, ...]) -> Term:
        """Return whether the masks leave an element of the sum."""
        mask = reduce(self.terms.logical_and, masks)
        over = tuple(a for a in self.reduction.over if a in mask.axes)
        return self._plain(self.terms.reduce(ANY_FAILS[0], mask, over, bool_)) if over else mask
