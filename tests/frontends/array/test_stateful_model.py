"""Arrays in any order of operations, beside a NumPy model that computes at once.

Arrays are recorded, read, written, donated and handed to jitted functions. An answer is the
model's. A ChangedError may be one instead where NumPy's memory was written before its reader had
run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import smelt as sm
from smelt.errors import ChangedError

SHAPES = [(12,), (3, 4), (1,), (40, 75), (3000,)]
KEPT = 10

UNARY: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda x: x * 2 + 1, lambda x: x * 2 + 1),
    (lambda x: x[::-1], lambda x: x[::-1]),
    (lambda x: x[1:] - x[:-1], lambda x: x[1:] - x[:-1]),
    (lambda x: sm.reshape(x, (-1,)), lambda x: x.reshape(-1)),
    (lambda x: sm.max(x, axis=0, keepdims=True), lambda x: x.max(0, keepdims=True, initial=-9e9)),
    (lambda x: x.mT if x.ndim == 2 else -x, lambda x: x.T if x.ndim == 2 else -x),
    (lambda x: sm.asarray(x, copy=True), np.copy),
]
BINARY = [lambda x, y: x + y, lambda x, y: x * 0.5 - y, lambda x, y: x - y[::-1]]
CALLS: list[Any] = [sm.jit(f) for f in BINARY]
GIVING: list[Any] = [sm.jit(f, donate=0) for f in BINARY]


@dataclass(eq=False)
class TrackedArray:
    """An array, its value, and the NumPy arrays that it may still have to read.

    Each comes with how often it had been written; `source` is the number of the array whose memory
    it shares.
    """

    array: Any
    value: Any
    reads: set[tuple[int, int]] = field(default_factory=set)
    source: int | None = None


class InAnyOrder(RuleBasedStateMachine):
    """The arrays of a program, and NumPy's memory that they came from."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[TrackedArray] = []
        self.sources: list[Any] = []
        self.written: list[int] = []
        self.given_out: list[tuple[Any, Any]] = []
        self.add_array(0)

    def hold(self, array: Any, value: Any, *of: TrackedArray) -> None:
        reads = set[tuple[int, int]]().union(*(x.reads for x in of))
        reads |= {(x.source, self.written[x.source]) for x in of if x.source is not None}
        self.held.append(TrackedArray(array, np.array(value), reads))
        del self.held[:-KEPT]

    def read(self, x: TrackedArray) -> Any | None:
        try:
            actual = np.asarray(x.array)
        except ChangedError:
            assert self.too_late(x)
            self.held.remove(x)
            return None
        np.testing.assert_array_equal(actual, x.value)
        x.reads = set()
        return actual

    def too_late(self, *arrays: TrackedArray) -> bool:
        """Whether what an array may still have to read was written: it can be looked at alone."""
        return any(self.written[k] > times for x in arrays for k, times in x.reads)

    def two(self, k: int, m: int) -> tuple[TrackedArray, TrackedArray]:
        x = self.held[k % len(self.held)]
        like = [y for y in self.held if y.value.shape == x.value.shape]
        return x, like[m % len(like)]

    @rule(k=st.integers(0, 4), shared=st.booleans())
    def add_array(self, k: int, shared: bool = False) -> None:
        source = np.arange(np.prod(SHAPES[k]), dtype=float).reshape(SHAPES[k]) % 7 - 3
        self.sources.append(source)
        self.written.append(0)
        x = TrackedArray(sm.asarray(source), source, source=len(self.sources) - 1)
        if shared:  # it is what the memory is, whenever it is asked
            self.held = [*self.held[1 - KEPT :], x]
        else:
            self.hold(x.array + 1, source + 1, x)

    @rule(k=st.integers(0, 9), op=st.integers(0, len(UNARY) - 1))
    def unary(self, k: int, op: int) -> None:
        x = self.held[k % len(self.held)]
        ours, numpys = UNARY[op]
        if np.abs(x.value).max(initial=0) < 1e6 and not self.too_late(x):
            self.hold(ours(x.array), numpys(x.value), x)

    @rule(k=st.integers(0, 9), m=st.integers(0, 9), op=st.integers(0, len(BINARY) - 1))
    def binary(self, k: int, m: int, op: int) -> None:
        x, y = self.two(k, m)
        if self.too_late(x, y):
            return
        self.hold(BINARY[op](x.array, y.array), BINARY[op](x.value, y.value), x, y)

    @rule(k=st.integers(0, 9), keep=st.booleans())
    def look(self, k: int, keep: bool) -> None:
        x = self.held[k % len(self.held)]
        result = self.read(x)
        if result is not None and keep and x.source is None:
            self.given_out = [*self.given_out[-3:], (result, result.copy())]
        self.never_empty()

    @rule(k=st.integers(0, 9), value=st.integers(-9, 9))
    def write_to_the_memory_of_others(self, k: int, value: int) -> None:
        k %= len(self.sources)
        if self.sources[k].nbytes > 4096:  # smaller memory is copied when it is recorded
            self.written[k] += 1
        self.sources[k][...] = value + 0.5

    @rule(k=st.integers(0, 9), value=st.integers(-9, 9))
    def write_to_what_was_given_out(self, k: int, value: int) -> None:
        x = self.held[k % len(self.held)]
        result = self.read(x)
        writable = result is not None and x.source is None and result.flags.writeable
        if writable and self.alone(x, result):
            result[:1] = value
            x.value[:1] = value
        self.never_empty()

    @rule(k=st.integers(0, 9), value=st.integers(-9, 9))
    def put(self, k: int, value: int) -> None:
        x = self.held[k % len(self.held)]
        if self.too_late(x) or x.source is not None:
            return
        x.array[1:] = value
        x.value = x.value.copy()
        x.value[1:] = value

    @rule(
        k=st.integers(0, 9),
        m=st.integers(0, 9),
        op=st.integers(0, len(BINARY) - 1),
        how=st.sampled_from(["new", "out", "into ours", "in place", "donate"]),
    )
    def call(self, k: int, m: int, op: int, how: str) -> None:
        x, y = self.two(k, m)
        if self.read(x) is None or (y in self.held and self.read(y) is None):
            return self.never_empty()
        expected = BINARY[op](x.value, y.value)
        if how == "new":
            self.hold(CALLS[op](x.array, y.array), expected)
        elif how == "out":
            room = np.empty(expected.shape)
            CALLS[op](x.array, y.array, out=room)
            np.testing.assert_array_equal(room, expected)
        elif x is not y and x.source is None and self.alone(x, np.asarray(x.array)):
            if how == "donate":
                self.held.remove(x)
                self.hold(GIVING[op](x.array, y.array), expected)
            elif how == "in place":
                CALLS[op](x.array, y.array, out=x.array)
                x.value = expected
            else:
                CALLS[op](y.array, y.array, out=x.array)
                x.value = BINARY[op](y.value, y.value)
        return None

    def alone(self, x: TrackedArray, memory: Any) -> bool:
        """Test whether nobody else sees the memory of an array.

        Views of it are forgotten, as it may be written now.
        """
        others = [y.array.node.data for y in self.held if y is not x]
        if any(data is not None and np.shares_memory(data, memory) for data in others):
            return False
        self.given_out = [g for g in self.given_out if not np.shares_memory(g[0], memory)]
        return True

    @precondition(lambda self: self.given_out)
    @rule()
    def what_was_given_out_stays(self) -> None:
        for actual, before in self.given_out:
            np.testing.assert_array_equal(actual, before)

    def never_empty(self) -> None:
        if not self.held:
            self.add_array(0)

    def teardown(self) -> None:
        for x in list(self.held):
            self.read(x)


TestInAnyOrder = InAnyOrder.TestCase
TestInAnyOrder.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, database=None
)
