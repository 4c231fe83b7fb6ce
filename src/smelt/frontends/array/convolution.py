"""Convolutions in any number of spatial dimensions, as contractions over windows.

A convolution is recorded as its definition: the windows of the padded image (an index map),
contracted with the weights (cf. im2col).  The array of windows is never stored; the kernel that
reads it applies the map.

>>> import smelt as sm
>>> conv(sm.asarray([[[1.0, 2.0, 3.0]]]), sm.asarray([[[1.0, 1.0]]]))
Array([[[3., 5.]]])
"""

from __future__ import annotations

from operator import lt
from typing import Any

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.families import BINARY
from smelt.frontends.array.product import contract
from smelt.frontends.array.promote import cast, common
from smelt.frontends.array.reduction import reduce_axes
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import Value, record
from smelt.frontends.array.views import flip, pad, permute, pin_dimensions, reshape, shape_of
from smelt.frontends.array.windows import (
    Padding,
    Windows,
    check_fit,
    crop_or_pad,
    padding_of,
    per_dimension,
    slide,
    spatial_rank,
)
from smelt.ops.contract import Contract
from smelt.ops.view import Shear
from smelt.ops.windows import is_transposed_convolution
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
    extent = pin_dimensions(kernel, range(2, 2 + count))
    dilated = per_dimension("conv", "dilation", dilation, count)
    steps = per_dimension("conv", "stride", stride, count)
    windows = Windows(extent, steps, dilated, padding_of("conv", padding, extent, dilated))
    check_fit("conv", image, windows, operands)
    (groups,) = per_dimension("conv", "groups", groups, 1)
    inner = _group_channels(
        "conv", image, kernel, groups, mul(_input_channels(kernel, groups), groups), 0
    )
    result = _correlate(slide("conv", image, windows, 0, mode), kernel, groups, count, inner)
    return _add_bias("conv", result, bias, count)


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
    extent = pin_dimensions(kernel, range(2, 2 + count))
    dilated = per_dimension(what, "dilation", dilation, count)
    steps = per_dimension(what, "stride", stride, count)
    extra = per_dimension(what, "output_padding", output_padding, count, 0)
    if any(m >= max(s, d) for m, s, d in zip(extra, steps, dilated, strict=True)):
        raise ArgumentError.of(
            what, "output_padding", output_padding, "less than the stride or the dilation"
        )
    (groups,) = per_dimension(what, "groups", groups, 1)
    _group_channels(what, image, kernel, groups, shape_of(kernel)[0], 0)
    cropping = padding_of(what, padding, extent, dilated)
    for n, s, d, e, m, ends in zip(
        shape_of(image)[2:], steps, dilated, extent, extra, cropping, strict=True
    ):
        full = add(mul(sub(n, 1), s), d * (e - 1) + 1 + m)
        if not holds(image.scope, sum(ends) + 1, "<=", full):
            raise ShapeError.of(
                what,
                f"the result would be empty: padding {padding!r} cuts off all of it",
                image,
                kernel,
            )
    full = all(map(is_transposed_convolution, steps, dilated, extent)) and all(
        map(lt, extra, steps)
    )
    floating = image.type.dtype.is_float and kernel.type.dtype.is_float
    form = _col2im if full and floating else _zero_stuffed
    result = form(image, kernel, groups, steps, dilated, cropping, extra)
    return _add_bias(what, result, bias, count)


def _transpose_kernel(kernel: Value, groups: int) -> Value:
    """Swap a kernel's channels and reverse its taps: [g*c, o, *taps] -> [g*o, c, *taps]."""
    shape = shape_of(kernel)
    inner = floordiv(shape[0], groups)
    kernel = reshape(kernel, (groups, inner, *shape[1:]))
    order = (0, 2, 1, *range(3, kernel.type.rank))
    kernel = reshape(permute(kernel, order), (mul(shape[1], groups), inner, *shape[2:]))
    return flip(kernel, tuple(range(2, kernel.type.rank)))


def _zero_stuffed(
    image: Value,
    kernel: Value,
    groups: int,
    steps: tuple[int, ...],
    dilated: tuple[int, ...],
    cropping: Padding,
    extra: tuple[int, ...],
) -> Value:
    """Convolve the image with stride - 1 zeros inserted between its elements."""
    count = len(steps)
    for k, step in enumerate(steps):
        image = _insert_zeros(image, 2 + k, step)
    extent = pin_dimensions(kernel, range(2, 2 + count))
    reach = [(n - 1) * d for n, d in zip(extent, dilated, strict=True)]
    borders = tuple(
        (r - low, r - high + m - (s - 1))
        for r, (low, high), m, s in zip(reach, cropping, extra, steps, strict=True)
    )
    windows = Windows(extent, (1,) * count, dilated, ((0, 0),) * count)
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


def _col2im(
    image: Value,
    kernel: Value,
    groups: int,
    steps: tuple[int, ...],
    dilated: tuple[int, ...],
    cropping: Padding,
    extra: tuple[int, ...],
) -> Value:
    """Multiply each element with each tap and add the products at their positions (col2im).

    `smelt.passes.conv_transpose` rewrites the sum as contractions over windows of the image, one
    for each phase of the stride.
    """
    count, dtype = len(steps), common("conv_transpose", image.type.dtype, kernel.type.dtype)
    extent = pin_dimensions(kernel, range(2, 2 + count))
    shape, (outer, inner, *_) = shape_of(image), shape_of(kernel)
    sizes = {"g": groups, "o": floordiv(outer, groups), "c": inner}
    letters = SPATIAL_LETTERS[:count], WINDOW_LETTERS[:count]
    first, second, out = (
        [a for a in names if a not in sizes or sizes[a] != 1]
        for names in ("bgo" + letters[0], "goc" + letters[1], "bgc" + letters[0] + letters[1])
    )
    image = reshape(image, (shape[0], *(sizes[a] for a in first if a in sizes), *shape[2:]))
    kernel = reshape(kernel, (*(sizes[a] for a in second if a in sizes), *extent))
    half = dtype if dtype.compute != dtype else None
    left, right = (tuple(axis(a, 0) for a in side) for side in (first, second))
    product = Contract(left, right, tuple(out), dtype=half and half.compute, factors=half)
    products = record(product, (cast(image, dtype), cast(kernel, dtype)))
    products = reshape(products, (shape[0], mul(inner, groups), *shape[2:], *extent))
    for k in reversed(range(count)):
        a, n = 2 + k, add(mul(sub(shape[2 + k], 1), steps[k]), dilated[k] * (extent[k] - 1) + 1)
        products = _insert_zeros(products, a, steps[k])
        lengths = shape_of(products)
        target = (*lengths[:a], add(n, extra[k]), *lengths[a + 1 :])
        products = record(Shear(target, a, dilated[k]), (products,))
        products = reduce_axes("sum", products, (products.type.rank - 1,), keepdims=False)
    return cast(crop_or_pad(products, tuple((-low, -high) for low, high in cropping)), dtype)
