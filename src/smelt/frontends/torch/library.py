"""PyTorch's matrix product and convolution, which the plans of PyTorch's programs may call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from smelt.ops.library_product import Provider, WindowedProduct, add_provider
from smelt.ops.spec import Array


def _matmul(out: Array, left: Array, right: Array) -> None:
    with torch.inference_mode():
        torch.matmul(_tensor(left), _tensor(right), out=_tensor(out))


def _convolve(out: Array, images: Array, filters: Array, w: WindowedProduct) -> None:
    places = len(w.steps)
    with torch.inference_mode():
        result = torch.ops.aten.convolution.default(
            _tensor(images),
            _tensor(filters),
            None,
            w.steps,
            w.padding,
            w.dilations,
            False,
            [0] * places,
            1,
        )
        torch.from_numpy(out).copy_(result)


def _tensor(x: Array) -> torch.Tensor:
    """Return an array as a tensor, without a copy if PyTorch can describe it."""
    if min(x.strides, default=0) < 0 or not x.flags.writeable:
        x = np.array(x)
    return torch.from_numpy(x)  # pyright: ignore[reportUnknownMemberType]


_threads: Any = torch
TORCH = add_provider(
    Provider(
        "torch", "PyTorch", _matmul, _threads.get_num_threads, _threads.set_num_threads, _convolve
    )
)
