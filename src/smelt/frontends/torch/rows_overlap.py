"""What windows give back: gradients of poolings, convolutions, windows along an axis, and margins.

An element of an image stands in several windows, and its gradient is the sum of what those hold of
it.  Windows that lie `step` apart and hold `extent` elements are ceil(extent / step) blocks of
`step`, each of which lies one step further on; blocks do not overlap, so the sum is over shifted
blocks (overlap-add), read where they lie.  Nothing is written at computed positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row, axis_of
from smelt.frontends.torch.rows_window import (
    MOST_TAPS,
    adapted,
    correlation,
    counted,
    each,
    held,
    laid_back,
    margin,
    no_long_line,
    spread,
)
from smelt.frontends.torch.value import V, concat, contract, iota, number, select
from smelt.ops.view import Shear
from smelt.types.dtype import i32, i64
from smelt.types.expr import Index, add, floordiv, mul, sub
from smelt.types.expr import product as volume

__all__ = ["ROWS"]


def _overlapped(g: V, taps: int, a: int, step: int, apart: int, length: Index, low: int = 0) -> V:
    """Windows along axis `a` laid back: [.., places, .., taps, ..] -> [.., length, .., blocks], of
    which the sum over blocks is what windows hold of each element.  Element t of window p lies at
    p·step + t·apart, and counts from `low`."""
    extent = g.shape[taps]
    if not isinstance(extent, int):
        raise UnsupportedError("windows of symbolic size")
    end = g.rank - 1
    if apart != 1 and extent > 1:
        g = spread(g.permute(*(k for k in range(end + 1) if k != taps), taps), a, step)
        g = g.op(Shear((*g.shape[:a], add(length, low), *g.shape[a + 1 :]), a, apart))
        return g.narrow(a, low, length)
    blocks = -(-extent // step)
    more = tuple(blocks * step - extent if k == taps else 0 for k in range(end + 1))
    g = g.pad((0,) * g.rank, more, 0)
    g = g.reshape(*g.shape[:taps], blocks, step, *g.shape[taps + 1 :])
    rest = (k for k in range(a + 1, end + 2) if k not in (taps, taps + 1))
    g = g.permute(*range(a + 1), taps + 1, *rest, taps)
    places = add(floordiv(sub(add(length, low), 1), step), 1)
    g = g.op(Shear((*g.shape[:a], places, *g.shape[a + 1 :]), a, 1))
    g = g.reshape(*g.shape[:a], mul(places, step), *g.shape[a + 2 :])
    return g.narrow(a, low, length)


def _laid_back(
    g: V, spatial: Sequence[Index], step: Sequence[int], around: Sequence[int], apart: Sequence[int]
) -> V:
    """[.., *places, *taps] -> [.., *spatial] for windows over an image with a margin."""
    count = len(spatial)
    first = g.rank - 2 * count
    for k in range(count):
        g = _overlapped(g, first + count, first + k, step[k], apart[k], spatial[k], around[k])
    return g.sum(range(first + count, g.rank))


def _beside(x: V, extent: Sequence[int]) -> V:
    """Each place again for each tap of its window: [.., *places, *taps]."""
    return x.reshape(*x.shape, *[1] * len(extent)).expand((*x.shape, *extent))


# ---- poolings ------------------------------------------------------------------------------------


def _max_pool(count: int) -> Any:
    def lower(
        c: Call,
        g: V,
        x: V,
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: bool,
        at: V,
    ) -> V:
        """The gradient goes where the greatest of each window was found."""
        extent = each(kernel, count)
        step = extent if not stride else each(stride, count)
        around, apart = each(padding, count), each(dilation, count)
        if any(n > 1 and (n - 1) * d >= s for n, d, s in zip(extent, apart, step, strict=True)):
            raise UnsupportedError("windows that overlap: torch writes where each one chose")
        first = x.rank - count
        spatial = x.shape[first:]
        plane = volume(spatial)
        counts = i32 if isinstance(plane, int) and plane < 1 << 31 else i64
        here = number(0, counts, c.origin)
        windows = (*g.shape, *extent)
        for k in range(count):
            place = iota(windows, first + k, counts, c.origin) * step[k]
            place = place + iota(windows, first + count + k, counts, c.origin) * apart[k]
            here = here * number(spatial[k], counts, c.origin) + (place - around[k])
        chosen = _beside(at.cast(counts), extent).map("eq", here)
        wide = _beside(g.wide(), extent)
        found = select(chosen, wide, number(0, wide.dtype, c.origin))
        return _laid_back(found, spatial, step, around, apart).cast(c.dtype)

    return lower


def _avg_pool(count: int) -> Any:
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
        """Each element of a window gets an equal share."""
        extent = each(kernel, count)
        step = extent if not stride else each(stride, count)
        around = each(padding, count)
        spatial, places = x.shape[x.rank - count :], g.shape[x.rank - count :]
        n = held(
            c, spatial, places, extent, step, around, inside=not count_include_pad, ceil=ceil_mode
        )
        shares = g.wide() / counted(divisor or n, g.wide(), count)
        found = _laid_back(_beside(shares, extent), spatial, step, around, (1,) * count)
        return found.cast(c.dtype)

    return lower


def _adaptive_avg(count: int) -> Any:
    def lower(c: Call, g: V, x: V) -> V:
        """Windows that hold an element are as many as elements that a window holds, the sizes
        exchanged."""
        first = x.rank - count
        places, spatial = g.shape[first:], x.shape[first:]
        g = g.wide()
        for k in range(count):
            g = adapted(g, first + k, places[k], spatial[k], back=True)
        return g.cast(c.dtype)

    return lower


# ---- windows along one axis ----------------------------------------------------------------------


def _unfold(c: Call, g: V, _shape: Any, dim: int, extent: int, step: int) -> V:
    shape = c.shape
    a = axis_of(dim, len(shape))
    if not shape or g.rank != len(shape) + 1 or g.shape[-1] != extent or step < 1:
        raise UnsupportedError("windows over a single number, or that broadcast")
    g = g.expand((*shape[:a], g.shape[a], *shape[a + 1 :], extent))
    return _overlapped(g, g.rank - 1, a, step, 1, shape[a]).sum((g.rank - 1,))


# ---- margins -------------------------------------------------------------------------------------


def _margins(mode: str, count: int) -> Any:
    """What lies in a margin is added to the elements that it repeats."""

    def lower(c: Call, g: V, x: V, pad: Sequence[Any]) -> V:
        g = g.wide()
        for k in range(count):
            low, high = pad[2 * k], pad[2 * k + 1]
            if not isinstance(low, int) or not isinstance(high, int) or low < 0 or high < 0:
                raise UnsupportedError("margins that are symbolic or negative")
            a = g.rank - 1 - k
            n = x.shape[a]
            found = g.narrow(a, low, n)
            for start, m, at_end in ((0, low, False), (add(low, n), high, True)):
                if m:
                    found = found + _repeated(mode, g.narrow(a, start, m), a, n, at_end=at_end)
            g = found
        return g.cast(c.dtype)

    return lower


def _repeated(mode: str, part: V, a: int, n: Index, *, at_end: bool) -> V:
    """A margin's gradient where it belongs along an axis of n elements."""
    if mode == "replicate":
        part, beside = part.sum((a,), keep=True), 0
    else:
        part, beside = part.flip(a), 1
    rest = sub(sub(n, part.shape[a]), beside)
    low: list[Index] = [0] * part.rank
    high: list[Index] = [0] * part.rank
    low[a], high[a] = (rest, beside) if at_end else (beside, rest)
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
    wanted: Sequence[bool],
) -> tuple[V | None, V | None, None]:
    """The gradient of an image where there are groups, or windows hold one element or lie along a
    line; that of weights where windows hold one element or one channel."""
    count = x.rank - 2
    extent = [n for n in weight.shape[2:] if isinstance(n, int)]
    if len(extent) != count or not x.dtype.is_float:
        raise UnsupportedError("gradients of windows of symbolic size")
    step, around, apart = (each(given, count) for given in (stride, padding, dilation))
    one = math.prod(extent) == 1
    single = weight.shape[1] == 1 and weight.shape[0] == groups
    if x.dtype.compute != x.dtype and not (one or single):
        raise UnsupportedError("gradients of half types: torch's are products of such numbers")
    if wanted[0] and transposed:
        return correlation(grad, weight, step, around, apart, x.shape, groups), None, None
    if wanted[0] and not one and count > 1 and (groups == 1 or any(s > 1 for s in step)):
        raise UnsupportedError("gradients of images of all channels, or apart: torch's are faster")
    wide = [(n - 1) * d - a for n, d, a in zip(extent, apart, around, strict=True)]
    if wanted[0] and all(s == 1 for s in step) and min(wide) >= 0:
        return _backwards(grad, x, weight, wide, apart, groups), None, None
    if wanted[0]:
        return laid_back(grad, weight, x.shape, step, around, apart, groups), None, None
    if transposed or not (one or single):
        raise UnsupportedError("gradients of weights of several channels: torch's are faster")
    no_long_line(weight, extent)
    if not one and count > 1 and math.prod(extent) <= MOST_TAPS:
        raise UnsupportedError("gradients of small windows over images: torch's are as fast")
    x = margin(x, around, 0.0, (0,) * count)
    if single and not one:
        return None, _of_taps(grad, x, weight, step, apart), None
    return None, _of_points(grad, x, weight, step, groups), None


