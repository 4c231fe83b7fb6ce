"""Scan long rows in parts: few programs would wait for one block after another.

    y[i] = sum(x[i] along i)            grid p
                                        stream i of part p with t = 0
                                          t' = t + sum(x[i] over i)
                                        y_parts[p] = t
                                        ---- and in a second launch ----
                                        grid p
                                        before = sum(y_parts[q] if q < p else 0 over q)
                                        stream i of part p with c = before
                                          y[i] = c + sum(x[i] along i)
                                          c' = c + sum(x[i] over i)

The scanned array is read twice and written once, as the method "reduce, then scan" does (Dotsenko
et al., Fast scan algorithms on graphics processors, 2008). Parts are combined in their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from smelt.backend.gpu import SCAN_STEP, scan_parts
from smelt.kernel import ir
from smelt.kernel.block_reduction import accumulated, row_of
from smelt.kernel.canonical import names_of, unused_name
from smelt.kernel.transform.part import without_unused
from smelt.kernel.walk import (
    axes_of_body,
    axes_of_index,
    axes_of_value,
    bindings_of,
    joined_axes,
    refs,
    visit_statement,
)
from smelt.ops.combine import CHOICE, COMBINES
from smelt.types.dtype import i64
from smelt.types.expr import Index, evaluate, floordiv, minimum, mul

PROCESSORS = 128
"""Processors of a device that is not known: about a large one's."""


class _Split(NamedTuple):
    """A scan, the array of its parts' results, and the names of its states."""

    name: str
    scan: ir.Scan
    parts: ir.Param
    total: str
    carry: str

    @property
    def block(self) -> ir.Reduce:
        """The reduction of a block."""
        return ir.Reduce(self.scan.combine, self.scan.arg, (self.scan.along,), self.scan.dtype)


def split_scans(
    launch: ir.Kernel, sizes: Mapping[str, int] | None, processors: int = PROCESSORS
) -> tuple[ir.Kernel, ...]:
    """Return two launches in place of one that scans few long rows; itself for others.

    Each of the device's processors has programs for some of the parts.
    """
    scans = {
        s.name: s.value
        for s in launch.body
        if isinstance(s, ir.Let) and isinstance(s.value, ir.Scan)
    }
    along = {v.along for v in scans.values()}
    if sizes is None or len(along) != 1 or not _is_plain(launch, along):
        return (launch,)
    axis = launch.axis(along.pop())
    rows = math.prod(int(evaluate(launch.axis(a).extent, sizes)) for a in _grid(launch))
    parts = scan_parts(rows, int(evaluate(axis.extent, sizes)), processors)
    return _launches(launch, axis, parts, scans) if parts > 1 else (launch,)


def _grid(launch: ir.Kernel) -> list[str]:
    return [b.axis for b in launch.grid if isinstance(b, ir.Block)]


def _is_plain(launch: ir.Kernel, along: set[str]) -> bool:
    """Return whether all results are stored along one axis, which is only scanned, once each.

    The other axes of what is scanned are the grid's: a part has one number for its merge.
    """
    blocks = [
        b for b in launch.grid if isinstance(b, ir.Block) and b == ir.Block(b.axis, b.size or 1)
    ]
    if len(blocks) < len(launch.grid) or along & {b.axis for b in blocks}:
        return False
    names, waiting = axes_of_body(launch.body), set[str]()
    fixed = along | {b.axis for b in blocks}
    for s in launch.body:
        values = [*visit_statement(s)]
        joined = [v for v in values if along.intersection(joined_axes(v))]
        waits = not waiting.isdisjoint(refs(s))
        if isinstance(s, ir.Store):
            stored = axes_of_index(s.index, names)
            if s.join or joined or not stored >= along:
                return False
        elif not isinstance(s, ir.Let | ir.Position):
            return False
        elif isinstance(s.value, ir.Scan):
            if waits or len(joined) > 1 or COMBINES[s.value.combine].positional:
                return False
            if not axes_of_value(s.value.arg, names) <= fixed:
                return False
            waiting.add(s.name)
        elif joined:
            return False
        elif waits:
            waiting.add(s.name)
    return True


