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
import itertools
import mmap
import sys
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.errors import OutOfMemory
from smelt.runtime import quota

ALIGNMENT: Final = 64
HUGE_PAGE: Final = 2 << 20
HUGE_FROM: Final = 4 << 20
"""Blocks of at least this many bytes are mapped on huge-page boundaries."""

RING_LIMIT: Final = 1 << 20
"""Blocks up to this size may wait in a ring."""
RING_BLOCKS: Final = 8
RING_WORDS: Final = 1 + 2 * RING_BLOCKS
"""The next entry to replace, then pairs (block, address)."""

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
_forget: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", ctypes.pythonapi))
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
    """Zeroed pages that are unmapped when this object goes: scratch, native state.

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
            raise _refused(nbytes) from error
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))


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

        Raises NumPy's TypeError or ValueError if it would reach outside the block's capacity.
        """
        if offset < 0:  # which NumPy does not look at
            raise ValueError(f"an array at offset {offset} of a block")
        return np.ndarray(shape, dtype, self, offset, strides)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Usage:
    """Bytes of a stock now and since the process began."""

    live: int
    """In blocks that somebody refers to."""
    pooled: int
    """Waiting to be used again."""
    peak: int
    """The most that `live` has been, since the last `forget_peak`."""
    fresh: int
    """Ever taken from the system."""
    reused: int
    """Ever served from the stock: page faults saved, times the page size."""
    limit: int
    """Cap of `pooled`."""
    asked: int = 0
    """The part of `live` that was asked for: without what size classes add."""
    asked_peak: int = 0
    """The most that `asked` has been, since the last `forget_peak`."""


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
    """Blocks by size class, with a cap on those that wait.

    There is no lock: finalizers and signal handlers come at any moment, in any thread, and must
    not wait. Every step is one atomic operation on a deque or a dict, and whatever happens in
    between finds a consistent stock. Only the counters are plain sums, off by a block if threads
    without an interpreter lock meet; the cap is checked against the deques themselves.
    """

    def __init__(self) -> None:
        self._knob = -1
        self._limit = 0
        self._classes: dict[int, _SizeClass] = {}
        self._rings: dict[tuple[int, int], array[int]] = {}
        """By size class, and by what number they have among those of it."""
        self._stamps = itertools.count()
        self._live = self._pooled = self._peak = self._fresh = self._reused = 0
        self._asked = self._asked_peak = 0

    def allocate(self, nbytes: int) -> Block:
        """A block of at least `nbytes`, warm if one of its size class waits.

        Raises `OutOfMemory` where the system has not that much, ValueError for a negative size.
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
        self._asked = asked = self._asked + nbytes
        if asked > self._asked_peak:
            self._asked_peak = asked
        block: Block = members.kind.from_address(address)
        block.address = address
        block.nbytes = nbytes
        return block

    def trim(self, keep: int = 0) -> int:
        """Give waiting blocks back to the system until at most `keep` bytes wait; bytes given."""
        if not keep:
            self._empty_rings()
        before = total = self._count_pooled()
        while total > keep:
            oldest = min(
                (members for members in tuple(self._classes.values()) if members.waiting),
                key=_age,
                default=None,
            )
            if oldest is None:
                break
            try:
                address = oldest.waiting.popleft()[1]
            except IndexError:
                continue
            _give(address, oldest.capacity)
            total -= oldest.capacity
        self._pooled = total
        return before - total

    def usage(self) -> Usage:
        """Counters of this stock."""
        idle = self._idle()
        pooled = self._count_pooled() + idle
        return Usage(
            self._live - idle,
            pooled,
            self._peak,
            self._fresh,
            self._reused,
            self._limit,
            self._asked,
            self._asked_peak,
        )

    def forget_peak(self) -> int:
        """Begin the highest mark anew; the bytes that are live now."""
        self._asked_peak = self._asked
        self._peak = self._live - self._idle()
        return self._peak

    def ring(self, nbytes: int, before: int = 0) -> int:
        """Address of the ring of blocks for so many bytes, 0 if there is none.  `before` are blocks
        of this size class that the same call takes before this one.

        Native calls keep blocks of theirs in it, and use again what nobody else refers to: a block
        waits there without having been given back, which would cost more than a small kernel.  A
        ring has room for the blocks of two calls; of a call with many, some take the next ring, as
        far as the rings of a size class together hold no more than one of the largest blocks does.
        """
        capacity = size_class(nbytes)
        if capacity > RING_LIMIT:
            return 0
        key = capacity, min(before // (RING_BLOCKS // 2), RING_LIMIT // capacity - 1)
        made = self._rings.get(key) or self._rings.setdefault(
            key, array("q", bytes(8 * RING_WORDS))
        )
        return made.buffer_info()[0]

    def _idle(self) -> int:
        """Bytes of blocks that only a ring refers to."""
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

    def _give_back(self, members: _SizeClass, address: int, nbytes: int) -> None:
        """Called by a block's finalizer."""
        members.waiting.append((next(self._stamps), address))
        self._live -= members.capacity
        self._asked -= nbytes
        self._pooled += members.capacity
        if self._pooled > self._limit:
            self.trim(self._limit)

    def _adopt_limit(self) -> None:
        """Follow the knob `pool_limit`; its default is also held below an eighth of memory."""
        self._knob = limit = knobs.POOL_LIMIT.get()
        if knobs.POOL_LIMIT.source == "default":
            limit = min(limit, quota.total_memory() // 8 or limit)
        self._limit = limit
        self.trim(limit)

    def _new_class(self, capacity: int) -> _SizeClass:
        return self._classes.setdefault(capacity, _SizeClass(capacity, self._give_back))

    def _fresh_memory(self, capacity: int, nbytes: int) -> int:
        address = _take(capacity) if room_for(capacity) else 0
        if not address:
            self.trim()
            check_room(capacity)
            address = _take(capacity)
        if not address:
            raise _refused(nbytes)
        return address


def _age(members: _SizeClass) -> int:
    """Stamp of the block that has waited longest in a size class."""
    try:
        return members.waiting[0][0]
    except IndexError:
        return sys.maxsize


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


# ---- addresses --------------------------------------------------------------------------------


def _interface_address(a: npt.NDArray[Any]) -> int:
    return int(a.__array_interface__["data"][0])


def _field_address(a: npt.NDArray[Any]) -> int:
    return _word_at(id(a) + _DATA_FIELD).value


_word_at = ctypes.c_int64.from_address
_DATA_FIELD = 16
"""Where CPython's NumPy keeps an array's data pointer: just after the object's head."""


def _fields_are_there() -> bool:
    """Whether arrays are laid out so in this process; else the slow, public way is taken."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != _DATA_FIELD:
        return False
    samples = (np.zeros(3), np.zeros((2, 5), np.int8)[:, 1:], np.zeros(0, np.float32))
    return all(_field_address(a) == _interface_address(a) for a in samples)


address_of = _field_address if _fields_are_there() else _interface_address
"""Address of an array's first element; a third of the time of `__array_interface__`."""
