"""Task block sizes of K-blocked and small-M contractions: how many rows and columns a task takes.

rows, columns = deep_blocks(m, n, positions, itemsize, tile, tasks, direct=False) columns =
few_columns(n, m, positions, tasks, step)
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
    even_block,
)
from smelt.types.expr import Index, floordiv, maximum, minimum, mul


def k_blocked_task(
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
    """Return the rows and columns of a task of a K-blocked contraction.

    Blocks of about the same size; `positions` are the independent positions of the result.  There
    must be `tasks` tasks before one takes more than `ROWS` rows.  The accumulators of several
    `products` share a task's memory: fewer columns each.

    >>> k_blocked_task(1024, 1024, 1 << 20, 4, 32, 4, direct=False)
    (288, 352)
    >>> k_blocked_task(1024, 1024, 1 << 20, 4, 32, 4, direct=False, long=True)
    (528, 512)
    >>> k_blocked_task(512, 512, 1 << 18, 4, 32, 8, direct=False, long=True)
    (144, 256)
    """
    words, max_rows, max_columns = itemsize // 4, DEEP_ROWS * (2 if direct else 1), DEEP_COLUMNS
    if roomy or panels:
        max_rows, max_columns = (
            (PANEL_ROWS, PANEL_COLUMNS) if panels else (ROOMY_ROWS, ROOMY_COLUMNS)
        )
    fitting: Index = max(max_columns // (words * products), tile)
    if long and not (direct and panels):
        # Packed blocks are shared, as long as enough tasks are left.
        max_rows = max(max_rows, LONG_ROWS)
        limit = max(LONG_COLUMNS // (words * products), tile)
        fitting = maximum(fitting, minimum(limit, floordiv(positions, tasks * ROWS)))
    task_columns = mul(tile, ceiling(even_block(columns, ceiling(columns, fitting)), tile))
    limit = max_rows // words // DEEP_EVEN * DEEP_EVEN
    task_rows = minimum(limit, maximum(floordiv(positions, mul(tasks, task_columns)), ROWS))
    blocks = ceiling(rows, task_rows)
    return mul(DEEP_EVEN, ceiling(even_block(rows, blocks), DEEP_EVEN)), task_columns


def small_m_columns(columns: Index, rows: Index, positions: Index, tasks: int, step: int) -> Index:
    """Return the columns of a task of a small-M contraction, a multiple of `step`.

    Every task packs all of its few rows, so there are no more than `tasks` tasks.  `positions` are
    the independent positions of the result.

    >>> from smelt.types.expr import evaluate, size
    >>> taken = small_m_columns(size("n"), size("m"), mul(size("m"), size("n")), 4, 48)
    >>> [int(evaluate(taken, {"m": 64, "n": n})) for n in (30, 768, 3000)]
    [48, 192, 768]
    """
    fair = floordiv(positions, mul(maximum(rows, 16), tasks))
    most = mul(step, maximum(ceiling(fair, step), 2))
    even = even_block(columns, ceiling(columns, most))
    return mul(step, maximum(ceiling(even, step), 1))


__all__ = ["k_blocked_task", "small_m_columns"]
