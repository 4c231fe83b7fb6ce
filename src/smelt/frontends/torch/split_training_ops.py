"""Decompose training operators of which one part is ours and another torch's.

Called as one operator, a dropout separates the graph before it from the one after it. What it draws
depends only on the shape of its operand, so all draws of a program are made first, in program
order, and its operators become one graph. The numbers are those of eager code.

The gradients of a convolution are three sums that have nothing in common but the operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.frontends.torch.layout import memory_order

ATEN: Any = torch.ops.aten


def _dropout(x: Any, p: float, train: bool | None) -> Any:
    """Return the scaled operand, and which elements are kept."""
    order = memory_order(x)
    if train is False or order is None:
        return NotImplemented  # torch chooses the order in which it draws
    if p == 1 or any(isinstance(n, int) and n == 0 for n in x.shape):  # nothing is drawn
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    buffer = torch.empty([x.shape[a] for a in order], dtype=torch.bool, device=x.device)
    mask = ATEN.bernoulli.p(buffer, 1 - p).permute([order.index(a) for a in range(len(order))])
    return x * mask * (1 / (1 - p)), mask


def _convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """Return the gradients of image, weights and bias, each from a call of its own."""
    if sum(output_mask) == 1 and not output_mask[2]:
        return NotImplemented

    def gradient(position: int) -> Any:
        mask = [k == position for k in range(3)]
        return ATEN.convolution_backward.default(
            grad,
            x,
            weight,
            bias,
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
            mask,
        )[position]

    of_bias = grad.sum([0, *range(2, grad.dim())]) if output_mask[2] else None
    return *(gradient(k) if output_mask[k] else None for k in (0, 1)), of_bias


def _weight_norm_backward(grad: Any, v: Any, g: Any, norms: Any, dim: int) -> Any:
    """Return the gradients of `v` and `g` for weights `v * (g / norm(v))`."""
    dtype = torch.promote_types(norms.dtype, g.dtype)
    grad, direction, norms = grad.to(dtype), v.to(dtype), norms.to(dtype)
    rest = [a for a in range(v.dim()) if a != dim % v.dim()]
    of_g = (grad * direction).sum(rest, keepdim=True) / norms
    of_v = (g.to(dtype) / norms) * (grad - direction * (of_g / norms))
    return of_v.to(v.dtype), of_g.to(g.dtype)


def _trilinear(
    a: Any,
    b: Any,
    c: Any,
    of_a: Sequence[int],
    of_b: Sequence[int],
    of_c: Sequence[int],
    summed: Sequence[int],
    _unrolled: int = 1,
) -> Any:
    """Sum products of three operands, which lack the dimensions `of_a`, `of_b` and `of_c`.

    The first two are multiplied first, then the third, as eager code does: with infinities another
    order gives another sum.
    """
    rank = a.dim() + len(of_a)
    missing = [{d % rank for d in lacks} for lacks in (of_a, of_b, of_c)]
    axes = [[d for d in range(rank) if d not in lacks] for lacks in missing]
    operands = list(zip((a, b, c), axes, strict=True))
    sizes = {d: n for x, dims in operands for d, n in zip(dims, x.shape, strict=True)}
    if any(n != sizes[d] for x, dims in operands for d, n in zip(dims, x.shape, strict=True)):
        return NotImplemented  # a broadcast dimension of size 1
    output_dims = [d for d in range(rank) if d not in {s % rank for s in summed}]

    def letters(dims: Sequence[int]) -> str:
        return "".join(chr(ord("a") + d) for d in dims)

    of_x, of_y, of_z = axes
    pair = [d for d in range(rank) if d in (*of_x, *of_y) and d in (*of_z, *output_dims)]
    first = torch.einsum(f"{letters(of_x)},{letters(of_y)}->{letters(pair)}", a, b)
    return torch.einsum(f"{letters(pair)},{letters(of_z)}->{letters(output_dims)}", first, c)


def _take(x: Any, index: Any) -> Any:
    """Gather elements at row-major positions."""
    return ATEN.index.Tensor(x.reshape(-1), [index.reshape(-1)]).reshape(index.shape)


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Write elements at row-major positions."""
    if memory_order(x) != list(range(x.dim())):
        return NotImplemented
    at, values = index.reshape(-1), source.reshape(-1)
    return ATEN.index_put.default(x.reshape(-1), [at], values, accumulate).reshape(x.shape)


def _distances(a: Any, b: Any, p: float, mode: int | None) -> Any:
    """Return the distances of all pairs of points.

    Left to torch where eager code computes them by a product.
    """
    if p == 2 and (mode == 1 or (mode in (None, 0) and not _uses_direct_distances(a, b))):
        return NotImplemented
    if a.shape[-1] == 0 or 0 in a.shape or 0 in b.shape:
        return NotImplemented
    difference = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 0:
        return difference.ceil().clamp(max=1).sum(-1)
    if p == 1:
        return difference.sum(-1)
    if p == math.inf:  # eager code ignores NaN here
        return torch.where(difference.isnan(), 0.0, difference).amax(-1)
    if p == 2:
        return difference.square().sum(-1).sqrt()
    return difference.pow(p).sum(-1).pow(1 / p)


def _uses_direct_distances(a: Any, b: Any) -> bool:
    """Whether there are so few points that eager code computes distances directly."""
    return not (a.shape[-2] > 25 or b.shape[-2] > 25)


def _distances_backward(grad: Any, a: Any, b: Any, p: float, distances: Any) -> Any:
    """Return the gradient of the first points; 0 for equal points."""
    if 0 in a.shape or 0 in b.shape:
        return NotImplemented
    difference = a.unsqueeze(-2) - b.unsqueeze(-3)
    grad, length = grad.unsqueeze(-1), distances.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(a)
    if p == 1:
        terms = grad * difference.sign()
    elif p == math.inf:
        terms = grad * difference.sign() * (difference.abs() == length)
    elif p == 2:
        terms = torch.where(length == 0, 0.0, grad / length) * difference
    else:
        return NotImplemented
    return terms.sum(-2)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    ATEN._cdist_backward.default: _distances_backward,
    ATEN._cdist_forward.default: _distances,
    ATEN._weight_norm_interface_backward.default: _weight_norm_backward,
    ATEN._trilinear.default: _trilinear,
    ATEN.native_dropout.default: _dropout,
    ATEN.put.default: _put,
    ATEN.take.default: _take,
    ATEN.convolution_backward.default: _convolution_backward,
}
"""Decompositions by operator."""
