"""Windows over images: poolings, margins and convolutions.

A window is an index map, so a pooling is one fold that reads its image in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from smelt import knobs
from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row, axis_of
from smelt.frontends.torch.value import V, contract, gather, iota, number, select
from smelt.ops.view import Shear, Window
from smelt.types.dtype import i32, i64
from smelt.types.expr import Index, add, floordiv, mul, sub
from smelt.types.expr import product as volume
from smelt.windows import is_laid

__all__ = [
    "MOST_TAPS",
    "ROWS",
    "adapted",
    "correlation",
    "counted",
    "each",
    "held",
    "laid_back",
    "margin",
    "no_long_line",
    "spread",
]


def each(given: Any, count: int) -> tuple[int, ...]:
    """A setting for each spatial dimension; torch repeats a single one."""
    entries = [given] if isinstance(given, int) else list(given)
    if any(not isinstance(e, int) for e in entries):
        raise UnsupportedError("windows of symbolic size")
    return tuple(entries * count if len(entries) == 1 else entries)


def _windows(
    c: Call, x: V, extent: Sequence[int], step: Sequence[int], dilation: Sequence[int]
) -> V:
    """[.., *places, *windows] of x: [.., *spatial], as many places as torch says."""
    count = len(extent)
    first = x.rank - count
    places = c.shape[-count:]
    for k in range(count):
        x = x.op(Window(first + k, extent[k], step[k], dilation[k]))
        x = x.narrow(first + k, 0, places[k])
    return x


def margin(x: V, around: Sequence[int], value: float, more: Sequence[int]) -> V:
    """`around` elements on both sides of the last dimensions, and `more` behind."""
    before = (0,) * (x.rank - len(around))
    low = (*before, *around)
    high = (*before, *(a + m for a, m in zip(around, more, strict=True)))
    return x.pad(low, high, value) if any(low) or any(high) else x


def _overhang(
    c: Call,
    x: V,
    extent: Sequence[int],
    step: Sequence[int],
    dilation: Sequence[int],
    around: Sequence[int],
    ceil: bool,
) -> tuple[int, ...]:
    """Elements that the last windows need behind the margin, when places are rounded up."""
    if not ceil:
        return (0,) * len(extent)
    found: list[int] = []
    for k, places in enumerate(c.shape[-len(extent) :]):
        n = x.shape[k - len(extent)]
        if not isinstance(n, int) or not isinstance(places, int):
            raise UnsupportedError("windows rounded up over a symbolic size")
        reach = (places - 1) * step[k] + (extent[k] - 1) * dilation[k] + 1
        found.append(max(0, reach - n - 2 * around[k]))
    return tuple(found)


MOST_CHOICES = 27
"""Elements of a window up to which the choice of the greatest is written out."""


def _max_pool(
    c: Call,
    x: V,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[V, V | None]:
    """The greatest of each window, and its place in the image."""
    count = 3 if c.out[0].dim() >= 4 and len(each(kernel, 1)) == 3 else 2
    extent = each(kernel, count)
    step = extent if stride == [] or stride == () else each(stride, count)
    around, apart = each(padding, count), each(dilation, count)
    more = _overhang(c, x, extent, step, apart, around, ceil_mode)
    lowest = -math.inf if x.dtype.is_float else 0
    if not x.dtype.is_float:
        raise UnsupportedError("pooling of integers")
    slid = _windows(c, margin(x, around, lowest, more), extent, step, apart)
    place = None
    if math.prod(extent) <= MOST_CHOICES:
        place = _place_of_greatest(c, x, extent, step, around, apart, more)
    return slid.reduce("max", range(slid.rank - count, slid.rank)), place


def _place_of_greatest(
    c: Call,
    x: V,
    extent: Sequence[int],
    step: Sequence[int],
    around: Sequence[int],
    apart: Sequence[int],
    more: Sequence[int],
) -> V:
    """Where in its image the greatest of each window is: of equals the first, of NaN the last."""
    count = len(extent)
    first = x.rank - count
    shape = c.shape
    plane = volume(x.shape[first:])
    counts = i32 if isinstance(plane, int) and plane < 1 << 31 else i64
    wide = margin(x, around, -math.inf, more)
    best: V | None = None
    place: V | None = None
    for tap in product(*map(range, extent)):
        seen, at = wide, number(0, counts, c.origin)
        for k, n in enumerate(tap):
            a = first + k
            seen = seen.narrow(a, n * apart[k], shape[a], step[k])
            here = iota(shape, a, counts, c.origin) * step[k] + (n * apart[k] - around[k])
            if best is None and around[k]:  # all may be as low as a margin: the first inside
                here = select(here.map("lt", 0), here.map("mod", apart[k]), here)
            at = at * number(x.shape[a], counts, c.origin) + here
        if best is None or place is None:
            best, place = seen, at
            continue
        more_so = seen.map("gt", best).map("or", seen.map("isnan"))
        best, place = select(more_so, seen, best), select(more_so, at, place)
    assert place is not None
    return place.cast(i64)


def held(
    c: Call,
    spatial: Sequence[Index],
    places: Sequence[Index],
    extent: Sequence[int],
    step: Sequence[int],
    around: Sequence[int],
    *,
    inside: bool,
    ceil: bool,
) -> float | list[V]:
    """Elements of each window: a number, or counts along each dimension, whose product it is.
    Those of the margin count, unless only what is `inside` does; what windows that are rounded up
    hold beyond it never does."""
    if not ceil and not (inside and any(around)):
        return float(math.prod(extent))
    found: list[V] = []
    for n, m, t, s, margin in zip(spatial, places, extent, step, around, strict=True):
        begin = iota((m,), 0, i64, c.origin) * s
        size = number(n, i64, c.origin)
        end = (begin + t).map("min", size + 2 * margin)
        if inside:
            begin, end = begin.map("max", margin), end.map("min", size + margin)
        found.append(end - begin)
    return found


def counted(n: float | list[V], x: V, count: int) -> V:
    """What windows hold, as numbers beside the last dimensions of x."""
    if not isinstance(n, list):
        return number(float(n), x.dtype, x.origin)
    total = number(1, i64, x.origin)
    for k, along in enumerate(n):
        total = total * along.reshape(*along.shape, *[1] * (count - 1 - k))
    return total.cast(x.dtype)


def _avg_pool(count: int) -> Any:
    def lower(
        c: Call,
        x: V,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> V:
        extent = each(kernel, count)
        step = extent if stride == [] or stride == () else each(stride, count)
        around, apart = each(padding, count), (1,) * count
        more = _overhang(c, x, extent, step, apart, around, ceil_mode)
        wide = margin(x.wide(), around, 0.0, more)
        slid = _windows(c, wide, extent, step, apart)
        total = slid.sum(range(slid.rank - count, slid.rank))
        n = held(
            c,
            x.shape[x.rank - count :],
            total.shape[x.rank - count :],
            extent,
            step,
            around,
            inside=not count_include_pad,
            ceil=ceil_mode,
        )
        return (total / counted(divisor_override or n, total, count)).cast(x.dtype)

    return lower


MOST_UNEQUAL = 32
"""Elements along a dimension, of windows of different sizes, up to which each is asked for."""


def adapted(x: V, a: int, n: Index, m: Index, *, back: bool = False) -> V:
    """An axis of n elements as m averages, of which number i is over those from floor(i·n/m) up to
    ceil((i + 1)·n/m); `back` gives such averages' gradients to the elements.

    An element stands in the windows that it would hold if there were m elements and n windows.
    """
    whole, parts = (m, n) if back else (n, m)  # elements, and windows over them
    if parts == 1 or (isinstance(whole, int) and isinstance(parts, int) and whole % parts == 0):
        size = floordiv(whole, parts)
        if not back:
            return x.reshape(*x.shape[:a], parts, size, *x.shape[a + 1 :]).mean((a + 1,))
        x = (x / number(size, x.dtype, x.origin)).unsqueeze(a + 1)
        x = x.expand((*x.shape[: a + 1], size, *x.shape[a + 2 :]))
        return x.reshape(*x.shape[:a], whole, *x.shape[a + 2 :])
    if not isinstance(n, int) or not isinstance(m, int):
        raise UnsupportedError("adaptive pooling into windows of symbolic sizes")
    most = max(-(-(i + 1) * n // m) - i * n // m for i in range(m))
    if most > MOST_UNEQUAL:
        raise UnsupportedError("adaptive pooling into large windows of different sizes")
    if back:
        x = x / _count_of(x, a, m, n)
    first, end = _bounds(x, m, n)
    total: V | None = None
    for t in range(most):
        at = first + t
        read = gather(x, a, at.map("min", n - 1))
        there = at.map("lt", end).reshape(m, *[1] * (x.rank - 1 - a))
        part = select(there, read, number(0, x.dtype, x.origin))
        total = part if total is None else total + part
    assert total is not None
    return total if back else total / _count_of(total, a, n, m)


def _bounds(x: V, m: int, n: int) -> tuple[V, V]:
    """Where each of m windows over n elements begins and ends."""
    i = iota((m,), 0, i64, x.origin)
    return (i * n).map("floordiv", m), (i * n + (n + m - 1)).map("floordiv", m)


def _count_of(x: V, a: int, n: int, m: int) -> V:
    """Elements of each of m windows over n, beside axis `a` of x."""
    first, end = _bounds(x, m, n)
    return (end - first).cast(x.dtype).reshape(m, *[1] * (x.rank - 1 - a))


def _adaptive_avg(count: int) -> Any:
    def lower(c: Call, x: V, size: Any) -> V:
        first = x.rank - count
        found = x.wide()
        for k, m in enumerate(each(size, count)):
            found = adapted(found, first + k, x.shape[first + k], m)
        return found.cast(x.dtype)

    return lower


def _margins_by_gather(mode: str, count: int) -> Any:
    """Margins whose elements come from x itself, at mirrored or clipped positions."""

    def lower(c: Call, x: V, pad: Sequence[Any]) -> V:
        for k in range(count):
            a = x.rank - 1 - k
            low, high = pad[2 * k], pad[2 * k + 1]
            if not isinstance(low, int) or not isinstance(high, int) or low < 0 or high < 0:
                raise UnsupportedError("margins that are symbolic or negative")
            last = number(sub(x.shape[a], 1), i64, c.origin)
            at = iota((c.shape[a],), 0, i64, c.origin) - low
            if mode == "reflect":
                at = last - (last - at.map("abs")).map("abs")
            else:
                at = at.map("max", 0).map("min", last)
            x = gather(x, a, at)
        return x

    return lower


MOST_BESIDE = 2.0
"""Products of a transposed convolution against those that count, of which many lie beside tiny
images: torch's own is faster there."""
MOST_TAPS = 9
"""Elements of a window along one dimension of a single channel up to which our kernels are as fast
as torch's: no line of the image serves several lines of results there."""


