"""The axis that vectors of one nest run along, where what it reads or stores lies otherwise than
the results of the phase's products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm.access.memory import FARTHEST_STEP
from smelt.codegen.llvm.loopir.items import Access, Folding, Item, Phase
from smelt.types.affine import coefficient
from smelt.types.expr import Index, axes_of

if TYPE_CHECKING:
    from smelt.codegen.llvm.schedule.build_nests import Nest


def lines_axis(nest: Nest, v: str) -> str | None:
    """The axis that memory is walked along, where a nest folds or stores what it loads, and all of
    it lies far apart along `v`, and what else it reads does not vary along both: how the results of
    products lie is nothing to it."""
    inside = {*nest.items}
    others = [a for i in (*nest.items, *nest.folds) for a in i.args if a not in inside]
    others += [s.value for s in nest.stores if s.value not in inside]
    if nest.settings or nest.saves:
        return None
    loads = [i.payload.offset for i in nest.items if isinstance(i.payload, Access) and v in i.axes]
    stored = [s.access.offset for s in nest.stores]
    if not loads or any(coefficient(x, v) in (0, 1) for x in loads + stored):
        return None
    both = [x.axes for x in others if v in x.axes]
    return next(
        (
            a
            for a in nest.order
            if _are_lines(loads, stored, a) and not any(a in axes for axes in both)
        ),
        None,
    )


def _are_lines(loads: Sequence[Index], stored: Sequence[Index], a: str) -> bool:
    """Whether an axis runs along lines of memory: side by side, or loads in short steps."""
    steps = [coefficient(x, a) for x in loads]
    if not all(coefficient(x, a) == 1 for x in stored):
        return False
    near = all(isinstance(n, int) and 0 < n <= FARTHEST_STEP for n in steps)
    return near and (bool(stored) or set(steps) == {1})


def results_axis(nest: Nest, v: str) -> str | None:
    """The axis that all results run along, where a nest only stores what lies along `v` in scratch,
    and nothing in memory does that varies along both: lanes are picked from a few lines of scratch,
    rather than put to as many lines of memory."""
    if not nest.stores or nest.folds or nest.settings or nest.saves:
        return None
    stored = [s.access.offset for s in nest.stores]
    loads = [i.payload.offset for i in nest.items if isinstance(i.payload, Access)]
    along = [x for x in stored + loads if coefficient(x, v) == 1]
    return next(
        (
            a
            for a in nest.order
            if all(coefficient(x, a) == 1 for x in stored)
            and not any(a in axes_of(x) for x in along)
        ),
        None,
    )


def carried_axis(nest: Nest, v: str, phase: Phase, across: Mapping[Item, str]) -> str | None:
    """The axis that the products lie along which the states that a nest sets are added up of, if
    that is one, and none lies along `v`; `across` says for each product along which it lies."""
    states = [x.state for x in nest.settings]
    if nest.stores or nest.folds or nest.saves or not states:
        return None
    values = [x.value for x in phase.settings if x.state in states]
    found = {across[i] for value in values for i in (value, *value.args) if i in across}
    return found.pop() if len(found) == 1 and found <= {*nest.order} - {v} else None


def ended_by(fold: Item) -> set[str]:
    """The axes that a fold ends."""
    assert isinstance(fold.payload, Folding)
    return set(fold.payload.over)


def innermost(nest: Nest, v: str | None) -> list[str]:
    """Axes to run innermost: those ended by the folds that end the vector axis, if any do; the
    more folds end an axis the further in it is."""
    overs = [ended_by(f) for f in nest.folds]
    overs = [o for o in overs if v in o] or overs
    found = [a for a in nest.order if any(a in o for o in overs)]
    return sorted(found, key=lambda a: sum(a in o for o in overs))


def serial_axes(of: Nest | Phase) -> set[str]:
    """The axes that the scans of a nest, or a phase, run along: these are walked from the first
    position on, whatever part of them is stored."""
    scans = [i.payload for i in of.items if i.kind == "scan"]
    return {a for s in scans if isinstance(s, Folding) for a in s.over}


__all__ = ["carried_axis", "ended_by", "innermost", "lines_axis", "results_axis", "serial_axes"]
