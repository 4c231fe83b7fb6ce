"""Give results with columns of their own a launch each: one has blocks of its columns.

    grid m                                          grid m, n
    a = dot(x[m,k], v[k,n] over k)                  y[m,n] = dot(x[m,k], v[k,n] over k)
    y[m,n] = a                                      ---- and in a second launch ----
    z[m,p] = dot(x[m,k], w[k,p] over k)             grid m, p
                                                    z[m,p] = dot(x[m,k], w[k,p] over k)

A program with all columns of several contractions has more results than its registers hold. Maps
whose results have other axes are launches, too: their common axes are not those that are stored
along, such as a scaled matrix and a scaled vector of its columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from smelt.codegen.triton.block_axes import dots_of, power_of_two
from smelt.codegen.triton.free_axes import Axes, axes_of_body, axes_of_index
from smelt.kernel.ir import Block, Dot, Kernel, Let, Position, Reduce, Scan, Statement, Store
from smelt.kernel.walk import bindings_of, splits, values_of, visit
from smelt.types.expr import evaluate

MAX_COLUMNS = 256
"""Columns of all contractions that stay in one program: a row of accumulators."""


def split_products(kernel: Kernel, sizes: Mapping[str, int] | None) -> tuple[Kernel, ...]:
    """Return a launch for each result with columns of its own; () for other kernels."""
    if sizes is None or splits(kernel) or not all(isinstance(b, Block) for b in kernel.grid):
        return ()
    stores = [s for s in kernel.body if isinstance(s, Store) and not s.join]
    rest = [s for s in kernel.body if not isinstance(s, Store)]
    if len(stores) + len(rest) < len(kernel.body):
        return ()
    if not all(isinstance(s, Let | Position) for s in rest):
        return ()
    names = axes_of_body(kernel.body)
    rows = Axes(b.axis for b in kernel.grid if isinstance(b, Block))
    groups: dict[Axes, list[Store]] = {}
    for s in stores:
        columns = Axes().union(*(axes_of_index(e, names) for e in s.index)) - rows
        groups.setdefault(columns, []).append(s)
    extents = {a.name: power_of_two(int(evaluate(a.extent, sizes))) for a in kernel.axes}
    together = sum(math.prod(extents[a] for a in columns) for columns in groups)
    if len(groups) < 2 or together <= MAX_COLUMNS or any(a & b for a, b in _pairs(groups)):
        return ()
    is_map = sum(map(bool, groups)) > 1 and not _reduces(kernel.body)
    launches: list[Kernel] = []
    for columns, group in groups.items():
        body = [*bindings_of(rest, group), *group]
        if not is_map and not (columns and _is_blocked(body, columns)):
            return ()
        launches.append(_launch(kernel, len(launches), columns, body))
    return tuple(launches)


def _pairs(groups: Iterable[Axes]) -> Iterable[tuple[Axes, Axes]]:
    every = list(groups)
    return ((a, b) for k, a in enumerate(every) for b in every[k + 1 :])


def _is_blocked(body: Sequence[Statement], columns: Axes) -> bool:
    """Return whether columns are computed by contractions, each without the others."""
    values = [v for s in body for root in values_of(s) for v in visit(root)]
    over = {a for v in values if isinstance(v, Reduce | Dot) for a in v.over}
    along = {v.along for v in values if isinstance(v, Scan)}
    return bool(dots_of(body)) and not columns & (over | along)


def _reduces(body: Iterable[Statement]) -> bool:
    values = (v for s in body for root in values_of(s) for v in visit(root))
    return any(isinstance(v, Reduce | Dot | Scan) for v in values)


def _launch(kernel: Kernel, number: int, columns: Axes, body: Sequence[Statement]) -> Kernel:
    stored = {s.param for s in body if isinstance(s, Store)}
    names = axes_of_body(body)
    rows = tuple(b for b in kernel.grid if isinstance(b, Block))
    values = [v for s in body for root in values_of(s) for v in visit(root)]
    used = Axes(b.axis for b in rows).union(columns, *names.values())
    used |= {a for v in values if isinstance(v, Reduce | Dot) for a in v.over}
    axes = tuple(a for a in kernel.axes if a.name in used)
    grid = (*rows, *(Block(a.name, 1) for a in axes if a.name in columns))
    if not _reduces(body):  # neighbouring programs store neighbouring elements
        first = next(s for s in body if isinstance(s, Store))
        order = {a: k for k, e in enumerate(first.index) for a in axes_of_index(e, names)}
        grid = tuple(sorted(grid, key=lambda b: order.get(b.axis, -1)))
    return replace(
        kernel,
        name=f"{kernel.name}_{number}",
        axes=axes,
        grid=grid,
        outputs=tuple(p for p in kernel.outputs if p.name in stored),
        body=tuple(body),
    )
