"""Allocate aligned, reusable memory blocks for outputs and arenas.

Fresh large memory is slow, because the system clears every page at its first touch. Blocks
therefore return to a pool when the last array on them is gone, and the next allocation of that
size class reuses a warm block. Large blocks are mapped on 2 MiB boundaries with huge pages
requested. The pool is capped; the blocks that have waited longest are freed first.

>>> block = allocate(1 << 20)
>>> array = block.array((512, 512), "float32")
>>> array.shape, block.address % 64
((512, 512), 0)
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import sys
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt import knobs
from smelt.errors import OutOfMemory
from smelt.packages.c_library import C_LIBRARY
from smelt.python.dataclass import dataclass
from smelt.runtime.host import available_memory, total_memory
from smelt.runtime.native_layout import RING_BLOCKS, SIZES

if TYPE_CHECKING:
    import numpy.typing as npt

ALIGNMENT: Final = 64
"""Alignment of block addresses in bytes."""
HUGE_PAGE: Final = 2 << 20
"""Size of a huge page in bytes."""
HUGE_PAGE_MIN_BYTES: Final = 4 << 20
"""Minimum size, in bytes, of blocks that are mapped on huge-page boundaries."""

RING_LIMIT: Final = 1 << 20
"""Largest block size in bytes that may wait in a ring."""
RING_WORDS: Final = SIZES["RING"] // 8
"""Words of a ring: the next entry to replace, then pairs (block, address)."""

_CHECKED_FROM: Final = 64 << 20
"""Minimum size, in bytes, of allocations that check available memory first."""
_MAX_BYTES: Final = 1 << 47
"""Largest allocation: the user address space of x86-64."""

_mmap: Final = C_LIBRARY.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_munmap: Final = C_LIBRARY.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise: Final = C_LIBRARY.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_aligned_alloc: Final = C_LIBRARY.aligned_alloc
_aligned_alloc.restype = ctypes.c_void_p
_aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_free: Final = C_LIBRARY.free
_free.argtypes = [ctypes.c_void_p]
_forget: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", ctypes.pythonapi))
_FAILED: Final = ctypes.c_void_p(-1).value


def map_pages(nbytes: int, alignment: int = mmap.PAGESIZE) -> int:
    """Map fresh, zeroed, private pages; return their address, 0 if the system refuses."""
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
    """Zeroed pages, unmapped with this object; for scratch and native state.

    `nbytes` is rounded up to whole pages and `address` is page-aligned. Raises `OutOfMemory`.
    There is no finalizer in Python, in which an interrupt would be lost.
    """

    __slots__ = ("_pages", "address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-max(1, nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        check_room(self.nbytes)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self._pages = mmap.mmap(-1, self.nbytes, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise _out_of_memory(nbytes) from error
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))


class Block:
    """Memory that returns to the pool when nothing refers to it any more.

    `address` is a multiple of 64, `nbytes` the size requested. The content is undefined. Arrays
    made by `array` keep the block alive. Blocks are made by `allocate` only: each size class has
    a subclass that is also a ctypes buffer, which is what NumPy references.
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
        """Return an array on this memory without copying; `strides` and `offset` in bytes.

        Raises NumPy's TypeError or ValueError if it would reach outside the block's capacity.
        """
        if offset < 0:  # NumPy does not check this
            raise ValueError(f"an array at offset {offset} of a block")
        return np.ndarray(shape, dtype, self, offset, strides)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Usage:
    """Bytes of a pool now and since the process began."""

    live: int
    """In blocks that are referenced."""
    pooled: int
    """Waiting to be reused."""
    peak: int
    """Highest `live` since the last `forget_peak`."""
    fresh: int
    """Total taken from the system."""
    reused: int
    """Total served from the pool: page faults saved, times the page size."""
    limit: int
    """Cap of `pooled`."""
    requested: int = 0
    """Requested part of `live`, without the rounding to size classes."""
    requested_peak: int = 0
    """Highest `requested` since the last `forget_peak`."""


