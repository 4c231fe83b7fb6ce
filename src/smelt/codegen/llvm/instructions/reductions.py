"""Accumulators: how one step of a fold, the joining of two partial folds and the end are emitted.

Float sums run in double precision, and sums of doubles carry their rounding error along (Knuth,
The Art of Computer Programming 4.2.2, two-sum), so that the error of a long sum does not grow with
its length.  To convert single precision takes as long as to add it up, so four vectors side by
side, or below each other in columns, may be added as two pairs in their own type first
(`is_paired`): the only roundings that an element meets in single precision are those two, within
2^-23 of the sum of magnitudes however long the sum is, and one of the result.  Four elements whose
sum single precision does not hold are infinite.  An arg kind folds pairs of a value and a position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.items import Folding, Item
from smelt.ops.cast import cast
from smelt.ops.combine import Combine
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, f32, f64, i32, i64
from smelt.types.expr import Index

Value = ir.Value
I1 = ir.IntType(1)
I64_BITS = 64
State = list[Value]
FEW = 2**31 - 1
"""Places up to which half as many bits tell one from another."""
PAIRED = 4
"""Vectors that are added as pairs in their own type before a sum in a wider one takes them."""


class Accumulator(Protocol):
    """A fold over elements of type `source`."""

    parts: tuple[DType, ...]
    """Register types of the state."""

    def start(self, m: LLVMMachine) -> State:
        """The state before any element."""
        ...

    def step(self, m: LLVMMachine, state: State, element: Value, position: Value | None) -> State:
        """The state after one more element (in every lane)."""
        ...

    def join(self, m: LLVMMachine, first: State, second: State) -> State:
        """The state of two runs of elements."""
        ...

    def finish(self, m: LLVMMachine, state: State) -> Value:
        """The result as a register of the fold's type."""
        ...


class Plain:
    """One value; floats in double precision where the row says that errors add up."""

    def __init__(self, row: Combine, source: DType, result: DType) -> None:
        self.row, self.source, self.result = row, source, result
        self.inner = f64 if row.wide and source.is_float else source
        self.parts: tuple[DType, ...] = (self.inner,)

    def start(self, m: LLVMMachine) -> State:
        return [m.const(self.inner, self.row.identity(self.inner))]

    def step(self, m: LLVMMachine, state: State, element: Value, position: Value | None) -> State:
        element = cast(m, element, self.source, self.inner)
        if self.row.idempotent and m.number(state[0]) is not None:
            return [element]  # nothing has been folded yet
        if self.row.compensated and self.source.is_float and self.source != self.inner:
            return [m.add_aside(element, state[0])]
        # The element first: what a step asks of it (is it NaN?) waits for no other step.
        return self.join(m, [element], state)

    def join(self, m: LLVMMachine, first: State, second: State) -> State:
        return [SCALARS[self.row.scalar].lower(m, self.inner, first[0], second[0])]

    def finish(self, m: LLVMMachine, state: State) -> Value:
        return cast(m, state[0], self.inner, self.result)


class Compensated:
    """A sum of doubles and the sum of its rounding errors."""

    parts: tuple[DType, ...] = (f64, f64)

    def __init__(self, row: Combine) -> None:
        self.row = row

    def start(self, m: LLVMMachine) -> State:
        return [m.const(f64, 0.0), m.const(f64, 0.0)]

    def step(self, m: LLVMMachine, state: State, element: Value, position: Value | None) -> State:
        total, error = self._two_sum(m, state[0], element)
        return [total, m.add(state[1], error)]

    def join(self, m: LLVMMachine, first: State, second: State) -> State:
        total, error = self._two_sum(m, first[0], second[0])
        return [total, m.add(error, m.add(first[1], second[1]))]

    def finish(self, m: LLVMMachine, state: State) -> Value:
        whole = m.add(state[0], state[1])
        return m.select(m.compare("eq", state[1], state[1]), whole, state[0])

    def _two_sum(self, m: LLVMMachine, a: Value, b: Value) -> tuple[Value, Value]:
        total = m.add(a, b)
        taken = m.sub_aside(total, a)
        kept = m.sub(total, taken)
        return total, m.add_aside(m.sub(a, kept), m.sub_aside(b, taken))


