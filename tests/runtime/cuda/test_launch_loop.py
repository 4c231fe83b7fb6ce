"""The native loop of launches: what it passes, how it fails, and what it costs."""

from __future__ import annotations

import ctypes
from array import array
from time import perf_counter_ns

import numpy as np
import pytest

from smelt.runtime.cuda.native_call import ROW_WORDS, native_calls
from smelt.runtime.jit import compile_ir, link

STUB = """
define i32 @stub(ptr %f, i32 %x, i32 %y, i32 %z, i32 %bx, i32 %by, i32 %bz, i32 %shared,
                 ptr %stream, ptr %params, ptr %extra) {
  ret i32 0
}
"""
KINDS = (ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)


def table(launches: int, arguments: int) -> tuple[np.ndarray, array]:
    rows = np.zeros((launches, ROW_WORDS), np.int64)
    for k in range(launches):
        rows[k] = [100 + k, 3, 2, 1, 128, 64, k * arguments, arguments]
    frame = array("q", [*range(launches * arguments), *[0] * arguments])
    return rows, frame


def call(rows: np.ndarray, frame: array, arguments: int, stream: int, address: int) -> int:
    start, words = frame.buffer_info()
    room = start + 8 * (words - arguments)
    return native_calls().launch(rows.ctypes.data, len(rows), start, room, stream, address)


def test_every_launch_gets_its_row_and_its_arguments():
    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int, *KINDS)
    def launch(function, x, y, z, bx, by, bz, shared, stream, params, extra):
        words = [
            ctypes.c_int64.from_address(ctypes.c_int64.from_address(params + 8 * k).value).value
            for k in range(2)
        ]
        seen.append((function, x, y, z, bx, by, bz, shared, stream, words, extra))
        return 7 if function == 102 else 0

    address = ctypes.cast(launch, ctypes.c_void_p).value
    assert call(*table(2, 2), 2, 5, address) == 0
    assert seen == [
        (100, 3, 2, 1, 128, 1, 1, 64, 5, [0, 1], None),
        (101, 3, 2, 1, 128, 1, 1, 64, 5, [2, 3], None),
    ]
    seen.clear()
    assert call(*table(5, 2), 2, 5, address) == (3 << 32) | 7  # number and status of the failure
    assert len(seen) == 3
    assert call(*table(0, 2), 2, 5, address) == 0


@pytest.mark.clock
def test_a_launch_costs_little_beside_the_driver_s_own_time():
    library = link(compile_ir(STUB), ["stub"])
    rows, frame = table(100, 8)
    call(rows, frame, 8, 0, library["stub"])
    times = []
    for _ in range(20):
        start = perf_counter_ns()
        call(rows, frame, 8, 0, library["stub"])
        times.append(perf_counter_ns() - start)
    assert min(times) / len(rows) < 300  # ns
