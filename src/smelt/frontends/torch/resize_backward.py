"""Keep torch's own backward operators for image resizing.

PyTorch decomposes a resize into gathers before it differentiates, and the gradient of a gather is a
scatter-add: four of them for a bilinear resize and sixteen for a bicubic one, each as large as the
result. Torch's own backward operator adds all of them in one pass.

    resized = functional.interpolate(x, size, mode="bilinear")     # gathers: kernels
    grad_x = upsample_bilinear2d_backward(grad, ..)                 # one call

For affine grids it is the other way round: torch's own backward does not take symbolic sizes, and
the decomposition does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp.decompositions import affine_grid_generator
from torch.nn import functional

ATEN: Any = torch.ops.aten
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


def _interpolate(
    input: torch.Tensor,  # noqa: A002 - as torch calls it
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    """`functional.interpolate`, with the same arguments and result."""
    x = input
    options: Any = {
        "size": size,
        "scale_factor": scale_factor,
        "mode": mode,
        "align_corners": align_corners,
        "recompute_scale_factor": recompute_scale_factor,
        "antialias": antialias,
    }
    scales = _scales(x.dim() - 2, None if recompute_scale_factor else scale_factor)
    has_operator = (mode, x.dim() - 2) in _BACKWARD and not antialias and scales is not None
    needs_grad = torch.is_grad_enabled() and x.requires_grad and x.dtype in _DTYPES
    if not has_operator or not needs_grad or not _are_numbers(x.shape, size):
        return functional.interpolate(x, **options)
    return _Interpolate.apply(x, options, scales)


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


_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


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
