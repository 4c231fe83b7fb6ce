"""Many calls and many compilations in one process: memory, descriptors and threads stay.

A bounded cache that fills is not a leak, but takes some 1,500 functions to fill: for fewer of them
caches are made small, or are emptied before memory in use is counted. Thousands of functions, in
the nightly form, are compiled with the caches as they are, and the process's own memory counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.strategies.effort import NIGHT, NIGHTLY
from tests.trust import measured

pytestmark = NIGHT
ROOT = Path(__file__).parents[2]
CALLS = 1_000_000 if NIGHTLY else 10_000
WARM, FUNCTIONS = (3_000, 4_000) if NIGHTLY else (250, 300)
MAX_PER_1000 = 1_000_000
"""Bytes that 1,000 functions that are compiled and dropped, or 1,000 calls, may leave."""

PRELUDE = """
import ctypes, functools, gc, json, os, sys, threading
import numpy as np
import smelt as sm
from smelt import errors
from smelt.runtime import cache, code
from smelt.frontends.array import program_cache, value

if not NIGHTLY:
    cache.MAX_COPIED_BYTES = code.MAX_CODE_BYTES = 1 << 19
    value._CACHE_LIMIT = value._CONSTANTS_LIMIT = 128
    program_cache._LIMIT = 64

class Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

try:
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Sizes
except AttributeError:  # another C library than GNU's
    mallinfo2 = Sizes

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

def in_use():
    # Memory that C code has, and Python's small objects, at their mean size.
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and each.cache_info().maxsize:
            each.cache_clear()
    gc.collect()
    return mallinfo2().h + 100 * sys.getallocatedblocks()

def states(work, count, warm, memory):
    # After the warm-up, in the middle and at the end.
    found = []
    for first, last in ((0, warm), (warm, warm + count // 2), (warm + count // 2, warm + count)):
        for n in range(first, last):
            work(n)
        gc.collect()
        descriptors = len(os.listdir("/proc/self/fd"))
        found.append((memory(), descriptors, threading.active_count()))
    return found
"""


def states(work: str, count: int, warm: int, memory: str, place: Path) -> list[list[int]]:
    code = textwrap.dedent(work) + f"\nprint(json.dumps(states(work, {count}, {warm}, {memory})))"
    done = subprocess.run(
        [sys.executable, "-c", f"NIGHTLY = {NIGHTLY}\n{PRELUDE}{code}"],
        capture_output=True,
        text=True,
        timeout=170 * (20 if NIGHTLY else 1),
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "SMELT_CACHE_DIR": str(place),
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


WORK = {
    "calls": (
        """
        f = sm.jit(lambda x, y: (sm.exp(x) + y, sm.sum(x * y)))
        x, y = np.ones(100, np.float32), np.ones(100, np.float32)
        def work(n):
            a, b = f(x, y)
            assert a.shape == (100,)
        """,
        CALLS,
        1000,
    ),
    "lazy calls": (
        """
        x = np.ones(100, np.float32)
        def work(n):
            y = sm.asarray(x) * 2 + n % 7
            assert float(sm.sum(y)) == 200 + 100 * (n % 7)
        """,
        CALLS,
        1000,
    ),
    "refused calls": (
        """
        f = sm.jit(lambda x, i: sm.exp(x)[i])
        x, inside, outside = np.ones(100, np.float32), np.zeros(3, int), np.full(3, 100)
        def work(n):
            f(x, inside)
            try:
                np.asarray(f(x, outside))
            except errors.OutsideError:
                return
            raise AssertionError
        """,
        CALLS // 10,
        300,
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_calls_leave_nothing(name: str, tmp_path: Path) -> None:
    work, count, warm = WORK[name]
    start, middle, end = states(work, count, warm, "resident", tmp_path)
    assert start[1:] == middle[1:] == end[1:]
    slope = (end[0] - middle[0]) / (count / 2) * 1000
    measured(f"bytes left by 1,000 {name}", max(slope, 0))
    assert slope < MAX_PER_1000


def test_functions_that_are_dropped_leave_nothing(tmp_path: Path) -> None:
    work = """
    x = np.arange(12, dtype=np.float32)
    def work(n):
        f = sm.jit(lambda x: sm.exp(x * (n + 0.5)) + float(n))
        assert np.isfinite(np.asarray(f(x / 1e6))).all()
    """
    memory = "resident" if NIGHTLY else "in_use"
    start, middle, end = states(work, FUNCTIONS, WARM, memory, tmp_path)
    assert start[1:] == middle[1:] == end[1:]
    # What leaks does so in both halves; the allocator's noise is in one of them.
    slope = min(middle[0] - start[0], end[0] - middle[0]) / (FUNCTIONS / 2) * 1000
    measured("bytes left by 1,000 functions", max(slope, 0))
    assert slope < MAX_PER_1000
