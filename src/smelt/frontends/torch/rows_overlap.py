"""Lower gradients of windows (pooling, convolution, unfold) and of padding as overlap-add.

An element of an image belongs to several windows, and its gradient is the sum of theirs. Windows
`step` apart with `extent` elements are ceil(extent / step) blocks of `step`, each one step further
on; blocks do not overlap, so the sum is over shifted blocks (overlap-add), read in place. Nothing
is scattered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row, axis_of, rows
from smelt.frontends.torch.rows_window import (
    MAX_LINE_TAPS,
    adaptive_average,
    correlation,
    insert_zeros,
    pad_spatial,
    per_dimension,
    pool_settings,
    refuse_long_filter,
    transposed_convolution,
    window_counts,
)
from smelt.frontends.torch.value import V, concat, contract, iota, number, select
from smelt.ops.view import Shear
from smelt.types.dtype import i32, i64
from smelt.types.expr import Index, add, floordiv, mul, sub
from smelt.types.expr import product as volume


def _shear_windows(
    g: V, taps: int, a: int, step: int, dilation: int, length: Index, low: int = 0
) -> V:
    """Align windows along axis `a`: [.., places, .., taps, ..] -> [.., length, .., blocks].

    The sum over blocks is the sum of the window elements at each position. Element t of window p
    belongs to position p·step + t·dilation, counted from `low`.
    """
    extent = g.shape[taps]
    if not isinstance(extent, int):
        raise UnsupportedError("windows of symbolic size")
    end = g.rank - 1
    if dilation != 1 and extent > 1:
        g = insert_zeros(g.permute(*(k for k in range(end + 1) if k != taps), taps), a, step)
        g = g.op(Shear((*g.shape[:a], add(length, low), *g.shape[a + 1 :]), a, dilation))
        return g.narrow(a, low, length)
    blocks = -(-extent // step)
    padding = tuple(blocks * step - extent if k == taps else 0 for k in range(end + 1))
    g = g.pad((0,) * g.rank, padding, 0)
    g = g.reshape(*g.shape[:taps], blocks, step, *g.shape[taps + 1 :])
    rest = (k for k in range(a + 1, end + 2) if k not in (taps, taps + 1))
    g = g.permute(*range(a + 1), taps + 1, *rest, taps)
    positions = add(floordiv(sub(add(length, low), 1), step), 1)
    g = g.op(Shear((*g.shape[:a], positions, *g.shape[a + 1 :]), a, 1))
    g = g.reshape(*g.shape[:a], mul(positions, step), *g.shape[a + 2 :])
    return g.narrow(a, low, length)


def _sum_windows(
    g: V,
    spatial: Sequence[Index],
    step: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> V:
    """Sum windows to an image with padding: [.., *places, *taps] -> [.., *spatial]."""
    count = len(spatial)
    first = g.rank - 2 * count
    for k in range(count):
        g = _shear_windows(
            g, first + count, first + k, step[k], dilation[k], spatial[k], padding[k]
        )
    return g.sum(range(first + count, g.rank))


def _repeat_for_taps(x: V, extent: Sequence[int]) -> V:
    """Repeat each place for each tap of its window: [.., *places, *taps]."""
    return x.reshape(*x.shape, *[1] * len(extent)).expand((*x.shape, *extent))


# ---- poolings ------------------------------------------------------------------------------------


def _max_pool_backward(count: int) -> Any:
    def lower(
        c: Call,
        g: V,
        x: V,
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: bool,
        argmax: V,
    ) -> V:
        """Send each gradient to the position of the maximum of its window."""
        extent, step, pads = pool_settings(kernel, stride, padding, count)
        dilations = per_dimension(dilation, count)
        if any(n > 1 and (n - 1) * d >= s for n, d, s in zip(extent, dilations, step, strict=True)):
            raise UnsupportedError("windows that overlap: torch writes where each one chose")
        first = x.rank - count
        spatial = x.shape[first:]
        plane = volume(spatial)
        counts = i32 if isinstance(plane, int) and plane < 1 << 31 else i64
        position = number(0, counts, c.origin)
        windows = (*g.shape, *extent)
        for k in range(count):
            offset = iota(windows, first + k, counts, c.origin) * step[k]
            offset = offset + iota(windows, first + count + k, counts, c.origin) * dilations[k]
            position = position * number(spatial[k], counts, c.origin) + (offset - pads[k])
        chosen = _repeat_for_taps(argmax.cast(counts), extent).map("eq", position)
        widened = _repeat_for_taps(g.to_compute_type(), extent)
        gradient = select(chosen, widened, number(0, widened.dtype, c.origin))
        return _sum_windows(gradient, spatial, step, pads, dilations).cast(c.dtype)

    return lower


def _avg_pool_backward(count: int) -> Any:
    def lower(
        c: Call,
        g: V,
        x: V,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: Any,
    ) -> V:
        """Give each element of a window an equal share."""
        extent, step, pads = pool_settings(kernel, stride, padding, count)
        spatial, output_dims = x.shape[x.rank - count :], g.shape[x.rank - count :]
        widened = g.to_compute_type()
        counts = window_counts(
            c,
            widened,
            spatial,
            output_dims,
            extent,
            step,
            pads,
            inside=not count_include_pad,
            ceil=ceil_mode,
            divisor=divisor,
        )
        shares = widened / counts
        gradient = _sum_windows(_repeat_for_taps(shares, extent), spatial, step, pads, (1,) * count)
        return gradient.cast(c.dtype)

    return lower


def _adaptive_avg_backward(count: int) -> Any:
    def lower(c: Call, g: V, x: V) -> V:
        """Distribute the gradient of each average over its window."""
        first = x.rank - count
        output_dims, spatial = g.shape[first:], x.shape[first:]
        g = g.to_compute_type()
        for k in range(count):
            g = adaptive_average(g, first + k, output_dims[k], spatial[k], back=True)
        return g.cast(c.dtype)

    return lower


# ---- windows along one axis ----------------------------------------------------------------------


def _unfold_backward(c: Call, g: V, _shape: Any, dim: int, extent: int, step: int) -> V:
    shape = c.shape
    a = axis_of(dim, len(shape))
    if not shape or g.rank != len(shape) + 1 or g.shape[-1] != extent or step < 1:
        raise UnsupportedError("windows over a single number, or that broadcast")
    g = g.expand((*shape[:a], g.shape[a], *shape[a + 1 :], extent))
    return _shear_windows(g, g.rank - 1, a, step, 1, shape[a]).sum((g.rank - 1,))


# ---- padding -------------------------------------------------------------------------------------


def _padding_backward(mode: str, count: int) -> Any:
    """Add the gradient of the padding to the elements that it repeats."""

    def lower(c: Call, g: V, x: V, pad: Sequence[Any]) -> V:
        g = g.to_compute_type()
        for k in range(count):
            low, high = pad[2 * k], pad[2 * k + 1]
            if not isinstance(low, int) or not isinstance(high, int) or low < 0 or high < 0:
                raise UnsupportedError("margins that are symbolic or negative")
            a = g.rank - 1 - k
            n = x.shape[a]
            gradient = g.narrow(a, low, n)
            for start, m, at_end in ((0, low, False), (add(low, n), high, True)):
                if m:
                    gradient = gradient + _padding_gradient(
                        mode, g.narrow(a, start, m), a, n, at_end=at_end
                    )
            g = gradient
        return g.cast(c.dtype)

    return lower


def _padding_gradient(mode: str, part: V, a: int, n: Index, *, at_end: bool) -> V:
    """Return the padding's gradient where it belongs along an axis of n elements."""
    if mode == "replicate":
        part, gap = part.sum((a,), keep=True), 0
    else:
        part, gap = part.flip(a), 1
    rest = sub(sub(n, part.shape[a]), gap)
    low: list[Index] = [0] * part.rank
    high: list[Index] = [0] * part.rank
    low[a], high[a] = (rest, gap) if at_end else (gap, rest)
    return part.pad(tuple(low), tuple(high), 0.0)


