"""A U-Net block of a diffusion model, as a PyTorch module."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["diffusion_block"]


def diffusion_block(channels: int, heads: int) -> Any:
    """Return a residual block with time embedding, attention and upsampling.

    The attention is over all pixels, the upsampling by two. Inputs are x [batch, channels, height,
    width] and t [batch, 6]. Raises ImportError without PyTorch.
    """
    torch = import_module("torch")
    nn, F = torch.nn, torch.nn.functional

    class DiffusionBlock(nn.Module):  # pyright: ignore[reportUntypedBaseClass]
        def __init__(self) -> None:
            super().__init__()
            groups = channels // 4
            self.norms = nn.ModuleList(nn.GroupNorm(groups, channels) for _ in range(3))
            self.convs = nn.ModuleList(
                nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)
            )
            self.time = nn.Linear(6, channels)
            self.qkv = nn.Conv2d(channels, 3 * channels, 1)
            self.out = nn.Conv2d(channels, channels, 1)

        def forward(self, x: Any, t: Any) -> Any:
            y = self.convs[0](F.silu(self.norms[0](x)))
            y = y + self.time(F.silu(t))[:, :, None, None]
            x = x + self.convs[1](F.silu(self.norms[1](y)))
            b, c, h, w = x.shape
            parts = self.qkv(self.norms[2](x)).view(b, 3, heads, c // heads, h * w)
            q, k, v = (p.transpose(2, 3) for p in parts.unbind(1))
            y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, h, w)
            return F.interpolate(x + self.out(y), scale_factor=2.0, mode="nearest")

    return DiffusionBlock()
