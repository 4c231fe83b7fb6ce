"""Turn a split axis into launches: parts in parallel, then their states in order.

    grid b, p in split(n, 8)                    grid p, b
    stream n/512 of p with s = 0 [g]            stream n/512 from .. to .. with s = 0 [g]
      ...                                         ...
    merge p: (s)                                s_parts[p,b,g] = s
    o[b,g] = s                                  ---- and in a second launch ----
                                                stream p from 1 with s = s_parts[0,b,g] [g]
                                                  s' = s + s_parts[p,b,g]
                                                o[b,g] = s

The merge has the order of the parts, so that results do not depend on which part ends first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from smelt.codegen.triton.merge_launches import state_type, with_grid
from smelt.kernel.axes import Axes, axes_of_body, axes_of_index
from smelt.kernel.canonical import unused_name
from smelt.kernel.ir import (
    Apply,
    Axis,
    Block,
    Dot,
    IndexValue,
    Kernel,
    Let,
    Load,
    Merge,
    Param,
    Position,
    Reduce,
    Ref,
    Scan,
    Split,
    State,
    Statement,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.kernel.merge import MergeRule, merge_rules
from smelt.kernel.transform.part import without_unused
from smelt.kernel.walk import bindings_of, refs, splits, statements, substitute, visit
from smelt.ops.combine import COMBINES, EXTREMES
from smelt.python.dataclass import dataclass
from smelt.types.dtype import i64
from smelt.types.expr import Index, floordiv, minimum

FEW_PARTS = range(17)
"""Parts that are merged one after another, by threads that have elements of their own.

More are loaded together, so that they wait for memory once.
"""


def split_launches(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the launches of a kernel, none of which has a split axis.

    The first writes the states of all parts to new outputs. What is computed from the merged states
    follows: one launch, or one for each set of axes that results are stored along.
    """
    if not splits(kernel):
        return (kernel,)
    (split,) = splits(kernel)
    axis = Axis(split.name, split.parts)
    grid = (Block(split.name, 1), *(b for b in kernel.grid if not isinstance(b, Split)))
    whole = replace(kernel, axes=(*kernel.axes, axis), grid=grid)
    k = next((k for k, s in enumerate(kernel.body) if isinstance(s, Merge)), None)
    if k is None:
        return (replace(whole, body=tuple(_with_ranges(kernel.body, kernel, split))),)
    scratch = _scratch(kernel, split, kernel.body[k])
    index = {s.param.name: s.index(axis.index) for s in scratch}
    before = [
        *_with_ranges(kernel.body[:k], kernel, split),
        *(Store(s.param.name, index[s.param.name], Ref(s.state.name)) for s in scratch),
    ]
    arrays = tuple(s.param for s in scratch)
    after_merge = _stored_params(kernel.body[k + 1 :])
    early = tuple(p for p in kernel.outputs if p.name not in after_merge)
    late = tuple(p for p in kernel.outputs if p.name in after_merge)
    parts = replace(
        whole, name=f"{kernel.name}_parts", outputs=(*early, *arrays), body=tuple(before)
    )
    merges = [
        replace(
            kernel,
            name=f"{kernel.name}_merge{number or ''}",
            inputs=(*kernel.inputs, *arrays),
            outputs=tuple(p for p in late if p.name in _stored_params(rest)),
            axes=(*kernel.axes, axis),
            grid=grid[1:],
            body=tuple(_merged(kernel, k, axis, scratch, rest)),
        )
        for number, rest in enumerate(_late_groups(kernel, kernel.body[k + 1 :]))
    ]
    return parts, *(with_grid(without_unused(m)) for m in merges)


def _stored_params(body: Iterable[Statement]) -> set[str]:
    return {s.param for s in statements(body) if isinstance(s, Store)}


def _late_groups(kernel: Kernel, after: Sequence[Statement]) -> Iterable[tuple[Statement, ...]]:
    """Yield what launches compute after a merge: results that are stored along the same axes.

    One launch of all has as many programs as their common axes: one for a loss beside gradients.
    It is one if that gives a grid, or if several groups need a reduction of what is merged.
    """
    names = axes_of_body(kernel.body)
    groups: dict[Axes, list[Statement]] = {}
    for s in after:
        if isinstance(s, Store):
            axes = axes_of_index(s.index, names)
            groups.setdefault(axes, []).append(s)
    cones = [(*bindings_of(after, group), *group) for group in groups.values()]
    reducing = Counter(
        s.name
        for cone in cones
        for s in cone
        if isinstance(s, Let) and any(isinstance(v, Reduce | Dot | Scan) for v in visit(s.value))
    )
    is_plain = all(
        isinstance(s, Let | Position) or (isinstance(s, Store) and not s.join) for s in after
    )
    has_grid = any(isinstance(b, Block) for b in kernel.grid)
    if not is_plain or has_grid or any(n > 1 for n in reducing.values()):
        yield tuple(after)
    else:
        yield from cones