def _convolution(
    c: Call,
    x: V,
    weight: V,
    bias: V | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    more: Any,
    groups: int,
) -> V:
    """A sum of products over the windows of an image, which are index maps."""
    count = x.rank - 2
    extent = [n for n in weight.shape[2:] if isinstance(n, int)]
    if len(extent) != count or not x.dtype.is_float:
        raise UnsupportedError("windows of symbolic size")
    if transposed:
        step, apart = each(stride, count), each(dilation, count)
        if knobs.ROUNDING.get() == "exact":
            raise UnsupportedError("sums that are not made products: torch's are faster")
        if any(m >= s for m, s in zip(each(more, count), step, strict=True)):
            raise UnsupportedError("a transposed convolution with places that no window has")
        if _beside(x.shape[2:], c.shape[2:], extent, step) > MOST_BESIDE:
            raise UnsupportedError("a transposed convolution of a tiny image: torch's is faster")
        found = laid_back(x, weight, c.shape, step, each(padding, count), apart, groups)
        return found if bias is None else found + bias.reshape(bias.shape[0], *[1] * count)
    if groups > 1:
        no_long_line(weight, extent)
    found = correlation(
        x, weight, each(stride, count), each(padding, count), each(dilation, count), c.shape, groups
    )
    return found if bias is None else found + bias.reshape(bias.shape[0], *[1] * count)


