"""Frames of calls find room wherever the caller stands."""

from __future__ import annotations

import resource
import sys

import pytest

from smelt.runtime.compile_scope import with_frame_room

CALLS = 300
DEPTHS = range(500)
"""More than fit some chunks of CPython's: a few of them end one."""


def _leaf() -> None:
    """A call at the end of a loop."""


def _loop() -> int:
    """Pages of memory that so many calls make the system give."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        _leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _below(depth: int, function) -> int:
    return _below(depth - 1, function) if depth else function()


def _worst(function) -> int:
    _below(DEPTHS[-1], function)
    return max(_below(d, function) for d in DEPTHS)


def test_no_depth_maps_memory_with_each_call():
    assert _worst(with_frame_room(_loop)) < CALLS // 4


@pytest.mark.skipif(
    sys.implementation.name != "cpython" or sys.version_info >= (3, 14), reason="not known of it"
)
def test_some_depth_does_without_room():
    """What the other test guards against is there to be seen."""
    assert _worst(_loop) >= CALLS


def test_a_function_stays_what_it_was():
    def divided(a: int, *, by: int = 2) -> int:
        """Halves."""
        return a // by

    built = with_frame_room(divided)
    assert (built(9), built(9, by=3)) == (4, 3)
    assert (built.__name__, built.__doc__) == ("divided", "Halves.")
    with pytest.raises(ZeroDivisionError):
        built(1, by=0)
