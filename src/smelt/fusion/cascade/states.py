"""Carried states: what a sweep over an axis takes from block to block, equal ones once."""

from __future__ import annotations

from smelt.dataclass import dataclass
from smelt.fusion.cascade.term import Term, Terms
from smelt.ops.combine import COMBINES, FIRST
from smelt.types.dtype import DType, i64


@dataclass(frozen=True, slots=True)
class State:
    """A carried value: state' = carried(state) combined with `block`."""

    block: Term
    """What a block adds: a fold whose elements read the `new` gauges."""
    combine: str
    carry: Term | None
    """The old value at the new gauges; None where nothing moves it."""
    dtype: DType
    sweep: int
    of: Term
    """The fold for which it is carried."""
    best: Term | None = None
    """Of a place: the state of the best so far, which stands there."""

    def joins(self, axis: str) -> bool:
        """Whether what blocks of an axis leave is joined without what the block itself reads of
        other states: plain folds, and places that are counted along that axis first."""
        if self.best is not None:
            return self.of.over[0] == axis
        return self.carry is None and len(self.block.args) == 1


class States:
    """The states of a cascade."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.states: list[State] = []
        self.numbers: dict[tuple[int, Term, Term | None], int] = {}
        self.moved_by: dict[Term, set[Term]] = {}
        """For each fold, the gauges with which its states move."""

    def state(
        self,
        block: Term,
        combine: str,
        carry: Term | None,
        dtype: DType,
        sweep: int,
        of: Term,
        best: Term | None = None,
    ) -> Term:
        """A state, one for equal ones, as a term that reads its final value."""
        key = sweep, block, carry
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.states)
            self.states.append(State(block, combine, carry, dtype, sweep, of, best))
        return self.terms.state(number, block.axes, dtype)

    def forget(self, count: int) -> None:
        """Takes back the states after the first `count`."""
        del self.states[count:]
        self.numbers = {key: n for key, n in self.numbers.items() if n < count}

    def winner(self, fold: Term, sweep: int) -> Term:
        """Where the best element stands: the least position of those that are as good as the best
        so far.  When another one becomes the best, no earlier position counts any more.

            m' = max(m, max(x over j))
            p' = min(m' == m ? p : none, min(x == m' ? j : none over j))

        NaN wins and stays: two NaN are equally good."""
        terms, (x, at) = self.terms, fold.args
        best = COMBINES[fold.op].winner
        held = self.state(terms.fold(best, x, fold.over, x.dtype), best, None, x.dtype, sweep, fold)
        old = terms.state(held.value, held.axes, x.dtype)
        new = terms.state(held.value, held.axes, x.dtype, new=True)
        none = terms.const(COMBINES[FIRST].identity(i64), i64)
        block = terms.fold(FIRST, terms.choose(terms.as_good(x, new), at, none), fold.over, i64)
        number = len(self.states)
        before = terms.state(number, block.axes, i64)
        carry = terms.choose(terms.as_good(old, new), before, none)
        return self.state(block, FIRST, carry, i64, sweep, fold, held)
