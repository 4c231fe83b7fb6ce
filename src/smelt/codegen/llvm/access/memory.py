"""Loads and stores: whole vectors, masked tails, gathers, single elements under a condition."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, opaque, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import lane_numbers, memory_type
from smelt.types.dtype import DType

Value = ir.Value
PTR = ir.PointerType()
I1 = ir.IntType(1)
I8 = ir.IntType(8)
I32 = ir.IntType(32)


def element_address(b: ir.IRBuilder, base: Value, offset: Value, dtype: DType) -> Value:
    """Address of element `offset` (i64) of an array at `base`."""
    return b.gep(base, [offset], source_etype=memory_type(dtype))


def lie_in_lines(b: ir.IRBuilder, first: Value, apart: Value, size: int) -> Value:
    """Whether vectors of so many bytes, whose rows begin at `first` and so many bytes `apart`, lie
    in one line of the cache each: those in two are loaded twice."""
    inside = b.and_(b.or_(b.ptrtoint(first, I64), apart), I64(size - 1))
    return b.icmp_signed("==", inside, I64(0))


def intrinsic(b: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[Value]) -> Value:
    """A call of one of LLVM's own functions."""
    module = b.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


def load_vector(m: LLVMMachine, address: Value, dtype: DType, mask: Value | None) -> Value:
    """Consecutive elements as a register; lanes outside the mask give zero."""
    b, kind = m.builder, m.raw_type(dtype)
    if mask is None:
        raw = b.load(address, align=dtype.itemsize, typ=kind)
    else:
        zero = ir.Constant(kind, None)
        raw = intrinsic(
            b,
            f"llvm.masked.load.{kind.intrinsic_name}.p0",
            kind,
            [address, I32(dtype.itemsize), mask, zero],
        )
    return m.load_convert(raw, dtype)


def unlike(m: LLVMMachine, mask: Value) -> Value:
    """The same mask, which LLVM cannot tell to be.

    Where a value that is permuted after a masked load is then selected by the same mask, LLVM 22
    permutes it in memory instead (x86 with AVX-512).  Such an instruction reads all lanes, those
    outside of the mask too (Intel's manual, exceptions of type E4NF), and those may be nobody's.
    """
    if m.target.isa != "avx512":
        return mask
    b = m.builder
    none = b.trunc(opaque(b, I64(0)), I1)
    return b.xor(mask, splat(b, none, mask.type.count))


def any_lane(b: ir.IRBuilder, mask: Value) -> Value:
    """Whether a mask has a lane.  A masked load that reads nothing still costs hundreds of cycles
    where its address is not mapped, so one without lanes had better go somewhere else."""
    return intrinsic(b, f"llvm.vector.reduce.or.{mask.type.intrinsic_name}", I1, [mask])


def every_lane(b: ir.IRBuilder, mask: Value) -> Value:
    """Whether a mask has all lanes."""
    return intrinsic(b, f"llvm.vector.reduce.and.{mask.type.intrinsic_name}", I1, [mask])


def gather(m: LLVMMachine, base: Value, offsets: Value, dtype: DType, mask: Value | None) -> Value:
    """Elements at vector `offsets` as a register; lanes outside the mask give zero."""
    b, kind = m.builder, m.raw_type(dtype)
    lanes = m.lanes or 1
    pointers = b.gep(splat(b, base, lanes), [offsets], source_etype=memory_type(dtype))
    mask = ir.Constant(ir.VectorType(I1, lanes), [1] * lanes) if mask is None else mask
    raw = intrinsic(
        b,
        f"llvm.masked.gather.{kind.intrinsic_name}.v{lanes}p0",
        kind,
        [pointers, I32(dtype.itemsize), mask, ir.Constant(kind, None)],
    )
    return m.load_convert(raw, dtype)


FARTHEST_STEP = 4
"""Steps between lanes up to which whole vectors are read and the lanes picked from them."""


def lanes_between(m: LLVMMachine, base: Value, step: int, limit: Value, lanes: int) -> Value:
    """The lanes i with 0 <= base + i*step < limit, tested in numbers as short as lanes allow."""
    b = m.builder
    bits = 16 if m.target.isa == "avx512" else 32
    kind = ir.VectorType(ir.IntType(bits), lanes)
    far = 1 << 14
    steps = ir.Constant(kind, [i * step for i in range(lanes)])

    def near(e: Value) -> Value:
        for sign, edge in (("<", -far), (">", far)):
            e = b.select(b.icmp_signed(sign, e, I64(edge)), I64(edge), e)
        return splat(b, b.trunc(e, ir.IntType(bits)), lanes)

    low = b.icmp_signed(">=", steps, near(b.sub(I64(0), base)))
    return b.and_(low, b.icmp_signed("<", steps, near(b.sub(limit, base))))


def load_scalar(m: LLVMMachine, address: Value, dtype: DType, condition: Value | None) -> Value:
    """One element as a register; zero where the condition fails (nothing is read then)."""
    b, kind = m.builder, m.raw_type(dtype)
    if condition is None:
        return m.load_convert(b.load(address, align=dtype.itemsize, typ=kind), dtype)
    before = b.block
    with b.if_then(condition):
        inside = b.load(address, align=dtype.itemsize, typ=kind)
        block = b.block
    raw = b.phi(kind)
    raw.add_incoming(ir.Constant(kind, None), before)
    raw.add_incoming(inside, block)
    return m.load_convert(raw, dtype)


def prefetch(b: ir.IRBuilder, address: Value, *, near: bool = False, written: bool = False) -> None:
    """Asks for the line at an address, into the second cache or the first, to be read or `written`;
    wrong addresses do no harm."""
    level = I32(3 if near else 2)
    intrinsic(b, "llvm.prefetch.p0", ir.VoidType(), [address, I32(int(written)), level, I32(1)])


