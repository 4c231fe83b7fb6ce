"""All rows by name, and the decompositions that torch applies to what has none.

>>> row_of("aten.add.Tensor").name
'aten.add.Tensor'
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import _decomp as decomp
from torch._decomp import get_decompositions

from smelt.frontends.torch import (
    embedding_bag,
    encoder,
    pairs,
    parts,
    rows_elementwise,
    rows_fold,
    rows_foreach,
    rows_overlap,
    rows_place,
    rows_product,
    rows_search,
    rows_strided,
    rows_top,
    rows_view,
    rows_window,
)
from smelt.frontends.torch.row import Row

__all__ = ["TABLE", "decompositions", "row_of"]

_OWN: dict[str, Row] = {
    row.name: row
    for chapter in (
        rows_elementwise.ROWS,
        rows_view.ROWS,
        rows_fold.ROWS,
        rows_product.ROWS,
        rows_place.ROWS,
        rows_window.ROWS,
        rows_overlap.ROWS,
        rows_search.ROWS,
        rows_strided.ROWS,
        rows_top.ROWS,
    )
    for row in chapter
}


TABLE: dict[str, Row] = _OWN | {row.name: row for row in rows_foreach.rows(_OWN)}
"""All rows by name."""


def row_of(name: str) -> Row | None:
    """The row of an overload as torch prints it."""
    return TABLE.get(name)


_ATEN = torch.ops.aten
_TAKEN_APART = (
    _ATEN.upsample_bilinear2d,
    _ATEN.upsample_nearest2d,
    _ATEN.native_layer_norm_backward,
    _ATEN.native_group_norm_backward,
    _ATEN._native_batch_norm_legit,
)
"""Operators that torch calls basic, and that are better as their parts."""


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """What torch should take apart before we see it: what is neither a row nor a better call.  It
    does so unasked with operators that are composite for autograd, too: looking for all of them
    takes longer than most graphs."""
    name = "_core_aten_decompositions_post_autograd"  # not there in every version of PyTorch
    given: Any = getattr(decomp, name, decomp.core_aten_decompositions)()
    given = getattr(given, "decomp_table", given)  # without a walk through all other libraries
    table: dict[Any, Callable[..., Any]] = {**given, **get_decompositions(_TAKEN_APART)}
    table = {op: rule for op, rule in table.items() if str(op) not in TABLE}
    own = encoder.PARTS | parts.PARTS | pairs.PARTS | embedding_bag.PARTS
    return table | {op: _either(rule, table.get(op)) for op, rule in own.items()}


def _either(own: Callable[..., Any], other: Callable[..., Any] | None) -> Callable[..., Any]:
    """Our rule, and torch's for what that does not apply to."""
    if other is None:
        return own

    @wraps(own)
    def rule(*operands: Any, **options: Any) -> Any:
        found = own(*operands, **options)
        return other(*operands, **options) if found is NotImplemented else found

    return rule
