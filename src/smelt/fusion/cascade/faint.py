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

What a condition rules out is looked at as in `visible.py`, with some numbers more: it counts only
if it comes to the same number whatever else is NaN, infinite or huge.  A number that is *added*
does not hide what it is added to, and is no such mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, Terms, cone, evaluate
from smelt.fusion.cascade.visible import DRAWS, Drawn, Visible, is_asked, narrowed, outermost
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS

FAR = {32: 1024.0, 64: 4096.0}
"""How far the greatest element has to be from masked ones, by bits of the type.  Less would do for
their powers to be 0; so far apart, what a sweep of all blocks sums up of them before it meets the
greatest element is gone as well, in however many steps, from sums of double the range."""
STRANGE = (np.nan, np.inf, -np.inf, 3e38)
"""Numbers that may stand beside a mask and show where it hides nothing."""
ABOVE = (0.0, 0.37, 13.0, 1e3, 3e5, 1e20)
"""How much greater than need be an element is supposed to be: a number for each draw."""


@dataclass(slots=True)
class Faint:
    """What a sweep may leave out at first, and whether that was right."""

    seen: Visible
    enough: Term
    """Of a row, after the sweep: whether what was left out adds nothing to it."""


def faint(
    terms: Terms, states: Sequence[State], sweep: int, seen: Visible, name: str,
    fixed: frozenset[str],
) -> Faint | None:  # fmt: skip
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
        limits = [mask.least(mask.number(c, answer)) for c, answer in found]
        limit = terms.const(max(limits) if mask.sign > 0 else min(limits), state.dtype)
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
        self.state, self.dtype = state, state.dtype
        self.others = [s for k, s in own.items() if k != number]
        self.new = terms.state(number, state.block.axes, state.dtype, new=True)
        row = COMBINES.get(state.combine)
        self.none = 0.0
        if row and row.idempotent and not row.positional and state.dtype.is_float:
            self.none = float(row.identity(state.dtype))
        self.sign = 0 if not np.isinf(self.none) else 1 if self.none < 0 else -1
        """1 where the greatest element is meant, -1 where the least one, 0 for any other fold."""

    def rules_out(self, condition: Term, answer: bool) -> bool:
        """Whether elements for which a condition has an answer are one number, and add nothing
        where the greatest is far from it."""
        number = self.number(condition, answer)
        if number is None or self.sign * self.least(number) > -FAR[self.dtype.bits]:
            return False  # numbers about 0 are too seldom far enough away
        above = self.least(number) + self.sign * np.array(ABOVE)
        told = {condition: answer, self.new: above}
        return all(_adds_nothing(s.block, told) for s in self.others)

    def number(self, condition: Term, answer: bool) -> float | None:
        """The one number that such elements are, but for those of which there are none."""
        (element,) = self.state.block.args
        values = np.asarray(_evaluated(element, {condition: answer}, [element]), np.float64)
        numbers = {float(x) for x in np.unique(values) if x != self.none}
        return numbers.pop() if len(numbers) == 1 and np.isfinite([*numbers]).all() else None

    def least(self, number: float | None) -> float:
        """The first number of the type that is far enough from another one."""
        assert number is not None
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


def _evaluated(element: Term, told: dict[Term, Any], elements: Sequence[Term]) -> Any:
    """What an element is in each draw."""
    drawn = _Strange()
    known: dict[Term, Any] = {t: np.asarray(x, t.dtype.numpy) for t, x in told.items()}
    for t in dict.fromkeys(t for a in elements for t in cone(a) if is_asked(t)):
        known.setdefault(t, drawn.answer())
    return np.broadcast_to(evaluate(element, drawn, known), (DRAWS,))


def _adds_nothing(block: Term, told: dict[Term, Any]) -> bool:
    """Whether a fold takes up nothing, a product where one factor is 0 and the other any number."""
    row = COMBINES[SUM_OF_PRODUCTS[0] if block.kind == "dot" else block.op]
    wanted = row.identity(block.args[0].dtype)
    nothing = np.zeros(DRAWS, bool)
    for a in block.args:
        nothing |= np.asarray(_evaluated(a, told, block.args) == wanted)
    return bool(nothing.all()) and not row.positional


__all__ = ["Faint", "faint"]
