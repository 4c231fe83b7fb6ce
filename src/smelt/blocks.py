"""How work is cut into pieces: numbers on which planner, lowering and code generation agree.

The planner foresees the schedule that a kernel will get, so both must cut alike.  Sizes are
positions of an axis unless they say otherwise.

>>> from smelt import blocks
>>> blocks.ROWS % 12  # whole register tiles
0
"""

BLOCK = 2048
"""Positions of the vector axis that one task visits, when that axis is a grid axis."""
FOLD_COLUMNS = 512
"""The same where each position is folded: accumulators stay in L1, rows are read in runs."""

PARTS = 64
"""Parts of a split axis: enough for any thread count here, few enough to merge at once."""
LEAST_TASKS = 8
"""Independent tasks below which a fold is split."""
SPLIT_ABOVE = 1 << 15
"""Elements of a fold below which one thread is faster than a split."""

ROWS = 192
"""Rows of a product that one task takes: a multiple of every register tile's height."""
WHOLE_ROWS = 48
"""The same where a task takes all columns: a panel of whole rows stays in L2."""
COLUMNS = 256
"""Columns of a product that are packed together (and that one task takes, where they may)."""
DEPTH = 384
"""Summed positions that are packed together: a block of each operand stays in L2."""

WINDOW_COLUMNS = 512
"""Columns of a product over windows that one task takes, more or less: whole lines of an image."""

THIN = 16
"""Rows up to which the larger operand of a product is read as it lies, never packed."""
THIN_ROWS = 16
"""Rows of a thin product that one task takes: all of them."""
THIN_COLUMNS = 512
"""Columns of a thin product that one task takes: their sums stay in L1."""
THIN_LINES = 64
"""The same where the larger operand lies along the summed axis: long rows, a few at a time."""
THIN_DEPTH = 2048
"""Summed positions for which the thin operand is packed: they stay in L1 and L2."""
