"""What a plan of a product says of itself: policies of operands, sums and blocks, as text.

A product is an axis of rows (m), one of columns (n) and reduced ones (k). Every plan is a choice
for the same questions: how each operand is read, where sums wait, how much one task takes.
"""

from __future__ import annotations

from smelt.python.dataclass import dataclass

__all__ = ["IN_PLACE", "PlanNotes", "packed_panels"]

IN_PLACE = "in place"


@dataclass(frozen=True, slots=True)
class PlanNotes:
    """The policies of one product, in words."""

    axes: str
    """Axes of rows and columns, and the reduced ones: `m x n over k`."""
    left: str
    """How the operand is read whose elements are broadcast."""
    right: str
    """How the operand is read whose rows are vectors."""
    sums: str
    """Where sums wait, and from where the epilogue takes them."""


def packed_panels(columns: int, *, transposed: bool = False) -> str:
    """Return the words for an operand that is packed in panels.

    >>> packed_panels(32, transposed=True)
    'packed in panels of 32 columns, by transposes'
    """
    return f"packed in panels of {columns} columns" + ", by transposes" * transposed
