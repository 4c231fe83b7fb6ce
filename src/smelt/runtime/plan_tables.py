"""Hold what a plan does at sizes, on any device.

Tables say which arguments kernels get, where addresses go, and what the results are.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from smelt import knobs
from smelt.errors import OutOfMemory
from smelt.knobs.values import show_bytes
from smelt.python.dataclass import dataclass
from smelt.runtime.layout import Layout
from smelt.runtime.steps import Value
from smelt.types.expr import Index, evaluate

MAX_PREPARED = 256
"""Tables kept, one per tuple of sizes; the oldest is evicted first."""
Addresses: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""An address for each of many runs."""
Result: TypeAlias = tuple[int, tuple[int, ...], Any, int, int]
"""Value, shape, dtype, bytes, and the input it overwrites (-1: none)."""


@dataclass(slots=True, eq=False, kw_only=True)
class PlanTables:
    """Everything of a call that depends on sizes only, on any device."""

    sizes: dict[str, int]
    frame: array[int]
    """Arguments of all kernels, and then room for `most_arguments` words."""
    addresses: list[tuple[int, int, int]]
    """Words filled at the call: (slot, source, offset in bytes).

    Sources are inputs, then results, then held values.
    """
    arena: list[tuple[int, int]]
    """Words filled with addresses in the arena: (slot, offset in bytes)."""
    strides: list[tuple[int, int, int]]
    """Words filled with strides: (slot, input, dimension)."""
    arena_bytes: int
    shapes: list[tuple[int, ...]]
    """Shape of each value."""
    results: list[Result] = field(default_factory=list)
    most_arguments: int = 0
    aligned: frozenset[int] = frozenset()
    """Sources whose addresses must be multiples of 16."""

    @property
    def has_parts(self) -> bool:
        """Whether it does more than launch kernels."""
        raise NotImplementedError

    @property
    def operations(self) -> int | None:
        """Launches and copies that a call queues; None if values on the device decide."""
        return 0

    def fill(self, where: Sequence[int], arena: int) -> array[int]:
        """Return the frame of a call on sources and an arena given by address."""
        frame = self.frame[:]
        for slot, source, offset in self.addresses:
            frame[slot] = where[source] + offset
        for slot, offset in self.arena:
            frame[slot] = arena + offset
        return frame

    def check_limit(self, working: int = 0, copied: int = 0, passed: int = 0) -> None:
        """Raise OutOfMemory if a call needs more than the knob MAX_EXTRA_MEMORY allows.

        It also takes `working` bytes and copies of arguments, and `passed` bytes of results are
        the caller's.
        """
        limit = knobs.MAX_EXTRA_MEMORY.get()
        if limit is None:
            return
        new = sum(nbytes for *_, nbytes, over in self.results if over < 0)
        needed = self.arena_bytes + working + copied + new - passed
        if needed > limit:
            largest, what = max(
                (max((r[3] for r in self.results), default=0), "the largest result takes"),
                (copied, "copies of arguments with strides take"),
            )
            raise OutOfMemory(
                needed=show_bytes(needed),
                available=show_bytes(limit),
                largest=f"{what} {show_bytes(largest)}",
            )

    def fill_runs(self, count: int, where: Sequence[Addresses | int], arena: int) -> Addresses:
        """Return a frame for each of many runs in one arena, without room behind it."""
        words = len(self.frame) - self.most_arguments
        frames = np.empty((count, words), np.int64)
        frames[:] = self.frame[:words]
        for slot, source, offset in self.addresses:
            frames[:, slot] = where[source] + offset
        for slot, offset in self.arena:
            frames[:, slot] = arena + offset
        return frames


T = TypeVar("T", bound=PlanTables)


class PlanExecutable(Generic[T]):
    """Plan ready to run on a device, with tables for the sizes of calls."""

    def __init__(
        self,
        size_names: tuple[str, ...],
        values: Sequence[Value],
        groups: Sequence[Sequence[Any]],
        arena: Sequence[Index],
        outputs: Sequence[int],
    ) -> None:
        self.size_names = size_names
        self.values = tuple(values)
        self.launches = tuple(map(tuple, groups))
        self.arena = tuple(arena)
        self.outputs = tuple(outputs)
        self._prepared: dict[tuple[int, ...], T] = {}
        self._lock = threading.Lock()

    def prepared(self, sizes: tuple[int, ...]) -> T:
        """Return the tables for calls with these sizes."""
        p = self._prepared.get(sizes)
        if p is None:
            p = self._build_tables(dict(zip(self.size_names, sizes, strict=True)))
            with self._lock:
                if len(self._prepared) >= MAX_PREPARED:
                    self._forget(next(iter(self._prepared)))
                self._prepared[sizes] = p
        return p

    def _build_tables(self, named: dict[str, int]) -> T:
        raise NotImplementedError

    def _forget(self, sizes: tuple[int, ...]) -> None:
        del self._prepared[sizes]


class TableBuilder:
    """Common part of the builders of tables."""

    places: Layout

    def __init__(self, values: Sequence[Value], sizes: dict[str, int]) -> None:
        self.values, self.sizes = values, sizes
        self.shapes = [tuple(int(evaluate(d, sizes)) for d in v.shape) for v in values]
        self.inputs = sum(v.place == "input" for v in values)
        self._first_held = self.inputs + sum(v.place == "output" for v in values)
        self.frame: list[int] = []
        self.addresses: list[tuple[int, int, int]] = []
        self.arena: list[tuple[int, int]] = []
        self.strides: list[tuple[int, int, int]] = []

    def nbytes(self, n: int) -> int:
        """Return the bytes of a value."""
        return math.prod(self.shapes[n]) * self.values[n].dtype.itemsize

    def results(self) -> list[Result]:
        """Return the computed values, in their order."""
        return [
            (n, self.shapes[n], v.dtype, self.nbytes(n), v.overwrites)
            for n, v in enumerate(self.values)
            if v.place == "output"
        ]

    def locate(self, n: int) -> tuple[int, int]:
        """Return the source of a value, -1 for the arena, and its byte offset there."""
        v = self.values[n]
        first = {"input": 0, "output": self.inputs, "held": self._first_held}.get(v.place)
        if first is not None:
            return first + v.number, 0
        host, offset = self.places.values[n]
        return (self.inputs + host if host >= 0 else -1), offset

    def add_address(self, slot: int, n: int) -> int:
        """Note that a word is the address of a value; return its source."""
        source, offset = self.locate(n)
        if source < 0:
            self.arena.append((slot, offset))
        else:
            self.addresses.append((slot, source, offset))
        return source
