"""Find depthwise convolutions that can be fused into the packer of a pointwise GEMM.

    P[y,x,m] = sum of f(S[y,x,c]) * W[c,m] over c                 packs rows of f(S)
    S[y,x,c] = sum of X[y + u, x + v, c] * D[c,u,v] over u, v     computed row by row for it

The code generator fuses them where images are stored channels last
(`smelt.codegen.llvm.schedule.depthwise`, which this predicts): each row of results stays
in fast memory, and none is computed twice.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from smelt.fusion.bitsets import bits
from smelt.fusion.contraction_cost import operand_axes
from smelt.fusion.region import Region, axes_mask
from smelt.fusion.units import Units
from smelt.types.dtype import f32, f64

LINES = 2
"""Maximum axes of pixel positions of a packed image."""


def fused_depthwise(units: Units, region: Region) -> tuple[int, int]:
    """Return the contraction that all others can be fused into, and these as a mask.

    -1 and 0 if there is none.
    """
    no_fusion = -1, 0
    if len(region.reduced_axes) < 2 or region.windows or region.scanned:
        return no_fusion
    *inner, pointwise = sorted(region.reduced_axes)
    unit, over, depthwise = (
        units.unit(pointwise),
        region.reduced_axes[pointwise],
        sum(1 << u for u in inner),
    )
    derived, unmixed = _readers(units, region, depthwise, pointwise)
    operand_masks = operand_axes(region, unit)
    if operand_masks is None or unmixed & region.stored or over.bit_count() != 1:
        return no_fusion
    is_image = [any(derived >> e.producer & 1 for e in factor) for factor in unit.factors]
    if is_image.count(True) != 1:
        return no_fusion
    k = is_image.index(True)
    pixel_axes, columns = (
        operand_masks[k] & ~operand_masks[1 - k],
        operand_masks[1 - k] & ~operand_masks[k] & ~region.grid,
    )
    last_terms = [region.positions[u][0][-1:] for u in bits(region.stored)]
    types = [units.values[u].type.dtype for u in region.reduced_axes]
    is_wide = all(units.values[e.producer].type.dtype.itemsize >= f32.itemsize for e in unit.edges)
    if (
        is_wide
        and all(t in (f32, f64) for t in types)
        and all(last and axes_mask(last[0]) & columns for last in last_terms)
        and all(_is_stencil(units, region, u, over, pixel_axes) for u in inner)
    ):
        return pointwise, depthwise
    return no_fusion


def _readers(units: Units, region: Region, products: int, pointwise: int) -> tuple[int, int]:
    """Return the units that depend on some products.

    The second mask holds those that do so not through another product.
    """
    derived = unmixed = products
    for u in sorted(region.masks):
        derived |= bool(units.operands[u] & derived) << u
        unmixed |= bool(u != pointwise and units.operands[u] & unmixed) << u
    return derived, unmixed


def _is_stencil(units: Units, region: Region, u: int, channels: int, pixel_axes: int) -> bool:
    """Return whether a product is a depthwise convolution.

    Its windows slide over an array that is contiguous along `channels`, as are its weights, and it
    sums over these windows alone: along two other axes of an image, or all of `pixel_axes`.
    """
    unit, over = units.unit(u), region.reduced_axes[u]
    operand_masks = operand_axes(region, unit)
    if operand_masks is None or len(region.positions[u]) > 1:
        return False
    for k, factor in enumerate(unit.factors):
        is_loaded = len(factor) == 1 and not region.members >> factor[0].producer & 1
        if not is_loaded or operand_masks[1 - k] & ~region.grid != channels:
            continue
        for position in region.loads[factor[0].producer]:
            axis_masks = [axes_mask(t) for t in position]
            window_masks = [t for t in axis_masks if t & over]
            along = reduce(or_, (t & ~over for t in window_masks), 0)
            slides = reduce(or_, window_masks, 0) & over == over and all(
                t & ~over for t in window_masks
            )
            is_image = along == pixel_axes or along.bit_count() == LINES
            if (
                slides
                and is_image
                and len(window_masks) == along.bit_count()
                and axis_masks[-1] == channels
            ):
                return True
    return False
