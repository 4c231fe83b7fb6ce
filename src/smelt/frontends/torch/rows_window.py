"""Lower windows (pooling, convolution, unfold), padding by mirroring, and their gradients.

A window is an index map, so a pooling is one reduction that reads its image in place.

Gradients are overlap-adds. An element of an image belongs to several windows, and its gradient is
the sum of theirs. Windows `step` apart with `extent` elements are ceil(extent / step) blocks of
`step`, each one step further on; blocks do not overlap, so the sum is over shifted blocks, read in
place. Nothing is scattered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from smelt import knobs
from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row, axis_of, rows
from smelt.frontends.torch.value import V, concat, contract, gather, iota, number, select
from smelt.ops.view import Shear, Window
from smelt.ops.windows import is_transposed_convolution
from smelt.types.dtype import DType, i32, i64
from smelt.types.expr import Index, add, floordiv, mul, sub
from smelt.types.expr import product as volume
from smelt.types.tensor import Shape


def _per_dimension(setting: Any, count: int) -> tuple[int, ...]:
    """Return a setting for each spatial dimension; torch repeats a single one."""
    entries = [setting] if isinstance(setting, int) else list(setting)
    if any(not isinstance(e, int) for e in entries):
        raise UnsupportedError("windows of symbolic size")
    return tuple(entries * count if len(entries) == 1 else entries)


class Windows(NamedTuple):
    """Windows over the last dimensions of an image; each field has an entry a dimension."""

    extent: tuple[int, ...]
    step: tuple[int, ...]
    pads: tuple[int, ...]
    """Elements added on both sides of the image."""
    dilations: tuple[int, ...]


class Pool(NamedTuple):
    """Settings of a pooling."""

    windows: Windows
    ceil: bool = False
    """Whether the number of windows is rounded up."""
    counts_padding: bool = True
    """Whether averages count padding."""
    divisor: Any = None
    """Number to divide sums by instead."""


def _of_maxima(
    count: int, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, *rest: Any
) -> Pool:
    """Return the settings in the order of `max_pool2d`; windows adjoin by default."""
    settings = kernel, stride or kernel, padding, dilation
    return Pool(Windows(*(_per_dimension(x, count) for x in settings)), *rest)


def _of_averages(count: int, kernel: Any, stride: Any = (), padding: Any = 0, *rest: Any) -> Pool:
    """Return the settings in the order of `avg_pool2d`."""
    return _of_maxima(count, kernel, stride, padding, 1, *rest)


def _windows(c: Call, x: V, w: Windows) -> V:
    """View x: [.., *spatial] as [.., *places, *taps], with as many places as torch reports."""
    count = len(w.extent)
    first = x.rank - count
    output_dims = c.shape[-count:]
    for k in range(count):
        x = x.op(Window(first + k, w.extent[k], w.step[k], w.dilations[k]))
        x = x.narrow(first + k, 0, output_dims[k])
    return x


def _pad_spatial(x: V, pads: Sequence[int], value: float, end_pads: Sequence[int]) -> V:
    """Pad the last dimensions by `pads` on both sides, and by `end_pads` at the end."""
    before = (0,) * (x.rank - len(pads))
    low = (*before, *pads)
    high = (*before, *(a + m for a, m in zip(pads, end_pads, strict=True)))
    return x.pad(low, high, value) if any(low) or any(high) else x


def _overhang(c: Call, x: V, pool: Pool) -> tuple[int, ...]:
    """Return the elements that the last windows need beyond the padding in ceil mode."""
    count = len(pool.windows.extent)
    if not pool.ceil:
        return (0,) * count
    overhang: list[int] = []
    for n, outputs, extent, step, pad, dilation in zip(
        x.shape[-count:], c.shape[-count:], *pool.windows, strict=True
    ):
        if not isinstance(n, int) or not isinstance(outputs, int):
            raise UnsupportedError("windows rounded up over a symbolic size")
        reach = (outputs - 1) * step + (extent - 1) * dilation + 1
        overhang.append(max(0, reach - n - 2 * pad))
    return tuple(overhang)


MAX_ARGMAX_TAPS = 27
"""Maximum elements of a window whose argmax is unrolled."""


def _max_pool(count: int) -> Any:
    def lower(c: Call, x: V, *settings: Any) -> tuple[V, V | None]:
        """Return the maximum of each window, and its position in the image."""
        pool = _of_maxima(count, *settings)
        w, overhang = pool.windows, _overhang(c, x, pool)
        if not x.dtype.is_float:
            raise UnsupportedError("pooling of integers")
        padded = _pad_spatial(x, w.pads, -math.inf, overhang)
        windows = _windows(c, padded, w)
        position = None
        if math.prod(w.extent) <= MAX_ARGMAX_TAPS:
            position = _argmax_positions(c, x, padded, w)
        return windows.reduce("max", range(windows.rank - count, windows.rank)), position

    return lower


def _position_type(spatial: Sequence[Index]) -> DType:
    plane = volume(spatial)
    return i32 if isinstance(plane, int) and plane < 1 << 31 else i64


def _argmax_positions(c: Call, x: V, padded: V, w: Windows) -> V:
    """Return the position in the image of each window's maximum.

    Of equal elements the first, of NaN the last.
    """
    _, step, pads, dilations = w
    first = x.rank - len(step)
    shape = c.shape
    counts = _position_type(x.shape[first:])
    best: V | None = None
    place: V | None = None
    for tap in product(*map(range, w.extent)):
        shifted, index = padded, number(0, counts, c.origin)
        for k, n in enumerate(tap):
            a = first + k
            shifted = shifted.narrow(a, n * dilations[k], shape[a], step[k])
            position = iota(shape, a, counts, c.origin) * step[k] + (n * dilations[k] - pads[k])
            if best is None and pads[k]:  # if all elements equal the padding, take the first inside
                position = select(
                    position.map("lt", 0), position.map("mod", dilations[k]), position
                )
            index = index * number(x.shape[a], counts, c.origin) + position
        if best is None or place is None:
            best, place = shifted, index
            continue
        is_better = shifted.map("gt", best).map("or", shifted.map("isnan"))
        best, place = select(is_better, shifted, best), select(is_better, index, place)
    assert place is not None
    return place.cast(i64)


def _window_counts(c: Call, x: V, pool: Pool, spatial: Shape) -> V:
    """Return the elements of each window over `spatial`, to broadcast with averages x.

    Where padding counts, what windows of ceil mode cover beyond it does not.
    """
    w, inside = pool.windows, not pool.counts_padding
    if pool.divisor or (not pool.ceil and not (inside and any(w.pads))):
        return number(float(pool.divisor or math.prod(w.extent)), x.dtype, x.origin)
    total = number(1, i64, x.origin)
    output_dims = x.shape[x.rank - len(spatial) :]
    for k, (n, m, t, s, margin) in enumerate(
        zip(spatial, output_dims, w.extent, w.step, w.pads, strict=True)
    ):
        begin = iota((m,), 0, i64, c.origin) * s
        size = number(n, i64, c.origin)
        end = (begin + t).map("min", size + 2 * margin)
        if inside:
            begin, end = begin.map("max", margin), end.map("min", size + margin)
        total = total * (end - begin).reshape(m, *[1] * (len(spatial) - 1 - k))
    return total.cast(x.dtype)


def _avg_pool(count: int) -> Any:
    def lower(c: Call, x: V, *settings: Any) -> V:
        pool = _of_averages(count, *settings)
        padded = _pad_spatial(x.to_compute_type(), pool.windows.pads, 0.0, _overhang(c, x, pool))
        windows = _windows(c, padded, pool.windows)
        total = windows.sum(range(windows.rank - count, windows.rank))
        return (total / _window_counts(c, total, pool, x.shape[x.rank - count :])).cast(x.dtype)

    return lower


MAX_UNEQUAL_WINDOW = 32
"""Maximum elements along a dimension of windows of different sizes that are unrolled."""


def _adaptive_average(x: V, a: int, n: Index, m: Index, *, back: bool = False) -> V:
    """Average an axis of n elements into m windows; with `back`, distribute gradients.

    Window i goes from floor(i·n/m) to ceil((i + 1)·n/m). An element belongs to the windows that it
    would hold if there were m elements and n windows.
    """
    elements, windows = (m, n) if back else (n, m)
    if windows == 1 or (
        isinstance(elements, int) and isinstance(windows, int) and elements % windows == 0
    ):
        size = floordiv(elements, windows)
        if not back:
            return x.reshape(*x.shape[:a], windows, size, *x.shape[a + 1 :]).mean((a + 1,))
        x = (x / number(size, x.dtype, x.origin)).unsqueeze(a + 1)
        x = x.expand((*x.shape[: a + 1], size, *x.shape[a + 2 :]))
        return x.reshape(*x.shape[:a], elements, *x.shape[a + 2 :])
    if not isinstance(n, int) or not isinstance(m, int):
        raise UnsupportedError("adaptive pooling into windows of symbolic sizes")
    window_size = max(-(-(i + 1) * n // m) - i * n // m for i in range(m))
    if window_size > MAX_UNEQUAL_WINDOW:
        raise UnsupportedError("adaptive pooling into large windows of different sizes")
    if back:
        x = x / _count_of(x, a, m, n)
    first, end = _bounds(x, m, n)
    total: V | None = None
    for t in range(window_size):
        index = first + t
        read = gather(x, a, index.map("min", n - 1))
        is_inside = index.map("lt", end).reshape(m, *[1] * (x.rank - 1 - a))
        part = select(is_inside, read, number(0, x.dtype, x.origin))
        total = part if total is None else total + part
    assert total is not None
    return total if back else total / _count_of(total, a, n, m)


def _bounds(x: V, m: int, n: int) -> tuple[V, V]:
    """Return where each of m windows over n elements begins and ends."""
    i = iota((m,), 0, i64, x.origin)
    return (i * n).map("floordiv", m), (i * n + (n + m - 1)).map("floordiv", m)


def _count_of(x: V, a: int, n: int, m: int) -> V:
    """Return the sizes of m windows over n elements, along axis `a`."""
    first, end = _bounds(x, m, n)
    return (end - first).cast(x.dtype).reshape(m, *[1] * (x.rank - 1 - a))


def _adaptive_avg(count: int) -> Any:
    def lower(c: Call, x: V, size: Any) -> V:
        first = x.rank - count
        average = x.to_compute_type()
        for k, m in enumerate(_per_dimension(size, count)):
            average = _adaptive_average(average, first + k, x.shape[first + k], m)
        return average.cast(x.dtype)

    return lower


def _margins(pad: Sequence[Any], rank: int) -> Iterator[tuple[int, int, int]]:
    """Yield each padded axis from the last, with its margins."""
    for k, (low, high) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        if not isinstance(low, int) or not isinstance(high, int) or low < 0 or high < 0:
            raise UnsupportedError("margins that are symbolic or negative")
        yield rank - 1 - k, low, high


def _pad_by_gather(mode: str, c: Call, x: V, pad: Sequence[Any]) -> V:
    """Pad with elements of x, gathered at mirrored or clamped positions."""
    for a, low, _ in _margins(pad, x.rank):
        last = number(sub(x.shape[a], 1), i64, c.origin)
        index = iota((c.shape[a],), 0, i64, c.origin) - low
        if mode == "reflect":
            index = last - (last - index.map("abs")).map("abs")
        else:
            index = index.map("max", 0).map("min", last)
        x = gather(x, a, index)
    return x


MAX_PRODUCT_RATIO = 2.0
"""Maximum products of a transposed convolution for each useful one; many are wasted at the edges of
tiny images, where torch's own is faster."""
MAX_LINE_TAPS = 9
"""Maximum elements of a single channel's window along one dimension for our kernels to be as fast
as torch's: they do not reuse a row of the image for several rows of results."""


