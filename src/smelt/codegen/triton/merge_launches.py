"""Merge the states of parts by many programs: one processor would read all parts alone.

stream p from 1 with s = s_parts[0,c] [c]       grid c
  s' = s + s_parts[p,c]                         stream p from 1 with s = s_parts[0,c]
y[] = max(s over c)                               s' = s + s_parts[p,c]
                                                s_merged[c] = s
                                                ---- and in a second launch ----
                                                s = s_merged[c]
                                                y[] = max(s over c)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from smelt.kernel import ir
from smelt.kernel.canonical import unused_name
from smelt.kernel.transform.part import part_of
from smelt.kernel.transform.split_merge import state_type
from smelt.kernel.walk import Axes, axes_of_body, is_free, refs, stores
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, evaluate

MIN_ROW = 256
"""Minimum elements of a state for a launch that merges it to take less time than one program."""


def with_grid(merge: ir.Kernel) -> ir.Kernel:
    """Give a merge without a grid the axes that separate all of its results."""
    free = Axes(a.name for a in merge.axes if not merge.grid and is_free(merge.body, a.name))
    if not free:
        return merge
    grid = tuple(ir.Block(a.name, 1) for a in merge.axes if a.name in free)
    return replace(merge, grid=grid, body=tuple(_without_axes(merge.body, free)))


def _without_axes(body: Iterable[ir.Statement], axes: Axes) -> Iterable[ir.Statement]:
    """Yield statements whose states have one index along some axes."""
    for s in body:
        if isinstance(s, ir.Stream):
            states = (replace(t, axes=tuple(a for a in t.axes if a not in axes)) for t in s.states)
            inside = tuple(_without_axes(s.body, axes))
            yield replace(s, states=tuple(states), body=inside)
        else:
            yield s


def merge_rows(merge: ir.Kernel, sizes: Mapping[str, int] | None) -> tuple[ir.Kernel, ...]:
    """Return launches of many programs in place of a lone one that carries long rows.

    Where results need all of a merged row, the second launch reads it from memory.
    """
    if sizes is None or merge.grid:
        return (merge,)
    needed = part_of(merge, [*stores(merge)])
    streams = [k for k, s in enumerate(needed.body) if isinstance(s, ir.Stream)]
    rows = _long_rows(needed, streams[0], sizes) if len(streams) == 1 else []
    alone = with_grid(needed)
    if not rows or alone.grid:
        return (alone if rows else merge,)
    first, last = _row_launch(needed, streams[0], rows), _rest(needed, streams[0], rows)
    return (first, last) if first.grid and last is not None else (merge,)


@dataclass(frozen=True, slots=True)
class _Row:
    """A state of a long row, and the array of its merged elements."""

    state: str
    param: ir.Param
    index: tuple[Index, ...]


def _long_rows(merge: ir.Kernel, k: int, sizes: Mapping[str, int]) -> list[_Row]:
    """Return the long states of the stream at a place of the body."""
    stream = merge.body[k]
    assert isinstance(stream, ir.Stream)
    names = axes_of_body(merge.body)
    taken = {p.name for p in (*merge.inputs, *merge.outputs)}
    rows: list[_Row] = []
    for t in stream.states:
        axes = [a for a in merge.axes if a.name in names[t.name]]
        if math.prod(int(evaluate(a.extent, sizes)) for a in axes) >= MIN_ROW:
            name = unused_name(f"{t.name}_merged", taken)
            param = ir.Param(name, state_type(t), tuple(a.extent for a in axes))
            rows.append(_Row(t.name, param, tuple(a.index for a in axes)))
    return rows


def _row_launch(merge: ir.Kernel, k: int, rows: Sequence[_Row]) -> ir.Kernel:
    """Return the launch that merges long states.

    It has no grid where programs need whole rows.
    """
    stored = [ir.Store(x.param.name, x.index, ir.Ref(x.state)) for x in rows]
    launch = replace(
        merge,
        name=f"{merge.name}_rows",
        outputs=tuple(x.param for x in rows),
        body=(*merge.body[: k + 1], *stored),
    )
    return with_grid(part_of(launch, stored))


def _rest(merge: ir.Kernel, k: int, rows: Sequence[_Row]) -> ir.Kernel | None:
    """Return a launch that loads merged states; None where other states need them."""
    stream = merge.body[k]
    assert isinstance(stream, ir.Stream)
    names = {x.state for x in rows}
    rest = replace(
        stream,
        states=tuple(t for t in stream.states if t.name not in names),
        body=tuple(s for s in stream.body if not (isinstance(s, ir.Update) and s.state in names)),
    )
    if names.intersection(refs(rest)):
        return None
    launch = replace(
        merge,
        inputs=(*merge.inputs, *(x.param for x in rows)),
        body=(
            *merge.body[:k],
            rest,
            *(ir.Let(x.state, ir.Load(x.param.name, x.index)) for x in rows),
            *merge.body[k + 1 :],
        ),
    )
    return part_of(launch, [*stores(merge)])
