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

from collections.abc import Iterable, Sequence
from dataclasses import replace

from smelt.codegen.triton.free_axes import axes_of_body
from smelt.codegen.triton.launch_parts import without_unused_axes
from smelt.codegen.triton.merge_launches import state_type, with_grid
from smelt.dataclass import dataclass
from smelt.kernel.ir import (
    Apply,
    Axis,
    Block,
    IndexValue,
    Kernel,
    Let,
    Load,
    Merge,
    Param,
    Ref,
    Split,
    State,
    Statement,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.kernel.merge import merge_rules
from smelt.kernel.walk import (
    bindings_of,
    splits,
    statements,
    substitute,
)
from smelt.ops.combine import EXTREMES
from smelt.types.dtype import i64
from smelt.types.expr import Index, floordiv, minimum

__all__ = ["split_launches"]


def split_launches(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the launches of a kernel, none of which has a split axis.

    The first of two writes the states of all parts to new outputs, which the second one reads.
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
    after_merge = {s.param for s in statements(kernel.body[k + 1 :]) if isinstance(s, Store)}
    early = tuple(p for p in kernel.outputs if p.name not in after_merge)
    late = tuple(p for p in kernel.outputs if p.name in after_merge)
    parts = replace(
        whole, name=f"{kernel.name}_parts", outputs=(*early, *arrays), body=tuple(before)
    )
    after = [*bindings_of(kernel.body[:k], kernel.body[k + 1 :]), _merging(kernel, axis, scratch)]
    merge = replace(
        kernel,
        name=f"{kernel.name}_merge",
        inputs=(*kernel.inputs, *arrays),
        outputs=late,
        axes=(*kernel.axes, axis),
        grid=grid[1:],
        body=(*after, *kernel.body[k + 1 :]),
    )
    return parts, with_grid(without_unused_axes(merge))


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
        array = f"{name}_parts"
        while array in taken:
            array += "_"
        result.append(_Scratch(states[name], Param(array, state_type(states[name]), shape), axes))
    return result


# ---- the merge -----------------------------------------------------------------------------------


def _merging(kernel: Kernel, axis: Axis, scratch: Sequence[_Scratch]) -> Stream:
    """Return the stream over the parts that combines their states in order."""
    rules = merge_rules(kernel)
    part = {s.state.name: f"{s.state.name}_part" for s in scratch}
    names = {n: Ref(p) for n, p in part.items()}
    body: list[Statement] = [
        Let(part[s.state.name], Load(s.param.name, s.index(axis.index))) for s in scratch
    ]
    for name, rule in rules.items():
        sides = rule.rescaled, substitute(rule.rescaled, names=names)
        body.append(Update(name, Apply(rule.op, sides)))
    states = tuple(replace(s.state, init=Load(s.param.name, s.index(0))) for s in scratch)
    after_first = IndexValue(1, i64)
    return Stream((Block(axis.name, 1, start=after_first),), states, tuple(body))
