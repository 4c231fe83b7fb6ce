"""Turn a split axis into launches: parts in parallel, then their states in order.

grid b, p in split(n, 8)                    grid p, b
stream n/512 of p with s = 0 [g]            stream n/512 from .. to .. with s = 0 [g]
  ...                                         ...
merge p: (s)                                s_parts[p,b,g] = s
o[b,g] = s                                  ---- and in a second launch ----
                                            stream p from 1 with s = s_parts[0,b,g] [g]
                                              s' = s + s_parts[p,b,g]
                                            o[b,g] = s
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from smelt.codegen.triton.merge_launches import with_grid
from smelt.kernel import ir
from smelt.kernel.transform.part import without_unused
from smelt.kernel.transform.split_merge import SplitMerge, split_merge
from smelt.kernel.walk import (
    Axes,
    axes_of_body,
    axes_of_index,
    bindings_of,
    joined_axes,
    splits,
    visit,
)
from smelt.ops.combine import EXTREMES
from smelt.types.dtype import i64
from smelt.types.expr import floordiv, minimum

FEW_PARTS = range(17)
"""Parts that are merged one after another, by threads that have elements of their own.

More are loaded together, so that they wait for memory once.
"""


def split_launches(kernel: ir.Kernel) -> tuple[ir.Kernel, ...]:
    """Return the launches of a kernel, none of which has a split axis.

    The first writes the states of all parts to new outputs. What is computed from the merged states
    follows: one launch, or one for each set of axes that results are stored along.
    """
    if not splits(kernel):
        return (kernel,)
    split = split_merge(kernel)
    if split is None:
        return (_with_ranges(kernel),)
    parts = replace(_with_ranges(split.parts), name=f"{kernel.name}_parts")
    merges = (_merge(split, rest) for rest in _late_groups(kernel, split.after))
    named = (replace(m, name=f"{kernel.name}_merge{k or ''}") for k, m in enumerate(merges))
    return parts, *(with_grid(without_unused(m)) for m in named)


def _merge(split: SplitMerge, rest: Sequence[ir.Statement]) -> ir.Kernel:
    """Return a launch of the merge: many parts without rescaling are reduced at once."""
    reduced = split.reductions(rest)
    is_stream = split.axis.extent in FEW_PARTS or len(reduced) < len(split.needed(rest))
    return split.merge(rest, {} if is_stream else reduced)


def _late_groups(
    kernel: ir.Kernel, after: Sequence[ir.Statement]
) -> Iterable[tuple[ir.Statement, ...]]:
    """Yield what launches compute after a merge: results that are stored along the same axes.

    One launch of all has as many programs as their common axes: one for a loss beside gradients.
    It is one if that gives a grid, or if several groups need a reduction of what is merged.
    """
    names = axes_of_body(kernel.body)
    groups: dict[Axes, list[ir.Statement]] = {}
    for s in after:
        if isinstance(s, ir.Store):
            groups.setdefault(axes_of_index(s.index, names), []).append(s)
    cones = [(*bindings_of(after, group), *group) for group in groups.values()]
    reducing = Counter(
        s.name
        for cone in cones
        for s in cone
        if isinstance(s, ir.Let) and any(map(joined_axes, visit(s.value)))
    )
    is_plain = all(
        isinstance(s, ir.Let | ir.Position) or (isinstance(s, ir.Store) and not s.join)
        for s in after
    )
    has_grid = any(isinstance(b, ir.Block) for b in kernel.grid)
    if not is_plain or has_grid or any(n > 1 for n in reducing.values()):
        yield tuple(after)
    else:
        yield from cones


def _with_ranges(kernel: ir.Kernel) -> ir.Kernel:
    """Make the split a grid axis, and give blocks the ends of their part."""
    (split,) = splits(kernel)
    axes = (*kernel.axes, ir.Axis(split.name, split.parts))
    grid = (ir.Block(split.name, 1), *(b for b in kernel.grid if b != split))
    body = tuple(_ranges(kernel.body, kernel, split))
    return replace(kernel, axes=axes, grid=grid, body=body)


def _ranges(
    body: Iterable[ir.Statement], kernel: ir.Kernel, split: ir.Split
) -> Iterable[ir.Statement]:
    for s in body:
        if isinstance(s, ir.Stream):
            blocks = tuple(_range(b, kernel, split) if b.part else b for b in s.blocks)
            s = replace(s, blocks=blocks, body=tuple(_ranges(s.body, kernel, split)))
        yield s


def _range(block: ir.Block, kernel: ir.Kernel, split: ir.Split) -> ir.Block:
    """Return a block with the ends of its part; parts have whole blocks."""
    extent, unit = kernel.axis(block.axis).extent, block.size or 1
    count = floordiv(floordiv(extent + (unit - 1), unit) + (split.parts - 1), split.parts)
    part = ir.Axis(split.name, split.parts).index
    start: ir.Value = ir.IndexValue(minimum(part * (count * unit), extent), i64)
    stop: ir.Value = ir.IndexValue(minimum((part + 1) * (count * unit), extent), i64)
    if block.start is not None:
        start = ir.Apply(EXTREMES[1], (start, block.start))
    if block.stop is not None:
        stop = ir.Apply(EXTREMES[0], (stop, block.stop))
    return replace(block, start=start, stop=stop, part=None)
