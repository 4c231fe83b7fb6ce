"""Predict when windows may read a contraction in one kernel, and what is recomputed.

A pooling reads a convolution at positions `2*p + i`. A kernel computes the convolution once per
position, not for each pair of p and i (`smelt.codegen.llvm.loopir.compute_at`, as Halide's
compute_at). This module says where that is possible, and what the rows cost that two tasks compute.

>>> from smelt.types.expr import axis
>>> window_of(axis("a0", 28) * 2 + axis("a3", 3) - 1, 0b1000)
Window(axis=0, tap=3, step=2, dilation=1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from smelt.machine.tiling import Tiling
from smelt.ops.windows import is_window
from smelt.python.dataclass import dataclass
from smelt.types.expr import Expr, Index, axes_of, coefficient, evaluate

MAX_WINDOW_AXES = 2
"""Maximum axes of positions that a contraction is packed along at once.

With windows over more, it would be summed position by position, many times slower.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """A window: an axis of results, its taps, step and dilation.

    `axis` and `tap` are axis numbers of a region, `step` is the distance of neighbouring windows,
    `dilation` that of neighbouring taps.
    """

    axis: int
    tap: int
    step: int
    dilation: int

    def length(self, taps: int) -> int:
        """Return the positions from a window's first to its last."""
        return (taps - 1) * self.dilation + 1


def window_of(term: Index, taps: int) -> Window | None:
    """Return the window over an axis of `taps` that an index expression is."""
    if isinstance(term, int):
        return None
    steps = {int(a[1:]): coefficient(term, a) for a in axes_of(term)}
    axes = sorted(steps, key=lambda a: taps >> a & 1)
    if [taps >> a & 1 for a in axes] != [0, 1]:
        return None
    axis, tap = axes
    step, dilation = steps[axis], steps[tap]
    if not isinstance(step, int) or not isinstance(dilation, int) or min(step, dilation) < 1:
        return None
    return Window(axis, tap, step, dilation)


def windows_of(
    position: Iterable[Index], taps: int, extent: Callable[[int], Index]
) -> list[Window] | None:
    """Return the windows through which a value is read at a position.

    None if there is another expression, if windows skip positions, or if there are too many.
    """
    windows: list[Window] = []
    for term in position:
        if isinstance(term, Expr):
            window = window_of(term, taps)
            extent_of_taps = extent(window.tap) if window else None
            if window is None or not isinstance(extent_of_taps, int):
                return None
            if not is_window(window.step, window.dilation, extent_of_taps):
                return None
            windows.append(window)
    axes = [a for w in windows for a in (w.axis, w.tap)]
    plain_terms = [t for t in position if isinstance(t, int) and t in axes]
    return (
        None
        if plain_terms or len({*axes}) < len(axes) or len(windows) > MAX_WINDOW_AXES
        else windows
    )


def task_positions(
    windows: Sequence[Window], sizes: Sequence[int], tiling: Tiling, itemsize: int
) -> dict[int, int]:
    """Return the positions of each window's axis that one task takes."""
    axes = [(sizes[w.axis], w.step, w.length(sizes[w.tap])) for w in windows[::-1]]
    blocks = (int(evaluate(n, {})) for n in tiling.window_blocks(axes, itemsize))
    return {w.axis: max(n, 1) for w, n in zip(windows[::-1], blocks, strict=True)}


def recompute_ratio(
    windows: Sequence[Window], sizes: Sequence[int], tiling: Tiling, itemsize: int
) -> float:
    """Return the positions that tasks compute per pair of a window and a tap."""
    counts, ratio = task_positions(windows, sizes, tiling, itemsize), 1.0
    for w in windows:
        n = counts[w.axis]
        ratio *= ((n - 1) * w.step + w.length(sizes[w.tap])) / (n * sizes[w.tap])
    return ratio