def _backwards(
    grad: V, x: V, weight: V, wide: Sequence[int], apart: Sequence[int], groups: int
) -> V:
    """A correlation of the given gradient with the taps backwards, inputs for outputs."""
    no_long_line(weight, [n for n in weight.shape[2:] if isinstance(n, int)])
    outer, inner, *extent = weight.shape
    kernel = weight.flip(*range(2, weight.rank))
    kernel = kernel.reshape(groups, floordiv(outer, groups), inner, *extent)
    kernel = kernel.transpose(1, 2).reshape(mul(inner, groups), floordiv(outer, groups), *extent)
    return correlation(grad, kernel, [1] * len(extent), wide, apart, x.shape, groups)


def _of_points(grad: V, x: V, weight: V, step: Sequence[int], groups: int) -> V:
    """A product summed over the batch and its places, for windows of one element."""
    places = grad.shape[2:]
    for k, n in enumerate(places):
        x = x.narrow(2 + k, 0, n, step[k])
    outer, inner = weight.shape[:2]
    at = "xyz"[: len(places)]
    if groups == 1:
        return contract(grad, x, f"bo{at},bc{at}->oc").reshape(*weight.shape)
    grad = grad.reshape(grad.shape[0], groups, floordiv(outer, groups), *places)
    x = x.reshape(x.shape[0], groups, inner, *places)
    return contract(grad, x, f"bgo{at},bgc{at}->goc").reshape(*weight.shape)


