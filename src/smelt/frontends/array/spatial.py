"""Convolution, pooling and resizing of images [batch, channels, *spatial].

A convolution is recorded as its definition: the windows of the padded image (an index map),
contracted with the weights (cf. im2col).  The array of windows is never stored; the kernel that
reads it applies the map.  Poolings and resizing are composed of index maps, reductions and
elementwise functions.

>>> import smelt as sm
>>> conv(sm.asarray([[[1.0, 2.0, 3.0]]]), sm.asarray([[[1.0, 1.0]]]))
Array([[[3., 5.]]])
>>> x = sm.reshape(sm.arange(6.0), (1, 1, 6))
>>> max_pool(x, 2), avg_pool(x, 3), upsample(x[..., :2], scale=2)
(Array([[[1., 3., 5.]]]), Array([[[1., 4.]]]), Array([[[0., 0., 1., 1.]]]))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import lt
from typing import Any

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.creation import arange
from smelt.frontends.array.elementwise import clip, floor, maximum, minimum, where
from smelt.frontends.array.families import BINARY
from smelt.frontends.array.manipulation import expand_dims
from smelt.frontends.array.number import user_dim
from smelt.frontends.array.product import contract
from smelt.frontends.array.promote import cast, common
from smelt.frontends.array.reduction import cast_to_float as wide_of
from smelt.frontends.array.reduction import mean as average
from smelt.frontends.array.reduction import reduce_axes
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.searching import take
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import Value, record
from smelt.frontends.array.views import expand, flip, pad, permute, pin_dimensions, reshape
from smelt.frontends.array.windows import (
    Windows,
    check_fit,
    crop_or_pad,
    padding_of,
    per_dimension,
    slide,
    spatial_rank,
)
from smelt.ops.combine import COMBINES
from smelt.ops.contract import Contract
from smelt.ops.view import Shear
from smelt.ops.windows import is_transposed_convolution
from smelt.types.dtype import DType, i64
from smelt.types.expr import Index, add, axis, floordiv, mod, mul, sub

SPATIAL_LETTERS, WINDOW_LETTERS = "uvwxyz", "ijklmn"
"""Letters of the spatial dimensions, of the result and of the window."""


SMALL_CHANNELS = 4
"""Largest number of channels per group for which the number is a constant of the recording."""


def conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    /,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    mode: str = "zeros",
) -> Array:
    """Convolve an image with kernels, without reversing them (cross-correlation).

    Args:
        x: [batch, channels, *spatial] with 1, 2, 3 or more spatial dimensions.
        weight: [out channels, channels / groups, *kernel].
        bias: [out channels], or None.
        stride: step of the window; like `padding` and `dilation` one number for all dimensions or
            one for each.
        padding: width of the padding on both sides, or a pair for each dimension, or "valid" (none)
            or "same" (the result has the size of the image for a stride of 1).
        dilation: distance between neighbouring elements of the kernel.
        groups: number of independent convolutions of consecutive channels; as many as channels make
            it depthwise.
        mode: what the padding holds: "zeros", "reflect", "replicate", "circular" or "symmetric".

    Returns:
        [batch, out channels, *spatial] in the promoted dtype; half types accumulate in float32.  A
        spatial dimension has floor((n + padding - dilation·(kernel - 1) - 1) / stride) + 1
        elements, with the padding of both sides.

    Raises ShapeError where channels, kernel and image do not fit, ArgumentError for other settings.
    """
    image, kernel = value(x, "conv"), value(weight, "conv")
    count = _check("conv", image, kernel)
    operands = f"{image.type_text}, {kernel.type_text}"
    windows = _kernel_windows("conv", kernel, count, stride, padding, dilation)
    check_fit("conv", image, windows, operands)
    (groups,) = per_dimension("conv", "groups", groups, 1)
    inner = _group_channels(
        "conv", image, kernel, groups, mul(_input_channels(kernel, groups), groups), 0
    )
    result = _correlate(slide("conv", image, windows, 0, mode), kernel, groups, count, inner)
    return _add_bias("conv", result, bias, count)


def _kernel_windows(
    what: str, kernel: Value, count: int, stride: Any, padding: Any, dilation: Any
) -> Windows:
    extent = pin_dimensions(kernel, range(2, 2 + count))
    dilated = per_dimension(what, "dilation", dilation, count)
    steps = per_dimension(what, "stride", stride, count)
    return Windows(extent, steps, dilated, padding_of(what, padding, extent, dilated))


def _input_channels(kernel: Value, groups: int) -> Index:
    """Return a kernel's input channels, pinned to a number if there are few.

    Sums over few channels (colours, small groups) are unrolled, which needs a constant; so are the
    output channels of small groups.
    """
    scope, (outputs, channels, *_) = kernel.scope, shape_of(kernel)
    if scope is None or isinstance(channels, int):
        return channels
    if scope.hint(channels) <= SMALL_CHANNELS:
        (channels,) = pin_dimensions(kernel, (1,))
        if groups > 1 and scope.hint(outputs) <= SMALL_CHANNELS * groups:
            pin_dimensions(kernel, (0,))
    return channels


def _check(what: str, image: Value, kernel: Value) -> int:
    """Return the number of spatial dimensions; raise ShapeError for other ranks."""
    count = spatial_rank(what, image)
    if kernel.type.rank != count + 2:
        raise ShapeError.of(
            what,
            f"kernels of {count} spatial dimensions are [channels, channels, *kernel]",
            image,
            kernel,
        )
    if count > len(SPATIAL_LETTERS):
        raise ShapeError.of(what, f"more than {len(SPATIAL_LETTERS)} dimensions", image)
    return count


def _group_channels(
    what: str, image: Value, kernel: Value, groups: int, channels: Index, dim: int
) -> Index:
    """Return the image's channels per group, checked against the kernel's.

    `dim` is the kernel's dimension that the groups divide.  Raises ShapeError.
    """
    operands = f"{image.type_text}, {kernel.type_text}"
    have, scope = shape_of(image)[1], image.scope or kernel.scope
    if have != channels and (scope is None or not scope.same(have, channels)):
        raise ShapeError(
            op=what,
            operands=operands,
            reason=f"the image has {_number(have, scope)} channels, the "
            f"kernel and groups={groups} want {_number(channels, scope)}",
        )
    divided = shape_of(kernel)[dim]
    if groups > 1 and scope is not None and scope.hint(divided) == groups:
        scope.same(divided, groups)  # one channel per group: the dimension drops out
        divided = groups
    fits = mod(divided, groups) == 0 or (scope is not None and scope.divisible(divided, groups))
    if not fits:
        raise ShapeError(
            op=what,
            operands=operands,
            reason=f"{_number(divided, scope)} channels do not fall into {groups} groups",
        )
    return floordiv(shape_of(image)[1], groups)


def _number(d: Index, scope: Any) -> Any:
    return d if scope is None else scope.hint(d)


def _correlate(windows: Value, kernel: Value, groups: int, count: int, inner: Index) -> Value:
    """Contract windows with a kernel, group by group.

    [b, g*c, *positions, *taps] and [g*o, c, *taps] give [b, g*o, *positions].
    """
    shape, weights = shape_of(windows), shape_of(kernel)
    position_letters, taps = SPATIAL_LETTERS[:count], WINDOW_LETTERS[:count]
    batch, spatial, window = shape[0], shape[2 : 2 + count], shape[2 + count :]
    taps = "".join(t for t, n in zip(taps, weights[2:], strict=True) if n != 1)
    each_group = floordiv(weights[0], groups)
    sizes = {"g": groups, "c": inner, "o": each_group}
    left = "".join(a for a in "gc" if sizes[a] != 1)
    right = "".join(a for a in "goc" if sizes[a] != 1)
    outer = "".join(a for a in "go" if sizes[a] != 1)
    windows = reshape(windows, (batch, *(sizes[a] for a in left), *spatial, *window))
    kernel = reshape(kernel, (*(sizes[a] for a in right), *window))
    first, second, out = (
        "b" + left + position_letters + taps,
        right + taps,
        "b" + outer + position_letters,
    )
    result = contract("conv", windows, kernel, first, second, out)
    return reshape(result, (batch, weights[0], *spatial))


def _add_bias(what: str, result: Value, bias: Any, count: int) -> Array:
    if bias is None:
        return Array.of(result)
    node = value(bias, what)
    if node.type.rank != 1:
        raise ShapeError.of(what, "a bias is a vector [out channels]", node)
    channels = reshape(node, (*shape_of(node), *(1,) * count))
    return Array.of(BINARY["add"](result, channels))


def conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    /,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    """Return the transposed convolution: the gradient of `conv` for its image.

    Where strides and dilations have no common divisor, each phase of the stride is a small
    convolution of its own (W. Shi et al., 2016), so that no zeros are multiplied.

    Args:
        x: [batch, channels, *spatial].
        weight: [channels, out channels / groups, *kernel].
        bias: [out channels], or None.
        stride: distance of neighbouring elements of x in the result.
        padding: elements cut off on both sides.
        output_padding: elements added at the end, fewer than the stride or the dilation.
        dilation: distance between neighbouring elements of the kernel.
        groups: number of independent convolutions of consecutive channels.

    Returns:
        [batch, out channels, *spatial] in the promoted dtype; each spatial dimension has (n -
        1)·stride - 2·padding + dilation·(kernel - 1) + 1 + output_padding elements.

    Raises ShapeError, ArgumentError.
    """
    what = "conv_transpose"
    image, kernel = value(x, what), value(weight, what)
    count = _check(what, image, kernel)
    w = _kernel_windows(what, kernel, count, stride, padding, dilation)
    extra = per_dimension(what, "output_padding", output_padding, count, 0)
    if any(m >= max(s, d) for m, s, d in zip(extra, w.stride, w.dilation, strict=True)):
        raise ArgumentError.of(
            what, "output_padding", output_padding, "less than the stride or the dilation"
        )
    (groups,) = per_dimension(what, "groups", groups, 1)
    _group_channels(what, image, kernel, groups, shape_of(kernel)[0], 0)
    for k, n in enumerate(shape_of(image)[2:]):
        full = add(mul(sub(n, 1), w.stride[k]), w.span(k) + extra[k])
        if not holds(image.scope, sum(w.pad_widths[k]) + 1, "<=", full):
            reason = f"the result would be empty: padding {padding!r} cuts off all of it"
            raise ShapeError.of(what, reason, image, kernel)
    is_full = all(map(is_transposed_convolution, w.stride, w.dilation, w.extent))
    floating = image.type.dtype.is_float and kernel.type.dtype.is_float
    form = _col2im if is_full and all(map(lt, extra, w.stride)) and floating else _zero_stuffed
    return _add_bias(what, form(image, kernel, groups, w, extra), bias, count)


def _transpose_kernel(kernel: Value, groups: int) -> Value:
    """Swap a kernel's channels and reverse its taps: [g*c, o, *taps] -> [g*o, c, *taps]."""
    shape = shape_of(kernel)
    inner = floordiv(shape[0], groups)
    kernel = reshape(kernel, (groups, inner, *shape[1:]))
    order = (0, 2, 1, *range(3, kernel.type.rank))
    kernel = reshape(permute(kernel, order), (mul(shape[1], groups), inner, *shape[2:]))
    return flip(kernel, tuple(range(2, kernel.type.rank)))


