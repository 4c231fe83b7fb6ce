"""Which windows count as such, for the passes that make them, the planner and code generation.

>>> is_window(2, 1, 3), is_laid(2, 1, 3)
(True, True)
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

WINDOW_STEPS = 4
"""Places between neighbouring windows, or between their elements, at most, unless windows lie side
by side."""


def is_window(step: int, dilation: int, taps: int) -> bool:
    """Whether windows leave no places out, and their places can be numbered by one axis: of those
    that lie or reach far apart only the ones that are neighbours.

    >>> is_window(2, 1, 3), is_window(20, 1, 20), is_window(20, 1, 30), is_window(3, 1, 2)
    (True, True, False, False)
    """
    if min(step, dilation) != 1 or not 1 <= step <= (taps - 1) * dilation + 1:
        return False
    return max(step, dilation) <= WINDOW_STEPS or (step == taps and dilation == 1)


def window_steps(taps: int) -> Iterator[tuple[int, int]]:
    """How far apart windows of so many elements, and the elements themselves, may lie.

    >>> list(window_steps(2)), (9, 1) in window_steps(9)
    ([(1, 1), (2, 1), (1, 2), (1, 3), (1, 4)], True)
    """
    far = {*range(1, WINDOW_STEPS + 1), taps}
    for dilation in range(1, WINDOW_STEPS + 1):
        for step in sorted(far):
            if is_window(step, dilation, taps):
                yield step, dilation


REMAINDERS = 8
"""Places between neighbouring windows up to which a sum over all windows that hold a place is a
product of its own for each remainder of places."""


def is_laid(step: int, dilation: int, taps: int) -> bool:
    """Whether products for each place and tap, laid back and summed, become products over windows:
    where neither windows nor their elements pass over places of all remainders.

    >>> is_laid(1, 2, 3), is_laid(2, 1, 3), is_laid(2, 2, 3), is_laid(16, 1, 16), is_laid(9, 1, 10)
    (True, True, False, True, False)
    """
    if taps <= step and dilation == 1:
        return True
    return gcd(step, dilation) == 1 and step <= min(taps, REMAINDERS)