class Winner:
    """The best value so far and where it stood; the first of equals, NaN before all.

    A lane that meets positions in order keeps what it met first; where the loops over several axes
    stand in another order than places are counted, each element is asked where it stands.

    In order, what is no better than the best so far cannot win any more.  Where vectors lie along
    the places, that is the *bar*: most vectors are done with once they have been compared with it,
    and one of which some element passes is looked at on its own: its best lane is the state then,
    whatever came before."""

    def __init__(self, row: Combine, source: DType, place: DType, *, in_order: bool) -> None:
        self.row, self.source, self.place, self.in_order = row, source, place, in_order
        self.parts: tuple[DType, ...] = (source, place)
        self.farthest = np.iinfo(place.numpy).max

    def start(self, m: LLVMMachine) -> State:
        lowest = self.row.identity(self.source)
        return [m.const(self.source, lowest), m.const(self.place, self.farthest)]

    def step(self, m: LLVMMachine, state: State, element: Value, position: Value | None) -> State:
        assert position is not None
        position = cast(m, position, i64, self.place)
        if m.number(state[1]) is not None:
            return [element, position]  # nothing has been folded yet
        if not self.in_order:
            return self.join(m, state, [element, position])
        wins = self._beats(m, element, state[0])
        return [m.select(wins, element, state[0]), m.select(wins, position, state[1])]

    def join(self, m: LLVMMachine, first: State, second: State) -> State:
        wins = self._beats(m, second[0], first[0])
        loses = self._beats(m, first[0], second[0])
        nearer = m.compare("lt", second[1], first[1])
        wins = m.or_(wins, m.and_(m.not_(loses), nearer))
        return [m.select(wins, b, a) for a, b in zip(first, second, strict=True)]

    def finish(self, m: LLVMMachine, state: State) -> Value:
        untouched = m.compare("eq", state[1], m.const(self.place, self.farthest))
        found = m.select(untouched, m.const(self.place, 0), state[1])
        return cast(m, found, self.place, i64)

    def _beats(self, m: LLVMMachine, a: Value, b: Value) -> Value:
        passes = self.passes(m, a, b)
        return m.and_(passes, m.compare("eq", b, b)) if self.source.is_float else passes

    def passes(self, m: LLVMMachine, a: Value, bar: Value) -> Value:
        """Whether a is better than a number, or none: what is neither worse nor equal, which is a
        single comparison."""
        if not self.source.is_float:
            return self._better(m, a, bar)
        return m.not_(m.or_(self._better(m, bar, a), m.compare("eq", a, bar)))

    def taken(
        self, m: LLVMMachine, elements: Value, position: Value, state: State
    ) -> tuple[State, Value]:
        """What holds behind a vector of which some elements pass, the first of which stands at
        `position`: the state, of scalars, and the bar, above all numbers once there was none."""
        b, scalar = m.builder, LLVMMachine(m.builder, None, m.target)
        best = bar = self._best(m, elements)
        found = m.compare("eq", elements, splat(b, best, elements.type.count))
        if self.source.is_float:
            nan = m.compare("ne", elements, elements)
            some = m.any(nan)
            found = b.select(some, nan, found)
            best = scalar.select(some, scalar.const(self.source, float("nan")), best)
            bar = scalar.select(some, scalar.const(self.source, -self.row.identity(f32)), best)
        place = cast(scalar, b.add(position, first_lane(m, found)), i64, self.place)
        new = [best, place]
        if self.source.is_float:  # the first that is no number stays
            ends = scalar.compare("ne", state[0], state[0])
            new = [scalar.select(ends, x, y) for x, y in zip(state, new, strict=True)]
        return new, bar

    def _best(self, m: LLVMMachine, values: Value) -> Value:
        return halved(m, values, lambda m, a, b: m.select(self._better(m, b, a), b, a))

    def _better(self, m: LLVMMachine, a: Value, b: Value) -> Value:
        return SCALARS[self.row.scalar].lower(m, self.source, a, b)


