"""Estimate the share of an axis that masked blocks of a stream visit.

The ends of the visited range are terms (`smelt.fusion.cascade.block_sparsity`) over the first and
last positions of a block in other axes. Here they are evaluated for some evenly spread blocks at
the sizes of the hints; the planner charges the mean.
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
from smelt.ops.cost import DATA_DEPENDENT_SHARE, MASK_SAMPLES
from smelt.types.expr import evaluate as evaluate_index


class _Unknown(Exception):
    """A number depends on data."""


class MaskCoverage:
    """Shares of axes with extents `sizes`, of which a block has `cut` positions.

    A block has all positions of other axes.
    """

    def __init__(self, sizes: Mapping[str, int], cut: Mapping[str, int], hints: Hints) -> None:
        self.sizes, self.cut, self.hints = sizes, cut, hints

    def mean_share(self, start: Term | None, stop: Term | None, name: str) -> float:
        """Return the mean share between two positions of an axis; None is its end."""
        if start is None and stop is None:
            return 1.0
        shares = (
            self._share_at(start, stop, name, (k + 0.5) / MASK_SAMPLES) for k in range(MASK_SAMPLES)
        )
        return sum(shares) / MASK_SAMPLES

    def _share_at(self, start: Term | None, stop: Term | None, name: str, fraction: float) -> float:
        """Return the share that a block visits at a relative position of the other axes.

        Leaves of the terms are the first position of that block along an axis (`value` is False),
        or the last one (True).
        """
        extent = self.sizes[name]

        def block_end(t: Term) -> Any:
            if t.kind != "extreme" or not isinstance(t.args[0].value, IndexValue):
                raise _Unknown
            (a,) = t.args[0].axes
            block = self.cut.get(a, max(self.sizes[a], 1))
            first = int(self.sizes[a] * fraction) // block * block
            last = min(first + block, self.sizes[a]) - 1
            sizes = {**self.sizes, a: last if t.value else first}
            return evaluate_index(t.args[0].value.index, self.hints, sizes)

        ends: list[int] = []
        factor = 1.0
        for t, default in ((start, 0), (stop, extent)):
            try:
                end = default if t is None else int(evaluate(t, block_end))
            except _Unknown:
                end, factor = default, DATA_DEPENDENT_SHARE
            ends.append(min(max(end, 0), extent))
        return factor * max(ends[1] - ends[0], 1) / max(extent, 1)

    def shares_read(
        self,
        terms: Terms,
        part: Collection[Term],
        states: Iterable[State],
        roots: Iterable[Term],
        name: str,
        axes: Iterable[str],
        fixed: frozenset[str],
    ) -> dict[str, float]:
        """Return the share of each of `axes` that a block reads in one pass.

        `part` has the terms of the pass. Axes that it reads in full are left out. The lowering does
        the same with ranges instead of shares (`smelt.lower.mask_bounds`).
        """
        pass_states = [s for s in states if s.block in part]
        stored = frozenset[str]().union(*(t.axes for t in roots if t in part and name in t.axes))
        shares: dict[str, float] = {}
        for axis in axes:
            reductions = (
                None if axis in stored else _reductions_over(terms, part, pass_states, name, axis)
            )
            if reductions:
                share = self.mean_share(*bounds(terms, reductions, axis, fixed), axis)
                if share < 1.0:
                    shares[axis] = share
        return shares


def _reductions_over(
    terms: Terms, part: Iterable[Term], states: Iterable[State], name: str, axis: str
) -> list[Term] | None:
    """Return a block's reductions over an axis, and its contributions to states.

    None if elements that the mask skips would count: in a scan, or as positions.
    """
    reductions: list[Term] = []
    for s in states:
        if any(axis in a.axes for a in s.block.args):
            if s.carry is not None or COMBINES[s.combine].positional:
                return None
            reductions.append(s.block)
    for t in part:
        if t.kind != "opaque" or not isinstance(t.value, tuple) or axis not in _argument_axes(t):
            continue
        kind, *parameters = t.value
        if kind == "scan":
            return None
        if kind != "reduce":
            continue
        op, over = parameters
        if axis in over and name in t.axes:
            if op and COMBINES[op].positional:
                return None
            reductions.append(
                terms.reduce(op, t.args[0], over, t.dtype)
                if op
                else terms.dot(t.args[0], t.args[1], over, t.dtype)
            )
    return reductions


def _argument_axes(t: Term) -> frozenset[str]:
    return frozenset[str]().union(*(a.axes for a in t.args))
