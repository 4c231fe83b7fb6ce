"""Library calls among the kernels of a call that native code answers.

A record's frame gets a word more for each array that a library call takes; native code writes the
address there, as for a kernel, and has `among`'s function make arrays of them and call.

>>> x = np.arange(6.0).reshape(2, 3)[:, ::-1]
>>> words = (ctypes.c_int64 * 1)(x.__array_interface__["data"][0])
>>> _view(0, x.shape, x.dtype, x.strides)(words)
array([[2., 1., 0.],
       [5., 4., 3.]])
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from traceback import clear_frames
from typing import Any

import numpy as np

from smelt.errors import SmeltError
from smelt.runtime.launch_table import Operand, Prepared, Segment
from smelt.runtime.threads import pool

__all__ = ["Tell", "among"]

Array = np.ndarray[Any, Any]
Words = Sequence[int]
View = Callable[[Words], Array]
"""Makes an array of a frame's words."""
Tell = Callable[[SmeltError, list[Array]], None]
"""Tells an error of a run on these inputs which line it is about."""


def among(
    p: Prepared, inputs: Sequence[Array], tell: Tell
) -> tuple[Prepared, Callable[[int], None]]:
    """The call with words for what its library calls take, and what runs it, given the frame's
    address.  `inputs` lie as those of all calls do."""
    frame, addresses, arena = p.frame[:], [*p.addresses], [*p.arena]

    def slot(source: int, offset: int) -> int:
        at = len(frame)
        frame.append(0)
        if source < 0:
            arena.append((at, offset))
        else:
            addresses.append((at, source, offset))
        return at

    given = [_view(slot(k, 0), x.shape, x.dtype, x.strides) for k, x in enumerate(inputs)]

    def view(x: Operand) -> View:
        if x.source in range(len(given)):
            return given[x.source]
        return _view(slot(x.source, x.offset), x.shape, x.dtype, None)

    steps = [
        partial(_kernels, s, p.scratch)
        if s.call is None
        else partial(_call, s.call.call, p.sizes, [*map(view, s.given)], [*map(view, s.made)])
        for s in p.segments
    ]
    words_of: Callable[[int], Any] = (ctypes.c_int64 * len(frame)).from_address

    def run(at: int) -> None:
        words = words_of(at)
        try:
            for step in steps:
                step(words, at)
        except BaseException as error:
            if isinstance(error, SmeltError):
                tell(error, [x(words).copy() for x in given])
            for e in (error, error.__cause__):  # what functions held is memory of other calls soon
                clear_frames(e and e.__traceback__)
            raise

    return replace(p, frame=frame, addresses=addresses, arena=arena), run


def _kernels(s: Segment, scratch: int, _: Words, frame: int) -> None:
    pool().run_addresses(s.chunks, s.launches, s.count, frame, scratch)


def _call(
    call: Callable[..., None],
    sizes: Any,
    given: list[View],
    made: list[View],
    words: Words,
    _: int,
) -> None:
    call(sizes, [x(words) for x in given], [x(words) for x in made])


def _view(
    slot: int, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None
) -> View:
    """What makes an array of the address in a word of a frame."""
    nbytes, below = math.prod(shape) * dtype.itemsize, 0
    if strides is not None and nbytes:
        reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        below = -sum(min(r, 0) for r in reach)
        nbytes = below + sum(max(r, 0) for r in reach) + dtype.itemsize
    memory: Callable[[int], Any] = (ctypes.c_char * nbytes).from_address
    array = np.ndarray
    return lambda words: array(shape, dtype, memory(words[slot] - below), below, strides)
