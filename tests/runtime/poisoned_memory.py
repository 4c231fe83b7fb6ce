"""Run a compiled program in memory full of NaN or huge values.

Results, memory between kernels and scratch hold one pattern before the call and stand at forbidden
pages: an element that is not written shows, a lane that is read before it is written changes the
result from pattern to pattern, and a byte outside of what was asked for ends the process.

    program.run(arrays, sizes)                   # as calls do it
    run_poisoned(program, arrays, sizes, NAN)    # the same bits, or there is a mistake
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.codegen.llvm.guard_pages import KERNEL, Guarded

from smelt.runtime import executable, host_stream
from smelt.runtime.executable import Executable
from smelt.runtime.threads import Pool

Array = np.ndarray[Any, Any]
NAN, LARGE, LEAST, ZERO = 0xFF, 0x7F, 0xFE, 0x00
"""Bytes that a pattern repeats.  As f32: a NaN, 3.4e38, -1.7e38 and 0; as integers -1, a large
number, a small one and 0.  A maximum may leave out a NaN, as instructions do; a large number never.
"""


class Buffer:
    """What `allocate` gives, at a forbidden page."""

    def __init__(self, memory: Guarded, nbytes: int, fill: int) -> None:
        self.nbytes = nbytes
        self.address = memory.block(-(-nbytes // 64) * 64, at_end=True, fill=fill)

    def array(self, shape: Sequence[int], dtype: Any, *, offset: int = 0) -> Array:
        """The array that many bytes after its beginning."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        assert 0 <= offset <= self.nbytes - nbytes, (offset, nbytes, self.nbytes)
        raw = (ctypes.c_uint8 * nbytes).from_address(self.address + offset)
        return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape)


@contextmanager
def poisoned(fill: int, *, one_by_one: bool = False) -> Iterator[Guarded]:
    """Every program that runs meanwhile does so in such memory, in this thread alone.
    `one_by_one`: each task is a call of its own, last first, with scratch that is new."""
    with Guarded() as memory:

        def run(
            pool: Pool, chunks: int, launches: int, count: int, frame: int, scratch: int = 0
        ) -> None:
            del pool
            groups = (ctypes.c_int64 * (4 * count)).from_address(launches)
            scratch_address = memory.block(-(-scratch // 64) * 64, at_end=True, fill=fill)
            for first, many in zip(groups[::4], groups[1::4], strict=True):
                rows = (ctypes.c_int64 * (4 * many)).from_address(chunks + 32 * first)
                for c in reversed(range(many)):
                    function, offset, begin, end = rows[4 * c : 4 * c + 4]
                    tasks = [(t, t + 1) for t in reversed(range(begin, end))]
                    for one in tasks if one_by_one else [(begin, end)]:
                        ctypes.memset(scratch_address, fill, scratch)
                        KERNEL(function)(frame + offset, *one, scratch_address)

        def allocate(nbytes: int) -> Buffer:
            return Buffer(memory, nbytes, fill)

        with (
            patch.object(executable, "allocate", allocate),
            patch.object(host_stream, "allocate", allocate),
            patch.object(Pool, "run_addresses", run),
        ):
            yield memory


def run_poisoned(
    program: Executable,
    arrays: Sequence[Array],
    sizes: tuple[int, ...],
    fill: int,
    *,
    at_end: bool = True,
    one_by_one: bool = False,
) -> list[Array]:
    """The results.  Inputs end (or begin) at forbidden pages, so that `at_end` also has them at
    addresses that are multiples of an element's size only."""
    with poisoned(fill, one_by_one=one_by_one) as memory:
        placed = [memory.copy(a, at_end=at_end) if a.flags.c_contiguous else a for a in arrays]
        return [np.array(a) for a in program.run(placed, sizes)]


def same_bits(first: Sequence[Array], second: Sequence[Array]) -> str:
    """Empty, or where two lists of results differ; a NaN equals any."""
    for k, (a, b) in enumerate(zip(first, second, strict=True)):
        off = a != b
        if a.dtype.kind not in "biu":
            off &= ~(np.isnan(a.astype("f8")) & np.isnan(b.astype("f8")))
        if off.any():
            at = tuple(int(i) for i in np.argwhere(off)[0])
            return f"output {k} at {at}: {a[at]} and {b[at]}, {off.sum()} of {off.size} differ"
    return ""
