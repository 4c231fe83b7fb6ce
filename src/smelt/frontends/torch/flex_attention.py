"""Decompose `flex_attention` into plain operators.

PyTorch's operator is one call with two functions inside: how a score is modified and which scores
count. The decomposition is what a user of plain operators would write: positions from `arange`,
scores masked; the planner finds tiles without visible scores as in any other program. The user's
block lists are not read: they follow from the mask.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Tensors = tuple[torch.Tensor, ...]


def decompose_flex_attention(module: torch.fx.GraphModule) -> None:
    """Replace the operator in a program that Dynamo has traced."""
    operator = getattr(torch.ops.higher_order, "flex_attention", None)
    calls = module.graph.find_nodes(op="call_function", target=operator) if operator else ()
    for node in calls:
        node.target = _attention
    if calls:
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
    """Return attention, the log2 of the softmax's sums, and the largest scores in base 2.

    Queries are [B, H, M, D]; keys [B or 1, H / g, N, D] and values have g times fewer heads. The
    last two results are [B, H, M]. A query that sees no key gets zeros, and -inf for both.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    key, value = (_expand_heads(x, query) for x in (key, value))
    compute_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(compute_dtype) @ key.to(compute_dtype).transpose(-2, -1) * scale
    positions = [torch.arange(n) for n in scores.shape]
    modify = _vmap_for_bhqkv(score_mod, (0,), (None,) * len(score_mod_other_buffers))
    masked = _vmap_for_bhqkv(block_mask[-1], (), (None,) * len(mask_mod_other_buffers))
    with TransformGetItemToIndex():
        mask = masked(*positions, *mask_mod_other_buffers)
        scores = modify(scores, *positions, *score_mod_other_buffers).to(compute_dtype)
    scores = torch.where(mask, scores, -math.inf)
    maximum = scores.amax(-1, keepdim=True)
    shift = torch.where(maximum == -math.inf, 0.0, maximum)
    exponentials = torch.exp(scores - shift)
    total = exponentials.sum(-1, keepdim=True)
    weights = exponentials / torch.where(total == 0, 1.0, total)
    output = weights.to(query.dtype) @ value
    logarithm = (torch.log(total) + shift).squeeze(-1)
    return (
        _in_order_of(query, output),
        logarithm / math.log(2),
        maximum.squeeze(-1) / math.log(2),
    )


def _in_order_of(query: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Return the output with strides in the order of the query's.

    The last dimension is contiguous. Torch's own function writes through a view up to torch 2.11,
    which would be an operator of its own.
    """
    from torch._higher_order_ops.flex_attention import _construct_strides
    from torch._inductor.ir import get_fill_order

    last = output.dim() - 1
    order = get_fill_order(query.stride())
    strides = _construct_strides(output.shape, [last, *(d for d in order if d != last)])
    return output.new_empty_strided(output.shape, strides).copy_(output)


def _expand_heads(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Repeat keys or values for each head and batch of the queries."""
    shared, group = x.shape[1], query.shape[1] // x.shape[1]
    if group > 1:
        shape = (x.shape[0], shared, group, *x.shape[2:])
        x = x.unsqueeze(2).expand(shape).flatten(1, 2)
    return x.expand(query.shape[0], *x.shape[1:])
