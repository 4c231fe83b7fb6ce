"""Operators of training that are better as parts: some of them ours, the others torch's.

Called whole, a dropout stands between the graph in front of it and the one behind.  What it draws
depends on the shape of its operand alone, so that all draws of a program are made first, in the
program's order, and its operators become one graph.  The numbers are those of eager code.

The gradients of a convolution are three sums that have nothing in common but the operator.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.frontends.torch.layout import memory_order

__all__ = ["PARTS"]

ATEN: Any = torch.ops.aten


def _dropout(x: Any, p: float, train: bool | None) -> Any:
    """The scaled operand, and which elements are kept."""
    order = memory_order(x)
    if train is False or order is None:
        return NotImplemented  # torch chooses the order in which it draws
    if p == 1 or any(isinstance(n, int) and n == 0 for n in x.shape):  # nothing is drawn
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    room = torch.empty([x.shape[a] for a in order], dtype=torch.bool, device=x.device)
    kept = ATEN.bernoulli.p(room, 1 - p).permute([order.index(a) for a in range(len(order))])
    return x * kept * (1 / (1 - p)), kept


def _convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    more: Any,
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """Gradients of image, weights and bias."""
    if sum(wanted) == 1 and not wanted[2]:
        return NotImplemented

    def one(place: int) -> Any:
        mask = [k == place for k in range(3)]
        return ATEN.convolution_backward.default(
            grad, x, weight, bias, stride, padding, dilation, transposed, more, groups, mask
        )[place]

    of_bias = grad.sum([0, *range(2, grad.dim())]) if wanted[2] else None
    return *(one(k) if wanted[k] else None for k in (0, 1)), of_bias


def _weight_norm_backward(grad: Any, v: Any, g: Any, norms: Any, dim: int) -> Any:
    """Gradients of direction and length of weights that are `v * (g / norm(v))`."""
    wide = torch.promote_types(norms.dtype, g.dtype)
    grad, of, norms = grad.to(wide), v.to(wide), norms.to(wide)
    rest = [a for a in range(v.dim()) if a != dim % v.dim()]
    along = (grad * of).sum(rest, keepdim=True) / norms
    of_v = (g.to(wide) / norms) * (grad - of * (along / norms))
    return of_v.to(v.dtype), along.to(g.dtype)


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
    """A sum of products of three, each of which lacks the dimensions `of_a`, `of_b` and `of_c`: of
    the first two, then with the third, as eager code does: with infinities another order gives
    another sum."""
    rank = a.dim() + len(of_a)
    missing = [{d % rank for d in lacks} for lacks in (of_a, of_b, of_c)]
    axes = [[d for d in range(rank) if d not in lacks] for lacks in missing]
    operands = list(zip((a, b, c), axes, strict=True))
    sizes = {d: n for x, own in operands for d, n in zip(own, x.shape, strict=True)}
    if any(n != sizes[d] for x, own in operands for d, n in zip(own, x.shape, strict=True)):
        return NotImplemented  # a dimension of one that is repeated
    kept = [d for d in range(rank) if d not in {s % rank for s in summed}]

    def named(own: Sequence[int]) -> str:
        return "".join(chr(ord("a") + d) for d in own)

    of_x, of_y, of_z = axes
    pair = [d for d in range(rank) if d in (*of_x, *of_y) and d in (*of_z, *kept)]
    first = torch.einsum(f"{named(of_x)},{named(of_y)}->{named(pair)}", a, b)
    return torch.einsum(f"{named(pair)},{named(of_z)}->{named(kept)}", first, c)


def _take(x: Any, index: Any) -> Any:
    """Elements at positions in all of them, counted row after row."""
    return ATEN.index.Tensor(x.reshape(-1), [index.reshape(-1)]).reshape(index.shape)


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Writes at positions in all elements, counted row after row."""
    if memory_order(x) != list(range(x.dim())):
        return NotImplemented
    at, values = index.reshape(-1), source.reshape(-1)
    return ATEN.index_put.default(x.reshape(-1), [at], values, accumulate).reshape(x.shape)


def _distances(a: Any, b: Any, p: float, mode: int | None) -> Any:
    """Distances of all pairs of points, but where eager code makes them of a product."""
    if p == 2 and (mode == 1 or (mode in (None, 0) and not _are_few(a, b))):
        return NotImplemented
    if a.shape[-1] == 0 or 0 in a.shape or 0 in b.shape:
        return NotImplemented
    apart = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 0:
        return apart.ceil().clamp(max=1).sum(-1)
    if p == 1:
        return apart.sum(-1)
    if p == math.inf:  # what is unknown does not count, in eager code
        return torch.where(apart.isnan(), 0.0, apart).amax(-1)
    if p == 2:
        return apart.square().sum(-1).sqrt()
    return apart.pow(p).sum(-1).pow(1 / p)


def _are_few(a: Any, b: Any) -> bool:
    """Whether eager code takes so many points as they are."""
    return not (a.shape[-2] > 25 or b.shape[-2] > 25)


def _distances_backward(grad: Any, a: Any, b: Any, p: float, distances: Any) -> Any:
    """The gradient of the first points; of equal ones there is none."""
    if 0 in a.shape or 0 in b.shape:
        return NotImplemented
    apart = a.unsqueeze(-2) - b.unsqueeze(-3)
    grad, whole = grad.unsqueeze(-1), distances.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(a)
    if p == 1:
        each = grad * apart.sign()
    elif p == math.inf:
        each = grad * apart.sign() * (apart.abs() == whole)
    elif p == 2:
        each = torch.where(whole == 0, 0.0, grad / whole) * apart
    else:
        return NotImplemented
    return each.sum(-2)


PARTS: dict[Any, Callable[..., Any]] = {
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
