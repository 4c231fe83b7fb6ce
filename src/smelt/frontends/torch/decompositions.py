"""Decompose operators of torch that have no row into operators that have one.

Bags: `EmbeddingBag` reads rows of a table and adds those of each bag; bags are consecutive, given
by the offset at which each begins. The number of bags that begin at or before a position, less one,
is its bag:

    bag = cumsum(zeros(n + 1).index_add(0, offsets, 1))[:n] - 1
    out = zeros(bags, width).index_add(0, bag, weight[indices])

The first sum is exact; the second adds in the order of positions, as eager code does. The gathers,
what is computed of them and the sums fuse as other operators do.

Encoders: `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` are one operator each when no
gradients are needed, which nothing around them could fuse with.

    y = norm1(x + attention(x))                z = norm2(y + down(relu(up(y))))

Training operators of which one part is ours and another torch's: called as one operator, a dropout
separates the graph before it from the one after it. What it draws depends only on the shape of its
operand, so all draws of a program are made first, in program order, and its operators become one
graph. The numbers are those of eager code. The gradients of a convolution are three sums that have
nothing in common but the operator.

Resizes: PyTorch decomposes one into gathers before it differentiates, and the gradient of a gather
is a scatter-add: four of them for a bilinear resize and sixteen for a bicubic one, each as large as
the result. Torch's own backward operator, which is kept here, adds all of them in one pass.

    resized = functional.interpolate(x, size, mode="bilinear")     # gathers: kernels
    grad_x = upsample_bilinear2d_backward(grad, ..)                 # one call

For affine grids it is the other way round: torch's own backward does not take symbolic sizes, and
the decomposition does.

`flex_attention` is one call with two functions inside: how a score is modified and which scores
count. The decomposition is what a user of plain operators would write: positions from `arange`,
scores masked; the planner finds tiles without visible scores as in any other program. The user's
block lists are not read: they follow from the mask.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp.decompositions import affine_grid_generator
from torch.nn import functional

from smelt.frontends.torch.layout import memory_order

ATEN: Any = torch.ops.aten
Tensors = tuple[torch.Tensor, ...]
_SUM, _MEAN = 0, 1


def _is_supported(frequency: bool, mode: int, sparse: bool, factors: Any, padding: int) -> bool:
    """Whether bags are plain sums or means of all of their rows."""
    return (
        mode in (_SUM, _MEAN) and not frequency and not sparse and factors is None and padding < 0
    )


def _bag_of(offsets: Any, n: Any) -> Any:
    """Return the bag of each of `n` positions."""
    starts = offsets.to(torch.int64)
    starts_at = torch.zeros(n + 1, dtype=torch.int64, device=starts.device)
    starts_at = starts_at.index_add(0, starts, torch.ones_like(starts))
    return torch.cumsum(starts_at, 0)[:n] - 1


def _bags(
    weight: Any,
    indices: Any,
    offsets: Any,
    frequency: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    factors: Any = None,
    last: bool = False,
    padding: int = -1,
) -> Any:
    """Return the bags, the bag of each position, bag sizes, and no maxima."""
    if not _is_supported(frequency, mode, sparse, factors, padding) or weight.dtype not in _DTYPES:
        return NotImplemented
    n, width = indices.shape[0], weight.shape[1]
    if isinstance(n, int) and isinstance(width, int) and n * width > _MAX_ELEMENTS:
        return NotImplemented
    starts = offsets[:-1] if last else offsets
    bag = _bag_of(starts, n)
    count = torch.diff(starts, append=starts.new_full((1,), n))
    sums = weight.new_zeros(starts.shape[0], width)
    sums = sums.index_add(0, bag, ATEN.embedding.default(weight, indices))
    if mode == _MEAN:
        sums = sums / count.clamp(min=1).to(weight.dtype)[:, None]
    return sums, bag.to(offsets.dtype), count, torch.zeros_like(offsets)


_DTYPES = (torch.float32, torch.float64)
_MAX_ELEMENTS = 1 << 14
"""Maximum elements read. With more, the overhead of calling torch is small beside its loop, which
adds what it reads in registers."""


def _bags_backward(
    grad: Any,
    indices: Any,
    offsets: Any,
    _bag: Any,
    count: Any,
    _greatest: Any,
    rows: Any,
    frequency: bool,
    mode: int,
    sparse: bool,
    factors: Any,
    padding: int = -1,
) -> Any:
    """Return the gradient of the table.

    The bags are recomputed, as eager code may not pass them.
    """
    if not _is_supported(frequency, mode, sparse, factors, padding) or grad.dtype not in _DTYPES:
        return NotImplemented
    if mode == _MEAN:
        grad = grad / count[: grad.shape[0]].clamp(min=1).to(grad.dtype)[:, None]
    row_grads = ATEN.index_select.default(grad, 0, _bag_of(offsets, indices.shape[0]))
    return ATEN.embedding_dense_backward.default(row_grads, indices, rows, -1, False)


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
        for x in functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    )
    scores = (q * (embed_dim // num_head) ** -0.5) @ k.mT
    if mask is None:
        weights = scores.softmax(-1)
    else:
        visible = _visible(mask, mask_type, scores)
        if visible is NotImplemented:
            return NotImplemented
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    output = functional.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return output, query.new_empty(0)
    return output, weights.mean(1) if average_attn_weights else weights


def _layer(src: Any, *operands: Any) -> Any:
    """A whole encoder layer, with its norms before or after the residual sums."""
    if src.is_nested:
        return NotImplemented
    projections: Any = operands[:6]  # of the attention, after the width and the number of heads
    use_gelu, norm_first, eps = operands[6:9]
    norm_1, norm_2, up, down = (operands[k : k + 2] for k in range(9, 17, 2))
    mask, mask_type, *_ = (*operands[17:], None, None)

    def norm(x: Any, affine: Any) -> Any:
        return functional.layer_norm(x, operands[:1], *affine, eps=eps)

    x = norm(src, norm_1) if norm_first else src
    attention = _attention(
        x, x, x, *projections, mask=mask, need_weights=False, mask_type=mask_type
    )
    if attention is NotImplemented:
        return NotImplemented
    x = src + attention[0]
    if not norm_first:
        x = norm(x, norm_1)
    hidden = functional.linear(norm(x, norm_2) if norm_first else x, *up)
    hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
    x = x + functional.linear(hidden, *down)
    return x if norm_first else norm(x, norm_2)


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


def _convolution_backward(grad: Any, *settings: Any) -> Any:
    """Return the gradients of image, weights and bias, each from a call of its own."""
    *operands, output_mask = settings
    if sum(output_mask) == 1 and not output_mask[2]:
        return NotImplemented

    def gradient(position: int) -> Any:
        mask = [k == position for k in range(3)]
        return ATEN.convolution_backward.default(grad, *operands, mask)[position]

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


_BACKWARD: dict[tuple[str, int], Any] = {
    ("nearest", 1): ATEN.upsample_nearest1d_backward.default,
    ("nearest", 2): ATEN.upsample_nearest2d_backward.default,
    ("nearest", 3): ATEN.upsample_nearest3d_backward.default,
    ("nearest-exact", 1): ATEN._upsample_nearest_exact1d_backward.default,
    ("nearest-exact", 2): ATEN._upsample_nearest_exact2d_backward.default,
    ("nearest-exact", 3): ATEN._upsample_nearest_exact3d_backward.default,
    ("linear", 1): ATEN.upsample_linear1d_backward.default,
    ("bilinear", 2): ATEN.upsample_bilinear2d_backward.default,
    ("trilinear", 3): ATEN.upsample_trilinear3d_backward.default,
    ("bicubic", 2): ATEN.upsample_bicubic2d_backward.default,
}
"""Backward operator by mode and number of resized axes."""


def keep_native_backward(module: torch.fx.GraphModule) -> None:
    """Make the resizing steps of a traced program keep torch's backward operators.

    Steps with symbolic sizes stay decomposed: most backward operators do not support them. So does
    a program that uses `torch.func`: there such a step may be vmapped, or its backward
    differentiated.
    """
    graph = module.graph
    grids = graph.find_nodes(op="call_function", target=functional.affine_grid)
    for node in grids:
        node.target = _affine_grid
    if grids:
        module.recompile()
    steps = graph.find_nodes(op="call_function", target=functional.interpolate)
    if not steps or any(_is_function_transform(n) for n in graph.nodes if n.op == "call_function"):
        return
    for node in steps:
        node.target = _interpolate
    module.recompile()


def _affine_grid(theta: torch.Tensor, size: Any, align_corners: bool | None = None) -> torch.Tensor:
    """`functional.affine_grid`, decomposed if sizes are symbolic."""
    if not any(isinstance(n, torch.SymInt) for n in (*size, *theta.shape)):
        return functional.affine_grid(theta, size, align_corners)
    return affine_grid_generator(theta, list(size), bool(align_corners))


def _is_function_transform(node: torch.fx.Node) -> bool:
    module = str(getattr(node.target, "__module__", ""))
    return "functorch" in module or "_nesting" in getattr(node.target, "__name__", "")


def _interpolate(*args: Any, **kwargs: Any) -> torch.Tensor:
    """`functional.interpolate`, with the same arguments and result."""
    call = _INTERPOLATE.bind(*args, **kwargs)
    call.apply_defaults()
    options = dict(call.arguments)
    x, mode = options.pop("input"), options["mode"]
    factor = None if options["recompute_scale_factor"] else options["scale_factor"]
    scales = _scales(x.dim() - 2, factor)
    has_operator = (mode, x.dim() - 2) in _BACKWARD and not options["antialias"]
    needs_grad = (
        torch.is_grad_enabled() and x.requires_grad and x.dtype in (*_DTYPES, torch.bfloat16)
    )
    if not has_operator or scales is None or not needs_grad:
        return functional.interpolate(x, **options)
    if not _are_numbers(x.shape, options["size"]):
        return functional.interpolate(x, **options)
    return _Interpolate.apply(x, options, scales)


_INTERPOLATE = inspect.signature(functional.interpolate)


def _scales(axes: int, factor: Any) -> list[float | None] | None:
    """Return the factor of each axis, as the backward operator takes them; None if symbolic."""
    factors = list(factor) if isinstance(factor, (list, tuple)) else [factor] * axes
    are_numbers = (
        all(s is None or type(s) in (int, float) for s in factors) and len(factors) == axes
    )
    return factors if are_numbers else None


def _are_numbers(shape: Any, size: Any) -> bool:
    sizes = size if isinstance(size, (list, tuple)) else [0 if size is None else size]
    return all(type(n) is int for n in (*shape, *sizes))


class _Interpolate(torch.autograd.Function):
    """A resizing step with torch's backward operator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, options: Any, scales: Any) -> torch.Tensor:
        ctx.shape, ctx.dtype = x.shape, x.dtype
        ctx.options, ctx.scales = options, scales
        return functional.interpolate(x, **options)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        mode = ctx.options["mode"]
        operator = _BACKWARD[mode, grad.dim() - 2]
        corners = [] if mode.startswith("nearest") else [bool(ctx.options["align_corners"])]
        grad_x = operator(grad, list(grad.shape[2:]), list(ctx.shape), *corners, *ctx.scales)
        return grad_x.to(ctx.dtype), None, None


def decompose_flex_attention(module: torch.fx.GraphModule) -> None:
    """Replace the operator in a program that Dynamo has traced."""
    operator = getattr(torch.ops.higher_order, "flex_attention", None)
    calls = module.graph.find_nodes(op="call_function", target=operator) if operator else ()
    for node in calls:
        node.target = _flex_attention
    if calls:
        module.recompile()


def _flex_attention(
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


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    ATEN._embedding_bag.default: _bags,
    ATEN._embedding_bag_forward_only.default: _bags,
    ATEN._embedding_bag_backward.default: _bags_backward,
    ATEN._native_multi_head_attention.default: _attention,
    ATEN._transformer_encoder_layer_fwd.default: _layer,
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
