"""Numbers that predictions of time share, whether the planner makes them or a schedule.

>>> SPECIAL_COST > MOVE_COST
True
"""

from __future__ import annotations

SPECIAL_COST = 5.0
"""Minimum cost of a function that machines with units for exponentials and roots compute there.

In cycles for 16 float32 elements (`ScalarOp.cost`).
"""
MOVE_COST = 0.5
"""Cost of a conversion, or of a position as a number, in such cycles."""
MASK_SAMPLES = 8
"""Blocks of a streamed axis for which the share that masks leave is evaluated."""
DATA_DEPENDENT_SHARE = 0.75
"""Share of an axis that is visited where data decides the range, such as sequence lengths.

About what padding leaves of texts of unequal length.
"""
