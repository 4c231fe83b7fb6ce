"""How much of an axis the blocks of a stream visit, or see: what masks leave of it.

The ends of what is visited are terms (`smelt.fusion.cascade.block_sparsity`), told by the first and
last positions that a block has of other axes.  Here they are asked for some blocks, evenly spread,
at the sizes of the hints; the planner charges the mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from smelt.fusion.bitsets import Hints
from smelt.fusion.cascade.block_sparsity import bounds
from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, Terms, evaluate
from smelt.kernel.ir import IndexValue
from smelt.ops.combine import COMBINES
from smelt.types.expr import evaluate as evaluate_index

SAMPLES = 8
"""Blocks of which it is looked at how much of an axis their masks let them see."""

TOLD = 0.75
"""Part of an axis that is visited where data tells from where to where, such as lengths: about what
padding leaves of texts of unequal length."""


class _Unknown(Exception):
    """A number that only data tells."""


class Shares:
    """Parts of axes of the extents `sizes`, of which a block has so many positions as `cut` says
    and else all."""

    def __init__(self, sizes: Mapping[str, int], cut: Mapping[str, int], hints: Hints) -> None:
        self.sizes, self.cut, self.hints = sizes, cut, hints

    def between(self, start: Term | None, stop: Term | None, name: str) -> float:
        """The mean part of an axis from `start` up to `stop`."""
        if start is None and stop is None:
            return 1.0
        found = (self._at(start, stop, name, (k + 0.5) / SAMPLES) for k in range(SAMPLES))
        return sum(found) / SAMPLES

    def _at(self, start: Term | None, stop: Term | None, name: str, at: float) -> float:
        """The part that a block sees which stands at a part of the other axes."""
        extent = self.sizes[name]

        def given(t: Term) -> Any:
            if t.kind != "extreme" or not isinstance(t.args[0].value, IndexValue):
                raise _Unknown
            (a,) = t.args[0].axes
            block = self.cut.get(a, max(self.sizes[a], 1))
            first = int(self.sizes[a] * at) // block * block
            last = min(first + block, self.sizes[a]) - 1
            here = {**self.sizes, a: last if t.value else first}
            return evaluate_index(t.args[0].value.index, self.hints, here)

        ends: list[int] = []
        told = 1.0
        for t, default in ((start, 0), (stop, extent)):
            try:
                end = default if t is None else int(evaluate(t, given))
            except _Unknown:
                end, told = default, TOLD
            ends.append(min(max(end, 0), extent))
        return told * max(ends[1] - ends[0], 1) / max(extent, 1)

    def seen(
        self,
        terms: Terms,
        part: Collection[Term],
        states: Iterable[State],
        roots: Iterable[Term],
        name: str,
        axes: Iterable[str],
        fixed: frozenset[str],
    ) -> dict[str, float]:
        """How much a block of the streamed axis `name` sees of each of some other axes in one sweep
        (`smelt.lower.mask_bounds`); axes of which it sees all are left out."""
        own = [s for s in states if s.block in part]
        stored = frozenset[str]().union(*(t.axes for t in roots if t in part and name in t.axes))
        found: dict[str, float] = {}
        for axis in axes:
            folds = None if axis in stored else _folds(terms, part, own, name, axis)
            if folds:
                share = self.between(*bounds(terms, folds, axis, fixed), axis)
                if share < 1.0:
                    found[axis] = share
        return found


def _folds(
    terms: Terms, part: Iterable[Term], states: Iterable[State], name: str, axis: str
) -> list[Term] | None:
    """What a block folds over an axis, and what it adds to states along it; None where more is done
    with its elements."""
    found: list[Term] = []
    for s in states:
        if any(axis in a.axes for a in s.block.args):
            if s.carry is not None or COMBINES[s.combine].positional:
                return None
            found.append(s.block)
    for t in part:
        if t.kind != "opaque" or not isinstance(t.value, tuple) or axis not in _axes(t):
            continue
        kind, *named = t.value
        if kind == "scan":
            return None
        if kind != "fold":
            continue
        op, over = named
        if axis in over and name in t.axes:
            if op and COMBINES[op].positional:
                return None
            found.append(
                terms.fold(op, t.args[0], over, t.dtype)
                if op
                else terms.dot(t.args[0], t.args[1], over, t.dtype)
            )
    return found


def _axes(t: Term) -> frozenset[str]:
    return frozenset[str]().union(*(a.axes for a in t.args))
