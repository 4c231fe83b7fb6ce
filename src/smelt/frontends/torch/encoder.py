"""Decompose the fused attention and encoder-layer operators of inference.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` are one operator each when no gradients are
needed, which nothing around them could fuse with. These rules compute the same with operators that
have rows.

    y = norm1(x + attention(x))                z = norm2(y + down(relu(up(y))))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

F = torch.nn.functional

_PAIR_MASK, _KEY_MASK = 0, 1
"""Types of masks: over pairs of positions, over keys; other masks have all four axes of the scores.
"""


def _visible(mask: Any, kind: int | None, scores: Any) -> Any:
    """Return which scores count: those that a boolean mask does not exclude.

    NotImplemented for a shape that does not fit the mask's type.
    """
    batch, _, rows, columns = scores.shape
    shape = {_PAIR_MASK: (1, 1, rows, columns), _KEY_MASK: (batch, 1, 1, columns)}.get(
        -1 if kind is None else kind, tuple(scores.shape)
    )
    if mask.numel() != torch.Size(shape).numel():
        return NotImplemented
    return mask.to(torch.bool).logical_not().view(shape)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Self-attention, and its weights if they are requested."""
    if query is not key or key is not value or query.is_nested:
        return NotImplemented
    q, k, v = (
        x.unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x in F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    )
    scores = (q * (embed_dim // num_head) ** -0.5) @ k.mT
    if mask is None:
        weights = scores.softmax(-1)
    else:
        visible = _visible(mask, mask_type, scores)
        if visible is NotImplemented:
            return NotImplemented
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    output = F.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return output, query.new_empty(0)
    return output, weights.mean(1) if average_attn_weights else weights


def _layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """A whole encoder layer, with its norms before or after the residual sums."""
    if src.is_nested:
        return NotImplemented

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    attention = _attention(
        x,
        x,
        x,
        embed_dim,
        num_heads,
        qkv_weight,
        qkv_bias,
        proj_weight,
        proj_bias,
        mask,
        False,
        True,
        mask_type,
    )
    if attention is NotImplemented:
        return NotImplemented
    x = src + attention[0]
    if not norm_first:
        x = norm(x, norm_weight_1, norm_bias_1)
    hidden = F.linear(
        norm(x, norm_weight_2, norm_bias_2) if norm_first else x, ffn_weight_1, ffn_bias_1
    )
    x = x + F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)
    return x if norm_first else norm(x, norm_weight_2, norm_bias_2)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._native_multi_head_attention.default: _attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: _layer,
}
"""Decompositions by operator."""