def _convolution(c: Call, x: V, weight: V, bias: V | None, *settings: Any) -> V:
    """Contract a filter with windows of an image, which are index maps."""
    *_, transposed, output_padding, groups = settings
    w = _of_filter(x, weight, settings)
    if transposed:
        if knobs.ROUNDING.get() == "exact":
            raise UnsupportedError("sums that are not made products: torch's are faster")
        beyond = _per_dimension(output_padding, len(w.step))
        if any(m >= s for m, s in zip(beyond, w.step, strict=True)):
            raise UnsupportedError("a transposed convolution with places that no window has")
        if _product_ratio(x.shape[2:], c.shape[2:], w) > MAX_PRODUCT_RATIO:
            raise UnsupportedError("a transposed convolution of a tiny image: torch's is faster")
        result = _transposed_convolution(x, weight, w, c.shape, groups)
    else:
        if groups > 1:
            _refuse_long_filter(weight, w)
        result = _correlation(x, weight, w, c.shape, groups)
    return result if bias is None else result + bias.reshape(bias.shape[0], *[1] * len(w.step))


def _of_filter(x: V, weight: V, settings: Sequence[Any]) -> Windows:
    """Return the windows of a filter: `settings` begin with stride, padding and dilation."""
    extent = tuple(n for n in weight.shape[2:] if isinstance(n, int))
    if len(extent) != x.rank - 2 or not x.dtype.is_float:
        raise UnsupportedError("windows of symbolic size")
    return Windows(extent, *(_per_dimension(setting, len(extent)) for setting in settings[:3]))