def accumulator(
    row: Combine,
    source: DType,
    result: DType,
    *,
    plain: bool = False,
    in_order: bool = True,
    places: Index = FEW + 1,
) -> Accumulator:
    """How `row` folds elements of `source` into `result` (both register types), met `in_order` of
    their so many `places` or not; `plain` where double precision is enough as it is."""
    if row.positional:
        place = i32 if isinstance(places, int) and places <= FEW else i64
        return Winner(row, source, place, in_order=in_order)
    if row.compensated and source == f64 and not plain:
        return Compensated(row)
    return Plain(row, source, result)


def is_paired(fold: Item) -> bool:
    """Whether elements of a fold may be added in their own type first: they are float32, of which
    a sum is carried in double precision.  Not where double precision is the result's: moments about
    an element take away from it what the sum of so many of that element is."""
    assert isinstance(fold.payload, Folding)
    return fold.payload.pairs and fold.payload.row.compensated and fold.args[0].dtype == f32


def across(acc: Accumulator, m: LLVMMachine, state: State, lanes: int, until: int = 1) -> State:
    """Joins the lanes of a vector state, halves with halves, until so many are left (scalars where
    that is one)."""
    while lanes > until:
        half = lanes // 2
        low = [_part(m, v, 0, half) for v in state]
        high = [_part(m, v, half, half) for v in state]
        m = LLVMMachine(m.builder, half if half > 1 else None, m.target)
        state, lanes = acc.join(m, low, high), half
    return state


def first_lane(m: LLVMMachine, mask: Value) -> Value:
    """The number of the first lane of those that a mask holds, one at least."""
    count = mask.type.count
    bits = ir.IntType(count)
    found = m.call(f"llvm.cttz.i{count}", bits, m.builder.bitcast(mask, bits), I1(1))
    if count == I64_BITS:
        return found
    return (m.builder.zext if count < I64_BITS else m.builder.trunc)(found, I64)


def halved(
    m: LLVMMachine, value: Value, join: Callable[[LLVMMachine, Value, Value], Value]
) -> Value:
    """A scalar: the lanes of a vector joined, halves with halves."""
    while (many := value.type.count) > 1:
        half = many // 2
        m = LLVMMachine(m.builder, half if half > 1 else None, m.target)
        value = join(m, _part(m, value, 0, half), _part(m, value, half, half))
        if half == 1:
            break
    return value


def pairs_added(m: LLVMMachine, element: Value, lanes: int) -> Value:
    """A vector of elements with its halves added until so many lanes are left."""
    while (many := element.type.count) > lanes:
        element = m.add(_part(m, element, 0, many // 2), _part(m, element, many // 2, many // 2))
    return element


def rows_added(m: LLVMMachine, elements: Sequence[Value]) -> list[Value]:
    """Elements of rows, of each four in a row that there are their sum by pairs."""
    found = list(elements)
    step = 1
    while step < PAIRED and len(found) > 1 and len(found) % 2 == 0:
        found = [m.add(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
        step *= 2
    return found


def first_lanes(m: LLVMMachine, state: State, count: int) -> State:
    """So many lanes of a vector state."""
    return [_part(m, v, 0, count) for v in state]


def with_first_lanes(m: LLVMMachine, state: State, first: State) -> State:
    """A vector state whose first lanes are others, by whole parts as long as those."""
    found: State = []
    for v, own in zip(state, first, strict=True):
        many, count = v.type.count, own.type.count
        parts = [own, *(_part(m, v, at, count) for at in range(count, many, count))]
        found.append(m.concatenate(parts))
    return found


def _part(m: LLVMMachine, value: Value, start: int, count: int) -> Value:
    from_lane: Sequence[int] = range(start, start + count)
    if count == 1:
        return m.builder.extract_element(value, ir.Constant(ir.IntType(32), start))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), count), list(from_lane))
    return m.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)
