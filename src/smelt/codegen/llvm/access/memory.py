"""Emit loads and stores: full vectors, masked tails, gathers, conditional scalars.

On machines without masked memory the first lanes of a vector are accessed in runs: LLVM would test
every lane of a mask and access each by itself.  The binary digits of their number say which runs of
8, 4, 2 and 1 elements to access: one test for each digit.  A full vector takes one test and one
access.

    three of four floats:  two at 0, one at 2
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, number, opaque, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import constant_lanes, lane_numbers, memory_type
from smelt.types.dtype import DType

Value = ir.Value
_I8 = ir.IntType(8)
_WORD = 8
"""Bytes of the longest integer; longer runs of elements are vectors of such integers."""


def prefix_of(m: LLVMMachine, mask: Value | None) -> ir.PrefixMask | None:
    """Return a mask of the first lanes, if no instruction takes masks."""
    if mask is None or m.target.facts.masked_memory != "none":
        return None
    lanes = mask.type.count
    if (constants := constant_lanes(mask)) is not None:
        first = sum(constants)
        is_prefix = constants == [k < first for k in range(lanes)]
        mask = ir.PrefixMask(mask, number(first)) if is_prefix else mask
    return mask if isinstance(mask, ir.PrefixMask) and lanes & (lanes - 1) == 0 else None


def load_first(
    b: ir.IRBuilder, address: Value, kind: ir.VectorType, size: int, mask: ir.PrefixMask
) -> Value:
    """Load the lanes of a mask, of elements of `size` bytes; the others are zero."""
    with b.if_else(b.icmp_signed(">=", mask.lanes, number(kind.count))) as (full, part):
        with full:
            whole = b.load(address, align=size, typ=kind)
            full_block = b.block
        with part:
            runs: Value = ir.Constant(_run_type(size), None)
            run, lanes = 1, _nonnegative(b, mask.lanes)
            while run < kind.count:
                runs = _load_run(b, address, runs, size, run, lanes)
                run *= 2
            runs = b.bitcast(runs, kind)
            part_block = b.block
    return _phi(b, (whole, full_block), (runs, part_block))


def store_first(
    b: ir.IRBuilder, address: Value, vector: Value, size: int, mask: ir.PrefixMask
) -> None:
    """Store the lanes of a mask, of elements of `size` bytes."""
    count = vector.type.count
    with b.if_else(b.icmp_signed(">=", mask.lanes, number(count))) as (full, part):
        with full:
            b.store(vector, address, align=size)
        with part:
            left = b.bitcast(vector, _run_type(count * size))
            run, lanes = count // 2, _nonnegative(b, mask.lanes)
            while run:
                left = _store_run(b, address, left, size, run, lanes)
                run //= 2


def _nonnegative(b: ir.IRBuilder, count: Value) -> Value:
    """Return a number of lanes, 0 for a negative one, whose digits would say otherwise."""
    return b.select(b.icmp_signed(">", count, number(0)), count, number(0))


def _load_run(
    b: ir.IRBuilder, address: Value, runs: Value, size: int, run: int, count: Value
) -> Value:
    """Return this run, if there is one, followed by the shorter `runs`."""
    without = _join_halves(b, runs, ir.Constant(runs.type, None))
    before = b.block
    with b.if_then(_has_run(b, count, run)):
        first = b.load(_run_address(b, address, size, run, count), align=size, typ=runs.type)
        both = _join_halves(b, first, runs)
        inside = b.block
    return _phi(b, (without, before), (both, inside))


def _store_run(
    b: ir.IRBuilder, address: Value, left: Value, size: int, run: int, count: Value
) -> Value:
    """Store the run that begins `left`, if there is one; return the rest."""
    first, rest = _halves(b, left, run * size)
    before = b.block
    with b.if_then(_has_run(b, count, run)):
        b.store(first, _run_address(b, address, size, run, count), align=size)
        inside = b.block
    return _phi(b, (first, before), (rest, inside))


def _has_run(b: ir.IRBuilder, count: Value, run: int) -> Value:
    return b.icmp_signed("!=", b.and_(count, number(run)), number(0))


def _run_address(b: ir.IRBuilder, address: Value, size: int, run: int, count: Value) -> Value:
    offset = b.mul(b.and_(count, number(-2 * run)), number(size))
    return b.gep(address, [offset], source_etype=_I8)


def _run_type(nbytes: int) -> ir.Type:
    if nbytes <= _WORD:
        return ir.IntType(8 * nbytes)
    return ir.VectorType(I64, nbytes // _WORD)


def _join_halves(b: ir.IRBuilder, low: Value, high: Value) -> Value:
    """Return the bytes of two equal halves, `low` first in memory."""
    kind = low.type
    if isinstance(kind, ir.VectorType):
        return b.shuffle_vector(low, high, lane_numbers([*range(2 * kind.count)]))
    if kind is I64:
        empty = ir.Constant(ir.VectorType(I64, 2), ir.Undefined)
        pair = b.insert_element(empty, low, ir.IntType(32)(0))
        return b.insert_element(pair, high, ir.IntType(32)(1))
    wide = ir.IntType(2 * kind.width)
    return b.or_(b.zext(low, wide), b.shl(b.zext(high, wide), wide(kind.width)))


def _halves(b: ir.IRBuilder, x: Value, nbytes: int) -> tuple[Value, Value]:
    kind, half = x.type, _run_type(nbytes)
    if isinstance(half, ir.VectorType):
        parts = (range(half.count), range(half.count, 2 * half.count))
        low, high = (b.shuffle_vector(x, x, lane_numbers([*part])) for part in parts)
        return low, high
    if isinstance(kind, ir.VectorType):
        low, high = (b.extract_element(x, ir.IntType(32)(k)) for k in (0, 1))
        return low, high
    return b.trunc(x, half), b.trunc(b.lshr(x, kind(8 * nbytes)), half)


def _phi(b: ir.IRBuilder, *incoming: tuple[Value, ir.Block]) -> Value:
    phi = b.phi(incoming[0][0].type)
    for value, block in incoming:
        phi.add_incoming(value, block)
    return phi


# ---- memory --------------------------------------------------------------------------------------


PTR = ir.PointerType()
I1 = ir.IntType(1)
I8 = ir.IntType(8)
I32 = ir.IntType(32)


def element_address(b: ir.IRBuilder, base: Value, offset: Value, dtype: DType) -> Value:
    """Return the address of element `offset` (i64) of an array at `base`."""
    return b.gep(base, [offset], source_etype=memory_type(dtype))


def fit_cache_lines(b: ir.IRBuilder, first: Value, pitch: Value, size: int) -> Value:
    """Return whether vectors of `size` bytes are within one cache line each.

    Their rows begin at `first` and are `pitch` bytes apart.  Vectors across two lines are loaded
    twice.
    """
    inside = b.and_(b.or_(b.ptrtoint(first, I64), pitch), I64(size - 1))
    return b.icmp_signed("==", inside, I64(0))


def intrinsic(b: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[Value]) -> Value:
    """Call an LLVM intrinsic, declaring it if needed."""
    module = b.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


def load_vector(m: LLVMMachine, address: Value, dtype: DType, mask: Value | None) -> Value:
    """Load consecutive elements; lanes outside the mask are zero."""
    b, kind = m.builder, m.raw_type(dtype)
    if mask is None:
        raw = b.load(address, align=dtype.itemsize, typ=kind)
    elif prefix := prefix_of(m, mask):
        raw = load_first(b, address, kind, dtype.itemsize, prefix)
    else:
        zero = ir.Constant(kind, None)
        raw = intrinsic(
            b,
            f"llvm.masked.load.{kind.intrinsic_name}.p0",
            kind,
            [address, I32(dtype.itemsize), mask, zero],
        )
    return m.load_convert(raw, dtype)


def opaque_mask(m: LLVMMachine, mask: Value) -> Value:
    """Return an equal mask that LLVM cannot identify with the original.

    If a value that is permuted after a masked load is then selected by the same mask, LLVM 22
    permutes it in memory instead (x86 with AVX-512).  Such an instruction reads all lanes, those
    outside of the mask too (Intel's manual, exceptions of type E4NF), and those may be unmapped.
    """
    if not m.target.facts.has_mask_registers:
        return mask
    b = m.builder
    none = b.trunc(opaque(b, I64(0)), I1)
    return b.xor(mask, splat(b, none, mask.type.count))


def any_lane(b: ir.IRBuilder, mask: Value) -> Value:
    """Return whether a mask has a lane.

    A masked load without lanes still costs hundreds of cycles if its address is not mapped, so it
    should go to another address.
    """
    return intrinsic(b, f"llvm.vector.reduce.or.{mask.type.intrinsic_name}", I1, [mask])


def gather(m: LLVMMachine, base: Value, offsets: Value, dtype: DType, mask: Value | None) -> Value:
    """Gather elements at vector `offsets`; lanes outside the mask are zero."""
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


def load_scalar(m: LLVMMachine, address: Value, dtype: DType, condition: Value | None) -> Value:
    """Load one element; zero if the condition fails (nothing is read then)."""
    b, kind = m.builder, m.raw_type(dtype)
    if condition is None:
        return m.load_convert(b.load(address, align=dtype.itemsize, typ=kind), dtype)
    (raw,) = b.either(
        condition,
        lambda: [b.load(address, align=dtype.itemsize, typ=kind)],
        [ir.Constant(kind, None)],
    )
    return m.load_convert(raw, dtype)


def prefetch(b: ir.IRBuilder, address: Value, *, near: bool = False, written: bool = False) -> None:
    """Prefetch the cache line at an address into L2, or L1 if `near`.

    With `written`, prefetch it for writing.  Invalid addresses are harmless.
    """
    level = I32(3 if near else 2)
    intrinsic(b, "llvm.prefetch.p0", ir.VoidType(), [address, I32(int(written)), level, I32(1)])


def store_vector(
    m: LLVMMachine,
    address: Value,
    value: Value,
    dtype: DType,
    mask: Value | None,
    *,
    bypass: int = 0,
) -> None:
    """Store consecutive elements; non-temporally where an alignment of `bypass` bytes is known."""
    b = m.builder
    raw = m.store_convert(value, dtype)
    if (lanes := constant_lanes(mask)) is not None:
        _store_first_lanes(b, address, raw, dtype, sum(lanes))
        return
    if prefix := prefix_of(m, mask):
        store_first(b, address, raw, dtype.itemsize, prefix)
        return
    if mask is not None:
        intrinsic(
            b,
            f"llvm.masked.store.{raw.type.intrinsic_name}.p0",
            ir.VoidType(),
            [raw, address, I32(dtype.itemsize), mask],
        )
        return
    alignment = min(bypass, raw.type.count * dtype.itemsize)
    stored = b.store(raw, address, align=alignment or dtype.itemsize)
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
    """Store rows of one lane of each column, register by register."""
    b, lanes, step = m.builder, m.lanes or 1, len(columns)
    width = gcd(vector_bytes // dtype.itemsize, lanes)
    raw = [m.store_convert(column, dtype) for column in columns]
    for v, vector in enumerate(_interleave(b, raw, lanes, width)):
        at = element_address(b, address, I64(v * width), dtype)
        if mask is None:
            b.store(vector, at, align=dtype.itemsize)
            continue
        rows = [(v * width + i) // step for i in range(width)]
        part = b.shuffle_vector(mask, mask, lane_numbers(rows))
        intrinsic(
            b,
            f"llvm.masked.store.{vector.type.intrinsic_name}.p0",
            ir.VoidType(),
            [vector, at, I32(dtype.itemsize), part],
        )


def _interleave(b: ir.IRBuilder, raw: Sequence[Value], lanes: int, width: int) -> list[Value]:
    """Interleave columns into vectors of `width` lanes.

    Recursively by even and odd columns, as long as their number is even.
    """
    step = len(raw)
    if step == 1 and width == lanes:
        return [*raw]
    if step > 2 and step % 2 == width % 2 == 0:
        vectors: list[Value] = []
        halves = (_interleave(b, raw[k::2], lanes, width) for k in (0, 1))
        for even, odd in zip(*halves, strict=True):
            for first in (0, width // 2):
                lanes_of_pair = [first + i // 2 + width * (i % 2) for i in range(width)]
                vectors.append(b.shuffle_vector(even, odd, lane_numbers(lanes_of_pair)))
        return vectors
    return [_interleave_one(b, raw, lanes, width, v) for v in range(step * lanes // width)]


def _interleave_one(b: ir.IRBuilder, raw: Sequence[Value], lanes: int, width: int, v: int) -> Value:
    """Return the v-th interleaved vector, column by column."""
    step = len(raw)
    row_and_column = [divmod(v * width + i, step) for i in range(width)]
    picks = [row + lanes if column == 1 else row for row, column in row_and_column]
    vector = b.shuffle_vector(raw[0], raw[1], lane_numbers(picks))
    for c, other in enumerate(raw[2:], 2):
        first = v * width // step
        nearest = [min(first + i, lanes - 1) for i in range(width)]
        moved = b.shuffle_vector(other, other, lane_numbers(nearest))
        picks = [
            width + row - first if column == c else i
            for i, (row, column) in enumerate(row_and_column)
        ]
        vector = b.shuffle_vector(vector, moved, lane_numbers(picks))
    return vector


def _store_first_lanes(
    b: ir.IRBuilder, address: Value, raw: Value, dtype: DType, count: int
) -> None:
    """Store the first lanes in runs of 8, 4, 2 and 1.

    Rows that are stored by masked stores alone reach memory at half the speed.
    """
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
    """Scatter elements to vector `offsets`."""
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
    """Store one element if the condition holds."""
    b = m.builder
    raw = m.store_convert(value, dtype)
    if condition is None:
        b.store(raw, address, align=dtype.itemsize)
        return
    with b.if_then(condition):
        b.store(raw, address, align=dtype.itemsize)
