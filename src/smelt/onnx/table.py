"""Collect all rows by domain and name.

>>> row_of("", "Relu").name
'Relu'
"""

from __future__ import annotations

from smelt.onnx import (
    rows_control,
    rows_elementwise,
    rows_image,
    rows_index,
    rows_product,
    rows_quantized,
    rows_recurrent,
    rows_reduce,
    rows_signal,
    rows_view,
    rows_window,
)
from smelt.onnx.row import Row

_CHAPTERS = (
    rows_control,
    rows_elementwise,
    rows_image,
    rows_index,
    rows_product,
    rows_quantized,
    rows_recurrent,
    rows_reduce,
    rows_signal,
    rows_view,
    rows_window,
)

TABLE: dict[tuple[str, str], Row] = {
    (row.domain, row.name): row for chapter in _CHAPTERS for row in chapter.ROWS
}
"""All rows by (domain, name)."""


def row_of(domain: str, name: str) -> Row | None:
    """Return the row of an operator; None if it has none."""
    return TABLE.get((domain, name))
