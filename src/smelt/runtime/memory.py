"""Memory for outputs and arenas: aligned blocks that are used again.

Fresh large memory costs several times what a kernel takes to fill it, because the system clears
every page at its first touch. Blocks therefore go back to a stock when the last array on them is
gone, and the next allocation of that size class takes the warm block. Large blocks are mapped on
2 MiB boundaries with huge pages asked for. The stock is capped; the blocks that have waited
longest go first.

>>> block = allocate(1 << 20)
>>> array = block.array((512, 512), "float32")
>>> array.shape, block.address % 64
((512, 512), 0)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from smelt import knobs
from smelt.errors import OutOfMemory
from smelt.runtime import quota

ALIGNMENT: Final = 64
HUGE_PAGE: Final = 2 << 20
HUGE_FROM: Final = 4 << 20
"""Blocks of at least this many bytes are mapped on huge-page boundaries."""

_CHECKED_FROM: Final = 64 << 20
_MOST_BYTES: Final = 1 << 47

_C: Final = ctypes.CDLL(None)
_mmap: Final = _C.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_munmap: Final = _C.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise: Final = _C.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_aligned_alloc: Final = _C.aligned_alloc
_aligned_alloc.restype = ctypes.c_void_p
_aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_free: Final = _C.free
_free.argtypes = [ctypes.c_void_p]
_FAILED: Final = ctypes.c_void_p(-1).value


def map_pages(nbytes: int, alignment: int = mmap.PAGESIZE) -> int:
    """Address of fresh, zeroed, private pages; 0 if the system refuses."""
    slack = alignment if alignment > mmap.PAGESIZE else 0
    start = _mmap(
        None,
        nbytes + slack,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        -1,
        0,
    )
    if start in (None, _FAILED):
        return 0
    address = -(-start // alignment) * alignment
    if address > start:
        _munmap(start, address - start)
    rest = start + slack - address
    if rest > 0:
        _munmap(address + nbytes, rest)
    return int(address)


class Slab:
    """Pages of memory that are unmapped when this object goes: scratch, native state.

    `nbytes` is rounded up to whole pages and `address` is page-aligned. Raises `OutOfMemory`.
    """

    __slots__ = ("_unmap", "address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.address = 0
        self._unmap = _munmap
        self.nbytes = -(-max(1, nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        check_room(self.nbytes)
        self.address = map_pages(self.nbytes)
        if not self.address:
            raise _refused(nbytes)

    def __del__(self) -> None:
        if self.address:
            self._unmap(self.address, self.nbytes)


class Block:
    """Memory that returns to the stock when nothing refers to it any more.

    `address` is a multiple of 64, `nbytes` what was asked for. The content is undefined. Arrays
    made by `array` keep the block alive. Blocks are made by `allocate` only: each size class has
    a subclass that is also a ctypes buffer, which is what NumPy holds on to.
    """

    __slots__ = ()
    address: int
    nbytes: int

    def array(
        self,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> npt.NDArray[Any]:
        """An array on this memory without copying; `strides` and `offset` in bytes.

        Raises ValueError (NumPy's) if it would reach outside the block's capacity, TypeError if
        the shape is not of integers.
        """
        return np.ndarray(shape, dtype, self, offset, strides)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Usage:
    """Bytes of a stock now and since the process began."""

    live: int
    """In blocks that somebody refers to."""
    pooled: int
    """Waiting to be used again."""
    peak: int
    """The most that `live` has been."""
    fresh: int
    """Ever taken from the system."""
    reused: int
    """Ever served from the stock: page faults saved, times the page size."""
    limit: int
    """Cap of `pooled`."""


class Stock:
    """Blocks by size class, with a cap on those that wait."""

    def __init__(self) -> None:
        self._knob = -1
        self._limit = 0
        self._lock = threading.Lock()
        self._types: dict[int, type[Any]] = {}
        self._free: dict[int, deque[int]] = {}
        self._waiting: OrderedDict[int, int] = OrderedDict()
        self._returned: deque[tuple[int, int]] = deque()
        self._live = self._pooled = self._peak = self._fresh = self._reused = 0
        self._small = 0
        self._held = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork_in_parent,
                after_in_child=self._after_fork_in_child,
            )

    def allocate(self, nbytes: int) -> Block:
        """A block of at least `nbytes`, warm if one of its size class waits.

        Raises `OutOfMemory` where the system has not that much, ValueError for a negative size.
        """
        capacity = size_class(nbytes)
        if knobs.POOL_LIMIT.get() != self._knob:
            self._adopt_limit()
        # A signal handler may allocate while this very thread holds the lock: it must not wait
        # for itself for ever, and fresh memory needs no lock.
        locked = self._lock.acquire(True, 0.1)
        try:
            address = self._warm_memory(capacity) if locked else 0
            self._live += capacity
            if self._live > self._peak:
                self._peak = self._live
        finally:
            if locked:
                self._lock.release()
        if not address:
            try:
                address = self._fresh_memory(capacity, nbytes)
            except BaseException:
                self._live -= capacity
                raise
        kind = self._types.get(capacity) or self._block_type(capacity)
        block = kind.from_address(address)
        block.address = address
        block.nbytes = nbytes
        return block

    def trim(self, keep: int = 0) -> int:
        """Give waiting blocks back to the system until at most `keep` bytes wait; bytes given."""
        with self._lock:
            self._take_back(enforce=False)
            return self._drop(keep)

    def usage(self) -> Usage:
        """Counters of this stock."""
        with self._lock:
            self._take_back()
            return Usage(
                *(self._live, self._pooled, self._peak),
                *(self._fresh, self._reused, self._limit),
            )

    def _adopt_limit(self) -> None:
        """Follow the knob `pool_limit`; its default is also held below an eighth of memory."""
        self._knob = limit = knobs.POOL_LIMIT.get()
        if knobs.POOL_LIMIT.source == "default":
            limit = min(limit, quota.total_memory() // 8 or limit)
        self._limit = limit
        self.trim(limit)

    def _warm_memory(self, capacity: int) -> int:
        """A block that waits, 0 if there is none of this capacity."""
        returned = self._returned
        if returned:
            last = returned.pop()
            if last[1] == capacity:  # the usual case: a result was dropped, its like is needed
                self._live -= capacity
                self._reused += capacity
                return last[0]
            returned.append(last)
            self._take_back()
        waiting = self._free.get(capacity)
        if not waiting:
            return 0
        address = waiting.pop()
        del self._waiting[address]
        self._pooled -= capacity
        self._reused += capacity
        return address

    def _fresh_memory(self, capacity: int, nbytes: int) -> int:
        address = 0
        if room_for(capacity):
            address = _take(capacity)
        if not address:
            self.trim()
            check_room(capacity)
            address = _take(capacity)
        if not address:
            raise _refused(nbytes)
        self._fresh += capacity
        return address

    def _block_type(self, capacity: int) -> type[Any]:
        """The class of blocks of one capacity: a ctypes buffer that reports its end."""
        returned, settle = self._returned, self._settle

        def give_back(block: Any) -> None:
            returned.append((block.address, capacity))
            # Sixty-four small blocks may wait for the next allocation to sort them in.
            if capacity > self._small or len(returned) > 64:
                settle()

        body = {"__slots__": ("address", "nbytes"), "__del__": give_back, "__module__": __name__}
        kind = type("Block", (Block, ctypes.c_char * capacity), body)
        return self._types.setdefault(capacity, kind)

    def _settle(self) -> None:
        """Take back what was returned, unless somebody holds the lock: then that one does it.

        Called by finalizers, which run anywhere, so it must never wait for the lock.
        """
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _take_back(self, enforce: bool = True) -> None:
        while self._returned:
            address, capacity = self._returned.popleft()
            self._live -= capacity
            self._pooled += capacity
            self._waiting[address] = capacity
            self._free.setdefault(capacity, deque()).append(address)
        if enforce and self._pooled > self._limit:
            self._drop(self._limit)
        # So that what waits unsorted cannot lift the total over the cap.
        self._small = (self._limit - self._pooled) >> 7

    def _drop(self, keep: int) -> int:
        before = self._pooled
        while self._pooled > keep:
            address, capacity = self._waiting.popitem(last=False)
            self._free[capacity].remove(address)
            self._pooled -= capacity
            _give(address, capacity)
        return before - self._pooled

    def _before_fork(self) -> None:
        # Should the lock be this thread's own (a handler that forks), the child still works: its
        # counters may be off by one block.
        self._held = self._lock.acquire(timeout=1.0)

    def _after_fork_in_parent(self) -> None:
        if self._held:
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()


def size_class(nbytes: int) -> int:
    """`nbytes` rounded up to one of eight sizes per power of two, in multiples of 64."""
    if nbytes < 0:
        raise ValueError(f"a block of {nbytes} bytes")
    if nbytes > _MOST_BYTES:
        raise _refused(nbytes)
    if nbytes <= 1024:
        return (nbytes + 63) & ~63 or 64
    step = nbytes.bit_length() - 4
    if nbytes & ((1 << step) - 1):
        return ((nbytes >> step) + 1) << step
    return nbytes


def _take(capacity: int) -> int:
    """Fresh memory of a size class, 0 if refused."""
    if capacity < HUGE_FROM:
        return _aligned_alloc(ALIGNMENT, capacity) or 0
    address = map_pages(capacity, HUGE_PAGE)
    if address and hasattr(mmap, "MADV_HUGEPAGE") and knobs.HUGE_PAGES.get():
        _madvise(address, capacity, mmap.MADV_HUGEPAGE)
    return address


def _give(address: int, capacity: int) -> None:
    if capacity < HUGE_FROM:
        _free(address)
    else:
        _munmap(address, capacity)


def room_for(nbytes: int) -> bool:
    """Whether the system can still back so many bytes; small amounts are not looked into."""
    if nbytes < _CHECKED_FROM:
        return True
    room = quota.available_memory()
    return room is None or nbytes <= room


def check_room(nbytes: int) -> None:
    """Raise `OutOfMemory` for an amount that would be granted now and kill the process later."""
    if not room_for(nbytes):
        raise _refused(nbytes)


def _refused(nbytes: int) -> OutOfMemory:
    room = quota.available_memory()
    known = "" if room is None else f", {room:,} are available"
    return OutOfMemory(f"{nbytes:,} bytes are needed{known}")


STOCK: Final = Stock()
"""The process's stock."""

allocate: Final = STOCK.allocate
trim: Final = STOCK.trim
usage: Final = STOCK.usage
