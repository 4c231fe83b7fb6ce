"""Skip blocks masked with a large finite number such as -1e9, with a fallback.

Masked elements add exactly 0 to the sums of a softmax if the maximum is far above them. Only the
data shows that: a row that is entirely masked is the average of its elements. So fully masked
blocks are skipped at first. If in the end the maximum of some row is not far enough above the mask,
all blocks are visited from the beginning, for every row of the task:

    stream n/512 to last(m) + 1 with t = -inf [m], l = 0 [m], acc = 0 [m,d]
      ..
    enough = t >= -999998976
    stream n/512 to (size(n) if partial(enough) else 0) with t_2 = -inf [m], ..
      ..
    y[m,d] = acc_2 / l_2 if partial(enough) else acc / l

Conditions are examined as in `block_sparsity.py`, with more sample values: a number that a mask
*selects* counts if it is the same when everything else is NaN, infinite or huge. A number that a
mask *adds* hides nothing; there the maximum is compared with a bound of the masked elements
(`value_bounds`), which reads queries and keys but multiplies none, and is NaN where one of them
is. See `docs/derivations.md`, finite-masks.

>>> from smelt.fusion.cascade.term import Terms
>>> from smelt.types.dtype import f32
>>> terms = Terms()
>>> x = terms.leaf("x", {"m", "n"}, f32)
>>> value_bounds(terms, x, {}, frozenset("m"))
Span(low=neg(max(max(leaf:x, neg(leaf:x)))), high=max(max(leaf:x, neg(leaf:x))))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from smelt.fusion.cascade.block_sparsity import (
    SAMPLE_COUNT,
    SampleValues,
    VisitRange,
    conditions,
    enumerate_conditions,
    implied_conditions,
    narrow_range,
    outermost,
)
from smelt.fusion.cascade.interval import is_element
from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, Terms, evaluate
from smelt.kernel.ir import Dot
from smelt.ops.combine import COMBINES, EXTREMES, SUM_OF_PRODUCTS
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass


class Span(NamedTuple):
    """Lower and upper bound of an element, as terms."""

    low: Term
    high: Term


def value_bounds(
    terms: Terms, t: Term, conditions: Mapping[Term, bool], rows: frozenset[str]
) -> Span | None:
    """Return bounds of an element for each position of the axes `rows`, None if unknown.

    `conditions` maps conditions to the values that they are taken to have.
    """
    return _Between(terms, conditions, rows).of(t)


class _Between:
    def __init__(self, terms: Terms, conditions: Mapping[Term, bool], rows: frozenset[str]) -> None:
        self.terms, self.conditions, self.rows = terms, conditions, rows
        self.spans: dict[Term, Span | None] = {}

    def of(self, t: Term) -> Span | None:
        """Return the bounds of a term."""
        if t not in self.spans:
            self.spans[t] = self._bounds_of(t)
        return self.spans[t]

    def _bounds_of(self, t: Term) -> Span | None:
        terms = self.terms
        if t in self.conditions:
            return _point(terms.const(self.conditions[t], t.dtype))
        if t.kind == "const":
            return _point(t)
        if t.dtype.is_float and is_element(t):
            return self._symmetric(self._largest(t))
        if t.kind == "cast" and t.args[0].dtype.kind == "int" and t.dtype.is_float:
            return self._symmetric(self._largest(t)) if is_element(t.args[0]) else None
        if t.kind == "opaque" and len(t.args) == 2 and t.dtype.is_float and _is_product(t):
            sides = [self._magnitude(a) for a in t.args]
            over = tuple(sorted((t.args[0].axes | t.args[1].axes) - t.axes))
            return self._multiplied([terms.count(over, t.dtype), *sides])
        spans = [self.of(a) for a in t.args]
        if t.kind == "cast" and (span := spans[0]) is not None:
            return Span(*(_fold_constants(terms, terms.cast(e, t.dtype)) for e in span))
        return self._applied(t, spans) if t.kind == "apply" else None

    def _applied(self, t: Term, spans: list[Span | None]) -> Span | None:
        """Return the bounds of an operator's result, from the columns of its table row."""
        terms, row = self.terms, SCALARS[t.op]
        if row.is_select:
            return self._chosen(spans)
        if all(s is not None and s.low.kind == "const" and s.low is s.high for s in spans):
            return _point(_fold_constants(terms, terms.apply(t.op, *(s.low for s in spans if s))))
        if not t.dtype.is_float:
            return None
        if row.powers:
            magnitudes: list[Term | None] = []
            for a, span, p in zip(t.args, spans, row.powers, strict=True):
                if p < 0 and (
                    span is None or span.low.kind != "const" or span.low is not span.high
                ):
                    return None
                divisor = span.low if p < 0 and span is not None else None
                magnitudes += (
                    [self._magnitude(a)] * p
                    if divisor is None
                    else [_fold_constants(terms, terms.div(terms.const(1.0, t.dtype), divisor))]
                    * -p
                )
            return self._multiplied(magnitudes)
        slopes = row.linear or row.monotone
        if not slopes or 0 in slopes:
            return None
        ends: list[Term] = []
        for end in (0, 1):
            parts = [s[(slope < 0) ^ end] for s, slope in zip(spans, slopes) if s is not None]
            if len(parts) < len(spans):
                return None
            bound = terms.apply(t.op, *parts)
            for e in () if row.linear else parts:  # NaN where an infinite operand was clamped
                bound = bound if e.kind == "const" else terms.add(bound, terms.sub(e, e))
            ends.append(bound)
        return Span(*ends)

    def _chosen(self, spans: list[Span | None]) -> Span | None:
        mask, *values = spans
        if mask is not None and mask.low.kind == "const":
            return values[0 if mask.low.value else 1]
        then, otherwise = values
        if then is None or otherwise is None:
            return None
        terms = self.terms
        return Span(
            terms.minimum(then.low, otherwise.low), terms.maximum(then.high, otherwise.high)
        )

    def _magnitude(self, t: Term) -> Term | None:
        """Return an upper bound of a term's absolute value."""
        span, terms = self.of(t), self.terms
        if span is None:
            return None
        low = _fold_constants(terms, terms.neg(span.low))
        if low is span.high:
            return low
        return _fold_constants(terms, terms.maximum(low, span.high))

    def _multiplied(self, factors: list[Term | None]) -> Span | None:
        magnitude: Term | None = None
        for f in factors:
            if f is None:
                return None
            magnitude = f if magnitude is None else self.terms.mul(magnitude, f)
        return None if magnitude is None else self._symmetric(magnitude)

    def _symmetric(self, magnitude: Term) -> Span:
        return Span(self.terms.neg(magnitude), magnitude)

    def _largest(self, t: Term) -> Term:
        """Return the largest magnitude of an array's elements, for each row."""
        terms = self.terms
        magnitude = terms.maximum(t, terms.neg(t))
        over = tuple(sorted(t.axes - self.rows))
        return terms.reduce(EXTREMES[1], magnitude, over, t.dtype) if over else magnitude