def _zero_stuffed(
    image: Value, kernel: Value, groups: int, w: Windows, extra: tuple[int, ...]
) -> Value:
    """Convolve the image with stride - 1 zeros inserted between its elements."""
    count = len(w.stride)
    for k, step in enumerate(w.stride):
        image = _insert_zeros(image, 2 + k, step)
    borders = tuple(
        (w.span(k) - 1 - low, w.span(k) - high + extra[k] - w.stride[k])
        for k, (low, high) in enumerate(w.pad_widths)
    )
    windows = Windows(w.extent, (1,) * count, w.dilation, ((0, 0),) * count)
    inner = floordiv(shape_of(image)[1], groups)
    view = slide("conv_transpose", crop_or_pad(image, borders), windows)
    return _correlate(view, _transpose_kernel(kernel, groups), groups, count, inner)


def _insert_zeros(x: Value, axis: int, step: int) -> Value:
    """Insert step - 1 zeros after each element along an axis."""
    if step == 1:
        return x
    shape = shape_of(x)
    x = reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    none = (0,) * x.type.rank
    x = pad(x, none, (*none[: axis + 1], step - 1, *none[axis + 2 :]), 0)
    return reshape(x, (*shape[:axis], mul(shape[axis], step), *shape[axis + 1 :]))


