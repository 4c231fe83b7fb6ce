"""Lower scatter-reduce: initial values, then updates at data-dependent positions in order.

Updates are visited one by one, in the order of their axes, and computed where they are added.
Results do not depend on the thread count: each part of the result's rows belongs to one grid
block, which scans all positions and takes those in its part. Short rows form a single part, since
checking a position costs as much as adding a few elements.

    y[n,d] = x[n,d]
    stream m where (ids[m] >= first(n)) & (ids[m] <= last(n))
      at = position(ids[m], size(n))
      y[at,d] add= u[m,d]

A position that just counts an axis of the updates from 0 is that axis of the result. Such axes
are shared: as separate grid blocks before the computed positions, as whole tile axes behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from smelt.kernel import ir
from smelt.kernel.canonical import numbered_name
from smelt.kernel.walk import axes_of_value, bindings_of, refs, substitute
from smelt.lower.assign_axes import analyse
from smelt.lower.define import Definition, ScatterReduce
from smelt.machine.tiling import Tiling
from smelt.ops.contract import bare_axis
from smelt.types.dtype import i64
from smelt.types.expr import Index, product, sub
from smelt.types.expr import value as position_index


def scatter_kernel(name: str, d: Definition, joined: ScatterReduce, tiling: Tiling) -> ir.Kernel:
    """Build the kernel of a definition that scatters values into its single result."""
    (first,), (output,) = (s for s in d.body if isinstance(s, ir.Store)), d.outputs
    lets = [s for s in d.body if isinstance(s, (ir.Let, ir.Position))]
    initial_lets = bindings_of(lets, [first])
    along = _shared_axes(d, joined, lets, first.index)
    lets, joined = _rename_shared(d, joined, lets, along)
    taken = {*d.axes, *(s.name for s in lets), *(p.name for p in (*d.inputs, *d.outputs))}
    definitions: Mapping[str, ir.Value] = {s.name: s.value for s in lets if isinstance(s, ir.Let)}
    bound = {s.name for s in initial_lets}
    needed = bindings_of(lets, [joined.value, *(v for v, _ in joined.positions)])
    steps: list[ir.Statement] = [s for s in needed if s.name not in bound]
    index = list(first.index)
    computed: list[tuple[int, ir.Value]] = []
    for k, (position, extent) in enumerate(joined.positions):
        if extent != 1 and bare_axis(first.index[k]) not in along.values():
            position_name = numbered_name("at", taken)
            steps.append(ir.Position(position_name, position, extent))
            index[k] = position_index(position_name, extent)
            computed.append((k, _expand(position, definitions)))
    leading = [
        a
        for e in first.index[: computed[0][0] if computed else 0]
        if (a := bare_axis(e)) in along.values() and a is not None
    ]
    fixed_axes = {*leading, *joined.over}
    statements: list[ir.Statement] = [*lets]
    names = analyse(statements).axes
    gathered = {s.name for s in lets if isinstance(s, ir.Position)}  # known inside a visit only
    varies_in_visit = any(
        axes_of_value(position, names) - fixed_axes or gathered.intersection(refs(position))
        for _, position in computed
    )
    parts: Index = 1
    if computed and not varies_in_visit:
        width = product(n for n, e in zip(output.shape, index, strict=True) if bare_axis(e))
        extent = output.shape[computed[0][0]]
        parts = tiling.scatter_parts(extent, width, in_batches=bool(leading))
    rows = None if parts == 1 else bare_axis(first.index[computed[0][0]])
    conditions: list[ir.Value] = []
    for k, position in computed:
        part_of = d.axes[rows] if rows is not None and k == computed[0][0] else None
        conditions += _in_range_tests(position, output.shape[k], part_of)
    inside = _conjunction(conditions)
    steps.append(
        ir.Store(
            output.name,
            tuple(index),
            joined.value,
            inside if varies_in_visit else None,
            joined.join,
        )
    )
    if joined.over:
        blocks = tuple(ir.Block(a, 1) for a in joined.over)
        steps = [ir.Stream(blocks, (), tuple(steps), None if varies_in_visit else inside)]
    elif not varies_in_visit:
        steps[-1] = replace(steps[-1], where=inside)
    body: tuple[ir.Statement, ...] = (*initial_lets, first, *steps)
    # Without streams or computed positions each element gets exactly one value.
    if not joined.over and not computed:
        last = joined.value
        if joined.join != ir.PUT:
            last = ir.Apply(joined.join, (first.value, last))
        body = (*initial_lets, *steps[:-1], replace(first, value=last))
    grid: list[ir.Block | ir.Split] = [ir.Block(a, 1) for a in leading]
    if rows is not None:
        part = numbered_name("q", taken)
        grid.append(ir.Split(part, rows, parts))
        body = (ir.Stream((ir.Block(rows, None, None, part),), (), body),)
    axes = tuple(a for a in d.axes.values() if a.name not in along)
    return ir.Kernel(name, tuple(d.inputs), tuple(d.outputs), axes, tuple(grid), body)


def _rename_shared(
    d: Definition, joined: ScatterReduce, lets: list[ir.Let | ir.Position], along: Mapping[str, str]
) -> tuple[list[ir.Let | ir.Position], ScatterReduce]:
    """Rename update axes that are axes of the result to the result's names."""
    if not along:
        return lets, joined
    replacements = {a: d.axes[b].index for a, b in along.items()}
    lets = [replace(s, value=substitute(s.value, axes=replacements)) for s in lets]
    places = tuple((substitute(at, axes=replacements), n) for at, n in joined.positions)
    over = tuple(a for a in joined.over if a not in along)
    value = substitute(joined.value, axes=replacements)
    return lets, replace(joined, over=over, positions=places, value=value)


def _shared_axes(
    d: Definition,
    joined: ScatterReduce,
    lets: Sequence[ir.Let | ir.Position],
    index: Sequence[Index],
) -> dict[str, str]:
    """Map update axes to result axes: positions that just count an axis from 0."""
    definitions = {s.name: s.value for s in lets if isinstance(s, ir.Let)}
    shared: dict[str, str] = {}
    for (position, extent), result_index in zip(joined.positions, index, strict=False):
        value, axis = _expand(position, definitions), bare_axis(result_index)
        value = value.arg if isinstance(value, ir.Cast) else value
        counted = isinstance(value, ir.IndexValue) and value.dtype == i64
        name = bare_axis(value.index) if counted else None  # type: ignore[union-attr]
        counts = name is not None and name in joined.over and d.axes[name].extent == extent
        if name is not None and counts and axis is not None and name not in shared:
            shared[name] = axis
    return shared


def _in_range_tests(
    position: ir.Value, extent: Index, rows: ir.Axis | None
) -> tuple[ir.Value, ir.Value]:
    """Return tests that a position is in the current row block, or in an extent."""
    if rows is None:
        last = ir.IndexValue(sub(extent, 1), i64)
        return ir.Apply("ge", (position, ir.Const(0, i64))), ir.Apply("le", (position, last))
    row = ir.IndexValue(rows.index, i64)
    return ir.Apply("ge", (position, ir.Extreme(row, False))), ir.Apply(
        "le", (position, ir.Extreme(row, True))
    )


def _conjunction(tests: Sequence[ir.Value]) -> ir.Value | None:
    """Return the conjunction of the tests, or None if there are none."""
    return reduce(lambda a, b: ir.Apply("and", (a, b)), tests) if tests else None


def _expand(value: ir.Value, definitions: Mapping[str, ir.Value]) -> ir.Value:
    """Inline all names of a value."""
    while (expanded := substitute(value, names=definitions)) != value:
        value = expanded
    return value
