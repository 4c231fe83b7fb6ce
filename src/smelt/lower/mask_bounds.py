"""Restrict a stream's blocks to the ranges of other axes that a mask leaves visible.

A mask that excludes pairs of positions lets a stream skip blocks. If the stream runs over rows,
each block of rows needs only the columns that the mask leaves, such as those up to the last row's
own column (causal attention); the rest is not computed.

    stream m/512 seeing n to last(m) + 1 with dk = 0 [n,d]

This requires that every reduction over the columns, and every addition to carried columns, has
identity elements outside the range, and that no element outside is stored. The form of the mask
does not matter (`smelt.fusion.cascade.block_sparsity`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from smelt.fusion.cascade.block_sparsity import bounds
from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, cone
from smelt.kernel.ir import Dot, Let, Reduce, Scan, Store
from smelt.kernel.walk import axes_of_index, axes_of_value
from smelt.lower import assign_axes
from smelt.lower.to_terms import TermReader
from smelt.ops.combine import COMBINES
from smelt.python.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AxisRange:
    """Positions of an axis from `start` up to `stop`; None means unbounded."""

    axis: str
    start: Term | None
    stop: Term | None


def visible_ranges(
    read: TermReader,
    states: Sequence[State],
    written: Sequence[Store],
    grid: Collection[str],
    fixed: frozenset[str],
) -> Iterator[AxisRange]:
    """Yield the ranges of axes that the blocks of one pass need.

    `written` are the stores of the pass; a block has one position of each `fixed` axis.
    """
    axes_of_name = read.facts.axes
    stored = axes_of_index((e for s in written for e in s.index), axes_of_name)
    roots = [a for s in states for a in s.block.args] + [read.term(s.value) for s in written]
    terms = {t for root in roots for t in cone(root)}
    for axis in read.d.axes:
        if axis == read.axis or axis in stored or axis in grid:
            continue
        reductions = _reductions(read, states, terms, axis)
        if not reductions:
            continue
        start, stop = bounds(read.terms, reductions, axis, fixed)
        if start is not None or stop is not None:
            yield AxisRange(axis, start, stop)


def _reductions(
    read: TermReader, states: Sequence[State], computed: set[Term], axis: str
) -> list[Term] | None:
    """Collect what a block reduces over an axis or adds to states along it.

    `computed` are the terms that the block computes. Returns None if it uses elements along the
    axis in any other way.
    """
    reductions: list[Term] = []
    for s in states:
        if axis in frozenset[str]().union(*(a.axes for a in s.block.args)):
            if s.carry is not None or COMBINES[s.combine].positional:
                return None
            reductions.append(s.block)
    axes_of_name = read.facts.axes
    for s in read.d.body:
        if not isinstance(s, Let) or not isinstance(s.value, (Reduce, Dot, Scan)):
            continue
        if read.term_of[s.name] not in computed:
            continue
        v = s.value
        parts = (v.left, v.right) if isinstance(v, Dot) else (v.arg,)
        axes = frozenset[str]().union(*(axes_of_value(p, axes_of_name) for p in parts))
        if isinstance(v, Scan):
            if axis in axes:
                return None
        elif axis in v.over and read.axis in axes - set(v.over):
            if isinstance(v, Reduce) and COMBINES[v.combine].positional:
                return None
            terms = [read.term(p) for p in parts]
            reductions.append(
                read.terms.reduce(v.combine, terms[0], v.over, v.dtype.compute)
                if isinstance(v, Reduce)
                else read.terms.dot(terms[0], terms[1], v.over, v.dtype)
            )
    return reductions


def unit_block_axes(
    read: TermReader,
    states: Sequence[State],
    sweep: int,
    written: Sequence[Store],
    grid: Collection[str],
    hints: Mapping[str, int],
) -> list[str]:
    """Return axes to visit one position at a time, so contractions stay two-dimensional.

    These are axes no longer than the streamed one which every state of a pass reduces together
    with it, as key gradients in grouped-query attention reduce over the heads of a group.
    """
    pass_states = [s for s in states if s.pass_index == sweep]
    plain = pass_states and all(
        s.carry is None and not COMBINES[s.combine].positional for s in pass_states
    )
    if not plain or not any(s.block.kind == "dot" for s in pass_states):
        return []
    axes_of_name, sizes = read.facts.axes, read.extents
    roots = [a for s in pass_states for a in s.block.args] + [read.term(s.value) for s in written]
    terms = {t for root in roots for t in cone(root)}
    axes: list[str] = []
    for axis in read.d.axes:
        short = assign_axes.estimate_size(sizes[axis], hints) <= assign_axes.estimate_size(
            sizes[read.axis], hints
        )
        if axis == read.axis or axis in grid or not short:
            continue
        ended = all(axis in s.block.over and read.axis in s.block.over for s in pass_states)
        indexed = all(axis in axes_of_index(s.index, axes_of_name) for s in written)
        inner = (t.value for t in terms if t.kind == "opaque")
        is_reduced = any(axis in v.over for v in inner if isinstance(v, (Reduce, Dot)))
        if ended and indexed and not is_reduced:
            axes.append(axis)
    return axes
