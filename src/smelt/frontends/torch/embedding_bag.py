"""Sums of a table's rows by bags, in parts: which bag a position belongs to is a running count.

`EmbeddingBag` reads rows of a table and adds those of each bag; bags follow one another, and are
given by where each begins.  The number of bags that begin up to a position, less one, is its bag:

    bag = cumsum(zeros(n + 1).index_add(0, offsets, 1))[:n] - 1
    out = zeros(bags, width).index_add(0, bag, weight[indices])

The first sum is exact, and the second adds in the order of positions, as eager code does.  Rows
that are read, what is computed of them and the sums are kernels as others are.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["PARTS"]

ATEN: Any = torch.ops.aten
_SUM, _MEAN = 0, 1


def _plain(frequency: bool, mode: int, sparse: bool, factors: Any, padding: int) -> bool:
    """Whether bags are sums or means of all of their rows."""
    return (
        mode in (_SUM, _MEAN) and not frequency and not sparse and factors is None and padding < 0
    )


def _bag_of(offsets: Any, n: Any) -> Any:
    """The bag of each of so many positions."""
    starts = offsets.to(torch.int64)
    begun = torch.zeros(n + 1, dtype=torch.int64, device=starts.device)
    begun = begun.index_add(0, starts, torch.ones_like(starts))
    return torch.cumsum(begun, 0)[:n] - 1


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
    """The bags, the bag of each position, how many positions each has, and nothing."""
    if not _plain(frequency, mode, sparse, factors, padding) or weight.dtype not in _KINDS:
        return NotImplemented
    n, width = indices.shape[0], weight.shape[1]
    if isinstance(n, int) and isinstance(width, int) and n * width > _MOST:
        return NotImplemented
    starts = offsets[:-1] if last else offsets
    bag = _bag_of(starts, n)
    count = torch.diff(starts, append=starts.new_full((1,), n))
    found = weight.new_zeros(starts.shape[0], width)
    found = found.index_add(0, bag, ATEN.embedding.default(weight, indices))
    if mode == _MEAN:
        found = found / count.clamp(min=1).to(weight.dtype)[:, None]
    return found, bag.to(offsets.dtype), count, torch.zeros_like(offsets)


_KINDS = (torch.float32, torch.float64)
_MOST = 1 << 14
"""Elements that are read at most: with more, what a call of torch costs is little beside its loop,
which adds what it reads in registers."""


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
    """The gradient of the table.  Eager code does not always tell the bags."""
    if not _plain(frequency, mode, sparse, factors, padding) or grad.dtype not in _KINDS:
        return NotImplemented
    if mode == _MEAN:
        grad = grad / count[: grad.shape[0]].clamp(min=1).to(grad.dtype)[:, None]
    each = ATEN.index_select.default(grad, 0, _bag_of(offsets, indices.shape[0]))
    return ATEN.embedding_dense_backward.default(each, indices, rows, -1, False)


PARTS: dict[Any, Callable[..., Any]] = {
    ATEN._embedding_bag.default: _bags,
    ATEN._embedding_bag_forward_only.default: _bags,
    ATEN._embedding_bag_backward.default: _bags_backward,
}
"""Decompositions by operator."""
