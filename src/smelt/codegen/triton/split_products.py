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
from smelt.kernel.ir import Block, Kernel, Let, Position, Statement, Store
from smelt.kernel.transform.part import part_of
from smelt.kernel.walk import Axes, axes_of_body, axes_of_index, joined_axes, splits, visit_body
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
        columns = axes_of_index(s.index, names) - rows
        groups.setdefault(columns, []).append(s)
    extents = {a.name: power_of_two(int(evaluate(a.extent, sizes))) for a in kernel.axes}
    together = sum(math.prod(extents[a] for a in columns) for columns in groups)
    if len(groups) < 2 or together <= MAX_COLUMNS or any(a & b for a, b in _pairs(groups)):
        return ()
    is_map = sum(map(bool, groups)) > 1 and not _reduces(kernel.body)
    launches: list[Kernel] = []
    for columns, group in groups.items():
        launches.append(_launch(kernel, len(launches), columns, group))
        if not is_map and not (columns and _is_blocked(launches[-1].body, columns)):
            return ()
    return tuple(launches)


def _pairs(groups: Iterable[Axes]) -> Iterable[tuple[Axes, Axes]]:
    every = list(groups)
    return ((a, b) for k, a in enumerate(every) for b in every[k + 1 :])


def _is_blocked(body: tuple[Statement, ...], columns: Axes) -> bool:
    """Return whether columns are computed by contractions, each without the others."""
    joined = {a for v in visit_body(body) for a in joined_axes(v)}
    return bool(dots_of(body)) and not columns & joined


def _reduces(body: Iterable[Statement]) -> bool:
    return any(map(joined_axes, visit_body(body)))


def _launch(kernel: Kernel, number: int, columns: Axes, group: Sequence[Store]) -> Kernel:
    rows = tuple(b for b in kernel.grid if isinstance(b, Block))
    grid = (*rows, *(Block(a.name, 1) for a in kernel.axes if a.name in columns))
    part = part_of(replace(kernel, name=f"{kernel.name}_{number}", grid=grid), group)
    if _reduces(part.body):
        return part
    names, place = axes_of_body(part.body), group[0].index  # neighbouring programs: neighbours
    order = {a: k for k, e in enumerate(place) for a in axes_of_index((e,), names)}
    return replace(part, grid=tuple(sorted(grid, key=lambda b: order.get(b.axis, -1))))