# ---- convolutions --------------------------------------------------------------------------------


def _convolution_backward(
    c: Call,
    grad: V,
    x: V,
    weight: V,
    _bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    _more: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[V | None, V | None, None]:
    """Return one gradient of a convolution, where ours is at least as fast as torch's.

    For the image: groups, and windows of one element or along a line. For weights: windows of one
    element or of one channel.
    """
    count = x.rank - 2
    extent = [n for n in weight.shape[2:] if isinstance(n, int)]
    if len(extent) != count or not x.dtype.is_float:
        raise UnsupportedError("gradients of windows of symbolic size")
    step, pads, dilations = (
        per_dimension(setting, count) for setting in (stride, padding, dilation)
    )
    is_pointwise = math.prod(extent) == 1
    is_depthwise = weight.shape[1] == 1 and weight.shape[0] == groups
    if x.dtype.compute != x.dtype and not (is_pointwise or is_depthwise):
        raise UnsupportedError("gradients of half types: torch's are products of such numbers")
    if output_mask[0] and transposed:
        return correlation(grad, weight, step, pads, dilations, x.shape, groups), None, None
    if (
        output_mask[0]
        and not is_pointwise
        and count > 1
        and (groups == 1 or any(s > 1 for s in step))
    ):
        raise UnsupportedError("gradients of images of all channels, or apart: torch's are faster")
    flipped_padding = [(n - 1) * d - a for n, d, a in zip(extent, dilations, pads, strict=True)]
    if output_mask[0] and all(s == 1 for s in step) and min(flipped_padding) >= 0:
        return _flipped_correlation(grad, x, weight, flipped_padding, dilations, groups), None, None
    if output_mask[0]:
        return (
            transposed_convolution(grad, weight, x.shape, step, pads, dilations, groups),
            None,
            None,
        )
    if transposed or not (is_pointwise or is_depthwise):
        raise UnsupportedError("gradients of weights of several channels: torch's are faster")
    refuse_long_filter(weight, extent)
    if not is_pointwise and count > 1 and math.prod(extent) <= MAX_LINE_TAPS:
        raise UnsupportedError("gradients of small windows over images: torch's are as fast")
    x = pad_spatial(x, pads, 0.0, (0,) * count)
    if is_depthwise and not is_pointwise:
        return None, _depthwise_weight_gradient(grad, x, weight, step, dilations), None
    return None, _pointwise_weight_gradient(grad, x, weight, step, groups), None


def _flipped_correlation(
    grad: V, x: V, weight: V, padding: Sequence[int], dilation: Sequence[int], groups: int
) -> V:
    """Correlate the gradient with the flipped filter, inputs and outputs exchanged."""
    refuse_long_filter(weight, [n for n in weight.shape[2:] if isinstance(n, int)])
    outer, inner, *extent = weight.shape
    kernel = weight.flip(*range(2, weight.rank))
    kernel = kernel.reshape(groups, floordiv(outer, groups), inner, *extent)
    kernel = kernel.transpose(1, 2).reshape(mul(inner, groups), floordiv(outer, groups), *extent)
    return correlation(grad, kernel, [1] * len(extent), padding, dilation, x.shape, groups)


def _pointwise_weight_gradient(grad: V, x: V, weight: V, step: Sequence[int], groups: int) -> V:
    """Contract over batch and window positions, for windows of one element."""
    output_dims = grad.shape[2:]
    for k, n in enumerate(output_dims):
        x = x.narrow(2 + k, 0, n, step[k])
    outer, inner = weight.shape[:2]
    place_letters = "xyz"[: len(output_dims)]
    if groups == 1:
        return contract(grad, x, f"bo{place_letters},bc{place_letters}->oc").reshape(*weight.shape)
    grad = grad.reshape(grad.shape[0], groups, floordiv(outer, groups), *output_dims)
    x = x.reshape(x.shape[0], groups, inner, *output_dims)
    return contract(grad, x, f"bgo{place_letters},bgc{place_letters}->goc").reshape(*weight.shape)


def _depthwise_weight_gradient(
    grad: V, x: V, weight: V, step: Sequence[int], dilation: Sequence[int]
) -> V:
    """Reduce over batch and window positions for each tap, for windows of one channel."""
    extent = [n for n in weight.shape[2:] if isinstance(n, int)]
    place_letters = "xyz"[: len(extent)]
    gradients: list[V] = []
    grad, image = grad.to_compute_type(), x.to_compute_type()
    for tap in product(*map(range, extent)):
        shifted = image
        for k, n in enumerate(tap):
            shifted = shifted.narrow(2 + k, n * dilation[k], grad.shape[2 + k], step[k])
        gradients.append(
            contract(grad, shifted, f"bc{place_letters},bc{place_letters}->c").unsqueeze(1)
        )
    return concat(gradients, 1).reshape(*weight.shape).cast(x.dtype)


ROWS = (
    Row("aten.convolution_backward.default", _convolution_backward),
    Row("aten.unfold_backward.default", _unfold_backward),
    *rows("max_pool{}d_with_indices_backward.{}", lambda n: _max_pool_backward(int(n)), "2 3"),
    *rows("avg_pool{}d_backward.{}", lambda n: _avg_pool_backward(int(n)), "2 3"),
    *rows("_adaptive_avg_pool{}d_backward.{}", lambda n: _adaptive_avg_backward(int(n)), "2 3"),
    *(
        Row(f"aten.{name}_pad{n}d_backward.default", _padding_backward(mode, n))
        for name, mode in (("reflection", "reflect"), ("replication", "replicate"))
        for n in (1, 2, 3)
    ),
)
"""Rows of gradients of windows and padding."""