def _point(t: Term) -> Span:
    return Span(t, t)


def _is_product(t: Term) -> bool:
    """Return whether a term that reduces other axes is a sum of products."""
    value: Any = t.value
    return isinstance(value, Dot) or (isinstance(value, tuple) and value[:2] == ("reduce", ""))


def _fold_constants(terms: Terms, t: Term) -> Term:
    """Evaluate an operator on constants; cancel a double negation."""
    if t.kind in ("apply", "cast") and all(a.kind == "const" for a in t.args):
        return terms.const(evaluate(t, _no_leaf).item(), t.dtype)
    inner = t.args[0] if t.kind == "apply" and SCALARS[t.op].linear == (-1,) else None
    if inner is not None and inner.kind == "apply" and SCALARS[inner.op].linear == (-1,):
        return inner.args[0]
    return t


def _no_leaf(t: Term) -> Any:
    raise AssertionError(t)


SAFE_DISTANCE = {32: 1024.0, 64: 4096.0}
"""Distance from the maximum to masked elements, by bits of the type.

Less would do for their exponentials to be 0. At this distance, what a full pass sums before it
meets the maximum vanishes too, in however many steps, from sums of twice the exponent range.
"""
SPECIAL_VALUES = (np.nan, np.inf, -np.inf, 3e38)
"""Sample values for unmasked terms that show where a mask hides nothing."""
MARGINS_ABOVE = (0.0, 0.37, 13.0, 1e3, 3e5, 1e20)
"""Excess of the maximum over the required distance, one for each sample."""


