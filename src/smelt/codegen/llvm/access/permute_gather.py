"""Gather lanes with periodic indices by table lookup and permutation (vpermd, vpermt2d).

Lanes that read `b[k%3]` or `x[k//3]` read few elements that are close together.  Instead of
gathering them, one vector is loaded from the first of them on, or two, and permuted.  Elements that
no lane reads are not touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    intrinsic,
    opaque_mask,
    prefetch,
)
from smelt.codegen.llvm.instructions.indexing import I64, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import LINE, Isa, lane_numbers, table
from smelt.codegen.llvm.loopir.periodic_index import PeriodicIndex
from smelt.codegen.llvm.nests.environment import Lanes
from smelt.machine.target import Target
from smelt.types.dtype import DType

Value = ir.Value
I1, I32 = ir.IntType(1), ir.IntType(32)
REGISTER_BITS = 512
"""Bits of a register that can be permuted by lane."""
PREFETCH_DISTANCE_BYTES = 1024
"""Distance of prefetches in bytes: masked loads do not train the hardware prefetcher."""
MAX_PERMUTE_LANES = 16
"""Maximum lanes permuted at once: elements of less than 32 bits are widened before."""
KINDS = {16: "si", 8: "di"}
"""Intrinsic suffixes of a permutation of one register, by lanes."""
PAIRS = {16: "d", 8: "q"}
"""Intrinsic suffixes of a permutation of two registers, by lanes."""


ONE_REGISTER = 8
"""Lanes of 32 bits that an AVX2 register permutes by positions in another one."""


def can_permute(target: Isa, lanes: int) -> bool:
    """Return whether there are instructions that permute so many lanes of two registers freely."""
    return target.facts.permutes == "two registers" and lanes in KINDS


def can_permute_one(target: Target, lanes: int) -> bool:
    """Return whether an instruction permutes so many lanes of one register freely."""
    one = target.facts.permutes == "one register" and lanes == ONE_REGISTER
    return one or can_permute(target, lanes)


def index_lanes(b: ir.IRBuilder, period: PeriodicIndex, lanes: Lanes, first: Value) -> Value:
    """Emit a periodic index in all lanes; `first` is its part without the axis."""
    count = lanes.count
    base, phase = _base_and_offset(b, period, lanes, first, 0)
    offsets = _table_row(b, period.table(period.period + count - 1), phase, count)
    offsets64 = b.sext(offsets, ir.VectorType(I64, count))
    return b.add(splat(b, base, count), offsets64)


def periodic_truths(gap: PeriodicIndex | None) -> list[bool] | None:
    """Return for each position in the period whether a gap is >= 0.

    None if it grows from period to period, or depends on other axes.
    """
    if gap is None or gap.step or not isinstance(gap.first, int):
        return None
    return [x + gap.first >= 0 for x in gap.offsets]


def read_periodic(
    m: LLVMMachine,
    array: tuple[str, Value, DType],
    period: PeriodicIndex,
    tests: Iterable[Sequence[bool]],
    lanes: Lanes,
    first: Value,
) -> Value | None:
    """Read elements of an array by permutations: its name, address and type.

    `first` is the part of the index without the axis. At positions of a period at which a test
    fails, lanes are zero. None if this cannot be done.
    """
    dtype = array[2]
    native = REGISTER_BITS // max(dtype.itemsize * 8, REGISTER_BITS // MAX_PERMUTE_LANES)
    if lanes.mask is not None or lanes.count % native or not can_permute(m.target, native):
        return None
    inside_at = [True] * period.period
    for inside in tests:
        if period.period % len(inside):
            return None
        inside_at = [a and inside[x % len(inside)] for x, a in enumerate(inside_at)]
    parts = range(0, lanes.count, native)
    starts = [_starts_of(period, lanes, at) for at in parts]
    if any(period.span(native, inside_at, x) > 2 * native for x in starts):
        return None
    registers = [
        _read_register(m, array, period, inside_at, lanes, first, at, native) for at in parts
    ]
    return m.load_convert(_concatenate(m.builder, registers), dtype)


def _read_register(
    m: LLVMMachine,
    array: tuple[str, Value, DType],
    period: PeriodicIndex,
    inside_at: list[bool],
    vector: Lanes,
    above: Value,
    at: int,
    lanes: int,
) -> Value:
    """Read one register of permuted elements, of `lanes` lanes from `at` on."""
    b, (name, buffer, dtype) = m.builder, array
    firsts = _starts_of(period, vector, at)
    base, phase = _base_and_offset(b, period, vector, above, at)
    starts, masks_at = period.windows(lanes, inside_at, firsts)
    table = period.table(period.period + lanes - 1)
    picks = _table_row(b, table, phase, lanes)
    if len({starts[r] for r in firsts}) == 1:
        (start,) = {starts[r] for r in firsts}
        first: Value = number(start)
        picks = _table_row(b, tuple(x - start for x in table), phase, lanes)
    else:
        short = _table_entry(b, starts, phase, I32)
        picks = b.sub(picks, splat(b, short, lanes))
        first = b.sext(short, I64)
    raw = m.raw_type(dtype).element
    kind = ir.VectorType(raw, lanes)
    offset = b.add(base, first)
    if period.step and (name, at) not in vector.prefetched:
        vector.prefetched.add((name, at))
        _prefetch_later(b, element_address(b, buffer, offset, dtype), period, dtype)
    windows: list[Value] = []
    for w in range(1 if all(x < 1 << lanes for x in masks_at) else 2):
        masks = [x >> w * lanes & ((1 << lanes) - 1) for x in masks_at]
        address = element_address(b, buffer, b.add(offset, number(w * lanes)), dtype)
        run_length = _run_length(masks, firsts)
        if run_length:
            run = b.load(address, align=dtype.itemsize, typ=ir.VectorType(raw, run_length))
            order = [min(i, run_length - 1) for i in range(lanes)]
            windows.append(b.shuffle_vector(run, run, lane_numbers(order)))
            continue
        mask = b.bitcast(_table_entry(b, masks, phase, ir.IntType(lanes)), ir.VectorType(I1, lanes))
        windows.append(
            intrinsic(
                b,
                f"llvm.masked.load.{kind.intrinsic_name}.p0",
                kind,
                [address, I32(dtype.itemsize), opaque_mask(m, mask), ir.Constant(kind, None)],
            )
        )
    elements = permuted(b, windows, picks, lanes)
    if all(inside_at):
        return elements
    inside = [
        sum(inside_at[(r + i) % len(inside_at)] << i for i in range(lanes))
        for r in range(len(inside_at))
    ]
    mask = b.bitcast(_table_entry(b, inside, phase, ir.IntType(lanes)), ir.VectorType(I1, lanes))
    return b.select(mask, elements, ir.Constant(kind, None))


def _starts_of(period: PeriodicIndex, lanes: Lanes, at: int) -> frozenset[int]:
    """Return the positions in a period at which lane `at` can be."""
    if isinstance(lanes.base, ir.Constant):
        return frozenset(((lanes.base.constant + at) % period.period,))
    return period.start_offsets(at, lanes.alignment)


def _run_length(masks: list[int], firsts: Collection[int]) -> int:
    """Return how many elements lanes read, if contiguous from the first one.

    0 if they are not, or if the number differs between `firsts`, the possible positions in a
    period.
    """
    distinct = {masks[r] for r in firsts}
    (mask,) = distinct if len(distinct) == 1 else (0,)
    return mask.bit_length() if mask & (mask + 1) == 0 else 0


def _prefetch_later(b: ir.IRBuilder, address: Value, period: PeriodicIndex, dtype: DType) -> None:
    """Prefetch what later vectors read."""
    period_bytes = abs(period.step) * dtype.itemsize
    for k in range(0, max(period_bytes * MAX_PERMUTE_LANES // period.period, 1), LINE):
        distance = PREFETCH_DISTANCE_BYTES + k if period.step > 0 else -PREFETCH_DISTANCE_BYTES - k
        prefetch(b, b.gep(address, [number(distance)], source_etype=ir.IntType(8)))


def permuted_lanes(
    b: ir.IRBuilder, target: Target, vector: Value, picks: Value, lanes: int
) -> Value:
    """Permute the lanes of one register (`can_permute_one`)."""
    if can_permute(target, lanes):
        return permuted(b, [vector], picks, lanes)
    words = ir.VectorType(I32, lanes)
    result = intrinsic(b, "llvm.x86.avx2.permd", words, [b.bitcast(vector, words), picks])
    return b.bitcast(result, vector.type)


def permuted(b: ir.IRBuilder, windows: list[Value], picks: Value, lanes: int) -> Value:
    """Permute the lanes of one register or two."""
    kind = windows[0].type
    width = REGISTER_BITS // lanes
    register = ir.VectorType(ir.IntType(width), lanes)
    bits = ir.VectorType(ir.IntType(_bit_width(kind.element)), lanes)
    wide = [
        b.zext(b.bitcast(w, bits), register) if bits != register else b.bitcast(w, register)
        for w in windows
    ]
    at = picks if width == 32 else b.sext(picks, register)
    if len(wide) == 1:
        result = intrinsic(
            b, f"llvm.x86.avx512.permvar.{KINDS[lanes]}.512", register, [wide[0], at]
        )
    else:
        name = f"llvm.x86.avx512.vpermi2var.{PAIRS[lanes]}.512"
        result = intrinsic(b, name, register, [wide[0], at, wide[1]])
    return b.bitcast(b.trunc(result, bits) if bits != register else result, kind)


def _bit_width(element: ir.Type) -> int:
    if isinstance(element, ir.IntType):
        return element.width
    return 64 if isinstance(element, ir.DoubleType) else 32


def _concatenate(b: ir.IRBuilder, parts: list[Value]) -> Value:
    while len(parts) > 1:
        count = parts[0].type.count
        order = ir.Constant(ir.VectorType(I32, 2 * count), list(range(2 * count)))
        parts = [
            b.shuffle_vector(x, y, order) for x, y in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


def _base_and_offset(
    b: ir.IRBuilder, index: PeriodicIndex, lanes: Lanes, first: Value, at: int
) -> tuple[Value, Value]:
    """Return the index at the period of lane `at`, and the lane's position in it.

    `first` is the part of the index without the axis.
    """
    period = number(index.period)
    firsts = _starts_of(index, lanes, at)
    if isinstance(lanes.base, ir.Constant):
        before = (lanes.base.constant + at) // index.period * index.step
        return b.add(first, number(before)), number(min(firsts))
    position = b.add(lanes.base, number(at)) if at else lanes.base
    increment = b.mul(b.udiv(position, period), number(index.step))
    phase = b.urem(position, period) if len(firsts) > 1 else number(min(firsts))
    return b.add(first, increment), phase


def periodic_mask(b: ir.IRBuilder, truths: Sequence[bool], lanes: Lanes) -> Value:
    """Emit a periodic truth value as a mask of all lanes."""
    count, period, alignment = lanes.count, len(truths), lanes.alignment
    words = [sum(truths[(r + i) % period] << i for i in range(count)) for r in range(period)]
    if isinstance(lanes.base, ir.Constant):
        offset = number(lanes.base.constant % period)
    else:
        firsts = {x % period for x in range(0, period * alignment, alignment)}
        offset = number(0) if firsts == {0} else b.urem(lanes.base, number(period))
    return b.bitcast(_table_entry(b, words, offset, ir.IntType(count)), ir.VectorType(I1, count))


def _table_entry(b: ir.IRBuilder, values: list[int], at: Value, kind: Any) -> Value:
    """Return one of some numbers, from a table unless it is known."""
    if len({*values}) == 1:
        return kind(values[0])
    if isinstance(at, ir.Constant):
        return kind(values[at.constant])
    address = b.gep(table(b, tuple(values), kind), [at], source_etype=kind)
    return b.load(address, typ=kind, align=max(kind.width // 8, 1))


def _table_row(b: ir.IRBuilder, values: tuple[int, ...], at: Value, lanes: int) -> Value:
    """Return `lanes` consecutive numbers of some, from a table unless they are known."""
    if isinstance(at, ir.Constant):
        constants = values[at.constant : at.constant + lanes]
        return ir.Constant(ir.VectorType(I32, lanes), list(constants))
    address = b.gep(table(b, values, I32), [at], source_etype=I32)
    return b.load(address, typ=ir.VectorType(I32, lanes), align=4)
