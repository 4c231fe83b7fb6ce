"""Bits of eager results, and what eager code computes in its two kinds of loops.

Eager code computes contiguous elements in vectors; the rest of them, and strided ones, one by one.
The two round differently in places (`torch.add` with a factor, zeros of either sign in `maximum`),
so the oracle is the vector loop, on operands whose length is a multiple of every vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

LANES = 64
"""A multiple of the elements that eager code's vector loops take at once."""
Function = Callable[..., Any]


def bits(x: torch.Tensor) -> torch.Tensor:
    """Return the patterns of elements, with one for all NaNs."""
    if not x.is_floating_point():
        return x.to(torch.int64)
    pattern = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return torch.where(x.isnan(), -(1 << 40), x.contiguous().view(pattern).to(torch.int64))


def patterns(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Return numbers of a half type: half of any size, half of ordinary size."""
    generator = torch.Generator().manual_seed(seed)
    every = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(dtype)
    some = every[torch.randperm(1 << 16, generator=generator)[:count]]
    usual = (torch.randn(count, generator=generator) * 3).to(dtype)
    return torch.where(torch.rand(count, generator=generator) < 0.5, some, usual)


def special(dtype: torch.dtype) -> torch.Tensor:
    """Return ±0, ±inf, NaN, subnormal and largest numbers, and ordinary ones."""
    info = torch.finfo(dtype)
    sizes = [0.0, torch.inf, info.max, info.tiny, info.tiny / 4, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 6.0]
    return torch.tensor([torch.nan, *sizes, *(-s for s in sizes)], dtype=torch.float64).to(dtype)


def eager(f: Function, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the results of eager code's vector loops."""
    count = operands[0].shape[0]
    return f(*(_padded(x, count) for x in operands))[:count]


def eager_one_by_one(f: Function, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the results of eager code's loops for single elements."""
    return f(*(x if not x.dim() else torch.stack((x, x), 1)[:, 0] for x in operands))


def _padded(x: torch.Tensor, count: int) -> torch.Tensor:
    if not x.dim():
        return x
    return torch.cat((x, x[:1].expand(-count % LANES)))


def compiled(functions: Sequence[Function], operands: Sequence[torch.Tensor]) -> Any:
    """Return the results of several functions, compiled as one."""
    torch.compiler.reset()
    together = torch.compile(
        lambda *xs: tuple(f(*xs) for f in functions), backend="smelt", dynamic=False
    )
    return together(*operands)
