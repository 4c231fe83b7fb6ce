"""Convert element types between torch and Smelt.

>>> from smelt.types.dtype import i64
>>> from_torch(torch.bfloat16), to_torch(i64)
(bf16, torch.int64)
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.errors import UnsupportedError
from smelt.types.dtype import COMPUTABLE, DType

_FROM_TORCH = {getattr(torch, row.long): row for row in COMPUTABLE}
_TO_TORCH: dict[DType, torch.dtype] = {row: dtype for dtype, row in _FROM_TORCH.items()}


def from_torch(dtype: Any) -> DType:
    """Return our element type for a torch dtype; raises UnsupportedError if there is none."""
    row = _FROM_TORCH.get(dtype)
    if row is None:
        raise UnsupportedError(f"{dtype} has no counterpart in Smelt")
    return row


def to_torch(dtype: DType) -> torch.dtype:
    """Return the torch dtype of our element type."""
    return _TO_TORCH[dtype]
