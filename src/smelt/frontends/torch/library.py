"""PyTorch's matrix product, which the plans of PyTorch's programs may call."""

from __future__ import annotations

import numpy as np
import torch

from smelt.ops.library_product import Provider, add_provider
from smelt.ops.spec import Array

__all__ = ["TORCH"]


def _matmul(out: Array, left: Array, right: Array) -> None:
    with torch.inference_mode():
        torch.matmul(_tensor(left), _tensor(right), out=_tensor(out))


def _tensor(x: Array) -> torch.Tensor:
    """Return an array as a tensor of the same memory; copy one that PyTorch cannot describe."""
    if min(x.strides, default=0) < 0 or not x.flags.writeable:
        x = np.array(x)
    return torch.from_numpy(x)  # pyright: ignore[reportUnknownMemberType]


TORCH = add_provider(
    Provider("torch", "PyTorch", _matmul, torch.get_num_threads, torch.set_num_threads)
)
