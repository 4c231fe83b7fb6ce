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
(`value_bounds.py`), which reads queries and keys but multiplies none, and is NaN where one of them
is. See `docs/derivations.md`, finite-masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, Terms, evaluate
from smelt.fusion.cascade.value_bounds import value_bounds
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.python.dataclass import dataclass

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
