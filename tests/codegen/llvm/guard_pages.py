"""Arrays between inaccessible pages: access out of bounds is fatal.

>>> with Guarded() as memory:
...     x = memory.array((3,), np.dtype("f4"), at_end=True)
...     x[:] = 1
...     int(x.ctypes.data + x.nbytes) % mmap.PAGESIZE
0
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from tests.codegen.llvm import emulate
from tests.codegen.llvm.single_kernel import SingleKernel

from smelt.types.expr import evaluate

Array = np.ndarray[Any, Any]
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_C.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_C.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NONE, _BOTH, _PRIVATE_ANONYMOUS = 0, 3, 0x22


class Guarded:
    """Blocks with forbidden pages on either side; all are unmapped at the end of the `with`."""

    def __init__(self, pages: int = 1) -> None:
        self.maps: list[tuple[int, int]] = []
        self.pages = pages

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for address, length in self.maps:
            _C.munmap(address, length)
        self.maps.clear()

    def block(self, nbytes: int, *, at_end: bool, fill: int = 0xFF) -> int:
        """Address of so many bytes that end (or begin) at a forbidden page, all of them `fill`:
        as numbers of any floating type a NaN, which shows wherever it is read."""
        page = mmap.PAGESIZE
        inner = -(-max(nbytes, 1) // page) * page
        forbidden = self.pages * page
        length = inner + 2 * forbidden
        base = _C.mmap(None, length, _NONE, _PRIVATE_ANONYMOUS, -1, 0)
        assert base not in (None, ctypes.c_void_p(-1).value)
        assert _C.mprotect(base + forbidden, inner, _BOTH) == 0
        self.maps.append((base, length))
        ctypes.memset(base + forbidden, fill, inner)
        return base + forbidden + (inner - nbytes if at_end else 0)

    def array(self, shape: Sequence[int], dtype: np.dtype[Any], *, at_end: bool) -> Array:
        """An array there; dies with the `with`."""
        count = int(np.prod(shape, dtype=np.int64))
        address = self.block(count * dtype.itemsize, at_end=at_end)
        raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape)

    def copy(self, a: Array, *, at_end: bool) -> Array:
        """A contiguous copy of an array there."""
        result = self.array(a.shape, a.dtype, at_end=at_end)
        result[...] = a
        return result


def slowdown(call: Callable[[Array], object], a: Array, rows: int) -> float:
    """How many times as long a call takes where nothing is mapped behind an array's first rows."""
    with Guarded(pages=a.nbytes // mmap.PAGESIZE + 1) as memory:
        places = memory.copy(a[:rows], at_end=True), a[:rows]
        seconds = list[float](), list[float]()
        for _ in range(30):
            for place, of_place in zip(places, seconds, strict=True):
                start = time.thread_time()
                call(place)
                of_place.append(time.thread_time() - start)
    before_nothing, within = map(min, seconds)
    return before_nothing / within


def run_guarded(
    kernel: SingleKernel,
    arrays: Sequence[Array],
    *,
    at_end: bool,
    one_by_one: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> list[Array]:
    """The kernel's functions called directly: every buffer, the partial results and the scratch
    memory stand at forbidden pages.  `one_by_one`: each task is a call of its own, last first.
    `sizes` are told where the graph has inputs that the kernel does not read."""
    named = kernel.sizes(arrays) if sizes is None else sizes
    built, loaded = kernel.code(named)
    with Guarded() as memory:
        places = {
            p.name: memory.copy(a, at_end=at_end)
            for p, a in zip(kernel.kernel.inputs, arrays, strict=True)
        }
        for p in kernel.kernel.outputs:
            shape = [int(evaluate(n, named)) for n in p.shape]
            places[p.name] = memory.array(shape, p.dtype.numpy, at_end=at_end)
        for name, nbytes in built.partials:
            whole_bytes = int(evaluate(nbytes, named))
            places[name] = memory.array((whole_bytes,), np.dtype("u1"), at_end=at_end)
        strides = {s: places[p].strides[d] // places[p].itemsize for s, p, d in built.strides}
        words = [places[b].ctypes.data for b in built.buffers]
        words += [strides[s] if s in strides else named[s] for s in built.sizes]
        frame = memory.copy(np.array(words, np.int64), at_end=True)
        for f in built.functions:
            tasks, scratch = (int(evaluate(e, named)) for e in (f.tasks, f.scratch))
            scratch_address = memory.block(scratch, at_end=True) if scratch else 0
            call = emulate.function(loaded.address(f.symbol), KERNEL)
            ranges = [(t, t + 1) for t in reversed(range(tasks))] if one_by_one else [(0, tasks)]
            for begin, end in ranges:
                call(frame.ctypes.data, begin, end, scratch_address)
        return [places[p.name].copy() for p in kernel.kernel.outputs]