def _launches(
    launch: ir.Kernel, axis: ir.Axis, count: int, scans: Mapping[str, ir.Scan]
) -> tuple[ir.Kernel, ir.Kernel]:
    taken = {*names_of(launch)}
    part, before = (ir.Axis(unused_name(stem, taken), count) for stem in ("p", "q"))
    chunk = mul(floordiv(axis.extent + (count * SCAN_STEP - 1), count * SCAN_STEP), SCAN_STEP)
    first = mul(part.index, chunk)
    start, stop = (ir.IndexValue(e, i64) for e in (first, minimum(first + chunk, axis.extent)))
    block = ir.Block(axis.name, SCAN_STEP, stop, None, start)
    rows = [launch.axis(a) for a in _grid(launch)]
    splits: list[_Split] = []
    for name, scan in scans.items():
        shape = (*(a.extent for a in rows), count)
        stems = f"{name}_parts", f"{name}_total", f"{name}_carry"
        parts, total, carry = (unused_name(stem, taken) for stem in stems)
        splits.append(_Split(name, scan, ir.Param(parts, scan.dtype.compute, shape), total, carry))
    grid = tuple(ir.Block(a.name, 1) for a in (*rows, part))
    whole = replace(launch, axes=(*launch.axes, part, before), grid=grid)
    place = tuple(a.index for a in rows)
    sums = replace(
        whole,
        name=f"{launch.name}_parts",
        outputs=tuple(x.parts for x in splits),
        body=tuple(_totals(launch.body, block, splits, (*place, part.index))),
    )
    scanned = replace(
        whole,
        inputs=(*launch.inputs, *(x.parts for x in splits)),
        body=tuple(_scanned(launch.body, block, splits, (part, before), place)),
    )
    return without_unused(sums), without_unused(scanned)


def _totals(
    body: Sequence[ir.Statement],
    block: ir.Block,
    splits: Sequence[_Split],
    place: tuple[Index, ...],
) -> Iterable[ir.Statement]:
    """Yield the statements that reduce a part."""
    states, updates = zip(*(accumulated(x.total, x.block) for x in splits), strict=True)
    yield ir.Stream((block,), states, (*bindings_of(body, updates), *updates))
    for x in splits:
        yield ir.Store(x.parts.name, place, ir.Ref(x.total))


def _scanned(
    body: Sequence[ir.Statement],
    block: ir.Block,
    splits: Sequence[_Split],
    numbers: tuple[ir.Axis, ir.Axis],
    place: tuple[Index, ...],
) -> Iterable[ir.Statement]:
    """Yield the statements that scan a part behind the parts before it."""
    part, before = (ir.IndexValue(a.index, i64) for a in numbers)
    states: list[ir.State] = []
    updates: list[ir.Update] = []
    scanned: dict[str, ir.Value] = {}
    for x in splits:
        state, update = accumulated(x.carry, x.block)
        name = f"{x.carry}_first"
        loaded = ir.Load(x.parts.name, (*place, numbers[1].index))
        earlier: ir.Value = ir.Apply(CHOICE, (ir.Apply("lt", (before, part)), loaded, state.init))
        yield ir.Let(name, ir.Reduce(x.scan.combine, earlier, (numbers[1].name,), x.scan.dtype))
        states.append(replace(state, init=ir.Ref(name)))
        updates.append(update)
        scanned[x.name] = ir.Apply(row_of(x.block).scalar, (ir.Ref(x.carry), x.scan))
    inside = (
        replace(s, value=scanned[s.name]) if isinstance(s, ir.Let) and s.name in scanned else s
        for s in body
    )
    yield ir.Stream((block,), tuple(states), (*inside, *updates))
