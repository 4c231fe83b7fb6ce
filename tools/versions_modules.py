"""Modules of PyTorch that `tools.versions` tries: small ones of the kinds that people write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["MODELS"]


class Residual(nn.Module):
    """A module around which its input is added."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


class Attention(nn.Module):
    """Attention of four heads, from one product for queries, keys and values."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(32, 96), nn.Linear(32, 32), causal

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        attend = nn.functional.scaled_dot_product_attention
        return self.out(attend(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Language(nn.Module):
    """Embedding, a causal block, logits by the same weights, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.block = Residual(nn.Sequential(nn.LayerNorm(32), Attention(True)))

    def forward(self, x: Any) -> Any:
        ids = (x.abs() * 20).long() % 50
        logits = self.block(self.words(ids)) @ self.words.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


class Recurrent(nn.Module):
    """A cell of a gated recurrent unit in a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x: Any) -> Any:
        h = x.new_zeros(x.shape[0], 16)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h


def normed(m: int) -> Any:
    """Return a convolution with batch norm and ReLU."""
    return nn.Sequential(nn.Conv2d(m, m, 3, padding=1), nn.BatchNorm2d(m), nn.ReLU())


def depthwise() -> Any:
    """Return a depthwise convolution, a pointwise one, and pooling."""
    first = nn.Conv2d(4, 4, 3, 2, 1, groups=4)
    return nn.Sequential(first, nn.SiLU(), nn.Conv2d(4, 8, 1), nn.AvgPool2d(3))


def upsampled() -> Any:
    """Return pooling, a normed convolution, and two ways to enlarge an image."""
    return nn.Sequential(
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.Upsample(scale_factor=2),
        nn.ConvTranspose2d(4, 2, 2, 2),
    )


def encoder_layer() -> Any:
    """Return PyTorch's own layer of an encoder."""
    return nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True)


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)), (16,)),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(32), Gated(), nn.Softmax(-1)), (9, 32)),
    "attention": (lambda: Residual(Attention(causal=False)), (7, 32)),
    "causal attention": (lambda: Residual(Attention(causal=True)), (12, 32)),
    "encoder layer": (encoder_layer, (6, 32)),
    "language model": (Language, (11,)),
    "residual convolutions": (lambda: nn.Sequential(normed(4), Residual(normed(4))), (4, 12, 12)),
    "depthwise convolutions": (depthwise, (4, 13, 13)),
    "upsampling": (upsampled, (4, 8, 8)),
    "recurrent": (Recurrent, (5, 16)),
}
"""Name -> a function that makes the module, and the shape of an input without its batch."""
