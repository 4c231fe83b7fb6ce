"""Windows that slide over the last dimensions of an array: margins, sizes and their checks.

Convolutions and poolings of [batch, channels, *spatial] arrays share all of this.  A setting such
as a stride is one number for all spatial dimensions or one for each.  Nothing is copied: margins
and windows are index maps of whoever reads them.

>>> x = from_host(np.ones((1, 1, 5)))
>>> slide("pool", x, Windows((3,), (2,), (1,), ((1, 1),))).type
TensorType(dtype=f64, shape=(1, 1, 3, 3))
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array.array import Array
from smelt.frontends.array.convert import from_host
from smelt.frontends.array.manipulation import broadcast_to, concat, flip
from smelt.frontends.array.number import shown
from smelt.frontends.array.value import Value, record
from smelt.frontends.array.views import pad, shape_of, take_range
from smelt.ops.view import Window
from smelt.types.expr import Index, add, floordiv, sub

__all__ = [
    "MODES",
    "Margins",
    "Windows",
    "cropped",
    "each",
    "fitting",
    "from_host",
    "np",
    "padding_of",
    "pinned",
    "slide",
    "spatial_rank",
]

Margins = tuple[tuple[int, int], ...]
MODES = ("zeros", "reflect", "replicate", "circular", "symmetric")
"""What a margin holds: 0, the elements mirrored at the border, the border, the other end."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the last `len(extent)` dimensions, one entry for each of them."""

    extent: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    margins: Margins

    def reach(self, k: int) -> int:
        """Elements from the first to the last of a window."""
        return (self.extent[k] - 1) * self.dilation[k] + 1


def spatial_rank(what: str, x: Value) -> int:
    """Dimensions after batch and channels.  Raises ShapeError if there is none."""
    if x.type.rank < 3:
        raise ShapeError(
            op=what,
            operands=x.told,
            reason="it is not [batch, channels, ...] with 1 or more spatial dimensions",
        )
    return x.type.rank - 2


def each(what: str, argument: str, given: Any, count: int, least: int = 1) -> tuple[int, ...]:
    """A setting for each spatial dimension.  Raises ArgumentError for another number of them."""
    entries = tuple(given) if isinstance(given, (tuple, list)) else (given,) * count
    try:
        found = tuple(operator.index(e) for e in entries)
    except TypeError:
        found = ()
    if len(found) != count or min(found, default=least) < least:
        raise ArgumentError(
            op=what,
            argument=argument,
            value=repr(given),
            expected=f"an integer of at least {least}, or {count} of them",
        )
    return found


