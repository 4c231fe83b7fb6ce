"""Images made larger or smaller, whose way back is torch's own.

PyTorch takes such a step apart into reads at positions before it looks for gradients, and the
gradient of a read is a sum at positions: four of them for a bilinear step and sixteen for a bicubic
one, each as large as the result.  Its own way back adds all of them in one pass.

    resized = functional.interpolate(x, size, mode="bilinear")     # read at positions: kernels
    grad_x = upsample_bilinear2d_backward(grad, ..)                 # one call

Grids of affine maps are the other way round: torch's way back takes no sizes but numbers, and that
of their parts does.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from typing import Any

import torch
from torch._decomp.decompositions import affine_grid_generator
from torch.nn import functional

__all__ = ["with_own_way_back"]

ATEN: Any = torch.ops.aten
_WAYS_BACK: dict[tuple[str, int], Any] = {
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
"""The operator of the way back, by mode and number of axes that are resized."""


def with_own_way_back(module: torch.fx.GraphModule) -> None:
    """Has the resizing steps of a program that Dynamo has traced keep torch's way back.

    Where sizes are no numbers the parts stay: torch cannot say of most ways back what they give for
    such sizes.  What is differentiated inside of the program (`torch.func`) stays as it was: there
    such a step may be mapped over further axes, or its way back be differentiated.
    """
    graph = module.graph
    grids = graph.find_nodes(op="call_function", target=functional.affine_grid)
    for node in grids:
        node.target = _affine_grid
    if grids:
        module.recompile()
    steps = graph.find_nodes(op="call_function", target=functional.interpolate)
    if not steps or any(_differentiates(n) for n in graph.nodes if n.op == "call_function"):
        return
    for node in steps:
        node.target = _resized
    module.recompile()


def _affine_grid(theta: torch.Tensor, size: Any, align_corners: bool | None = None) -> torch.Tensor:
    """`functional.affine_grid`, in its parts."""
    if not any(isinstance(n, torch.SymInt) for n in (*size, *theta.shape)):
        return functional.affine_grid(theta, size, align_corners)
    return affine_grid_generator(theta, list(size), bool(align_corners))


def _differentiates(node: torch.fx.Node) -> bool:
    """Whether a call belongs to a transform of functions."""
    module = str(getattr(node.target, "__module__", ""))
    return "functorch" in module or "_nesting" in getattr(node.target, "__name__", "")


def _resized(
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
    known = (mode, x.dim() - 2) in _WAYS_BACK and not antialias and scales is not None
    follows = torch.is_grad_enabled() and x.requires_grad and x.dtype in _KINDS
    if not known or not follows or not _are_numbers(x.shape, size):
        return functional.interpolate(x, **options)
    return _Resized.apply(x, options, scales)


def _scales(axes: int, factor: Any) -> list[float | None] | None:
    """The factor of each axis, as the way back takes them; None if they are no numbers."""
    each = list(factor) if isinstance(factor, (list, tuple)) else [factor] * axes
    plain = all(s is None or type(s) in (int, float) for s in each) and len(each) == axes
    return each if plain else None


def _are_numbers(shape: Any, size: Any) -> bool:
    """Whether sizes are numbers: torch cannot tell what most ways back give for other ones."""
    wanted = size if isinstance(size, (list, tuple)) else [0 if size is None else size]
    return all(type(n) is int for n in (*shape, *wanted))


_KINDS = (torch.float32, torch.float64, torch.bfloat16)


class _Resized(torch.autograd.Function):
    """A resizing step and its way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, options: Any, scales: Any) -> torch.Tensor:
        ctx.shape, ctx.dtype = x.shape, x.dtype
        ctx.options, ctx.scales = options, scales
        return functional.interpolate(x, **options)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        mode = ctx.options["mode"]
        way_back = _WAYS_BACK[mode, grad.dim() - 2]
        corners = [] if mode.startswith("nearest") else [bool(ctx.options["align_corners"])]
        made = way_back(grad, list(grad.shape[2:]), list(ctx.shape), *corners, *ctx.scales)
        return made.to(ctx.dtype), None, None
