"""The demo's network as a plain PyTorch module, for comparison.

Written as one would write it for eager PyTorch, with the library's fast paths (`linear`,
`layer_norm`, `gelu`, `scaled_dot_product_attention`), on the same parameters. The arrays are
shared, not copied. PyTorch is imported only when a module is built.

    model = build(weights.load())
    with torch.inference_mode():
        vectors = model(torch.from_numpy(ids), torch.from_numpy(mask))
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from typing import Any

from demo.minilm import EPSILON, HEADS, Weights, layers_of


def build(weights: Weights, *, heads: int = HEADS) -> Any:
    """Return a `torch.nn.Module` in evaluation mode: (ids, mask) -> float32 [batch, hidden].

    Args:
        weights: NumPy arrays as `weights.load` returns them.
        heads: attention heads.

    Raises:
        ImportError: PyTorch is not installed.
    """
    import torch
    from torch import Tensor
    from torch.nn import functional

    class MiniLM(torch.nn.Module):
        """MiniLM-L6-v2 with masked mean pooling and unit-length output."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = layers_of(weights)
            for name, value in weights.items():
                tensor = torch.from_numpy(value)
                # `linear` wants [outputs, inputs]: a view is enough, as BLAS transposes for free.
                tensor = tensor.T if name.endswith(".matrix") else tensor
                self.register_parameter(
                    _flat(name), torch.nn.Parameter(tensor, requires_grad=False)
                )

        def part(self, name: str) -> Tensor:
            return self.get_parameter(_flat(name))

        def linear(self, at: str, x: Tensor) -> Tensor:
            return functional.linear(x, self.part(f"{at}.matrix"), self.part(f"{at}.bias"))

        def norm(self, at: str, x: Tensor) -> Tensor:
            scale, shift = self.part(f"{at}.scale"), self.part(f"{at}.shift")
            return functional.layer_norm(x, scale.shape, scale, shift, EPSILON)

        def attention(self, at: str, x: Tensor, mask: Tensor) -> Tensor:
            batch, length, hidden = x.shape
            query, key, value = (
                self.linear(f"{at}.{part}", x).view(batch, length, heads, -1).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            joined = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            joined = joined.transpose(1, 2).reshape(batch, length, hidden)
            return self.linear(f"{at}.attended", joined)

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            places = self.part("positions")[: ids.shape[1]] + self.part("segments")[0]
            x = functional.embedding(ids, self.part("words")) + places
            x = self.norm("embed_norm", x)
            keys = mask[:, None, None, :]
            for layer in range(self.layers):
                at = f"layer{layer}"
                x = self.norm(f"{at}.attention_norm", x + self.attention(at, x, keys))
                wide = functional.gelu(self.linear(f"{at}.widen", x))
                x = self.norm(f"{at}.norm", x + self.linear(f"{at}.narrow", wide))
            token_mask = mask[:, :, None].to(x.dtype)
            pooled = (x * token_mask).sum(dim=1) / token_mask.sum(dim=1)
            return functional.normalize(pooled, dim=1)

    return MiniLM().eval()


def _flat(name: str) -> str:
    """Return a parameter's name without dots, which modules reserve for submodules."""
    return name.replace(".", "_")