def padding_of(
    what: str, given: Any, extent: tuple[int, ...], dilation: tuple[int, ...]
) -> Margins:
    """Margins from `"valid"`, `"same"`, a number, or a number or a pair for each dimension."""
    count = len(extent)
    if isinstance(given, str):
        if given == "valid":
            return ((0, 0),) * count
        if given == "same":
            whole = [(n - 1) * d for n, d in zip(extent, dilation, strict=True)]
            return tuple((n // 2, n - n // 2) for n in whole)
        raise ArgumentError(
            op=what,
            argument="padding",
            value=repr(given),
            expected="'same', 'valid', an integer, or an integer or a pair for each dimension",
        )
    entries = given if isinstance(given, (tuple, list)) else (given,) * count
    if len(entries) != count:
        each(what, "padding", given, count, 0)
    found = [each(what, "padding", e, 2, 0) for e in entries]
    return tuple((low, high) for low, high in found)


def pinned(x: Value, places: Sequence[int]) -> tuple[int, ...]:
    """Dimensions as numbers; the recording is valid for these only."""
    shape = shape_of(x)
    return tuple(d if isinstance(d := shape[p], int) else _pin(x, d) for p in places)


def _pin(x: Value, d: Index) -> int:
    assert x.scope is not None
    return x.scope.pin(d)


def fitting(what: str, x: Value, w: Windows, operands: str) -> None:
    """Raises ShapeError, with all operands, where the windows do not fit into x with margins."""
    first = x.type.rank - len(w.extent)
    for k, n in enumerate(shape_of(x)[first:]):
        low, high = w.margins[k]
        reach, whole = w.reach(k), add(n, low + high)
        fits = whole >= reach if isinstance(whole, int) else _holds(x, reach, whole)
        if not fits or w.extent[k] < 1:
            length = whole if isinstance(whole, int) or x.scope is None else x.scope.hint(whole)
            raise ShapeError(
                op=what,
                operands=operands,
                reason=f"a window over {reach} elements does not fit "
                f"into the {length} (with margins {low} and {high}) of dimension {first + k}",
                hint="Make the kernel, its dilation or the image fit, or pad the image.",
            )


def _holds(x: Value, low: int, high: Index) -> bool:
    assert x.scope is not None
    return x.scope.holds(low, "<=", high)


def slide(
    what: str, x: Value, w: Windows, fill: float | int | bool = 0, mode: str = "zeros"
) -> Value:
    """[.., *places, *windows] of x: [.., *spatial].

    A window over one element has no dimension in the result.  Raises ShapeError, ArgumentError.
    """
    first = x.type.rank - len(w.extent)
    fitting(what, x, w, x.told)
    if x.scope is not None:
        for n, step in zip(shape_of(x)[first:], w.stride, strict=True):
            x.scope.stepped(n, step)
    x = margins(what, x, w.margins, fill, mode)
    for k, (extent, step, dilation) in enumerate(zip(w.extent, w.stride, w.dilation, strict=True)):
        if extent > 1:
            x = record(Window(first + k, extent, step, dilation), (x,))
        elif step > 1:
            x = _every(x, first + k, step)
    return x


def _every(x: Value, axis: int, step: int) -> Value:
    """Every `step`-th position along one axis."""
    shape = shape_of(x)
    count = add(floordiv(sub(shape[axis], 1), step), 1)
    counts = (*shape[:axis], count, *shape[axis + 1 :])
    steps = tuple(step if a == axis else 1 for a in range(len(shape)))
    return take_range(x, (0,) * len(shape), counts, steps)


def margins(what: str, x: Value, around: Margins, fill: float | int | bool, mode: str) -> Value:
    """x with margins around its last dimensions.  Raises ArgumentError, ShapeError."""
    if mode not in MODES:
        raise ArgumentError(
            op=what, argument="mode", value=repr(mode), expected=f"one of {', '.join(MODES)}"
        )
    before = x.type.rank - len(around)
    if mode == "zeros":
        low, high = zip(*around, strict=True)
        return pad(x, (0,) * before + low, (0,) * before + high, fill)
    for k, (low, high) in enumerate(around):
        if low or high:
            x = _folded(what, x, before + k, low, high, mode)
    return x


def _folded(what: str, x: Value, axis: int, low: int, high: int, mode: str) -> Value:
    """Margins along one axis that are parts of x: views, which are joined with it."""
    n = shown(shape_of(x)[axis], x.scope)
    reach = {"reflect": n - 1, "circular": n, "symmetric": n}.get(mode)
    if n == 0 or (reach is not None and reach < max(low, high)):
        raise ShapeError(
            op=what,
            operands=x.told,
            reason=f"margins {low} and {high} of mode {mode!r} reach beyond dimension {axis}",
        )
    whole = Array.of(x)

    def part(start: Any, stop: Any) -> Array:
        return whole[(*(slice(None),) * axis, slice(start, stop))]

    def end(at: Any, count: int) -> Array:
        one = part(at, at + 1)
        return broadcast_to(one, (*one.shape[:axis], count, *one.shape[axis + 1 :]))

    if mode == "circular":
        before, after = part(n - low, n), part(0, high)
    elif mode == "replicate":
        before, after = end(0, low), end(n - 1, high)
    else:
        own = int(mode == "reflect")  # the end itself is not repeated
        before = flip(part(own, low + own), axis=axis)
        after = flip(part(n - high - own, n - own), axis=axis)
    parts = [before] * (low > 0) + [whole] + [after] * (high > 0)
    return concat(parts, axis=axis).node


def cropped(x: Value, around: Margins) -> Value:
    """Margins that may be negative: then elements are cut off."""
    before = x.type.rank - len(around)
    starts = (*(0,) * before, *(max(-low, 0) for low, _ in around))
    ends = (*(0,) * before, *(max(-high, 0) for _, high in around))
    counts = tuple(sub(d, a + b) for d, a, b in zip(shape_of(x), starts, ends, strict=True))
    if any(starts) or any(ends):
        x = take_range(x, starts, counts, (1,) * len(counts))
    grown = tuple((max(low, 0), max(high, 0)) for low, high in around)
    return margins("pad", x, grown, 0, "zeros")
