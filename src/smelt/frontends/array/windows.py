"""Sliding windows over the last dimensions of an array: padding, sizes and their checks.

Convolutions and poolings of [batch, channels, *spatial] arrays share this module.  A setting such
as a stride is one number for all spatial dimensions or one for each.  Nothing is copied: padding
and windows are index maps, applied by the kernel that reads them.

>>> import numpy as np
>>> from smelt.frontends.array.convert import from_host
>>> x = from_host(np.ones((1, 1, 5)))
>>> slide("pool", x, Windows((3,), (2,), (1,), ((1, 1),))).type
TensorType(dtype=f64, shape=(1, 1, 3, 3))
"""

from __future__ import annotations

import operator
from typing import Any

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array.array import Array
from smelt.frontends.array.manipulation import broadcast_to, concat, flip
from smelt.frontends.array.number import user_dim
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import Value, record
from smelt.frontends.array.views import pad, take_range
from smelt.ops.view import Window
from smelt.python.dataclass import dataclass
from smelt.types.expr import add, floordiv, sub

Padding = tuple[tuple[int, int], ...]
"""Padding (before, after) of each dimension, in elements."""
MODES = ("zeros", "reflect", "replicate", "circular", "symmetric")
"""Contents of padding: zeros, mirrored elements, the end, or the other end."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the last `len(extent)` dimensions, with one entry for each of them."""

    extent: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad_widths: Padding

    def span(self, k: int) -> int:
        """Return the elements from the first to the last of a window along dimension k."""
        return (self.extent[k] - 1) * self.dilation[k] + 1


def spatial_rank(what: str, x: Value) -> int:
    """Return the number of dimensions after batch and channels.

    Raises ShapeError if there is none.
    """
    if x.type.rank < 3:
        raise ShapeError.of(
            what, "it is not [batch, channels, ...] with 1 or more spatial dimensions", x
        )
    return x.type.rank - 2


def per_dimension(
    what: str, argument: str, setting: Any, count: int, least: int = 1
) -> tuple[int, ...]:
    """Return a setting for each spatial dimension.

    Raises ArgumentError for another number of entries, or ones below `least`.
    """
    entries = tuple(setting) if isinstance(setting, (tuple, list)) else (setting,) * count
    try:
        values = tuple(operator.index(e) for e in entries)
    except TypeError:
        values = ()
    if len(values) != count or min(values, default=least) < least:
        raise ArgumentError.of(
            what, argument, setting, f"an integer of at least {least}, or {count} of them"
        )
    return values


