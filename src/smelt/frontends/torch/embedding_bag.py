"""Decompose `EmbeddingBag` into a running count of bags and an `index_add`.

`EmbeddingBag` reads rows of a table and adds those of each bag; bags are consecutive, given by the
offset at which each begins. The number of bags that begin at or before a position, less one, is its
bag:

    bag = cumsum(zeros(n + 1).index_add(0, offsets, 1))[:n] - 1
    out = zeros(bags, width).index_add(0, bag, weight[indices])

The first sum is exact; the second adds in the order of positions, as eager code does. The gathers,
what is computed of them and the sums fuse as other operators do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ATEN: Any = torch.ops.aten
_SUM, _MEAN = 0, 1


def _is_supported(frequency: bool, mode: int, sparse: bool, factors: Any, padding: int) -> bool:
    """Whether bags are plain sums or means of all of their rows."""
    return (
        mode in (_SUM, _MEAN) and not frequency and not sparse and factors is None and padding < 0
    )


def _bag_of(offsets: Any, n: Any) -> Any:
    """Return the bag of each of `n` positions."""
    starts = offsets.to(torch.int64)
    starts_at = torch.zeros(n + 1, dtype=torch.int64, device=starts.device)
    starts_at = starts_at.index_add(0, starts, torch.ones_like(starts))
    return torch.cumsum(starts_at, 0)[:n] - 1


def _bags(
    weight: Any,
    indices: Any,
    offsets: Any,
    frequency: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    factors: Any = None,
    last: bool = False,
    padding: int = -1,
) -> Any:
    """Return the bags, the bag of each position, bag sizes, and no maxima."""
    if not _is_supported(frequency, mode, sparse, factors, padding) or weight.dtype not in _DTYPES:
        return NotImplemented
    n, width = indices.shape[0], weight.shape[1]
    if isinstance(n, int) and isinstance(width, int) and n * width > _MAX_ELEMENTS:
        return NotImplemented
    starts = offsets[:-1] if last else offsets
    bag = _bag_of(starts, n)
    count = torch.diff(starts, append=starts.new_full((1,), n))
    sums = weight.new_zeros(starts.shape[0], width)
    sums = sums.index_add(0, bag, ATEN.embedding.default(weight, indices))
    if mode == _MEAN:
        sums = sums / count.clamp(min=1).to(weight.dtype)[:, None]
    return sums, bag.to(offsets.dtype), count, torch.zeros_like(offsets)


_DTYPES = (torch.float32, torch.float64)
_MAX_ELEMENTS = 1 << 14
"""Maximum elements read. With more, the overhead of calling torch is small beside its loop, which
adds what it reads in registers."""


def _bags_backward(
    grad: Any,
    indices: Any,
    offsets: Any,
    _bag: Any,
    count: Any,
    _greatest: Any,
    rows: Any,
    frequency: bool,
    mode: int,
    sparse: bool,
    factors: Any,
    padding: int = -1,
) -> Any:
    """Return the gradient of the table.

    The bags are recomputed, as eager code may not pass them.
    """
    if not _is_supported(frequency, mode, sparse, factors, padding) or grad.dtype not in _DTYPES:
        return NotImplemented
    if mode == _MEAN:
        grad = grad / count[: grad.shape[0]].clamp(min=1).to(grad.dtype)[:, None]
    row_grads = ATEN.index_select.default(grad, 0, _bag_of(offsets, indices.shape[0]))
    return ATEN.embedding_dense_backward.default(row_grads, indices, rows, -1, False)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    ATEN._embedding_bag.default: _bags,
    ATEN._embedding_bag_forward_only.default: _bags,
    ATEN._embedding_bag_backward.default: _bags_backward,
}
"""Decompositions by operator."""