def _of_taps(grad: V, x: V, weight: V, step: Sequence[int], apart: Sequence[int]) -> V:
    """A sum for each tap over the batch and its places, for windows of one channel."""
    extent = [n for n in weight.shape[2:] if isinstance(n, int)]
    at = "xyz"[: len(extent)]
    found: list[V] = []
    grad, wide = grad.wide(), x.wide()
    for tap in product(*map(range, extent)):
        seen = wide
        for k, n in enumerate(tap):
            seen = seen.narrow(2 + k, n * apart[k], grad.shape[2 + k], step[k])
        found.append(contract(grad, seen, f"bc{at},bc{at}->c").unsqueeze(1))
    return concat(found, 1).reshape(*weight.shape).cast(x.dtype)


ROWS = (
    Row("aten.convolution_backward.default", _convolution_backward),
    Row("aten.unfold_backward.default", _unfold),
    *(Row(f"aten.max_pool{n}d_with_indices_backward.default", _max_pool(n)) for n in (2, 3)),
    *(Row(f"aten.avg_pool{n}d_backward.default", _avg_pool(n)) for n in (2, 3)),
    *(Row(f"aten._adaptive_avg_pool{n}d_backward.default", _adaptive_avg(n)) for n in (2, 3)),
    *(
        Row(f"aten.{name}_pad{n}d_backward.default", _margins(mode, n))
        for name, mode in (("reflection", "reflect"), ("replication", "replicate"))
        for n in (1, 2, 3)
    ),
)
"""Gradients of what slides and of what is repeated."""