def _merged(
    kernel: Kernel, k: int, axis: Axis, scratch: Sequence[_Scratch], rest: Sequence[Statement]
) -> Iterable[Statement]:
    """Yield a launch's statements: what `rest` reads of those before the merge, and the states."""
    merging = _merging(kernel, axis, scratch, {name for s in rest for name in refs(s)})
    read = (*merging, *rest)
    yield from bindings_of(kernel.body[:k], read)
    yield from read


# ---- the parts -----------------------------------------------------------------------------------


def _with_ranges(body: Iterable[Statement], kernel: Kernel, split: Split) -> Iterable[Statement]:
    """Give the blocks of a split stream the ends of their part."""
    for s in body:
        if not isinstance(s, Stream):
            yield s
            continue
        blocks = tuple(_range(b, kernel, split) if b.part else b for b in s.blocks)
        yield replace(s, blocks=blocks, body=tuple(_with_ranges(s.body, kernel, split)))


def _range(block: Block, kernel: Kernel, split: Split) -> Block:
    """Return a block with the ends of its part; parts have whole blocks."""
    extent, unit = kernel.axis(block.axis).extent, block.size or 1
    count = floordiv(floordiv(extent + (unit - 1), unit) + (split.parts - 1), split.parts)
    part = Axis(split.name, split.parts).index
    start: Value = IndexValue(minimum(part * (count * unit), extent), i64)
    stop: Value = IndexValue(minimum((part + 1) * (count * unit), extent), i64)
    if block.start is not None:
        start = Apply(EXTREMES[1], (start, block.start))
    if block.stop is not None:
        stop = Apply(EXTREMES[0], (stop, block.stop))
    return replace(block, start=start, stop=stop, part=None)


# ---- the states in memory ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scratch:
    """A state, the array of all parts' states, and the axes of one."""

    state: State
    param: Param
    axes: tuple[Axis, ...]

    def index(self, part: Index) -> tuple[Index, ...]:
        return part, *(a.index for a in self.axes)


def _scratch(kernel: Kernel, split: Split, merge: Statement) -> list[_Scratch]:
    names = merge.states if isinstance(merge, Merge) else ()
    streams = (s for s in statements(kernel) if isinstance(s, Stream))
    states = {t.name: t for s in streams for t in s.states}
    fixed = [b.axis for b in kernel.grid if isinstance(b, Block)]
    inside = axes_of_body(kernel.body)
    taken = {p.name for p in (*kernel.inputs, *kernel.outputs)}
    result: list[_Scratch] = []
    for name in names:
        used = {*fixed, *states[name].axes, *inside[name]} - {split.name}
        axes = tuple(a for a in kernel.axes if a.name in used)
        shape = (split.parts, *(a.extent for a in axes))
        array = unused_name(f"{name}_parts", taken)
        result.append(_Scratch(states[name], Param(array, state_type(states[name]), shape), axes))
    return result


# ---- the merge -----------------------------------------------------------------------------------


def _merging(
    kernel: Kernel, axis: Axis, scratch: Sequence[_Scratch], wanted: set[str]
) -> tuple[Statement, ...]:
    """Return the statements that combine the wanted states of all parts.

    Sums and the like are reductions. Others, such as sums that are rescaled to a common maximum,
    are the states of a stream over the parts, with those that they are rescaled by.
    """
    rules = merge_rules(kernel)
    part = {s.state.name: f"{s.state.name}_part" for s in scratch}
    pending = [n for n in rules if n in wanted]
    needed: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending += [v.name for v in visit(rules[name].rescaled) if isinstance(v, Ref)]
    names = {n: Ref(p) for n, p in part.items()}
    merged = [s for s in scratch if s.state.name in needed]
    if not merged:
        return ()
    sums = [_reduced(s, axis, rules[s.state.name]) for s in merged]
    if all(s is not None for s in sums):
        return tuple(s for s in sums if s is not None)
    body: list[Statement] = [
        Let(part[s.state.name], Load(s.param.name, s.index(axis.index))) for s in merged
    ]
    for name, rule in rules.items():
        if name in needed:
            sides = rule.rescaled, substitute(rule.rescaled, names=names)
            body.append(Update(name, Apply(rule.op, sides)))
    states = tuple(replace(s.state, init=Load(s.param.name, s.index(0))) for s in merged)
    after_first = IndexValue(1, i64)
    return (Stream((Block(axis.name, 1, start=after_first),), states, tuple(body)),)


def _reduced(s: _Scratch, axis: Axis, rule: MergeRule) -> Let | None:
    """Return the reduction that merges a state of many parts without rescaling."""
    if rule.rescaled != Ref(s.state.name) or axis.extent in FEW_PARTS:
        return None
    row = next((r for r in COMBINES.values() if r.scalar == rule.op and not r.positional), None)
    if row is None:
        return None
    parts = Load(s.param.name, s.index(axis.index))
    return Let(s.state.name, Reduce(row.name, parts, (axis.name,), state_type(s.state)))
