"""Collect all rows by domain and name.

>>> row_of("", "Relu").name
'Relu'
"""

from __future__ import annotations

from smelt.onnx import (
    rows_elementwise,
    rows_index,
    rows_norm,
    rows_product,
    rows_reduce,
    rows_view,
)
from smelt.onnx.row import Row

__all__ = ["TABLE", "row_of"]

TABLE: dict[tuple[str, str], Row] = {
    (row.domain, row.name): row
    for chapter in (
        rows_elementwise.ROWS,
        rows_index.ROWS,
        rows_norm.ROWS,
        rows_product.ROWS,
        rows_reduce.ROWS,
        rows_view.ROWS,
    )
    for row in chapter
}
"""All rows by (domain, name)."""


def row_of(domain: str, name: str) -> Row | None:
    """Return the row of an operator; None if it has none."""
    return TABLE.get((domain, name))