class _SizeClass:
    """Blocks of one capacity: those that wait, oldest first, and the class of new ones."""

    __slots__ = ("capacity", "kind", "waiting")

    def __init__(self, capacity: int, give_back: Callable[[_SizeClass, int, int], None]) -> None:
        def finalize(block: Any) -> None:
            give_back(self, block.address, block.nbytes)

        self.capacity = capacity
        self.waiting: deque[tuple[int, int]] = deque()
        body = {"__slots__": ("address", "nbytes"), "__del__": finalize, "__module__": __name__}
        self.kind: Any = type("Block", (Block, ctypes.c_char * capacity), body)


class Stock:
    """Pool of blocks by size class, with a cap on those that wait.

    There is no lock: finalizers and signal handlers run at any moment, in any thread, and must
    not wait. Every step is one atomic operation on a deque or a dict, and the pool is consistent
    between steps. Only the counters are plain sums, off by a block if threads race without a GIL;
    the cap is checked against the deques themselves.
    """

    def __init__(self) -> None:
        self._knob = -1
        self._limit = 0
        self._classes: dict[int, _SizeClass] = {}
        self._rings: dict[tuple[int, int], array[int]] = {}
        """Rings by size class and index within it."""
        self._stamps = itertools.count()
        self._live = self._pooled = self._peak = self._fresh = self._reused = 0
        self._requested = self._requested_peak = 0

    def allocate(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes`, reusing a waiting one of its size class.

        Raises `OutOfMemory` if the system lacks memory, ValueError for a negative size.
        """
        capacity = size_class(nbytes)
        if knobs.POOL_LIMIT.get() != self._knob:
            self._adopt_limit()
        members = self._classes.get(capacity) or self._new_class(capacity)
        try:
            address = members.waiting.pop()[1]
            self._pooled -= capacity
            self._reused += capacity
        except IndexError:
            address = self._fresh_memory(capacity, nbytes)
            self._fresh += capacity
        self._live = live = self._live + capacity
        if live > self._peak:
            self._peak = live
        self._requested = requested = self._requested + nbytes
        if requested > self._requested_peak:
            self._requested_peak = requested
        block: Block = members.kind.from_address(address)
        block.address = address
        block.nbytes = nbytes
        return block

    def trim(self, keep: int = 0) -> int:
        """Free waiting blocks until at most `keep` bytes wait; return the bytes freed."""
        if not keep:
            self._empty_rings()
        before = total = self._count_pooled()
        while total > keep:
            oldest = min(
                (members for members in tuple(self._classes.values()) if members.waiting),
                key=_oldest_stamp,
                default=None,
            )
            if oldest is None:
                break
            try:
                address = oldest.waiting.popleft()[1]
            except IndexError:
                continue
            _free_memory(address, oldest.capacity)
            total -= oldest.capacity
        self._pooled = total
        return before - total

    def usage(self) -> Usage:
        """Return the counters of this pool."""
        idle = self._idle_ring_bytes()
        pooled = self._count_pooled() + idle
        return Usage(
            self._live - idle,
            pooled,
            self._peak,
            self._fresh,
            self._reused,
            self._limit,
            self._requested,
            self._requested_peak,
        )

    def forget_peak(self) -> int:
        """Reset the peak; return the live bytes."""
        self._requested_peak = self._requested
        self._peak = self._live - self._idle_ring_bytes()
        return self._peak

    def ring(self, nbytes: int, before: int = 0) -> int:
        """Return the address of the ring of blocks for `nbytes`, 0 if there is none.

        `before` counts the blocks of this size class that the call takes before this one. Native
        calls keep their blocks in rings and reuse those that nobody else references; returning a
        block to the pool would cost more than a small kernel. A ring has room for the blocks of
        two calls. A call with many blocks uses several rings, as long as all rings of a size
        class together hold no more bytes than one largest block.
        """
        capacity = size_class(nbytes)
        if capacity > RING_LIMIT:
            return 0
        key = capacity, min(before // (RING_BLOCKS // 2), RING_LIMIT // capacity - 1)
        ring = self._rings.get(key) or self._rings.setdefault(
            key, array("q", bytes(8 * RING_WORDS))
        )
        return ring.buffer_info()[0]

    def _idle_ring_bytes(self) -> int:
        """Return the bytes of blocks that only a ring references."""
        return sum(
            capacity
            for (capacity, _), ring in tuple(self._rings.items())
            for block in ring[1::2]
            if block and ctypes.c_int32.from_address(block).value == 1
        )

    def _empty_rings(self) -> None:
        for ring in tuple(self._rings.values()):
            for k in range(1, RING_WORDS, 2):
                block, ring[k] = ring[k], 0
                if block:
                    _forget(block)
            ring[0] = 0

    def _count_pooled(self) -> int:
        classes = tuple(self._classes.values())
        return sum(len(members.waiting) * members.capacity for members in classes)

    def _return_block(self, members: _SizeClass, address: int, nbytes: int) -> None:
        """Return a block's memory to the pool; called by its finalizer."""
        members.waiting.append((next(self._stamps), address))
        self._live -= members.capacity
        self._requested -= nbytes
        self._pooled += members.capacity
        if self._pooled > self._limit:
            self.trim(self._limit)

    def _adopt_limit(self) -> None:
        """Follow the knob `pool_limit`; its default is also limited to an eighth of memory."""
        self._knob = limit = knobs.POOL_LIMIT.get()
        if knobs.POOL_LIMIT.source == "default":
            limit = min(limit, total_memory() // 8 or limit)
        self._limit = limit
        self.trim(limit)

    def _new_class(self, capacity: int) -> _SizeClass:
        return self._classes.setdefault(capacity, _SizeClass(capacity, self._return_block))

    def _fresh_memory(self, capacity: int, nbytes: int) -> int:
        address = _allocate_fresh(capacity) if room_for(capacity) else 0
        if not address:
            self.trim()
            check_room(capacity)
            address = _allocate_fresh(capacity)
        if not address:
            raise _out_of_memory(nbytes)
        return address


def _oldest_stamp(members: _SizeClass) -> int:
    """Return the stamp of the longest-waiting block of a size class."""
    try:
        return members.waiting[0][0]
    except IndexError:
        return sys.maxsize


def size_class(nbytes: int) -> int:
    """Round `nbytes` up to a size class: eight per power of two, multiples of 64."""
    if nbytes < 0:
        raise ValueError(f"a block of {nbytes} bytes")
    if nbytes > _MAX_BYTES:
        raise _out_of_memory(nbytes)
    if nbytes <= 1024:
        return (nbytes + 63) & ~63 or 64
    step = nbytes.bit_length() - 4
    if nbytes & ((1 << step) - 1):
        return ((nbytes >> step) + 1) << step
    return nbytes


def _allocate_fresh(capacity: int) -> int:
    """Allocate memory of a size class; 0 if refused."""
    if capacity < HUGE_PAGE_MIN_BYTES:
        return _aligned_alloc(ALIGNMENT, capacity) or 0
    address = map_pages(capacity, HUGE_PAGE)
    if address and hasattr(mmap, "MADV_HUGEPAGE") and knobs.HUGE_PAGES.get():
        _madvise(address, capacity, mmap.MADV_HUGEPAGE)
    return address


def _free_memory(address: int, capacity: int) -> None:
    if capacity < HUGE_PAGE_MIN_BYTES:
        _free(address)
    else:
        _munmap(address, capacity)


def room_for(nbytes: int) -> bool:
    """Return whether the system can still back `nbytes`; small amounts are not checked."""
    if nbytes < _CHECKED_FROM:
        return True
    room = available_memory()
    return room is None or nbytes <= room


def check_room(nbytes: int) -> None:
    """Raise `OutOfMemory` for memory that would be granted now and kill the process later."""
    if not room_for(nbytes):
        raise _out_of_memory(nbytes)


def _out_of_memory(nbytes: int) -> OutOfMemory:
    room = available_memory()
    available = "" if room is None else f", {room:,} are available"
    return OutOfMemory(f"{nbytes:,} bytes are needed{available}")


STOCK: Final = Stock()
"""Pool of this process."""

allocate: Final = STOCK.allocate
trim: Final = STOCK.trim
usage: Final = STOCK.usage


# ---- addresses --------------------------------------------------------------------------------


def _interface_address(a: npt.NDArray[Any]) -> int:
    return int(a.__array_interface__["data"][0])


def _field_address(a: npt.NDArray[Any]) -> int:
    return _word_at(id(a) + _DATA_FIELD).value


_word_at = ctypes.c_int64.from_address
_DATA_FIELD = 16
"""Offset of an array's data pointer in CPython's NumPy: just after the object header."""


def _data_field_matches() -> bool:
    """Return whether arrays have this layout here; else the slower public way is used."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != _DATA_FIELD:
        return False
    samples = (np.zeros(3), np.zeros((2, 5), np.int8)[:, 1:], np.zeros(0, np.float32))
    return all(_field_address(a) == _interface_address(a) for a in samples)


address_of = _field_address if _data_field_matches() else _interface_address
"""Return the address of an array's first element, faster than `__array_interface__`."""

Array = np.ndarray[Any, Any]

_SORTED_FROM: Final = 16
"""Minimum number of arrays for sorting them by address to cost less than comparing each."""


def array_maker(
    shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None
) -> Callable[[int], Array]:
    """Return a function that makes an array of the memory at an address.

    The memory must live as long as the array. `strides` are in bytes; None is row-major order.
    """
    nbytes, bytes_before = math.prod(shape) * dtype.itemsize, 0
    if strides is not None and nbytes:
        reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        bytes_before = -sum(min(r, 0) for r in reach)
        nbytes = bytes_before + sum(max(r, 0) for r in reach) + dtype.itemsize
    memory: Callable[[int], Any] = (ctypes.c_char * nbytes).from_address
    make = np.ndarray
    return lambda at: make(shape, dtype, memory(at - bytes_before), bytes_before, strides)


class Spans:
    """Memory of arrays (None: no array), for many queries.

    Each query takes logarithmic time, so that a call with many arguments and results takes no
    quadratic time. As in `np.may_share_memory`, the bounds of the memory decide.
    """

    def __init__(self, arrays: Sequence[Array | None]) -> None:
        self._arrays = arrays
        self._sorted = len(arrays) >= _SORTED_FROM
        if not self._sorted:
            return
        spans = sorted((*_bounds(a), k) for k, a in enumerate(arrays) if a is not None and a.size)
        self._first = [first for first, _, _ in spans]
        self._end = [end for _, end, _ in spans]
        self._index = [k for *_, k in spans]
        self._furthest = [*accumulate(self._end, max)]
        """Largest end up to here."""

    def overlapping(self, a: Array) -> list[int]:
        """Return the indices of the arrays that may share memory with an array, in order."""
        if not self._sorted:
            return [
                k
                for k, other in enumerate(self._arrays)
                if other is not None and np.may_share_memory(a, other)
            ]
        if not a.size:
            return []
        first, end = _bounds(a)
        indices: list[int] = []
        k = bisect_left(self._first, end) - 1
        while k >= 0 and self._furthest[k] > first:
            if self._end[k] > first:
                indices.append(self._index[k])
            k -= 1
        return sorted(indices)


def _bounds(a: Array) -> tuple[int, int]:
    """Return the first address of an array's memory and the one after the last."""
    if a.flags.c_contiguous:
        first = address_of(a)
        return first, first + a.nbytes
    low, high = np.lib.array_utils.byte_bounds(a)
    return low, high
