"""Blocks of products that are taken block by block: how many rows and columns one task takes.

rows, columns = deep_blocks(m, n, positions, itemsize, tile, tasks, direct=False)
columns = few_columns(n, m, positions, tasks, step)
"""

from __future__ import annotations

from smelt.blocks import (
    DEEP_COLUMNS,
    DEEP_EVEN,
    DEEP_ROWS,
    LONG_COLUMNS,
    LONG_ROWS,
    PANEL_COLUMNS,
    PANEL_ROWS,
    ROOMY_COLUMNS,
    ROOMY_ROWS,
    ROWS,
    ceiling,
    evenly,
)
from smelt.types.expr import Index, floordiv, maximum, minimum, mul


def deep_blocks(
    rows: Index,
    columns: Index,
    positions: Index,
    itemsize: int,
    tile: int,
    tasks: int,
    *,
    direct: bool,
    roomy: bool = False,
    panels: bool = False,
    products: int = 1,
    long: bool = False,
) -> tuple[Index, Index]:
    """Rows and columns that one task takes of a product whose summed positions are taken in blocks,
    whose result has so many independent positions: blocks of about the same size.  There are to be
    so many tasks before one takes more than `ROWS`.  Of several products the sums lie beside one
    another: those of fewer columns each.

    >>> deep_blocks(1024, 1024, 1 << 20, 4, 32, 4, direct=False)
    (288, 352)
    >>> deep_blocks(1024, 1024, 1 << 20, 4, 32, 4, direct=False, long=True)
    (528, 512)
    >>> deep_blocks(512, 512, 1 << 18, 4, 32, 8, direct=False, long=True)
    (144, 256)
    """
    size, high, wide = itemsize // 4, DEEP_ROWS * (2 if direct else 1), DEEP_COLUMNS
    if roomy or panels:
        high, wide = (PANEL_ROWS, PANEL_COLUMNS) if panels else (ROOMY_ROWS, ROOMY_COLUMNS)
    fitting: Index = max(wide // (size * products), tile)
    if long and not (direct and panels):  # what is packed is shared, as far as tasks are left
        high = max(high, LONG_ROWS)
        most = max(LONG_COLUMNS // (size * products), tile)
        fitting = maximum(fitting, minimum(most, floordiv(positions, tasks * ROWS)))
    across = mul(tile, ceiling(evenly(columns, ceiling(columns, fitting)), tile))
    most = high // size // DEEP_EVEN * DEEP_EVEN
    least = minimum(most, maximum(floordiv(positions, mul(tasks, across)), ROWS))
    blocks = ceiling(rows, least)
    return mul(DEEP_EVEN, ceiling(evenly(rows, blocks), DEEP_EVEN)), across


def few_columns(columns: Index, rows: Index, positions: Index, tasks: int, step: int) -> Index:
    """Columns, a multiple of `step`, that one task takes of a product whose few rows are packed by
    every task, whose result has so many independent positions: as many tasks as there are to be.

    >>> from smelt.types.expr import evaluate, size
    >>> taken = few_columns(size("n"), size("m"), mul(size("m"), size("n")), 4, 48)
    >>> [int(evaluate(taken, {"m": 64, "n": n})) for n in (30, 768, 3000)]
    [48, 192, 768]
    """
    fair = floordiv(positions, mul(maximum(rows, 16), tasks))
    most = mul(step, maximum(ceiling(fair, step), 2))
    even = evenly(columns, ceiling(columns, most))
    return mul(step, maximum(ceiling(even, step), 1))


__all__ = ["deep_blocks", "few_columns"]
