"""Run library calls inside a recorded native call.

A record's frame gets one extra word per array that a library call takes. Native code writes the
array's address there, as for a kernel, and calls the function from `with_library_calls`, which
wraps the memory in arrays and calls the library.

>>> x = np.arange(6.0).reshape(2, 3)[:, ::-1]
>>> words = (ctypes.c_int64 * 1)(x.__array_interface__["data"][0])
>>> _view(0, x.shape, x.dtype, x.strides)(words)
array([[2., 1., 0.],
       [5., 4., 3.]])
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from traceback import clear_frames
from typing import Any

import numpy as np

from smelt.errors import SmeltError
from smelt.runtime.memory import array_maker
from smelt.runtime.plan_tables import Operand, Prepared, Segment
from smelt.runtime.threads import pool

Array = np.ndarray[Any, Any]
Words = Sequence[int]
View = Callable[[Words], Array]
"""Makes an array from a frame's words."""
LocateError = Callable[[SmeltError, list[Array]], None]
"""Locates the source line of an error, given the inputs of the run."""


def with_library_calls(
    p: Prepared, inputs: Sequence[Array], locate: LocateError
) -> tuple[Prepared, Callable[[int], None]]:
    """Add frame words for library operands; return the call and a function that runs it.

    The function takes the frame's address. `inputs` have the memory layout of every call's
    inputs.
    """
    frame, addresses, arena = p.frame[:], [*p.addresses], [*p.arena]

    def slot(source: int, offset: int) -> int:
        frame_address = len(frame)
        frame.append(0)
        if source < 0:
            arena.append((frame_address, offset))
        else:
            addresses.append((frame_address, source, offset))
        return frame_address

    input_views = [_view(slot(k, 0), x.shape, x.dtype, x.strides) for k, x in enumerate(inputs)]

    def view(x: Operand) -> View:
        if x.source in range(len(input_views)):
            return input_views[x.source]
        return _view(slot(x.source, x.offset), x.shape, x.dtype, None)

    steps = [
        partial(_kernels, s, p.scratch)
        if s.call is None
        else partial(_call, s.call.call, p.sizes, [*map(view, s.inputs)], [*map(view, s.outputs)])
        for s in p.segments
    ]
    words_of: Callable[[int], Any] = (ctypes.c_int64 * len(frame)).from_address

    def run(frame_address: int) -> None:
        words = words_of(frame_address)
        try:
            for step in steps:
                step(words, frame_address)
        except BaseException as error:
            if isinstance(error, SmeltError):
                locate(error, [x(words).copy() for x in input_views])
            for e in (
                error,
                error.__cause__,
            ):  # their locals refer to memory that other calls will reuse
                clear_frames(e and e.__traceback__)
            raise

    return replace(p, frame=frame, addresses=addresses, arena=arena), run


def _kernels(s: Segment, scratch: int, _: Words, frame: int) -> None:
    pool().run_addresses(s.chunks, s.launches, s.count, frame, scratch)


def _call(
    call: Callable[..., None],
    sizes: Any,
    input_views: list[View],
    output_views: list[View],
    words: Words,
    _: int,
) -> None:
    call(sizes, [x(words) for x in input_views], [x(words) for x in output_views])


def _view(
    slot: int, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None
) -> View:
    """Return a function that makes an array of the address in a frame word."""
    make = array_maker(shape, dtype, strides)
    return lambda words: make(words[slot])