def padding_of(
    what: str, padding: Any, extent: tuple[int, ...], dilation: tuple[int, ...]
) -> Padding:
    """Return padding from `"valid"`, `"same"`, a number, or a number or pair per dimension.

    Raises ArgumentError.
    """
    count = len(extent)
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * count
        if padding == "same":
            spans = [(n - 1) * d for n, d in zip(extent, dilation, strict=True)]
            return tuple((n // 2, n - n // 2) for n in spans)
        raise ArgumentError.of(
            what,
            "padding",
            padding,
            "'same', 'valid', an integer, or an integer or a pair for each dimension",
        )
    entries = padding if isinstance(padding, (tuple, list)) else (padding,) * count
    if len(entries) != count:
        per_dimension(what, "padding", padding, count, 0)
    pairs = [per_dimension(what, "padding", e, 2, 0) for e in entries]
    return tuple((low, high) for low, high in pairs)


def check_fit(what: str, x: Value, w: Windows, operands: str) -> None:
    """Raise ShapeError, naming `operands`, unless the windows fit into x with its padding."""
    first = x.type.rank - len(w.extent)
    for k, n in enumerate(shape_of(x)[first:]):
        low, high = w.pad_widths[k]
        reach, padded = w.span(k), add(n, low + high)
        if not holds(x.scope, reach, "<=", padded) or w.extent[k] < 1:
            length = padded if isinstance(padded, int) or x.scope is None else x.scope.hint(padded)
            raise ShapeError(
                op=what,
                operands=operands,
                reason=f"a window over {reach} elements does not fit "
                f"into the {length} (with margins {low} and {high}) of dimension {first + k}",
                hint="Make the kernel, its dilation or the image fit, or pad the image.",
            )


def slide(
    what: str, x: Value, w: Windows, fill: float | int | bool = 0, mode: str = "zeros"
) -> Value:
    """Return windows [.., *positions, *windows] of x [.., *spatial].

    A window of one element has no dimension in the result.  Raises ShapeError, ArgumentError.
    """
    first = x.type.rank - len(w.extent)
    check_fit(what, x, w, x.type_text)
    if x.scope is not None:
        for n, step in zip(shape_of(x)[first:], w.stride, strict=True):
            x.scope.prepare_stride(n, step)
    x = pad_with_mode(what, x, w.pad_widths, fill, mode)
    for k, (extent, step, dilation) in enumerate(zip(w.extent, w.stride, w.dilation, strict=True)):
        if extent > 1:
            x = record(Window(first + k, extent, step, dilation), (x,))
        elif step > 1:
            x = _take_every(x, first + k, step)
    return x


def _take_every(x: Value, axis: int, step: int) -> Value:
    """Take every `step`-th position along one axis."""
    shape = shape_of(x)
    count = add(floordiv(sub(shape[axis], 1), step), 1)
    counts = (*shape[:axis], count, *shape[axis + 1 :])
    steps = tuple(step if a == axis else 1 for a in range(len(shape)))
    return take_range(x, (0,) * len(shape), counts, steps)


def pad_with_mode(
    what: str, x: Value, widths: Padding, fill: float | int | bool, mode: str
) -> Value:
    """Pad x at the ends of its last dimensions.

    `fill` is the number of mode "zeros".  Raises ArgumentError for an unknown mode, ShapeError for
    padding that x is too short to fill.
    """
    if mode not in MODES:
        raise ArgumentError.of(what, "mode", mode, f"one of {', '.join(MODES)}")
    before = x.type.rank - len(widths)
    if mode == "zeros":
        low, high = zip(*widths, strict=True)
        return pad(x, (0,) * before + low, (0,) * before + high, fill)
    for k, (low, high) in enumerate(widths):
        if low or high:
            x = _pad_from_itself(what, x, before + k, low, high, mode)
    return x


def _pad_from_itself(what: str, x: Value, axis: int, low: int, high: int, mode: str) -> Value:
    """Pad along one axis with parts of x: views, which are concatenated with it."""
    n = user_dim(shape_of(x)[axis], x.scope)
    reach = {"reflect": n - 1, "circular": n, "symmetric": n}.get(mode)
    if n == 0 or (reach is not None and reach < max(low, high)):
        raise ShapeError.of(
            what, f"margins {low} and {high} of mode {mode!r} reach beyond dimension {axis}", x
        )
    array = Array.of(x)

    def part(start: Any, stop: Any) -> Array:
        return array[(*(slice(None),) * axis, slice(start, stop))]

    def end(at: Any, count: int) -> Array:
        one = part(at, at + 1)
        return broadcast_to(one, (*one.shape[:axis], count, *one.shape[axis + 1 :]))

    if mode == "circular":
        before, after = part(n - low, n), part(0, high)
    elif mode == "replicate":
        before, after = end(0, low), end(n - 1, high)
    else:
        skipped = int(mode == "reflect")  # "reflect" does not repeat the end itself
        before = flip(part(skipped, low + skipped), axis=axis)
        after = flip(part(n - high - skipped, n - skipped), axis=axis)
    parts = [before] * (low > 0) + [array] + [after] * (high > 0)
    return concat(parts, axis=axis).node


def crop_or_pad(x: Value, pad_widths: Padding) -> Value:
    """Pad x with zeros; negative widths cut elements off instead."""
    before = x.type.rank - len(pad_widths)
    starts = (*(0,) * before, *(max(-low, 0) for low, _ in pad_widths))
    ends = (*(0,) * before, *(max(-high, 0) for _, high in pad_widths))
    counts = tuple(sub(d, a + b) for d, a, b in zip(shape_of(x), starts, ends, strict=True))
    if any(starts) or any(ends):
        x = take_range(x, starts, counts, (1,) * len(counts))
    widths = tuple((max(low, 0), max(high, 0)) for low, high in pad_widths)
    return pad_with_mode("pad", x, widths, 0, "zeros")
