"""States of reductions: their parts, and how they end; lanes of vectors are combined.

Float sums run in double precision, and sums of doubles carry their rounding error along (two-sum:
D. Knuth, The Art of Computer Programming 4.2.2), so that the error does not grow with the length.
Converting single precision takes as long as adding it, so four vectors, side by side or below each
other in columns, may first be added as two pairs in their own type (`adds_pairs_first`): each
element then meets two roundings in single precision, within 2^-23 of the sum of magnitudes however
long the sum is, and that of the result (`docs/derivations.md`, precision).  Four elements whose sum
exceeds single precision give infinity.  Argmax and argmin reduce pairs of a value and a position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import lane_numbers
from smelt.codegen.llvm.loopir.items import Reduction
from smelt.ops.combine import Combine
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f32, f64, i32, i64
from smelt.types.expr import Index

Value = ir.Value
I1 = ir.IntType(1)
I64_BITS = 64
State = list[Value]
MAX_I32_PLACES = 2**31 - 1
"""Positions which fit 32 bits."""
PAIRED_VECTORS = 4
"""Vectors added pairwise in their own type before a wider sum takes them."""


@dataclass(frozen=True, slots=True)
class PlainAccumulator:
    """A single value, in double precision where rounding errors add up."""

    parts: tuple[DType]
    """Register types of the state."""


@dataclass(frozen=True, slots=True)
class CompensatedSum:
    """A sum of doubles and the sum of its rounding errors."""

    parts: tuple[DType, DType] = (f64, f64)


@dataclass(frozen=True, slots=True)
class ArgAccumulator:
    """The best value and its position; the first of equals wins, NaN first.

    A lane which meets positions in order keeps what it met first.  Where the loops over several
    axes run in another order than positions are counted, positions are compared.
    """

    parts: tuple[DType, DType]
    in_order: bool

    @property
    def farthest(self) -> int:
        """The position of a state that has met no element."""
        return int(np.iinfo(self.parts[1].numpy).max)


Accumulator: TypeAlias = PlainAccumulator | CompensatedSum | ArgAccumulator
"""The state of a reduction."""


def make_accumulator(
    row: Combine,
    source: DType,
    *,
    plain: bool = False,
    in_order: bool = True,
    places: Index = MAX_I32_PLACES + 1,
) -> Accumulator:
    """Return the accumulator which reduces elements of `source`, a register type.

    `in_order` says whether loops meet the `places` positions in order; with `plain`, sums in double
    precision are not compensated.
    """
    if row.positional:
        place = i32 if isinstance(places, int) and places <= MAX_I32_PLACES else i64
        return ArgAccumulator((source, place), in_order)
    if row.compensated and source == f64 and not plain:
        return CompensatedSum()
    return PlainAccumulator((f64 if row.wide and source.is_float else source,))


def adds_pairs_first(reduction: Reduction) -> bool:
    """Return whether elements may be added pairwise in their own type first.

    They are float32, summed in double precision.  Not where the result itself is needed in double
    precision: moments about an element subtract that element times the count from the sum.
    """
    return reduction.pairs and reduction.row.compensated and reduction.args[0].dtype == f32


def first_lane(m: LLVMMachine, mask: Value) -> Value:
    """Return the index of the first set lane of a nonzero mask."""
    count = mask.type.count
    bits = ir.IntType(count)
    index = m.call(f"llvm.cttz.i{count}", bits, m.builder.bitcast(mask, bits), I1(1))
    if count == I64_BITS:
        return index
    return (m.builder.zext if count < I64_BITS else m.builder.trunc)(index, I64)


def reduce_halves(
    m: LLVMMachine, value: Value, join: Callable[[LLVMMachine, Value, Value], Value]
) -> Value:
    """Reduce the lanes of a vector to a scalar, joining halves with halves."""
    while (lanes := value.type.count) > 1:
        half = lanes // 2
        m = LLVMMachine(m.builder, half if half > 1 else None, m.target)
        value = join(m, _part(m, value, 0, half), _part(m, value, half, half))
        if half == 1:
            break
    return value


def scan_lanes(
    m: LLVMMachine,
    state: State,
    start: State,
    join: Callable[[LLVMMachine, State, State], State],
) -> State:
    """Combine each lane with those before it, by recursive doubling; `start` changes nothing.

    Each step combines lanes twice as far apart as the one before (W. D. Hillis and G. L. Steele,
    "Data parallel algorithms", 1986).
    """
    lanes, distance = m.lanes or 1, 1
    while distance < lanes:
        order = [k if k < distance else lanes + k - distance for k in range(lanes)]
        pairs = zip(start, state, strict=True)
        moved = [m.builder.shuffle_vector(e, x, lane_numbers(order)) for e, x in pairs]
        state, distance = join(m, moved, state), 2 * distance
    return state


def _part(m: LLVMMachine, value: Value, start: int, count: int) -> Value:
    if count == 1:
        return m.builder.extract_element(value, ir.Constant(ir.IntType(32), start))
    picks = lane_numbers(list(range(start, start + count)))
    return m.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), picks)


def sum_each(m: LLVMMachine, totals: Sequence[Value]) -> Value:
    """Sum the lanes of each vector, by adding neighbouring lanes."""
    b, lanes = m.builder, m.lanes or 1
    picks = [lane_numbers(list(range(parity, 2 * lanes, 2))) for parity in (0, 1)]
    while len(totals) > 1:
        pairs = zip(totals[::2], totals[1::2], strict=True)
        totals = [m.add(*(b.shuffle_vector(x, y, p) for p in picks)) for x, y in pairs]
    return totals[0]


def sum_lanes(m: LLVMMachine, total: Value) -> Value:
    """Sum the lanes of a vector, adding halves to halves."""
    b, lanes = m.builder, m.lanes or 1
    while lanes > 1:
        lanes //= 2
        undefined = ir.Constant(total.type, ir.Undefined)
        first, second = (lane_numbers(list(range(at, at + lanes))) for at in (0, lanes))
        total = m.add(
            b.shuffle_vector(total, undefined, first), b.shuffle_vector(total, undefined, second)
        )
    return b.extract_element(total, ir.Constant(ir.IntType(32), 0))
