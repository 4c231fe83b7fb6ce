"""Rows that are added at positions, as torch does it fastest.

The gradient of a value read at positions adds with `index_put`, element by element.  Where a
position takes a row, `index_add` adds the row at once: less than half the time.  Positions along
several dimensions, each along its own, are several such sums.

>>> x, at = torch.zeros(4, 64), torch.tensor([1, -1] * 400)
>>> put(x, [at], torch.ones(800, 64), True)[:, 0].tolist()
[0.0, 400.0, 0.0, 400.0]
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["put"]

_LEAST = 32768
"""Elements from which it pays to look at the positions first: they may be negative.  A quarter for
each further dimension: `index_put` then works out every element's place from all positions."""
_ROW = 32
"""Elements that a position must take at least, for its sum to start cheaply."""


def put(
    x: torch.Tensor, positions: Sequence[torch.Tensor | None], values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`aten.index_put`, with the same result but for the order of sums."""
    first = next((d for d, p in enumerate(positions) if p is not None), 0)
    found: list[torch.Tensor] = []
    if accumulate and values.numel() * 4 ** len(positions[first + 1 :]) >= _LEAST:
        found = _rows(x, first, positions[first:], values)
    if found:
        return _added(x, first, found, values)
    return torch.ops.aten.index_put.default(x, positions, values, accumulate)


def _rows(
    x: torch.Tensor, first: int, positions: Sequence[torch.Tensor | None], values: torch.Tensor
) -> list[torch.Tensor]:
    """The positions along each dimension from the first; none where they do not vary along a
    dimension of their own, or each takes too few elements."""
    found: list[torch.Tensor] = []
    for k, at in enumerate(positions):
        own = len(positions) - k  # the positions' dimensions from the one that is this one's
        if at is None or at.dtype != torch.int64 or at.dim() < own:
            return []
        if at.numel() != at.shape[-own] or at.numel() * _ROW > values.numel():
            return []
        found.append(at.reshape(-1))
    counts = [at.numel() for at in found]
    whole = [*x.shape[:first], *counts, *x.shape[first + len(found) :]]
    alike = values.dtype == x.dtype and x.is_floating_point()
    return found if alike and list(values.shape) == whole else []


def _added(
    x: torch.Tensor, first: int, rows: Sequence[torch.Tensor], values: torch.Tensor
) -> torch.Tensor:
    """Adds dimension by dimension, from the last."""
    for d in reversed(range(first, first + len(rows))):
        size = x.shape[d]
        at = rows[d - first]
        into = (
            x if d == first else values.new_zeros([*values.shape[:d], size, *values.shape[d + 1 :]])
        )
        values = torch.index_add(into, d, torch.where(at < 0, at + size, at), values)
    return values
