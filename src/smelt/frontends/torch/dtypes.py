"""Convert element types between torch and Smelt.

>>> from_torch(torch.bfloat16), to_torch(i64)
(bf16, torch.int64)
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.errors import UnsupportedError
from smelt.types.dtype import (
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)

_PAIRS: tuple[tuple[torch.dtype, DType], ...] = (
    (torch.bool, bool_),
    (torch.int8, i8),
    (torch.int16, i16),
    (torch.int32, i32),
    (torch.int64, i64),
    (torch.uint8, u8),
    (torch.uint16, u16),
    (torch.uint32, u32),
    (torch.uint64, u64),
    (torch.float16, f16),
    (torch.bfloat16, bf16),
    (torch.float32, f32),
    (torch.float64, f64),
)
_FROM_TORCH = dict(_PAIRS)
_TO_TORCH: dict[DType, torch.dtype] = {b: a for a, b in _PAIRS}


def from_torch(dtype: Any) -> DType:
    """Return our element type for a torch dtype; raises UnsupportedError if there is none."""
    row = _FROM_TORCH.get(dtype)
    if row is None:
        raise UnsupportedError(f"{dtype} has no counterpart in Smelt")
    return row


def to_torch(dtype: DType) -> torch.dtype:
    """Return the torch dtype of our element type."""
    return _TO_TORCH[dtype]
