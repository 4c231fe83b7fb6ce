"""All rows by name, and the decompositions that torch applies to what has none.

>>> row_of("aten.add.Tensor").name
'aten.add.Tensor'
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch._decomp import core_aten_decompositions

from smelt.frontends.torch import rows_elementwise, rows_fold, rows_product, rows_view
from smelt.frontends.torch.row import Row

__all__ = ["TABLE", "decompositions", "row_of"]

TABLE: dict[str, Row] = {
    row.name: row
    for chapter in (
        rows_elementwise.ROWS, rows_view.ROWS, rows_fold.ROWS, rows_product.ROWS,
    ) for row in chapter
}  # fmt: skip


def row_of(name: str) -> Row | None:
    """The row of an overload as torch prints it."""
    return TABLE.get(name)


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """What torch should take apart before we see it: what is neither a row nor a better call."""
    table = dict(core_aten_decompositions())
    return {op: rule for op, rule in table.items() if str(op) not in TABLE}