def _col2im(image: Value, kernel: Value, groups: int, w: Windows, extra: tuple[int, ...]) -> Value:
    """Multiply each element with each tap and add the products at their positions (col2im).

    `smelt.passes.conv_transpose` rewrites the sum as contractions over windows of the image, one
    for each phase of the stride.
    """
    count, dtype = len(w.stride), common("conv_transpose", image.type.dtype, kernel.type.dtype)
    shape, (outer, inner, *_) = shape_of(image), shape_of(kernel)
    sizes = {"g": groups, "o": floordiv(outer, groups), "c": inner}
    letters = SPATIAL_LETTERS[:count], WINDOW_LETTERS[:count]
    first, second, out = (
        [a for a in names if a not in sizes or sizes[a] != 1]
        for names in ("bgo" + letters[0], "goc" + letters[1], "bgc" + letters[0] + letters[1])
    )
    image = reshape(image, (shape[0], *(sizes[a] for a in first if a in sizes), *shape[2:]))
    kernel = reshape(kernel, (*(sizes[a] for a in second if a in sizes), *w.extent))
    half = dtype if dtype.compute != dtype else None
    left, right = (tuple(axis(a, 0) for a in side) for side in (first, second))
    product = Contract(left, right, tuple(out), dtype=half and half.compute, factors=half)
    products = record(product, (cast(image, dtype), cast(kernel, dtype)))
    products = reshape(products, (shape[0], mul(inner, groups), *shape[2:], *w.extent))
    for k in reversed(range(count)):
        a, n = 2 + k, add(mul(sub(shape[2 + k], 1), w.stride[k]), w.span(k))
        products = _insert_zeros(products, a, w.stride[k])
        lengths = shape_of(products)
        target = (*lengths[:a], add(n, extra[k]), *lengths[a + 1 :])
        products = record(Shear(target, a, w.dilation[k]), (products,))
        products = reduce_axes("sum", products, (products.type.rank - 1,), keepdims=False)
    return cast(crop_or_pad(products, tuple((-low, -high) for low, high in w.pad_widths)), dtype)


