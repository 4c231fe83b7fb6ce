"""Masks that put a great finite number where nothing is to be seen, such as -1e9.

To the sums of a softmax such elements add exactly 0 where the greatest element is far above them,
which only the data tells: a row with nothing but masked elements is their average.  So the blocks
that hold nothing else are left out at first, and all blocks are visited, from the beginning and by
every row of a task, if in the end the greatest element of some row is not far enough above:

    stream n/512 to last(m) + 1 with t = -inf [m], l = 0 [m], acc = 0 [m,d]
      ..
    enough = t >= -999998976
    stream n/512 to (size(n) if partial(enough) else 0) with t_2 = -inf [m], ..
      ..
    y[m,d] = acc_2 / l_2 if partial(enough) else acc / l

What a condition rules out is looked at as in `block_sparsity.py`, with some numbers more: a number
that is put there counts if it comes to the same whatever else is NaN, infinite or huge.  A number
that is *added* hides nothing: there the greatest element is compared with a bound of what the
others may be (`value_bounds.py`), which reads queries and keys but multiplies none; it is NaN where
one of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.dataclass import dataclass
from smelt.fusion.cascade.block_sparsity import (
    DRAWS,
    Drawn,
    Visible,
    answered,
    conditions,
    following,
    narrowed,
    outermost,
)
from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, Terms, evaluate
from smelt.fusion.cascade.value_bounds import between
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS

FAR = {32: 1024.0, 64: 4096.0}
"""How far the greatest element has to be from masked ones, by bits of the type.  Less would do for
their powers to be 0; so far apart, what a sweep of all blocks sums up of them before it meets the
greatest element is gone as well, in however many steps, from sums of double the range."""
STRANGE = (np.nan, np.inf, -np.inf, 3e38)
"""Numbers that may stand beside a mask and show where it hides nothing."""
ABOVE = (0.0, 0.37, 13.0, 1e3, 3e5, 1e20)
"""How much greater than need be an element is supposed to be: a number for each draw."""


ROUNDED = 2.0**-5
"""How far from a bound that is computed, in parts of it: more than all that rounding may do, where
each of a dozen steps is rounded to bfloat16 (by 2^-9 of it)."""


@dataclass(slots=True)
class Faint:
    """What a sweep may leave out at first, and whether that was right."""

    seen: Visible
    enough: Term
    """Of a row, after the sweep: whether what was left out adds nothing to it."""


def faint(
    terms: Terms,
    states: Sequence[State],
    sweep: int,
    seen: Visible,
    name: str,
    fixed: frozenset[str],
) -> Faint | None:
    """What the blocks of a sweep along the axis `name` are that have nothing but faint elements, if
    that can be told; they are left out beside those that `seen` leaves out."""
    own = {k: s for k, s in enumerate(states) if s.sweep == sweep}
    if not any(s.block.kind == "dot" for s in own.values()):
        return None
    blocks = [s.block for s in own.values()]
    for number, state in own.items():
        mask = _Mask(terms, number, state, own)
        if not mask.sign:
            continue
        found = list(outermost(blocks, name, mask.rules_out))
        if not found:
            continue
        limit, *more = (mask.limit(c, answer) for c, answer in found)
        for other in more:
            limit = (terms.greater if mask.sign > 0 else terms.lesser)(limit, other)
        greatest = terms.state(number, state.block.axes, state.dtype)
        pair = (greatest, limit) if mask.sign > 0 else (limit, greatest)
        made = Visible(seen.start, seen.stop, seen.seen, seen.where, dict(seen.cuts))
        narrowed(made, terms, blocks, found, name, fixed)
        if (made.start, made.stop, made.where) == (seen.start, seen.stop, seen.where):
            continue
        return Faint(made, terms.exceeds(*pair, strict=False))
    return None


class _Mask:
    """Masks of the elements whose greatest one (or least one) is a state."""

    def __init__(self, terms: Terms, number: int, state: State, own: dict[int, State]) -> None:
        self.terms = terms
        self.state, self.dtype = state, state.dtype
        self.others = [s for k, s in own.items() if k != number]
        self.asked = conditions([state.block, *(s.block for s in self.others)])
        self.new = terms.state(number, state.block.axes, state.dtype, new=True)
        row = COMBINES.get(state.combine)
        self.none = 0.0
        if row and row.idempotent and not row.positional and state.dtype.is_float:
            self.none = float(row.identity(state.dtype))
        self.sign = 0 if not np.isinf(self.none) else 1 if self.none < 0 else -1
        """1 where the greatest element is meant, -1 where the least one, 0 for any other fold."""

    def rules_out(self, condition: Term, answer: bool) -> bool:
        """Whether elements for which a condition has an answer are far off, and add nothing where
        the greatest is far from them."""
        number, drawn = self.number(condition, answer), _Strange
        if number is None:
            number, drawn = self.shifted(condition, answer), Drawn
        if number is None or self.sign * self.least(number) > -FAR[self.dtype.bits]:
            return False  # numbers about 0 are too seldom far enough away
        above = self.least(number) + self.sign * np.array(ABOVE)
        told = {**self.told(condition, answer), self.new: above}
        return all(_adds_nothing(s.block, told, drawn) for s in self.others)

    def told(self, condition: Term, answer: bool) -> dict[Term, Any]:
        """What conditions say where one has an answer."""
        return dict(following(self.asked, condition, answer))

    def number(self, condition: Term, answer: bool) -> float | None:
        """The one number that such elements are, but for those of which there are none."""
        (element,) = self.state.block.args
        told = self.told(condition, answer)
        values = np.asarray(_evaluated(element, told, [element], _Strange), np.float64)
        # `np.unique` imports masked arrays, which takes as long as planning attention
        numbers = {x for x in set(values.ravel().tolist()) if x != self.none}
        return numbers.pop() if len(numbers) == 1 and np.isfinite([*numbers]).all() else None

    def shifted(self, condition: Term, answer: bool) -> float | None:
        """The greatest of such elements among those drawn, if there is a bound of all of them."""
        (element,) = self.state.block.args
        if self._end(condition, answer) is None:
            return None
        values = np.asarray(
            _evaluated(element, self.told(condition, answer), [element], Drawn), np.float64
        )
        number = self.sign * float(np.max(self.sign * values))
        return number if np.isfinite(number) else None

    def limit(self, condition: Term, answer: bool) -> Term:
        """The first number of the type that is far enough from all such elements."""
        number = self.number(condition, answer)
        if number is not None:
            return self.terms.const(self.least(number), self.dtype)
        end, terms = self._end(condition, answer), self.terms
        assert end is not None
        size = terms.mul(terms.greater(end, terms.neg(end)), terms.const(ROUNDED, self.dtype))
        far = terms.greater(size, terms.const(FAR[self.dtype.bits], self.dtype))
        return terms.add(end, far) if self.sign > 0 else terms.sub(end, far)

    def _end(self, condition: Term, answer: bool) -> Term | None:
        """A bound of such elements: they are all on its far side."""
        block = self.state.block
        (element,) = block.args
        span = between(self.terms, element, self.told(condition, answer), block.axes)
        return None if span is None else span.high if self.sign > 0 else span.low

    def least(self, number: float) -> float:
        """The first number of the type that is far enough from another one."""
        far = number + self.sign * FAR[self.dtype.bits]
        found = self.dtype.numpy.type(far)
        if self.sign * float(found) < self.sign * far:
            found = np.nextafter(found, self.dtype.numpy.type(self.sign * np.inf))
        if float(found) == number:
            found = np.nextafter(found, self.dtype.numpy.type(self.sign * np.inf))
        return float(found)


class _Strange(Drawn):
    """The same with numbers that no mask by addition hides."""

    def __call__(self, t: Term) -> Any:
        if t not in self.known and t.dtype.is_float:
            values = super().__call__(t)
            values[-len(STRANGE) :] = np.roll(STRANGE, len(self.known))
            return values
        return super().__call__(t)


def _evaluated(
    element: Term, told: dict[Term, Any], elements: Sequence[Term], kind: type[Drawn]
) -> Any:
    """What an element is in each draw, whatever other conditions say; no number where these are too
    many."""
    known = answered(elements, told)
    if known is None:
        return np.full(DRAWS, np.nan)
    return np.broadcast_arrays(evaluate(element, kind(), known), np.zeros(DRAWS))[0]


def _adds_nothing(block: Term, told: dict[Term, Any], drawn: type[Drawn]) -> bool:
    """Whether a fold takes up nothing, a product where one factor is 0 and the other any number."""
    row = COMBINES[SUM_OF_PRODUCTS[0] if block.kind == "dot" else block.op]
    wanted = row.identity(block.args[0].dtype)
    nothing: Any = False
    for a in block.args:
        nothing = nothing | np.asarray(_evaluated(a, told, block.args, drawn) == wanted)
    return bool(np.all(nothing)) and not row.positional


__all__ = ["Faint", "faint"]
