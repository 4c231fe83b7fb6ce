"""Decide how each reduction over a streamed axis is carried.

It is carried as it is, carried under a gauge (rescaled as the gauge moves), or computed in another
pass over the elements.

>>> from smelt.fusion.cascade.term import Terms
>>> from smelt.types.dtype import f32
>>> terms = Terms()
>>> x = terms.leaf("x", {"n"}, f32)
>>> m = terms.reduce("max", x, ("n",), f32)
>>> l = terms.reduce("sum", terms.apply("exp", terms.sub(x, m)), ("n",), f32)
>>> found = analyse(terms, [l], "n")
>>> [(t.action, t.pass_index) for t in found.treatments.values()]
[('plain', 0), ('dynamic', 0)]
>>> rounded = terms.apply("round", terms.div(x, m))
>>> found = analyse(terms, [terms.reduce("sum", rounded, ("n",), f32)], "n")
>>> [(t.action, t.pass_index) for t in found.treatments.values()]
[('plain', 0), ('recompute', 1)]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Literal, TypeAlias

from smelt.fusion.cascade.carry import Carrier
from smelt.fusion.cascade.forms import Dependence, NotSeparable
from smelt.fusion.cascade.gauge import Gauge
from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, Terms, reductions_in, subterms
from smelt.ops.combine import COMBINES
from smelt.python.dataclass import dataclass

Action: TypeAlias = Literal["plain", "hoist", "static", "dynamic", "monotone", "recompute"]


@dataclass(frozen=True, slots=True)
class Treatment:
    """The treatment of one reduction, and the reason."""

    action: Action
    pass_index: int
    """The pass over the elements in which it is carried, from 0."""
    reads: tuple[Term, ...] = ()
    """The unfinished reductions that it reads (for "recompute", those that had to be finished)."""
    blocker: str = ""
    """For "recompute", the operator that no transport is known for."""
    gauges: frozenset[Term] = frozenset()
    """Those of `reads` with which its states are rescaled."""

    def treatment_of(self, read: Term) -> Action:
        """Return the treatment of one dependency."""
        return "hoist" if self.action == "dynamic" and read not in self.gauges else self.action


@dataclass(frozen=True, slots=True)
class Cascade:
    """The reductions over one streamed axis."""

    axis: str
    states: tuple[State, ...]
    finals: dict[Term, Term]
    """The value of each reduction, in terms of final states and of other reductions."""
    treatments: dict[Term, Treatment] = field(default_factory=dict[Term, Treatment])

    def pass_of(self, term: Term) -> int:
        """Return the first pass in which all reductions that an element reads are finished."""
        return max((self.treatments[f].pass_index + 1 for f in reductions_in(term)), default=0)


def analyse(terms: Terms, roots: Iterable[Term], axis: str) -> Cascade:
    """Return the cascade of the reductions over `axis` that `roots` read."""
    return _Analysis(terms, axis).run(roots)


class _Analysis:
    def __init__(self, terms: Terms, axis: str) -> None:
        self.terms, self.axis = terms, axis
        self.carrier = Carrier(terms)
        self.finals: dict[Term, Term] = {}
        self.how: dict[Term, Treatment] = {}
        self.read: dict[Term, frozenset[Term]] = {}
        self.read_on: set[Term] = set()
        """The reductions that other reductions read."""

    def run(self, roots: Iterable[Term]) -> Cascade:
        order = reductions_in_order(roots)
        self.read_on = {f for reduction in order for f in reductions_in(reduction)}
        for reduction in order:
            self._decide(reduction)
        return Cascade(self.axis, tuple(self.carrier.states), self.finals, self.how)

    def _reads(self, t: Term) -> frozenset[Term]:
        reductions = self.read.get(t)
        if reductions is None:
            reductions = reductions_in(t) | {t} if t.is_reduction else reductions_in(t)
            self.read[t] = reductions
        return reductions

    def _sorts(self, reduction: Term, moving: frozenset[Term]) -> Dependence:
        over = frozenset(reduction.over)
        return Dependence(
            lambda t: bool(t.axes & over),
            lambda t: bool(self._reads(t) & moving),
            self.carrier.terms.logical_not,
        )

    def _decide(self, reduction: Term) -> None:
        read = reductions_in(reduction)
        base = max((self.how[f].pass_index for f in read), default=0)
        moving = frozenset(f for f in read if self.how[f].pass_index == base)
        if not moving:
            self.how[reduction] = Treatment("plain", 0)
            self.finals[reduction] = self.carrier.plain(
                reduction, 0, last=reduction not in self.read_on
            )
            return
        dependencies = tuple(sorted(moving, key=lambda f: f.number))
        try:
            action, final = self._carried(reduction, moving, base)
            gauges = frozenset(self.carrier.moved_by.get(reduction, ()))
            self.how[reduction] = Treatment(action, base, dependencies, gauges=gauges)
        except NotSeparable as reason:
            self.how[reduction] = Treatment("recompute", base + 1, dependencies, str(reason))
            final = self.carrier.plain(reduction, base + 1)
        self.finals[reduction] = final

    def _carried(
        self, reduction: Term, moving: frozenset[Term], pass_index: int
    ) -> tuple[Action, Term]:
        """Carry a reduction in the pass of the reductions it reads. Raises NotSeparable."""
        sorts = self._sorts(reduction, moving)
        if any(f.axes & set(reduction.over) for f in moving):
            raise NotSeparable(reduction.op or reduction.kind)
        if reduction.kind == "reduce" and COMBINES[reduction.op].idempotent:
            return "monotone", self.carrier.monotone(reduction, sorts, pass_index)
        unfinished = frozenset(moving)
        gauges: list[Gauge] = []
        for f in sorted(unfinished, key=lambda f: f.number):
            over = frozenset(f.over)
            fixed = Dependence(
                lambda t, over=over: bool(t.axes & over),
                lambda t: bool(self._reads(t) & unfinished),
            )
            gauge = self.carrier.gauge(f, fixed) if self.how[f].action == "plain" else None
            if gauge is not None:
                gauges.append(gauge)
        before = len(self.carrier.states)
        try:
            final = self.carrier.sum_states(reduction, sorts, gauges, pass_index)
        except NotSeparable:
            self.carrier.forget(before)
            raise
        return self._action_of(reduction), final

    def _action_of(self, reduction: Term) -> Action:
        """Return the action that the states of a reduction amount to."""
        states = [s for s in self.carrier.states if s.reduction is reduction]
        if any(s.carry is not None for s in states) or not states:
            return "dynamic"
        anchored = any(t.kind == "first" for s in states for t in subterms(s.block))
        return "static" if anchored else "hoist"


def reductions_in_order(roots: Iterable[Term]) -> list[Term]:
    """Return the reductions that roots read, directly or indirectly, operands before readers."""
    ordered: dict[Term, None] = {}
    seen: set[Term] = set()
    pending = [(t, False) for t in list(roots)[::-1]]
    while pending:
        t, is_done = pending.pop()
        if is_done:
            ordered[t] = None
            continue
        if t in seen:
            continue
        seen.add(t)
        if t.is_reduction:
            pending.append((t, True))
        pending += [(a, False) for a in t.args[::-1]]
    return list(ordered)
