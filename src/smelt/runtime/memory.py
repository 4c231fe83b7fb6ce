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

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._types: dict[int, type[Any]] = {}
        self._free: dict[int, deque[int]] = {}
        self._waiting: OrderedDict[int, int] = OrderedDict()
        self._returned: deque[tuple[int, int]] = deque()
        self._live = self._pooled = self._peak = self._fresh = self._reused = 0
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
        address = 0
        # A signal handler may allocate while this very thread holds the lock: it must not wait
        # for itself for ever, and fresh memory needs no lock.
        locked = self._lock.acquire(timeout=0.1)
        try:
            if locked:
                if self._returned:
                    self._take_back()
                waiting = self._free.get(capacity)
                if waiting:
                    address = waiting.pop()
                    del self._waiting[address]
                    self._pooled -= capacity
                    self._reused += capacity
            self._live += capacity
            if not address:
                self._fresh += capacity
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
                self._live, self._pooled, self._peak, self._fresh, self._reused, self.limit
            )

    @property
    def limit(self) -> int:
        """Cap in bytes on what waits: by default an eighth of memory, at most 2 GiB."""
        if self._limit is None:
            self._limit = min(quota.total_memory() // 8 or 1 << 28, 2 << 30)
        return self._limit

    @limit.setter
    def limit(self, nbytes: int) -> None:
        self._limit = max(0, nbytes)
        self.trim(self._limit)

    def _fresh_memory(self, capacity: int, nbytes: int) -> int:
        address = 0
        if room_for(capacity):
            address = _take(capacity)
        if not address:
            self.trim()
            check_room(capacity, nbytes)
            address = _take(capacity)
        if not address:
            raise _refused(nbytes)
        return address

    def _block_type(self, capacity: int) -> type[Any]:
        """The class of blocks of one capacity: a ctypes buffer that reports its end."""
        returned, settle = self._returned.append, self._settle

        def give_back(block: Any) -> None:
            returned((block.address, capacity))
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
        if enforce and self._pooled > self.limit:
            self._drop(self.limit)

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
    if address and hasattr(mmap, "MADV_HUGEPAGE"):
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


def check_room(nbytes: int, asked: int | None = None) -> None:
    """Raise `OutOfMemory` for an amount that would be granted now and kill the process later."""
    if not room_for(nbytes):
        raise _refused(nbytes if asked is None else asked)


def _refused(nbytes: int, live: int | None = None) -> OutOfMemory:
    room = quota.available_memory()
    text = f"no memory for {nbytes} bytes"
    if room is not None:
        text += f": {room} bytes are available"
    if live:
        text += f", {live} are in live blocks"
    return OutOfMemory(text)


STOCK: Final = Stock()
"""The process's stock."""

allocate: Final = STOCK.allocate
trim: Final = STOCK.trim
usage: Final = STOCK.usage
