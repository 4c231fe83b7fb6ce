"""Limits on the windows (kernel, stride, dilation) that are treated as sliding windows.

Passes that create windowed accesses, the planner and code generation share them. `step` is the
distance of neighbouring windows (stride), `dilation` that of a window's elements, `taps` the number
of elements of a window.

>>> is_window(2, 1, 3), is_transposed_convolution(2, 1, 3)
(True, True)
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

WINDOW_STEPS = 4
"""Maximum stride or dilation, unless windows tile the axis without overlap."""


def is_window(step: int, dilation: int, taps: int) -> bool:
    """Return whether windows cover an axis without gaps, with small strides or side by side.

    Either stride or dilation has to be 1, so that one axis numbers the positions.

    >>> is_window(2, 1, 3), is_window(20, 1, 20), is_window(20, 1, 30), is_window(3, 1, 2)
    (True, True, False, False)
    """
    if min(step, dilation) != 1 or not 1 <= step <= (taps - 1) * dilation + 1:
        return False
    return max(step, dilation) <= WINDOW_STEPS or (step == taps and dilation == 1)


def window_steps(taps: int) -> Iterator[tuple[int, int]]:
    """Yield the strides and dilations that windows of `taps` elements may have.

    >>> list(window_steps(2)), (9, 1) in window_steps(9)
    ([(1, 1), (2, 1), (1, 2), (1, 3), (1, 4)], True)
    """
    far = {*range(1, WINDOW_STEPS + 1), taps}
    for dilation in range(1, WINDOW_STEPS + 1):
        for step in sorted(far):
            if is_window(step, dilation, taps):
                yield step, dilation


MAX_PHASES = 8
"""Maximum stride for which the sum over all windows that contain a position is split into one
product per phase (position modulo stride)."""


def is_transposed_convolution(step: int, dilation: int, taps: int) -> bool:
    """Return whether a col2im sum can be computed as a transposed convolution.

    True if windows do not overlap, or if stride and dilation are coprime and the stride is at most
    `taps` and `MAX_PHASES`: then every phase has taps, and a product over windows of its own.

    >>> (
    ...     is_transposed_convolution(1, 2, 3),
    ...     is_transposed_convolution(2, 1, 3),
    ...     is_transposed_convolution(2, 2, 3),
    ...     is_transposed_convolution(16, 1, 16),
    ...     is_transposed_convolution(9, 1, 10),
    ... )
    (True, True, False, True, False)
    """
    if taps <= step and dilation == 1:
        return True
    return gcd(step, dilation) == 1 and step <= min(taps, MAX_PHASES)