def _beside(
    spatial: Sequence[Index], whole: Sequence[Index], extent: Sequence[int], step: Sequence[int]
) -> float:
    """Places of each remainder that a transposed convolution computes, against those of its
    image, as far as they are known."""
    found = 1.0
    for n, m, taps, s in zip(spatial, whole, extent, step, strict=True):
        if isinstance(n, int) and isinstance(m, int) and n > 0:
            found *= min(-(-m // s), n + -(-taps // s) - 1) / n
    return found


def correlation(
    x: V,
    weight: V,
    step: Sequence[int],
    around: Sequence[int],
    apart: Sequence[int],
    shape: Sequence[Index],
    groups: int,
) -> V:
    """A result of that shape: sums of products over windows of an image with a margin."""
    count = x.rank - 2
    x = margin(x, around, 0.0, (0,) * count)
    for k in range(count):
        taps = weight.shape[2 + k]
        if isinstance(taps, int) and taps > 1:
            x = x.op(Window(2 + k, taps, step[k], apart[k])).narrow(2 + k, 0, shape[2 + k])
        else:
            x = x.narrow(2 + k, 0, shape[2 + k], step[k])
    return _correlated(x, weight, groups, count).reshape(*shape)


def no_long_line(weight: V, extent: Sequence[int]) -> None:
    """Raises UnsupportedError for many taps along a line of one channel."""
    line = sum(n > 1 for n in extent) == 1
    if line and weight.shape[1] == 1 and math.prod(extent) > MOST_TAPS:
        raise UnsupportedError("many taps along a line: torch's convolution is faster today")


def spread(x: V, a: int, step: int) -> V:
    """Zeros behind each element along an axis, `step - 1` of them."""
    if step == 1:
        return x
    zeros = [0] * (x.rank + 1)
    x, shape = x.unsqueeze(a + 1), x.shape
    x = x.pad(tuple(zeros), tuple(step - 1 if k == a + 1 else 0 for k in range(x.rank)), 0.0)
    return x.reshape(*shape[:a], mul(shape[a], step), *shape[a + 1 :])


def laid_back(
    x: V,
    weight: V,
    shape: Sequence[Index],
    step: Sequence[int],
    around: Sequence[int],
    apart: Sequence[int],
    groups: int,
) -> V:
    """An image of that shape, to which x is what `correlation` is: products for each place and tap
    are laid back along it and summed.  As one sum they are products over windows of x, one for each
    remainder of places by the step (`smelt.passes.conv_transpose`), so that no zeros are
    multiplied."""
    extent = [n for n in weight.shape[2:] if isinstance(n, int)]
    if not all(map(is_laid, step, apart, extent)):
        raise UnsupportedError("windows that skip places, or reach few of those they step over")
    no_long_line(weight, extent)
    at, taps = "xyz"[: len(extent)], "uvw"[: len(extent)]
    outer, inner = weight.shape[:2]
    sizes: dict[str, Index] = {"g": groups, "o": floordiv(outer, groups), "c": inner}
    of_x, of_weight, out = (
        "".join(a for a in side if sizes[a] != 1) for side in ("go", "goc", "gc")
    )
    places, dtype = x.shape[2:], x.dtype
    x = x.reshape(x.shape[0], *(sizes[a] for a in of_x), *places)
    kernel = weight.reshape(*(sizes[a] for a in of_weight), *extent)
    spec = f"b{of_x}{at},{of_weight}{taps}->b{out}{at}{taps}"
    found = contract(x, kernel, spec, dtype.compute)
    found = found.reshape(*shape[:2], *places, *extent)
    for k in reversed(range(len(extent))):
        a, last = 2 + k, found.rank - 1
        if extent[k] == 1:
            found = spread(found.reshape(*found.shape[:last]), a, step[k])
        else:
            wide = add(shape[a], 2 * around[k])
            found = spread(found, a, step[k])
            found = found.op(Shear((*found.shape[:a], wide, *found.shape[a + 1 :]), a, apart[k]))
            found = found.sum((last,))
        found = found.narrow(a, around[k], shape[a])
    return found.cast(dtype)


def _correlated(windows: V, kernel: V, groups: int, count: int) -> V:
    """[b, g·c, *places, *taps] and [g·o, c, *taps] -> [b, g, o, *places] without ones."""
    shape = windows.shape
    sizes: dict[str, Index] = {
        "g": groups,
        "c": kernel.shape[1],
        "o": floordiv(kernel.shape[0], groups),
    }
    left, right, outer = ("".join(a for a in side if sizes[a] != 1) for side in ("gc", "goc", "go"))
    at = "xyz"[:count]
    taps = "".join(t for t, n in zip("uvw", kernel.shape[2:], strict=False) if n != 1)
    lengths = [n for n in kernel.shape[2:] if n != 1]
    windows = windows.reshape(shape[0], *(sizes[a] for a in left), *shape[2 : 2 + count], *lengths)
    kernel = kernel.reshape(*(sizes[a] for a in right), *lengths)
    return contract(windows, kernel, f"b{left}{at}{taps},{right}{taps}->b{outer}{at}")


# ---- windows along one axis ----------------------------------------------------------------------


def _unfold(c: Call, x: V, dim: int, extent: int, step: int) -> V:
    if not x.rank:
        raise UnsupportedError("windows over a single number")
    a = axis_of(dim, x.rank)
    return x.op(Window(a, extent, step, 1)).narrow(a, 0, c.shape[a])


ROWS = (
    Row("aten.unfold.default", _unfold, alias=True),
    Row("aten.max_pool2d_with_indices.default", _max_pool),
    Row("aten.max_pool3d_with_indices.default", _max_pool),
    Row("aten.avg_pool1d.default", _avg_pool(1)),
    Row("aten.avg_pool2d.default", _avg_pool(2)),
    Row("aten.avg_pool3d.default", _avg_pool(3)),
    Row("aten.adaptive_avg_pool1d.default", _adaptive_avg(1)),
    Row("aten._adaptive_avg_pool2d.default", _adaptive_avg(2)),
    Row("aten._adaptive_avg_pool3d.default", _adaptive_avg(3)),
    *(Row(f"aten.reflection_pad{n}d.default", _margins_by_gather("reflect", n)) for n in (1, 2, 3)),
    *(
        Row(f"aten.replication_pad{n}d.default", _margins_by_gather("replicate", n))
        for n in (1, 2, 3)
    ),
    Row("aten.convolution.default", _convolution),
)
"""Poolings, margins and products."""
