"""Collapse and split axes, so that loops run as far as accesses are contiguous.

Adjacent axes that every access walks contiguously are collapsed; axes of extent 1 are dropped.

The two spatial axes of an image are collapsed even under padding.  The columns of a 1x1 convolution
are the positions of an image.  If all that is read and stored there is contiguous over both spatial
axes, as for a depthwise convolution with "same" padding, they become one axis p, and bounds checks
use the row p//w and the position in the row p%w:

    S[y,x] = sum of X[y + u, x + v] * D[u,v]    is    S[p] = sum of X[p + u*w + v] * D[u,v]
                                                      where p//w + u and p%w + v are inside

Register tiles are full then, wherever rows end.

An axis that accesses divide, as i//s and i%s, is split: a group norm walks its group contiguously,
but its gains change every s positions. With i = a*s + b the gain is read once for each a, and the
loop over b is contiguous. Constant divisors are left alone: they are multiples of a vector, where
nothing changes between lanes, or short. So are rows of a contraction none of whose accesses would
be contiguous (`x[i%s,i//s,k]`, a sequence before its batch): one of the two axes would make a
separate contraction for each of its positions, of s rows, each of which packs all of the other
operand, whereas a division finds the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import permutations

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, Phase, StreamState, Visit
from smelt.codegen.llvm.loopir.rewrite import rebuild
from smelt.machine.blocks import ROW_BLOCK
from smelt.ops.combine import SUM_OF_PRODUCTS
from smelt.ops.contract import bare_axis
from smelt.types.expr import (
    Index,
    add,
    atoms,
    axes_of,
    axis,
    coefficient,
    floordiv,
    mod,
    mul,
    substitute,
)


def collapse(phase: Phase) -> Phase:
    """Collapse all pairs of axes that allow it, and drop axes of extent 1."""
    changed = True
    while changed:
        changed = False
        for name, extent in list(phase.axes.items()):
            if extent == 1 and name not in phase.cut and not is_bound(phase, name):
                phase = substitute_axes(phase, {name: 0}, {name: {}})
        for names in _axes_used_alike(phase):
            for a in names:
                for b in names:
                    both = a != b and a in phase.axes and b in phase.axes
                    if both and _can_collapse(phase, a, b):
                        phase = _collapse_pair(phase, a, b)
                        changed = True
    return phase


def _axes_used_alike(phase: Phase) -> list[list[str]]:
    """Return the axes, grouped by the accesses that have them: others cannot be collapsed.

    A kernel may have as many axes as arrays, of which pairs are too many to look at each.
    """
    uses: dict[str, list[int]] = {name: [-1] if name in phase.grid else [] for name in phase.axes}
    for number, (_, axes) in enumerate(_offsets(phase)):
        for name in axes:
            if name in uses:
                uses[name].append(number)
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, numbers in uses.items():
        groups.setdefault(tuple(numbers), []).append(name)
    return list(groups.values())


def is_bound(phase: Phase, name: str) -> bool:
    """Return whether an axis is used by more than accesses.

    It numbers parts, a stream visits it, or a value reads the bounds of its block.
    """
    numbers = {number for number, _ in phase.cut.values()}
    edges = {i.axis for i in phase.items if isinstance(i, ssa.BlockEdge)}
    visits = _visits(phase)
    parts = {v.part[0] for v in visits if v.part is not None}
    return name in numbers | edges | parts | {v.axis for v in visits}


def _visits(phase: Phase) -> list[Visit]:
    return [v for r in phase.regions() for v in r.cuts]


def _is_streamed_fully(phase: Phase, name: str) -> bool:
    """Return whether an axis is bound only because streams walk all of it, in blocks.

    Such an axis may be collapsed with the one inside it: the blocks then are runs over both, at
    least as long as those of a single row.
    """
    edges = {i.axis for i in phase.items if isinstance(i, ssa.BlockEdge)}
    visits = [v for v in _visits(phase) if v.axis == name]
    return (
        name not in edges
        and bool(visits)
        and not any(v.part or v.stop or v.start or v.first or v.size == 1 for v in visits)
    )


def _offsets(phase: Phase) -> list[tuple[Index, frozenset[str]]]:
    """Return every offset with the axes of its load or store."""
    loads = [(i.access.offset, i.axes) for i in phase.items if isinstance(i, ssa.Load)]
    return loads + [(s.access.offset, s.axes) for s in phase.stores]


def _can_collapse(phase: Phase, a: str, b: str) -> bool:
    """Return whether a*extent(b) + b can be one axis."""
    if (a in phase.grid) != (b in phase.grid):
        return False
    if b in phase.cut or is_bound(phase, b):
        return False
    if is_bound(phase, a) and not _is_streamed_fully(phase, a):
        return False
    for item in phase.items:
        if isinstance(item, (ssa.Reduce, ssa.Dot)):
            over = item.over
            if (a in over) != (b in over):
                return False
            separate = a in over and over.index(b) != over.index(a) + 1
            if separate and (isinstance(item, ssa.Reduce) or _has_overlapping_windows(phase, a)):
                return False
        elif isinstance(item, ssa.Scan):
            if a in item.over or b in item.over:
                return False
        elif isinstance(item, ssa.IndexValue):
            if {a, b} & set(axes_of(item.index)):
                return False
        elif isinstance(item, ssa.Load) and any(
            {a, b} & set(axes_of(e)) for pair in item.access.limits for e in pair
        ):
            return False
    inner = phase.axes[b]
    if any((a in s.state.axes) != (b in s.state.axes) for s in phase.state_updates):
        return False
    for offset, axes in _offsets(phase):
        ca, cb = coefficient(offset, a), coefficient(offset, b)
        if ca is None or cb is None or ca != mul(cb, inner):
            return False
        if (a in axes) != (b in axes):
            return False
    return True


def _has_overlapping_windows(phase: Phase, summed: str) -> bool:
    """Return whether windows along a reduced axis overlap in what they read.

    A convolution packs each input position once, which is less than the elements of all windows:
    such axes are not collapsed.
    """
    over = _reduction_axes(phase)
    for offset, axes in _offsets(phase):
        step = coefficient(offset, summed) if summed in axes else None
        span = mul(step, phase.axes[summed]) if step else 0
        steps = [coefficient(offset, other) for other in axes - over]
        if isinstance(span, int) and any(isinstance(n, int) and 0 < n < span for n in steps):
            return True
    return False


def _reduction_axes(phase: Phase) -> frozenset[str]:
    reductions = [i for i in phase.items if isinstance(i, ssa.Reduction)]
    return frozenset(name for f in reductions for name in f.over)


def _collapse_pair(phase: Phase, a: str, b: str) -> Phase:
    """Replace axis b by a*extent(b) + b, and remove axis a."""
    extent, cut = mul(phase.axes[a], phase.axes[b]), dict(phase.cut)
    if a in cut:  # parts of so many rows are parts of so many elements
        number, length = cut.pop(a)
        cut[b] = number, mul(length, phase.axes[b])
    is_row = all(coefficient(offset, b) == 1 for offset, axes in _offsets(phase) if b in axes)

    def along_b(visit: Visit) -> Visit:
        if visit.axis != a:
            return visit
        size = max(visit.size, ROW_BLOCK) if visit.size and is_row else visit.size
        return replace(visit, axis=b, size=size)

    walked = rebuild(replace(phase, cut=cut), visit=along_b)
    return substitute_axes(walked, {a: 0, b: axis(b, extent)}, {a: {}, b: {b: extent}})


def substitute_axes(
    phase: Phase,
    values: Mapping[str, Index],
    new: Mapping[str, Mapping[str, Index]],
    check: Callable[[tuple[Index, Index]], tuple[Index, Index]] | None = None,
) -> Phase:
    """Substitute expressions for axes in all items and stores.

    `new` has the axes, with their extents, that take the place of others; an axis is removed if
    there are none.  `check` substitutes in bounds checks instead, if given.
    """

    def put(e: Index) -> Index:
        return substitute(e, values)

    def renewed(axes: Iterable[str]) -> Iterator[str]:
        return (x for a in axes for x in new.get(a, (a,)))

    def substituted(_: Item, item: Item) -> Item:
        changed = item.map_indices(put)
        if check is not None and isinstance(item, ssa.Load):
            limits = tuple(map(check, item.access.limits))
            changed = replace(item, access=replace(item.access.map_indices(put), limits=limits))
        axes = frozenset(renewed(item.axes))
        if isinstance(changed, ssa.Reduction):
            over = tuple(renewed(changed.over))
            return _without_empty_reduction(replace(changed, over=over, axes=axes))
        return changed if axes == changed.axes else replace(changed, axes=axes)

    def of_state(state: StreamState) -> StreamState:
        return replace(state, axes=frozenset(renewed(state.axes)))

    rebuilt = rebuild(phase, substituted, state=of_state)
    stores = tuple(
        replace(s, access=s.access.map_indices(put), axes=frozenset(renewed(s.axes)))
        for s in rebuilt.stores
    )
    extents = {**phase.axes, **{a: n for x in new.values() for a, n in x.items()}}
    kept = [a for x in new.values() for a in x]
    is_removed = phase.lanes is not None and not new.get(phase.lanes, kept)
    return replace(
        rebuilt,
        stores=stores,
        axes={a: extents[a] for a in renewed(phase.axes)},
        grid=tuple(renewed(phase.grid)),
        lanes=kept[0] if kept and is_removed else phase.lanes,
    )


def _without_empty_reduction(item: ssa.Reduction) -> Item:
    """Return the element of a reduction without axes (argmin, argmax: position 0)."""
    if item.over:
        return item
    if isinstance(item, ssa.Dot):
        return ssa.Apply(item.args, item.axes, item.dtype, SUM_OF_PRODUCTS[1], time=item.time)
    if item.row.positional:
        return ssa.Const((), frozenset(), item.dtype, 0, time=item.time)
    return ssa.Cast(item.args, item.axes, item.dtype, item.dtype, time=item.time)


def collapse_spatial(phase: Phase) -> Phase:
    """Collapse pairs of spatial axes of contractions, where all accesses allow it.

    One operand of each contraction has both axes of a pair.
    """
    dots = [i for i in phase.items if isinstance(i, ssa.Dot)]
    if not dots or phase.regions() or phase.cut or phase.window_positions or phase.state_updates:
        return phase
    for a, b in permutations(phase.axes, 2):
        if (
            {a, b} <= phase.axes.keys()
            and all(_are_columns(i, a, b) for i in dots)
            and _is_contiguous(phase, a, b)
        ):
            phase = _collapse(phase, a, b)
    return phase


def _are_columns(dot: Item, a: str, b: str) -> bool:
    """Return whether a and b are columns of a contraction: axes of one operand alone."""
    return any(
        {a, b} <= x.axes and {a, b}.isdisjoint(y.axes) for x, y in (dot.args, dot.args[::-1])
    )


def _is_contiguous(phase: Phase, a: str, b: str) -> bool:
    """Return whether every access is contiguous over a and b.

    At least one bounds check must depend on them, and none may be of anything but padding.
    """
    if not {a, b} <= {*phase.grid} or is_bound(phase, a) or is_bound(phase, b):
        return False
    padded = False
    for item in phase.items:
        if isinstance(item, ssa.Load):
            if not all(_is_padding_check(e, n, a, b) for e, n in item.access.limits):
                return False
            padded |= any({a, b} & {*axes_of(e)} for e, _ in item.access.limits)
        elif item.axes & {a, b} and not isinstance(item, (ssa.Const, ssa.Apply, ssa.Cast, ssa.Dot)):
            return False
    loads = [(i.access.offset, i.axes) for i in phase.items if isinstance(i, ssa.Load)]
    stores = [(s.access.offset, s.axes) for s in phase.stores]
    inner = phase.axes[b]
    return padded and all(
        (a in axes) == (b in axes) and (a not in axes or _rows_are_adjacent(offset, a, b, inner))
        for offset, axes in (*loads, *stores)
    )


def _rows_are_adjacent(offset: Index, a: str, b: str, inner: Index) -> bool:
    """Return whether the rows of an array follow one another without a gap."""
    return coefficient(offset, b) == 1 and coefficient(offset, a) == inner


def _is_padding_check(e: Index, n: Index, a: str, b: str) -> bool:
    """Return whether a bounds check is of padding alone, or of neither axis.

    That is an axis plus a constant.  Checks of windows that slide along other axes are excluded:
    there each input position serves several sums, and is packed once for all.
    """
    if {a, b} & {*axes_of(n)}:
        return False
    axes = {a, b} & {*axes_of(e)}
    return not axes or (len(axes_of(e)) == 1 and coefficient(e, axes.pop()) == 1)


def _collapse(phase: Phase, a: str, b: str) -> Phase:
    """Replace axis b by a*extent(b) + b, and remove axis a."""
    inner, extent = phase.axes[b], mul(phase.axes[a], phase.axes[b])
    position = axis(b, extent)
    parts: dict[str, Index] = {a: floordiv(position, inner), b: mod(position, inner)}
    return substitute_axes(
        phase,
        {a: 0, b: position},
        {a: {}, b: {b: extent}},
        check=lambda limit: (substitute(limit[0], parts), limit[1]),
    )


# ---- splitting -----------------------------------------------------------------------------------


def split_axes(phase: Phase) -> Phase:
    """Split every axis that all its quotients allow to split."""
    for name in list(phase.axes):
        step = _divisor(phase, name)
        if step is not None:
            phase = _split(phase, name, step)
    return phase


def _divisor(phase: Phase, name: str) -> Index | None:
    """Return a symbolic divisor of the axis in some index that divides its extent evenly."""
    if name in phase.cut or is_bound(phase, name):
        return None
    for item in phase.items:
        if isinstance(item, ssa.Scan) and name in item.over:
            return None
    extent = phase.axes[name]
    for e in _indices(phase):
        for atom in atoms(e):
            if atom.kind not in ("//", "%") or isinstance(atom.args[1], int):
                continue
            if bare_axis(atom.args[0]) == name and mod(extent, atom.args[1]) == 0:
                return None if _splits_contraction_rows(phase, name, atom.args[1]) else atom.args[1]
    return None


def _splits_contraction_rows(phase: Phase, name: str, step: Index) -> bool:
    """Return whether an axis is a contraction's row axis whose inner part is never contiguous.

    All contractions with the axis have it in only one operand.
    """
    of_one_operand = [
        name in item.args[0].axes ^ item.args[1].axes
        for item in phase.items
        if isinstance(item, ssa.Dot) and name in item.axes
    ]
    if not of_one_operand or not all(of_one_operand):
        return False
    parts = _parts(phase, name, step)
    return all(coefficient(substitute(e, {name: parts}), f"{name}.1") != 1 for e in _indices(phase))


def _indices(phase: Phase) -> list[Index]:
    values = (i for i in phase.items if isinstance(i, (ssa.Load, ssa.IndexValue)))
    return [*(e for i in values for e in i.indices), *(s.access.offset for s in phase.stores)]


def _split(phase: Phase, name: str, step: Index) -> Phase:
    """Replace an axis by outer*step + inner everywhere."""
    parts = _parts(phase, name, step)
    new = {f"{name}.0": floordiv(phase.axes[name], step), f"{name}.1": step}
    both = substitute_axes(phase, {name: parts}, {name: new})
    return rebuild(both, lambda _, item: replace(item, axes=_axes(item)))


def _parts(phase: Phase, name: str, step: Index) -> Index:
    """Return the axis as an expression of its outer and inner part."""
    count = floordiv(phase.axes[name], step)
    return add(mul(axis(f"{name}.0", count), step), axis(f"{name}.1", step))


def _axes(item: Item) -> frozenset[str]:
    """Return the axes that an item varies along, from its operands and index expressions."""
    axes = ssa.union_of_axes(item.args)
    match item:
        case ssa.StateRead(state=state):
            return state.axes
        case ssa.Load() | ssa.IndexValue():
            return axes.union(*map(axes_of, item.indices))
        case ssa.Scan(over=over):
            return axes | {*over}
        case ssa.Reduction(over=over):
            return axes - {*over}
        case _:
            return axes