ROUNDING_SHARE = 2.0**-5
"""Safety distance from a computed bound, as a share of it.

Exceeds the rounding error of a dozen steps in bfloat16 (2^-9 each).
"""


@dataclass(slots=True)
class FiniteMask:
    """Blocks that a pass may skip at first, and the check that this was right."""

    visited: VisitRange
    enough: Term
    """For a row after the pass: whether the skipped blocks contribute nothing to it."""


def find_finite_mask(
    terms: Terms,
    states: Sequence[State],
    pass_index: int,
    seen: VisitRange,
    name: str,
    fixed: frozenset[str],
) -> FiniteMask | None:
    """Return the blocks along the axis `name` with nothing but finitely masked elements.

    None if there are none. They are skipped in addition to those that `visited` skips.
    """
    pass_states = {k: s for k, s in enumerate(states) if s.pass_index == pass_index}
    if not any(s.block.kind == "dot" for s in pass_states.values()):
        return None
    blocks = [s.block for s in pass_states.values()]
    for number, state in pass_states.items():
        mask = _Mask(terms, number, state, pass_states)
        if not mask.sign:
            continue
        ruling = list(outermost(blocks, name, mask.rules_out))
        if not ruling:
            continue
        limit, *limits = (mask.limit(c, answer) for c, answer in ruling)
        for other in limits:
            limit = (terms.maximum if mask.sign > 0 else terms.minimum)(limit, other)
        greatest = terms.state(number, state.block.axes, state.dtype)
        operands = (greatest, limit) if mask.sign > 0 else (limit, greatest)
        narrowed_range = VisitRange(
            seen.start,
            seen.stop,
            seen.position_is_used,
            seen.block_is_used,
            dict(seen.partial_masks),
        )
        narrow_range(narrowed_range, terms, blocks, ruling, name, fixed)
        if (narrowed_range.start, narrowed_range.stop, narrowed_range.block_is_used) == (
            seen.start,
            seen.stop,
            seen.block_is_used,
        ):
            continue
        return FiniteMask(narrowed_range, terms.exceeds(*operands, strict=False))
    return None