def _product_ratio(spatial: Shape, output: Shape, w: Windows) -> float:
    """Return computed products for each useful one of a transposed convolution.

    Only along dimensions of known size.
    """
    ratio = 1.0
    for n, m, taps, s in zip(spatial, output, w.extent, w.step, strict=True):
        if isinstance(n, int) and isinstance(m, int) and n > 0:
            ratio *= min(-(-m // s), n + -(-taps // s) - 1) / n
    return ratio


def _correlation(x: V, weight: V, w: Windows, shape: Shape, groups: int) -> V:
    """Contract a filter with windows of a padded image to a result of `shape`."""
    count = len(w.extent)
    x = _pad_spatial(x, w.pads, 0.0, (0,) * count)
    for k, taps in enumerate(w.extent):
        if taps > 1:
            x = x.op(Window(2 + k, taps, w.step[k], w.dilations[k])).narrow(2 + k, 0, shape[2 + k])
        else:
            x = x.narrow(2 + k, 0, shape[2 + k], w.step[k])
    return _contract_windows(x, weight, groups, count).reshape(*shape)


def _refuse_long_filter(weight: V, w: Windows) -> None:
    """Raise UnsupportedError for many taps along one dimension of a single channel."""
    line = sum(n > 1 for n in w.extent) == 1
    if line and weight.shape[1] == 1 and math.prod(w.extent) > MAX_LINE_TAPS:
        raise UnsupportedError("many taps along a line: torch's convolution is faster today")


def _insert_zeros(x: V, a: int, step: int) -> V:
    """Insert `step - 1` zeros after each element along an axis."""
    if step == 1:
        return x
    zeros = [0] * (x.rank + 1)
    x, shape = x.unsqueeze(a + 1), x.shape
    x = x.pad(tuple(zeros), tuple(step - 1 if k == a + 1 else 0 for k in range(x.rank)), 0.0)
    return x.reshape(*shape[:a], mul(shape[a], step), *shape[a + 1 :])


def _transposed_convolution(x: V, weight: V, w: Windows, shape: Shape, groups: int) -> V:
    """Compute the transposed convolution of x, an image of `shape`.

    The products of each window position and tap are sheared to their position and summed. As one
    sum they become products over windows of x, one for each remainder of positions by the step
    (`smelt.passes.conv_transpose`), so that no zeros are multiplied.
    """
    extent, step, pads, dilations = w
    if not all(map(is_transposed_convolution, step, dilations, extent)):
        raise UnsupportedError("windows that skip places, or reach few of those they step over")
    _refuse_long_filter(weight, w)
    place_letters, tap_letters = "xyz"[: len(extent)], "uvw"[: len(extent)]
    outer, inner = weight.shape[:2]
    sizes: dict[str, Index] = {"g": groups, "o": floordiv(outer, groups), "c": inner}
    of_x, of_weight, out = (
        "".join(a for a in side if sizes[a] != 1) for side in ("go", "goc", "gc")
    )
    input_dims, dtype = x.shape[2:], x.dtype
    x = x.reshape(x.shape[0], *(sizes[a] for a in of_x), *input_dims)
    kernel = weight.reshape(*(sizes[a] for a in of_weight), *extent)
    spec = f"b{of_x}{place_letters},{of_weight}{tap_letters}->b{out}{place_letters}{tap_letters}"
    image = contract(x, kernel, spec, dtype.compute)
    image = image.reshape(*shape[:2], *input_dims, *extent)
    for k in reversed(range(len(extent))):
        a, last = 2 + k, image.rank - 1
        if extent[k] == 1:
            image = _insert_zeros(image.reshape(*image.shape[:last]), a, step[k])
        else:
            padded_length = add(shape[a], 2 * pads[k])
            image = _insert_zeros(image, a, step[k])
            image = image.op(
                Shear((*image.shape[:a], padded_length, *image.shape[a + 1 :]), a, dilations[k])
            )
            image = image.sum((last,))
        image = image.narrow(a, pads[k], shape[a])
    return image.cast(dtype)


def _contract_windows(windows: V, kernel: V, groups: int, count: int) -> V:
    """Contract [b, g·c, *places, *taps] with [g·o, c, *taps] to [b, g, o, *places]."""
    shape = windows.shape
    sizes: dict[str, Index] = {
        "g": groups,
        "c": kernel.shape[1],
        "o": floordiv(kernel.shape[0], groups),
    }
    left, right, outer = ("".join(a for a in side if sizes[a] != 1) for side in ("gc", "goc", "go"))
    place_letters = "xyz"[:count]
    tap_letters = "".join(t for t, n in zip("uvw", kernel.shape[2:], strict=False) if n != 1)
    lengths = [n for n in kernel.shape[2:] if n != 1]
    windows = windows.reshape(shape[0], *(sizes[a] for a in left), *shape[2 : 2 + count], *lengths)
    kernel = kernel.reshape(*(sizes[a] for a in right), *lengths)
    return contract(
        windows,
        kernel,
        f"b{left}{place_letters}{tap_letters},{right}{tap_letters}->b{outer}{place_letters}",
    )


# ---- windows along one axis ----------------------------------------------------------------------


def _unfold(c: Call, x: V, dim: int, extent: int, step: int) -> V:
    if not x.rank:
        raise UnsupportedError("windows over a single number")
    a = axis_of(dim, x.rank)
    return x.op(Window(a, extent, step, 1)).narrow(a, 0, c.shape[a])


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
        g = _insert_zeros(g.permute(*(k for k in range(end + 1) if k != taps), taps), a, step)
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


def _sum_windows(g: V, spatial: Shape, w: Windows) -> V:
    """Sum windows to an image with padding: [.., *places, *taps] -> [.., *spatial]."""
    count = len(spatial)
    first = g.rank - 2 * count
    for k, length in enumerate(spatial):
        g = _shear_windows(
            g, first + count, first + k, w.step[k], w.dilations[k], length, w.pads[k]
        )
    return g.sum(range(first + count, g.rank))


def _repeat_for_taps(x: V, extent: Sequence[int]) -> V:
    """Repeat each place for each tap of its window: [.., *places, *taps]."""
    return x.reshape(*x.shape, *[1] * len(extent)).expand((*x.shape, *extent))


# ---- poolings ------------------------------------------------------------------------------------


def _max_pool_backward(count: int) -> Any:
    def lower(c: Call, g: V, x: V, *operands: Any) -> V:
        """Send each gradient to the position of the maximum of its window."""
        *settings, argmax = operands
        w = extent, step, pads, dilations = _of_maxima(count, *settings).windows
        if any(n > 1 and (n - 1) * d >= s for n, d, s in zip(extent, dilations, step, strict=True)):
            raise UnsupportedError("windows that overlap: torch writes where each one chose")
        first = x.rank - count
        spatial = x.shape[first:]
        counts = _position_type(spatial)
        position = number(0, counts, c.origin)
        windows = (*g.shape, *extent)
        for k in range(count):
            offset = iota(windows, first + k, counts, c.origin) * step[k]
            offset = offset + iota(windows, first + count + k, counts, c.origin) * dilations[k]
            position = position * number(spatial[k], counts, c.origin) + (offset - pads[k])
        chosen = _repeat_for_taps(argmax.cast(counts), extent).map("eq", position)
        widened = _repeat_for_taps(g.to_compute_type(), extent)
        gradient = select(chosen, widened, number(0, widened.dtype, c.origin))
        return _sum_windows(gradient, spatial, w).cast(c.dtype)

    return lower


def _avg_pool_backward(count: int) -> Any:
    def lower(c: Call, g: V, x: V, *settings: Any) -> V:
        """Give each element of a window an equal share."""
        pool = _of_averages(count, *settings)
        spatial, widened = x.shape[x.rank - count :], g.to_compute_type()
        shares = widened / _window_counts(c, widened, pool, spatial)
        shares = _repeat_for_taps(shares, pool.windows.extent)
        return _sum_windows(shares, spatial, pool.windows).cast(c.dtype)

    return lower


def _adaptive_avg_backward(count: int) -> Any:
    def lower(c: Call, g: V, x: V) -> V:
        """Distribute the gradient of each average over its window."""
        first = x.rank - count
        output_dims, spatial = g.shape[first:], x.shape[first:]
        g = g.to_compute_type()
        for k in range(count):
            g = _adaptive_average(g, first + k, output_dims[k], spatial[k], back=True)
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


def _padding_backward(mode: str, c: Call, g: V, x: V, pad: Sequence[Any]) -> V:
    """Add the gradient of the padding to the elements that it repeats."""
    g = g.to_compute_type()
    for a, low, high in _margins(pad, g.rank):
        n = x.shape[a]
        gradient = g.narrow(a, low, n)
        for start, m, at_end in ((0, low, False), (add(low, n), high, True)):
            if m:
                gradient = gradient + _padding_gradient(
                    mode, g.narrow(a, start, m), a, n, at_end=at_end
                )
        g = gradient
    return g.cast(c.dtype)


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
    c: Call, grad: V, x: V, weight: V, _bias: Any, *settings: Any
) -> tuple[V | None, V | None, None]:
    """Return one gradient of a convolution, where ours is at least as fast as torch's.

    For the image: groups, and windows of one element or along a line. For weights: windows of one
    element or of one channel.
    """
    *_, transposed, _more, groups, (of_image, *_) = settings
    w = _of_filter(x, weight, settings)
    count = len(w.extent)
    is_pointwise = math.prod(w.extent) == 1
    is_depthwise = weight.shape[1] == 1 and weight.shape[0] == groups
    if x.dtype.compute != x.dtype and not (is_pointwise or is_depthwise):
        raise UnsupportedError("gradients of half types: torch's are products of such numbers")
    if of_image:
        return _image_gradient(grad, x, weight, w, groups, transposed), None, None
    if transposed or not (is_pointwise or is_depthwise):
        raise UnsupportedError("gradients of weights of several channels: torch's are faster")
    _refuse_long_filter(weight, w)
    if not is_pointwise and count > 1 and math.prod(w.extent) <= MAX_LINE_TAPS:
        raise UnsupportedError("gradients of small windows over images: torch's are as fast")
    x = _pad_spatial(x, w.pads, 0.0, (0,) * count)
    if is_depthwise and not is_pointwise:
        return None, _depthwise_weight_gradient(grad, x, weight, w), None
    return None, _pointwise_weight_gradient(grad, x, weight, w.step, groups), None


def _image_gradient(grad: V, x: V, weight: V, w: Windows, groups: int, transposed: bool) -> V:
    """Return the gradient of the image: the convolution the other way round."""
    if transposed:
        return _correlation(grad, weight, w, x.shape, groups)
    is_apart = any(s > 1 for s in w.step)
    if math.prod(w.extent) > 1 and len(w.extent) > 1 and (groups == 1 or is_apart):
        raise UnsupportedError("gradients of images of all channels, or apart: torch's are faster")
    flipped = [(n - 1) * d - a for n, _, a, d in zip(*w, strict=True)]
    if is_apart or min(flipped) < 0:
        return _transposed_convolution(grad, weight, w, x.shape, groups)
    return _flipped_correlation(grad, x, weight, w._replace(pads=tuple(flipped)), groups)


def _flipped_correlation(grad: V, x: V, weight: V, w: Windows, groups: int) -> V:
    """Correlate the gradient with the flipped filter, inputs and outputs exchanged."""
    _refuse_long_filter(weight, w)
    outer, inner, *extent = weight.shape
    kernel = weight.flip(*range(2, weight.rank))
    kernel = kernel.reshape(groups, floordiv(outer, groups), inner, *extent)
    kernel = kernel.transpose(1, 2).reshape(mul(inner, groups), floordiv(outer, groups), *extent)
    return _correlation(grad, kernel, w, x.shape, groups)


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


def _depthwise_weight_gradient(grad: V, x: V, weight: V, w: Windows) -> V:
    """Reduce over batch and window positions for each tap, for windows of one channel."""
    place_letters = "xyz"[: len(w.extent)]
    gradients: list[V] = []
    grad, image = grad.to_compute_type(), x.to_compute_type()
    for tap in product(*map(range, w.extent)):
        shifted = image
        for k, n in enumerate(tap):
            shifted = shifted.narrow(2 + k, n * w.dilations[k], grad.shape[2 + k], w.step[k])
        gradients.append(
            contract(grad, shifted, f"bc{place_letters},bc{place_letters}->c").unsqueeze(1)
        )
    return concat(gradients, 1).reshape(*weight.shape).cast(x.dtype)


ROWS = (
    Row("aten.unfold.default", _unfold, alias=True),
    *rows("max_pool{}d_with_indices.{}", lambda n: _max_pool(int(n)), "2 3"),
    *rows("avg_pool{}d.{}", lambda n: _avg_pool(int(n)), "1 2 3"),
    Row("aten.adaptive_avg_pool1d.default", _adaptive_avg(1)),
    Row("aten._adaptive_avg_pool2d.default", _adaptive_avg(2)),
    Row("aten._adaptive_avg_pool3d.default", _adaptive_avg(3)),
    Row("aten.convolution.default", _convolution),
    Row("aten.convolution_backward.default", _convolution_backward),
    Row("aten.unfold_backward.default", _unfold_backward),
    *rows("max_pool{}d_with_indices_backward.{}", lambda n: _max_pool_backward(int(n)), "2 3"),
    *rows("avg_pool{}d_backward.{}", lambda n: _avg_pool_backward(int(n)), "2 3"),
    *rows("_adaptive_avg_pool{}d_backward.{}", lambda n: _adaptive_avg_backward(int(n)), "2 3"),
    *(
        Row(f"aten.{name}_pad{n}d{suffix}.default", partial(rule, mode))
        for name, mode in (("reflection", "reflect"), ("replication", "replicate"))
        for suffix, rule in (("", _pad_by_gather), ("_backward", _padding_backward))
        for n in (1, 2, 3)
    ),
)
"""Rows of windows and padding, and of their gradients."""