def store_vector(
    m: LLVMMachine,
    address: Value,
    value: Value,
    dtype: DType,
    mask: Value | None,
    *,
    bypass: bool = False,
) -> None:
    """Consecutive elements from a register; `bypass` writes whole vectors past the caches."""
    b = m.builder
    raw = m.store_convert(value, dtype)
    if isinstance(mask, ir.Constant):
        _store_first(b, address, raw, dtype, sum(mask.constant))
        return
    if mask is not None:
        intrinsic(
            b,
            f"llvm.masked.store.{raw.type.intrinsic_name}.p0",
            ir.VoidType(),
            [raw, address, I32(dtype.itemsize), mask],
        )
        return
    whole = min(64, raw.type.count * dtype.itemsize)
    stored = b.store(raw, address, align=whole if bypass else dtype.itemsize)
    if bypass:
        stored.set_metadata("nontemporal", b.module.add_metadata([I32(1)]))


def store_interleaved(
    m: LLVMMachine,
    address: Value,
    columns: Sequence[Value],
    dtype: DType,
    mask: Value | None,
    vector_bytes: int,
) -> None:
    """Rows that follow one another, of one lane of each column: register by register."""
    b, lanes, step = m.builder, m.lanes or 1, len(columns)
    own = gcd(vector_bytes // dtype.itemsize, lanes)
    raw = [m.store_convert(column, dtype) for column in columns]
    for v, found in enumerate(_interleaved(b, raw, lanes, own)):
        at = element_address(b, address, I64(v * own), dtype)
        if mask is None:
            b.store(found, at, align=dtype.itemsize)
            continue
        rows = [(v * own + i) // step for i in range(own)]
        part = b.shuffle_vector(mask, mask, lane_numbers(rows))
        intrinsic(
            b,
            f"llvm.masked.store.{found.type.intrinsic_name}.p0",
            ir.VoidType(),
            [found, at, I32(dtype.itemsize), part],
        )


def _interleaved(b: ir.IRBuilder, raw: Sequence[Value], lanes: int, own: int) -> list[Value]:
    """One lane of each column after the other, in vectors of `own` lanes: those of every second
    column and those of the others take turns, as long as their number is even."""
    step = len(raw)
    if step > 2 and step % 2 == own % 2 == 0:
        found: list[Value] = []
        halves = (_interleaved(b, raw[k::2], lanes, own) for k in (0, 1))
        for even, odd in zip(*halves, strict=True):
            for first in (0, own // 2):
                turns = [first + i // 2 + own * (i % 2) for i in range(own)]
                found.append(b.shuffle_vector(even, odd, lane_numbers(turns)))
        return found
    return [_picked(b, raw, lanes, own, v) for v in range(step * lanes // own)]


def _picked(b: ir.IRBuilder, raw: Sequence[Value], lanes: int, own: int, v: int) -> Value:
    """One vector of these, column by column."""
    step = len(raw)
    places = [divmod(v * own + i, step) for i in range(own)]
    picks = [row + lanes if column == 1 else row for row, column in places]
    found = b.shuffle_vector(raw[0], raw[1], lane_numbers(picks))
    for c, other in enumerate(raw[2:], 2):
        first = v * own // step
        near = [min(first + i, lanes - 1) for i in range(own)]
        taken = b.shuffle_vector(other, other, lane_numbers(near))
        picks = [own + row - first if column == c else i for i, (row, column) in enumerate(places)]
        found = b.shuffle_vector(found, taken, lane_numbers(picks))
    return found


def _store_first(b: ir.IRBuilder, address: Value, raw: Value, dtype: DType, count: int) -> None:
    """The first lanes, in runs of 8, 4, 2 and 1: rows that are stored under masks alone come to
    memory at half the speed."""
    first = 0
    while first < count:
        run = 1 << (count - first).bit_length() - 1
        part = b.shuffle_vector(raw, raw, lane_numbers([*range(first, first + run)]))
        at = element_address(b, address, I64(first), dtype)
        b.store(part, at, align=dtype.itemsize)
        first += run


def scatter(
    m: LLVMMachine, base: Value, offsets: Value, value: Value, dtype: DType, mask: Value | None
) -> None:
    """Elements to vector `offsets`."""
    b, lanes = m.builder, m.lanes or 1
    raw = m.store_convert(value, dtype)
    pointers = b.gep(splat(b, base, lanes), [offsets], source_etype=memory_type(dtype))
    mask = ir.Constant(ir.VectorType(I1, lanes), [1] * lanes) if mask is None else mask
    intrinsic(
        b,
        f"llvm.masked.scatter.{raw.type.intrinsic_name}.v{lanes}p0",
        ir.VoidType(),
        [raw, pointers, I32(dtype.itemsize), mask],
    )


def store_scalar(
    m: LLVMMachine, address: Value, value: Value, dtype: DType, condition: Value | None
) -> None:
    """One element from a register, where the condition holds."""
    b = m.builder
    raw = m.store_convert(value, dtype)
    if condition is None:
        b.store(raw, address, align=dtype.itemsize)
        return
    with b.if_then(condition):
        b.store(raw, address, align=dtype.itemsize)


__all__ = [
    "FARTHEST_STEP",
    "I64",
    "any_lane",
    "element_address",
    "gather",
    "intrinsic",
    "lane_numbers",
    "lanes_between",
    "load_scalar",
    "load_vector",
    "prefetch",
    "scatter",
    "store_interleaved",
    "store_scalar",
    "store_vector",
]
