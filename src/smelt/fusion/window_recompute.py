"""Windows over products: what folds read of a contraction at places that windows share.

A pooling asks for a convolution at `2*p + i`.  A kernel computes it once for each place, not for
each pair of p and i, and its windows peek at the places (`smelt.codegen.llvm.loopir.compute_at`).
Here it is foreseen where that can be, and what the lines cost that two tasks compute.

>>> from smelt.types.expr import axis
>>> window_of(axis("a0", 28) * 2 + axis("a3", 3) - 1, 0b1000)
Window(axis=0, tap=3, step=2, dilation=1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from smelt.blocks import band_of_windows, window_columns
from smelt.dataclass import dataclass
from smelt.fusion.trace import Term
from smelt.types.affine import coefficient
from smelt.types.expr import Expr, Index, axes_of, evaluate
from smelt.windows import is_window

MOST = 2
"""Axes of places that a product is packed along at once: windows over more would have it summed
place by place, at a fiftieth of the speed."""


@dataclass(frozen=True, slots=True)
class Window:
    """An axis of results and that of its windows (numbers of a region's axes), how far apart
    windows lie, and their elements."""

    axis: int
    tap: int
    step: int
    dilation: int

    def length(self, taps: int) -> int:
        """Places from a window's first to its last."""
        return (taps - 1) * self.dilation + 1


def window_of(term: Index, taps: int) -> Window | None:
    """The window that an index expression is, over an axis of the mask `taps` and another one."""
    if isinstance(term, int):
        return None
    steps = {int(a[1:]): coefficient(term, a) for a in axes_of(term)}
    sides = sorted(steps, key=lambda a: taps >> a & 1)
    if [taps >> a & 1 for a in sides] != [0, 1]:
        return None
    outer, tap = sides
    step, dilation = steps[outer], steps[tap]
    if not isinstance(step, int) or not isinstance(dilation, int) or min(step, dilation) < 1:
        return None
    return Window(outer, tap, step, dilation)


def windows_of(
    place: Iterable[Index], taps: int, extent: Callable[[int], Index]
) -> list[Window] | None:
    """The windows through which a value is read at a place: None if something else stands there, if
    places were left out, or if there are too many."""
    found: list[Window] = []
    for term in place:
        if isinstance(term, Expr):
            window = window_of(term, taps)
            most = extent(window.tap) if window else None
            if window is None or not isinstance(most, int):
                return None
            if not is_window(window.step, window.dilation, most):
                return None
            found.append(window)
    axes = [a for w in found for a in (w.axis, w.tap)]
    plain = [t for t in place if isinstance(t, int) and t in axes]
    return None if plain or len({*axes}) < len(axes) or len(found) > MOST else found


def slides(term: Term) -> bool:
    """Whether a term is a window: two axes that move along one dimension."""
    return isinstance(term, Expr) and len(axes_of(term)) > 1


def bands(windows: Sequence[Window], sizes: Sequence[int], itemsize: int) -> dict[int, int]:
    """Positions of each window's axis that one task takes."""
    found: dict[int, int] = {}
    width = 0
    for w in windows[::-1]:
        length = w.length(sizes[w.tap])
        most = window_columns(itemsize)
        band = band_of_windows(sizes[w.axis], w.step, length, width, most)
        found[w.axis] = max(int(evaluate(band, {})), 1)
        width = max(width, 1) * ((found[w.axis] - 1) * w.step + length)
    return found


def places_for_each(windows: Sequence[Window], sizes: Sequence[int], itemsize: int) -> float:
    """Places that tasks compute for each pair of a window and an element of it."""
    taken, found = bands(windows, sizes, itemsize), 1.0
    for w in windows:
        n = taken[w.axis]
        found *= ((n - 1) * w.step + w.length(sizes[w.tap])) / (n * sizes[w.tap])
    return found


__all__ = ["Window", "bands", "places_for_each", "slides", "window_of", "windows_of"]
