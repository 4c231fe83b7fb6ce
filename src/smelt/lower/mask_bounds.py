"""What the blocks of a stream see of other axes.

A mask that rules out pairs of positions lets a stream skip blocks.  Where the streamed axis is that
of the rows, each block of rows has whole rows of columns, of which the mask leaves a part, such as
those up to the last row's own: nothing is computed beyond it.

    stream m/512 seeing n to last(m) + 1 with dk = 0 [n,d]

It holds where every fold over the columns, and everything that is added to carried columns, takes
up nothing outside of that part, and no element of it is stored.  How the mask is spelled does not
matter (`smelt.fusion.cascade.block_sparsity`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from smelt.dataclass import dataclass
from smelt.fusion.cascade.block_sparsity import bounds
from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, cone
from smelt.kernel.ir import Dot, Let, Reduce, Scan, Store
from smelt.lower import assign_axes
from smelt.lower.to_terms import Reader
from smelt.ops.combine import COMBINES


@dataclass(frozen=True, slots=True)
class Part:
    """The positions of an axis from `start` up to `stop`; None where that is open."""

    axis: str
    start: Term | None
    stop: Term | None


def parts_seen(
    read: Reader,
    states: Sequence[State],
    written: Sequence[Store],
    grid: Collection[str],
    fixed: frozenset[str],
) -> Iterator[Part]:
    """The parts that the blocks of one sweep see.  `written` is stored in them; of `fixed` axes a
    block has one position."""
    known = read.facts.axes
    stored = frozenset[str]().union(*(assign_axes.index_axes(s.index, known) for s in written))
    roots = [a for s in states for a in s.block.args] + [read.term(s.value) for s in written]
    near = {t for root in roots for t in cone(root)}
    for axis in read.d.axes:
        if axis == read.axis or axis in stored or axis in grid:
            continue
        folds = _folds(read, states, near, axis)
        if not folds:
            continue
        start, stop = bounds(read.terms, folds, axis, fixed)
        if start is not None or stop is not None:
            yield Part(axis, start, stop)


def _folds(read: Reader, states: Sequence[State], near: set[Term], axis: str) -> list[Term] | None:
    """What a block folds over an axis, of the terms `near` that it computes, and what it adds to
    states along it; None where more than that is done with its elements."""
    found: list[Term] = []
    for s in states:
        if axis in frozenset[str]().union(*(a.axes for a in s.block.args)):
            if s.carry is not None or COMBINES[s.combine].positional:
                return None
            found.append(s.block)
    known = read.facts.axes
    for s in read.d.body:
        if not isinstance(s, Let) or not isinstance(s.value, (Reduce, Dot, Scan)):
            continue
        if read.of[s.name] not in near:
            continue
        v = s.value
        parts = (v.left, v.right) if isinstance(v, Dot) else (v.arg,)
        axes = frozenset[str]().union(*(assign_axes.value_axes(p, known) for p in parts))
        if isinstance(v, Scan):
            if axis in axes:
                return None
        elif axis in v.over and read.axis in axes - set(v.over):
            if isinstance(v, Reduce) and COMBINES[v.combine].positional:
                return None
            terms = [read.term(p) for p in parts]
            found.append(
                read.terms.fold(v.combine, terms[0], v.over, v.dtype.compute)
                if isinstance(v, Reduce)
                else read.terms.dot(terms[0], terms[1], v.over, v.dtype)
            )
    return found


def held_axes(
    read: Reader,
    states: Sequence[State],
    sweep: int,
    written: Sequence[Store],
    grid: Collection[str],
    hints: Mapping[str, int],
) -> list[str]:
    """Shorter axes that every state of a sweep ends together with the streamed one, as gradients of
    keys end the heads of a group: each of their positions is visited apart, so that products have
    rows and columns alone."""
    own = [s for s in states if s.sweep == sweep]
    plain = own and all(s.carry is None and not COMBINES[s.combine].positional for s in own)
    if not plain or not any(s.block.kind == "dot" for s in own):
        return []
    known, sizes = read.facts.axes, read.extents
    roots = [a for s in own for a in s.block.args] + [read.term(s.value) for s in written]
    near = {t for root in roots for t in cone(root)}
    found: list[str] = []
    for axis in read.d.axes:
        short = assign_axes.number(sizes[axis], hints) <= assign_axes.number(
            sizes[read.axis], hints
        )
        if axis == read.axis or axis in grid or not short:
            continue
        ended = all(axis in s.block.over and read.axis in s.block.over for s in own)
        told = all(axis in assign_axes.index_axes(s.index, known) for s in written)
        inner = (t.value for t in near if t.kind == "opaque")
        folded = any(axis in v.over for v in inner if isinstance(v, (Reduce, Dot)))
        if ended and told and not folded:
            found.append(axis)
    return found