def _windows(
    what: str, x: Value, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[Windows, tuple[int, ...]]:
    """Return the windows, and the padding added for partial windows at the ends."""
    count = spatial_rank(what, x)
    extent = per_dimension(what, "size", size, count)
    dilated = per_dimension(what, "dilation", dilation, count)
    steps = extent if stride is None else per_dimension(what, "stride", stride, count)
    padding_pairs = padding_of(what, padding, extent, dilated)
    w = Windows(extent, steps, dilated, padding_pairs)
    if any(2 * max(pair) > w.span(k) for k, pair in enumerate(padding_pairs)):
        raise ArgumentError.of(
            what, "padding", padding, "at most half of a window: others would see the margin only"
        )
    check_fit(what, x, w, x.type_text)
    if not ceil:
        return w, (0,) * count
    beyond_end = tuple(
        _missing_elements(w, k, n) for k, n in enumerate(pin_dimensions(x, range(2, 2 + count)))
    )
    extended = tuple(
        (low, high + e) for (low, high), e in zip(padding_pairs, beyond_end, strict=True)
    )
    return Windows(extent, steps, dilated, extended), beyond_end


def _missing_elements(w: Windows, k: int, n: int) -> int:
    """Return how many elements the last, partial window along dimension k lacks."""
    low, high = w.pad_widths[k]
    lacking = (w.span(k) - n - low - high) % w.stride[k]
    return lacking if lacking + high < w.span(k) else 0


def _reduce_windows(what: str, x: Value, w: Windows, combine: str) -> Value:
    view = slide(what, x, w, COMBINES[combine].identity(x.type.dtype))
    axes = tuple(range(x.type.rank, view.type.rank))
    return reduce_axes(combine, view, axes, keepdims=False) if axes else view


def max_pool(
    x: Any,
    size: Any,
    /,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Array:
    """Return the maximum of each window of x [batch, channels, *spatial].

    Args:
        x: the array.
        size: of the windows; one number for all spatial dimensions or one for each, like all that
            follow.
        stride: distance of windows; their size if None.
        padding: elements on both sides that are never the maximum, at most half a window.
        dilation: distance between neighbouring elements of a window.
        ceil: include a last window that is partly beyond the end.

    Returns:
        [batch, channels, *spatial] in the dtype of `x`.

    Raises ShapeError where the windows do not fit, ArgumentError for other settings.
    """
    node = value(x, "max_pool")
    w, _ = _windows("max_pool", node, size, stride, padding, dilation, ceil)
    return Array.of(_reduce_windows("max_pool", node, w, "max"))


def avg_pool(
    x: Any,
    size: Any,
    /,
    *,
    stride: Any = None,
    padding: Any = 0,
    ceil: bool = False,
    count_padding: bool = True,
) -> Array:
    """Return the mean of each window of x [batch, channels, *spatial].

    Arguments as in `max_pool`; floats keep their dtype, integers give float64.  With
    `count_padding` zeros of the padding count as elements.

    Raises ShapeError where the windows do not fit, ArgumentError for other settings.
    """
    node = value(x, "avg_pool")
    w, beyond_end = _windows("avg_pool", node, size, stride, padding, 1, ceil)
    upcast = wide_of(node)
    total = Array.of(_reduce_windows("avg_pool", upcast, w, "sum"))
    equal_counts = not any(beyond_end) and (count_padding or not any(map(any, w.pad_widths)))
    if equal_counts:
        mean = total * (1.0 / math.prod(w.extent))
        return _to_type_of(mean, node)
    shape = shape_of(node)[2:]
    for k, (extent, step, (low, high)) in enumerate(
        zip(w.extent, w.stride, w.pad_widths, strict=True)
    ):
        n = user_dim(shape[k], node.scope)
        start = arange(total.shape[2 + k]) * step - low
        end = n + high - beyond_end[k] if count_padding else n
        count = minimum(start + extent, end) - (start if count_padding else maximum(start, 0))
        total = total / _broadcast_vector(count, k, len(shape), upcast.type.dtype)
    return _to_type_of(total, node)


def _broadcast_vector(vector: Array, k: int, count: int, dtype: DType) -> Array:
    """Reshape a vector to dimension k of `count`."""
    node = cast(vector.node, dtype)
    shape = tuple(shape_of(node)[0] if a == k else 1 for a in range(count))
    return Array.of(reshape(node, shape))


def _to_type_of(result: Array, x: Value) -> Array:
    return Array.of(cast(result.node, x.type.dtype)) if x.type.dtype.is_float else result


def _adaptive(
    what: str,
    x: Any,
    size: Any,
    reduce_all: Callable[[Value, tuple[int, ...]], Value],
    ragged: Callable[[Array, Array, int], Array],
) -> Array:
    """Split each dimension into `size` nearly equal runs and reduce each run.

    `reduce_all` reduces runs of equal length, `ragged` masked runs of different lengths.
    """
    node = value(x, what)
    count = spatial_rank(what, node)
    goals = per_dimension(what, "size", size, count)
    split: list[Index] = []
    axes: list[int] = []
    for k, goal in enumerate(goals):
        n = shape_of(node)[2 + k]
        even = mod(n, goal) == 0 or (node.scope is not None and node.scope.divisible(n, goal))
        if not even:
            node = _ragged_runs(Array.of(node), 2 + k, goal, ragged).node
            n = goal
        n = n if node.scope is None else node.scope.canon(n)
        split += [goal, floordiv(n, goal)]
        axes.append(3 + 2 * k)
    node = reshape(node, (*shape_of(node)[:2], *split))
    return Array.of(reduce_all(node, tuple(axes)))


def _ragged_runs(
    x: Array, axis: int, goal: int, reduce_masked: Callable[[Array, Array, int], Array]
) -> Array:
    """Reduce runs floor(i·n/goal) .. ceil((i+1)·n/goal) - 1 along one axis."""
    n = x.shape[axis]
    numbers = arange(goal)
    first, end = (numbers * n) // goal, ((numbers + 1) * n + (goal - 1)) // goal
    longest = (n + goal - 1) // goal + 1
    at = expand_dims(first, axis=1) + arange(longest)
    inside = at < expand_dims(end, axis=1)
    runs = take(x, clip(at, 0, n - 1), axis=axis)
    shape = (*(1,) * axis, *shape_of(inside.node), *(1,) * (x.ndim - axis - 1))
    return reduce_masked(runs, Array.of(reshape(inside.node, shape)), axis + 1)


def adaptive_avg_pool(x: Any, size: Any, /) -> Array:
    """Return the means of `size` nearly equal runs along each spatial dimension.

    Args:
        x: [batch, channels, *spatial].
        size: runs per dimension; one number, or one for each.  Run i of n elements is
            floor(i·n/size) .. ceil((i+1)·n/size) - 1.

    Returns:
        [batch, channels, *size]; floats keep their dtype, integers give float64.

    Raises ShapeError, ArgumentError.
    """
    node = value(x, "adaptive_avg_pool")

    def ragged(runs: Array, inside: Array, axis: int) -> Array:
        total = reduce_axes("sum", where(inside, runs, 0).node, (axis,), keepdims=False)
        counts = reduce_axes("sum", cast(inside.node, runs.dtype), (axis,), keepdims=False)
        return Array.of(BINARY["divide"](total, counts))

    means = _adaptive(
        "adaptive_avg_pool",
        Array.of(wide_of(node)),
        size,
        lambda v, axes: average(v, axes, keepdims=False),
        ragged,
    )
    return _to_type_of(means, node)


def adaptive_max_pool(x: Any, size: Any, /) -> Array:
    """Return the maxima of `size` nearly equal runs along each spatial dimension.

    Runs and arguments are those of `adaptive_avg_pool`.  Raises ShapeError, ArgumentError.
    """

    def ragged(runs: Array, inside: Array, axis: int) -> Array:
        masked = where(inside, runs, COMBINES["max"].identity(runs.dtype))
        return Array.of(reduce_axes("max", masked.node, (axis,), keepdims=False))

    return _adaptive(
        "adaptive_max_pool",
        x,
        size,
        lambda v, axes: reduce_axes("max", v, axes, keepdims=False),
        ragged,
    )


def upsample(
    x: Any,
    size: Any = None,
    /,
    *,
    scale: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Array:
    """Resize x [batch, channels, *spatial] to `size`, or to `scale` times its size.

    Args:
        x: the array.
        size: of the result; one number, or one for each spatial dimension.
        scale: a factor instead of a size, likewise.
        mode: "nearest" takes element floor(i / factor); "linear" interpolates between the
            neighbours of (i + ½) / factor - ½ along each dimension (bilinear for two).
        align_corners: "linear" maps the first and last elements to each other.

    Returns:
        [batch, channels, *size]; "nearest" keeps the dtype, "linear" that of floats.

    Raises ShapeError for an empty result, ArgumentError for other settings.
    """
    node = value(x, "upsample")
    count = spatial_rank("upsample", node)
    if mode not in ("nearest", "linear"):
        raise ArgumentError.of("upsample", "mode", mode, "'nearest' or 'linear'")
    if (size is None) == (scale is None):
        raise ArgumentError.of("upsample", "size", size, "a size or a scale, not both")
    result = Array.of(node)
    if mode == "linear":
        result = Array.of(wide_of(node))
    goals = _goals(result, size, scale, count)
    for k, (goal, ratio) in enumerate(goals):
        if mode == "linear":
            result = _interpolate(result, 2 + k, goal, ratio, align_corners)
        else:
            result = _nearest(result, 2 + k, goal, ratio)
    return _to_type_of(result, node) if mode == "linear" else result


def _goals(x: Array, size: Any, scale: Any, count: int) -> list[tuple[Any, float | None]]:
    """Return the new size of each dimension, and the scale factor if one was passed."""
    if size is not None:
        return [(n, None) for n in per_dimension("upsample", "size", size, count)]
    factors: Sequence[Any] = scale if isinstance(scale, (tuple, list)) else (scale,) * count
    if len(factors) != count or not all(isinstance(f, (int, float)) and f > 0 for f in factors):
        raise ArgumentError.of("upsample", "scale", scale, f"a positive number, or {count} of them")
    goals: list[tuple[Any, float | None]] = []
    for n, f in zip(x.shape[2:], factors, strict=True):
        length = n * int(f) if float(f).is_integer() else math.floor(int(n) * f)
        if isinstance(length, int) and length < 1:
            raise ShapeError.of("upsample", "nothing would be left", x.node)
        goals.append((length, float(f)))
    return goals


def _nearest(x: Array, axis: int, goal: Any, ratio: float | None) -> Array:
    n = x.shape[axis]
    if ratio is None and n == 0:
        raise ShapeError(op="upsample", operands=x.node.type_text, reason="nothing to repeat")
    if (ratio is not None and ratio.is_integer()) or (ratio is None and goal % n == 0):
        times = int(ratio) if ratio is not None else goal // int(n)
        return _repeat_positions(x, axis, times)
    numbers = arange(goal)
    if ratio is None:
        return take(x, (numbers * n) // goal, axis=axis)
    exact = floor(Array.of(cast(numbers.node, wide_of(numbers.node).type.dtype)) * (1.0 / ratio))
    positions = Array.of(cast(exact.node, i64))
    return take(x, clip(positions, 0, n - 1), axis=axis)


def _repeat_positions(x: Array, axis: int, times: int) -> Array:
    shape = shape_of(x.node)
    before, after = shape[: axis + 1], shape[axis + 1 :]
    node = reshape(x.node, (*before, 1, *after))
    node = expand(node, (*before, times, *after))
    return Array.of(reshape(node, (*shape[:axis], mul(shape[axis], times), *after)))


def _interpolate(x: Array, axis: int, goal: Any, ratio: float | None, corners: bool) -> Array:
    n = x.shape[axis]
    numbers = Array.of(cast(arange(goal).node, x.dtype))
    if corners:
        positions = numbers * ((n - 1) / max(goal - 1, 1))
    else:
        step = 1.0 / ratio if ratio is not None else n / goal
        positions = maximum((numbers + 0.5) * step - 0.5, 0.0)
    low = clip(Array.of(cast(floor(positions).node, i64)), 0, n - 1)
    weight = _broadcast_vector(
        positions - Array.of(cast(low.node, x.dtype)), axis - 2, x.ndim - 2, x.dtype
    )
    high = minimum(low + 1, n - 1)
    return take(x, low, axis=axis) * (1.0 - weight) + take(x, high, axis=axis) * weight
