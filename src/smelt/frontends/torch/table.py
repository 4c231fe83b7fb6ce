"""Collect all rows by name, and the decompositions for operators without a row.

>>> row_of("aten.add.Tensor").name
'aten.add.Tensor'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import _decomp as decomp
from torch._decomp import get_decompositions

from smelt.frontends.torch import (
    complex_operators,
    rows_elementwise,
    rows_loops,
    rows_product,
    rows_reduce,
    rows_scatter,
    rows_view,
    rows_window,
)
from smelt.frontends.torch.decompositions import DECOMPOSITIONS
from smelt.frontends.torch.eager_strides import ORDERED_LIKE, ordered, undecomposed
from smelt.frontends.torch.refusals import is_refused
from smelt.frontends.torch.row import Row

_SINGLE_TENSOR_ROWS: dict[str, Row] = {
    row.name: row
    for chapter in (
        rows_elementwise.ROWS,
        rows_view.ROWS,
        rows_reduce.ROWS,
        rows_product.ROWS,
        rows_scatter.ROWS,
        rows_window.ROWS,
    )
    for row in chapter
}


TABLE: dict[str, Row] = _SINGLE_TENSOR_ROWS | {
    row.name: row for row in rows_elementwise.foreach_rows(_SINGLE_TENSOR_ROWS)
}
"""All rows of overloads by name."""
_FUNCTIONAL_ROWS: dict[str, Row] = {row.name: row for row in rows_loops.ROWS}
"""Rows of operators that take functions, which are not overloads."""


def row_of(name: str) -> Row | None:
    """Return the row of an overload, named as torch prints it."""
    return TABLE.get(name) or _FUNCTIONAL_ROWS.get(name)


_ATEN = torch.ops.aten
_EXTRA_DECOMPOSITIONS = (
    _ATEN.upsample_bilinear2d,
    _ATEN.upsample_nearest2d,
    _ATEN.native_layer_norm_backward,
    _ATEN.native_group_norm_backward,
    _ATEN._native_batch_norm_legit,
)
"""Operators that torch does not decompose by default, and that are better decomposed."""


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions that torch should apply before lowering.

    Operators with a row are not decomposed. The table leaves out operators that are composite for
    autograd, which torch decomposes by itself: collecting all of them takes longer than most
    graphs.
    """
    name = "_core_aten_decompositions_post_autograd"  # not there in every version of PyTorch
    defaults: Any = getattr(decomp, name, decomp.core_aten_decompositions)()
    defaults = getattr(defaults, "decomp_table", defaults)  # avoids a scan of all other libraries
    table: dict[Any, Callable[..., Any]] = {**defaults, **get_decompositions(_EXTRA_DECOMPOSITIONS)}
    table = {op: rule for op, rule in table.items() if str(op) not in TABLE}
    rules = DECOMPOSITIONS | complex_operators.DECOMPOSITIONS
    table |= {op: _with_fallback(ordered(op, rule), table.get(op)) for op, rule in rules.items()}
    table |= {op: ordered(op, table.get(op)) for op in ORDERED_LIKE}
    return {op: _unless_refused(op, rule) for op, rule in table.items()}


def _unless_refused(op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a call that eager code refuses, so that torch raises its error."""

    @wraps(rule)
    def checked(*operands: Any, **options: Any) -> Any:
        if is_refused(op, operands, options):
            return undecomposed(op, operands, options)
        return rule(*operands, **options)

    return checked


def _with_fallback(
    ours: Callable[..., Any], theirs: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Try our rule, then torch's if that does not apply."""
    if theirs is None:
        return ours

    @wraps(ours)
    def rule(*operands: Any, **options: Any) -> Any:
        result = ours(*operands, **options)
        return theirs(*operands, **options) if result is NotImplemented else result

    return rule
