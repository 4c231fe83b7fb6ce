"""Number the carried states of a stream; choose the columns kept in one task.

    sum(exp(score[i, j]) * v[j, c] over j)

The left operand is computed on the fly. If blocks of c became tasks of their own, each would
compute the scores and their exponentials again. Where every other state of the stream has c too (a
softmax's sum lacks it, a plain sum of kernels has no other state), nothing else shows that c
belongs inside. A stream that also stores results along its axis is left as it is.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from math import prod

from smelt.fusion.cascade.term import Term, Terms, subterms
from smelt.ops.combine import COMBINES, FIRST
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, i64


@dataclass(frozen=True, slots=True)
class State:
    """A value carried from block to block: state' = carry(state) combined with `block`."""

    block: Term
    """Contribution of a block: a reduction whose elements read the `new` gauges."""
    combine: str
    carry: Term | None
    """The previous value rescaled to the new gauges; None where nothing rescales it."""
    dtype: DType
    pass_index: int
    reduction: Term
    """The reduction for which it is carried."""
    best_state: Term | None = None
    """For an arg-reduction, the state of the best value so far."""

    def merges_alone(self, axis: str) -> bool:
        """Return whether partial states over an axis merge without other states' values.

        That holds for plain reductions, and for arg-reductions whose position counts that axis
        first.
        """
        if self.best_state is not None:
            return self.reduction.over[0] == axis
        return self.carry is None and len(self.block.args) == 1


def state_row_bytes(states: Iterable[State], sizes: Mapping[str, int], grid: Container[str]) -> int:
    """Return the bytes of the states at one position of a grid."""
    return sum(
        prod([sizes[a] for a in s.block.axes if a not in grid]) * s.dtype.itemsize for s in states
    )


class States:
    """The carried states of a cascade."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.states: list[State] = []
        self.numbers: dict[tuple[int, Term, Term | None], int] = {}
        self.moved_by: dict[Term, set[Term]] = {}
        """For each reduction, the gauges with which its states are rescaled."""

    def state(
        self,
        block: Term,
        combine: str,
        carry: Term | None,
        dtype: DType,
        pass_index: int,
        of: Term,
        best: Term | None = None,
    ) -> Term:
        """Return the final value of a state as a term; equal states are shared."""
        key = pass_index, block, carry
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.states)
            self.states.append(State(block, combine, carry, dtype, pass_index, of, best))
        return self.terms.state(number, block.axes, dtype)

    def forget(self, count: int) -> None:
        """Drop all states after the first `count`."""
        del self.states[count:]
        self.numbers = {key: n for key, n in self.numbers.items() if n < count}

    def arg_state(self, reduction: Term, pass_index: int) -> Term:
        """Carry the position of the best element: the smallest position among equally good ones.

        When another value becomes the best, earlier positions no longer count.

          m' = max(m, max(x over j))
          p' = min(m' == m ? p : none, min(x == m' ? j : none over j))

        NaN wins and stays: two NaN are equally good.
        """
        terms, (x, position) = self.terms, reduction.args
        best = COMBINES[reduction.op].winner
        best_value = self.state(
            terms.reduce(best, x, reduction.over, x.dtype),
            best,
            None,
            x.dtype,
            pass_index,
            reduction,
        )
        old = terms.state(best_value.value, best_value.axes, x.dtype)
        new = terms.state(best_value.value, best_value.axes, x.dtype, new=True)
        none = terms.const(COMBINES[FIRST].identity(i64), i64)
        block = terms.reduce(
            FIRST, terms.select(terms.is_best_or_nan(x, new), position, none), reduction.over, i64
        )
        number = len(self.states)
        before = terms.state(number, block.axes, i64)
        carry = terms.select(terms.is_best_or_nan(old, new), before, none)
        return self.state(block, FIRST, carry, i64, pass_index, reduction, best_value)


MIN_COST = 4.0
"""Minimum cost of an operand's element that counts as computed; loads and casts cost less."""
REDUCTION_COST = 4.0
"""Minimum cost of a reduction within an element."""


def inner_columns(
    states: Iterable[State], roots: Iterable[Term], axis: str, sizes: Mapping[str, int], most: int
) -> frozenset[str]:
    """Return the axes that only cheap operands of carried contractions along `axis` have.

    Their other operand must be expensive. Empty where these axes have more than `most` positions at
    `sizes`, or where one of `roots` is stored along `axis`.
    """
    if any(axis in t.axes for t in roots):
        return frozenset()
    names: set[str] = set()
    for s in states:
        if s.block.kind == "dot" and s.block.over == (axis,):
            for computed, other in (s.block.args, s.block.args[::-1]):
                if _cost(computed) >= MIN_COST > _cost(other):
                    names |= other.axes - computed.axes
    return frozenset(names) if prod(sizes[a] for a in names) <= most else frozenset()


def _cost(t: Term) -> float:
    """Return the cost of an element, counting common subterms once."""
    cost = 0.0
    for a in subterms(t):
        if a.kind == "apply":
            cost += SCALARS[a.op].cost
        elif a.args and a.kind in ("opaque", "reduce", "dot"):
            cost += REDUCTION_COST
    return cost