class _Mask:
    """Masks of the elements whose maximum (or minimum) is a state."""

    def __init__(
        self, terms: Terms, number: int, state: State, pass_states: dict[int, State]
    ) -> None:
        self.terms = terms
        self.state, self.dtype = state, state.dtype
        self.others = [s for k, s in pass_states.items() if k != number]
        self.asked = conditions([state.block, *(s.block for s in self.others)])
        self.new = terms.state(number, state.block.axes, state.dtype, new=True)
        row = COMBINES.get(state.combine)
        self.none = 0.0
        if row and row.idempotent and not row.positional and state.dtype.is_float:
            self.none = float(row.identity(state.dtype))
        self.sign = 0 if not np.isinf(self.none) else 1 if self.none < 0 else -1
        """1 for a maximum, -1 for a minimum, 0 for any other reduction."""

    def rules_out(self, condition: Term, answer: bool) -> bool:
        """Return whether elements with that condition value are far off and contribute nothing."""
        number, samples = self.number(condition, answer), _Strange
        if number is None:
            number, samples = self.shifted(condition, answer), SampleValues
        if number is None or self.sign * self.least(number) > -SAFE_DISTANCE[self.dtype.bits]:
            return False  # a mask value near 0 is rarely far enough from the maximum
        maximum = self.least(number) + self.sign * np.array(MARGINS_ABOVE)
        values = {**self.implied_values(condition, answer), self.new: maximum}
        return all(_adds_nothing(s.block, values, samples) for s in self.others)

    def implied_values(self, condition: Term, answer: bool) -> dict[Term, Any]:
        """Return the values of conditions that follow from one of them."""
        return dict(implied_conditions(self.asked, condition, answer))

    def number(self, condition: Term, answer: bool) -> float | None:
        """Return the number that all such elements equal, ignoring identities; None if none."""
        (element,) = self.state.block.args
        values = self.implied_values(condition, answer)
        results = np.asarray(_evaluate_samples(element, values, [element], _Strange), np.float64)
        # no `np.unique`: it imports masked arrays, which takes as long as planning attention
        numbers = {x for x in set(results.ravel().tolist()) if x != self.none}
        return numbers.pop() if len(numbers) == 1 and np.isfinite([*numbers]).all() else None

    def shifted(self, condition: Term, answer: bool) -> float | None:
        """Return the largest of such elements among the samples, if they are bounded."""
        (element,) = self.state.block.args
        if self._bound(condition, answer) is None:
            return None
        results = np.asarray(
            _evaluate_samples(
                element, self.implied_values(condition, answer), [element], SampleValues
            ),
            np.float64,
        )
        number = self.sign * float(np.max(self.sign * results))
        return number if np.isfinite(number) else None

    def limit(self, condition: Term, answer: bool) -> Term:
        """Return the nearest number that is far enough from all such elements."""
        number = self.number(condition, answer)
        if number is not None:
            return self.terms.const(self.least(number), self.dtype)
        bound, terms = self._bound(condition, answer), self.terms
        assert bound is not None
        magnitude = terms.mul(
            terms.maximum(bound, terms.neg(bound)), terms.const(ROUNDING_SHARE, self.dtype)
        )
        distance = terms.maximum(magnitude, terms.const(SAFE_DISTANCE[self.dtype.bits], self.dtype))
        return terms.add(bound, distance) if self.sign > 0 else terms.sub(bound, distance)

    def _bound(self, condition: Term, answer: bool) -> Term | None:
        """Return a bound of such elements: all of them are on its far side."""
        block = self.state.block
        (element,) = block.args
        span = value_bounds(self.terms, element, self.implied_values(condition, answer), block.axes)
        return None if span is None else span.high if self.sign > 0 else span.low

    def least(self, number: float) -> float:
        """Return the nearest number of the type that is far enough from another number."""
        target = number + self.sign * SAFE_DISTANCE[self.dtype.bits]
        result = self.dtype.numpy.type(target)
        if self.sign * float(result) < self.sign * target:
            result = np.nextafter(result, self.dtype.numpy.type(self.sign * np.inf))
        if float(result) == number:
            result = np.nextafter(result, self.dtype.numpy.type(self.sign * np.inf))
        return float(result)


class _Strange(SampleValues):
    """Sample values including NaN, infinities and huge numbers."""

    def __call__(self, t: Term) -> Any:
        if t not in self.known and t.dtype.is_float:
            values = super().__call__(t)
            values[-len(SPECIAL_VALUES) :] = np.roll(SPECIAL_VALUES, len(self.known))
            return values
        return super().__call__(t)


def _evaluate_samples(
    element: Term, fixed: dict[Term, Any], elements: Sequence[Term], kind: type[SampleValues]
) -> Any:
    """Return an element's value for each sample and all values of other conditions.

    NaN if there are too many conditions.
    """
    values = enumerate_conditions(elements, fixed)
    if values is None:
        return np.full(SAMPLE_COUNT, np.nan)
    return np.broadcast_arrays(evaluate(element, kind(), values), np.zeros(SAMPLE_COUNT))[0]


def _adds_nothing(block: Term, fixed: dict[Term, Any], samples: type[SampleValues]) -> bool:
    """Return whether a block contributes nothing, in a product if one factor is 0."""
    row = COMBINES[SUM_OF_PRODUCTS[0] if block.kind == "dot" else block.op]
    identity = row.identity(block.args[0].dtype)
    is_neutral: Any = False
    for a in block.args:
        is_neutral = is_neutral | np.asarray(
            _evaluate_samples(a, fixed, block.args, samples) == identity
        )
    return bool(np.all(is_neutral)) and not row.positional
