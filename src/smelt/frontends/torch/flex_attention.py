"""Attention with functions of its scores (`flex_attention`) as the operators that it stands for.

PyTorch's operator is one call with two programs inside, what becomes of a score and which ones
count.  Eager code computes it over the whole matrix of scores; written out, it is what a user of
plain operators writes: positions are counted, scores are masked, and where a mask leaves tiles out
is seen by the planner as in any other program.  The blocks that the user lists are not asked:
they follow from the mask.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["spell_out_scores"]

Tensors = tuple[torch.Tensor, ...]


def spell_out_scores(module: torch.fx.GraphModule) -> None:
    """Has a program that Dynamo has traced compute the operator by others."""
    operator = getattr(torch.ops.higher_order, "flex_attention", None)
    found = module.graph.find_nodes(op="call_function", target=operator) if operator else ()
    for node in found:
        node.target = _attention
    if found:
        module.recompile()


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any],
    block_mask: tuple[Any, ...],
    scale: float,
    _options: dict[str, Any],
    score_mod_other_buffers: Tensors = (),
    mask_mod_other_buffers: Tensors = (),
) -> Tensors:
    """Attention of queries [B, H, M, D] over keys [B or 1, H / g, N, D] and values of such heads;
    the logarithms to base 2 of the softmax's sums, and the largest scores in that base [B, H, M].
    A query that no key counts for gets zeros, and -inf for both."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch._higher_order_ops.flex_attention import _permute_strides
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    key, value = (_for_heads(x, query) for x in (key, value))
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
    places = [torch.arange(n) for n in scores.shape]
    score = _vmap_for_bhqkv(score_mod, (0,), (None,) * len(score_mod_other_buffers))
    counts = _vmap_for_bhqkv(block_mask[-1], (), (None,) * len(mask_mod_other_buffers))
    with TransformGetItemToIndex():
        mask = counts(*places, *mask_mod_other_buffers)
        scores = score(scores, *places, *score_mod_other_buffers).to(wide)
    scores = torch.where(mask, scores, -math.inf)
    top = scores.amax(-1, keepdim=True)
    base = torch.where(top == -math.inf, 0.0, top)
    grown = torch.exp(scores - base)
    total = grown.sum(-1, keepdim=True)
    weights = grown / torch.where(total == 0, 1.0, total)
    found = weights.to(query.dtype) @ value
    logarithm = (torch.log(total) + base).squeeze(-1)
    return (
        _permute_strides(found, query.stride()),
        logarithm / math.log(2),
        top.squeeze(-1) / math.log(2),
    )


def _for_heads(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values for each head and batch of the queries."""
    shared, each = x.shape[1], query.shape[1] // x.shape[1]
    if each > 1:
        wide = (x.shape[0], shared, each, *x.shape[2:])
        x = x.unsqueeze(2).expand(wide).flatten(1, 2)
    return x.expand(query.shape[0], *x.shape[1:])
