"""Choose and emit dot-product instructions for short numbers (VNNI, bf16, AMX).

Where both factors are bfloat16, or integers which provably fit 16 or 8 bits, the operands are
packed in *units* of 32 bits: `count` neighbours along the reduction axis.  A tile then walks units
as it would walk float32 numbers; its step is a dot product of two units in every lane.

    instruction        factors         where              what it computes
    vdpbf16ps          2 bfloat16      avx512bf16         float32 sums, denormals are zero
    bfdot              2 bfloat16      Armv8.6            the same
    vpdpwssd           2 int16         avx512vnni         exact in int32 (which wraps)
    vpmaddwd, vpaddd   2 int16         SSE2 and later     the same
    vpdpbusd           4 uint8, int8   avx512vnni, avxvnni  exact in int32
    sdot, udot         4 bytes         Armv8.2            exact in int32, for factors of one sign
    usdot              4 uint8, int8   i8mm of Armv8.6    exact in int32
    bfmmla             2 × 2 bfloat16  Armv8.6            as bfdot, for 2 × 2 sums at once
    {s,u,us}mmla       2 × 4 bytes     i8mm of Armv8.6    exact in int32, for 2 × 2 sums at once
    tdpbf16ps          2 bfloat16      amx-bf16             as vdpbf16ps, for 16 × 16 sums at once
    tdpb{s,u}{s,u}d    4 bytes         amx-int8             exact in int32, for 16 × 16 sums at once

A loop of tiles takes two units along k at once where there are instructions for 2 × 2 sums
(`smelt.codegen.llvm.products.microkernel`).

AMX needs both operands packed (`smelt.codegen.llvm.products.amx`).  The others take operands of
certain signs.  If there is none for the signs at hand, the left operand is packed with its highest
bit flipped, which offsets it by 128 into the other range; tiles start from the right operand's
column sums times 128 to correct that.

Convolutions use units as numbers from the start (`smelt.codegen.llvm.loopir.pack_k_pairs`).

A factor computed in the kernel is rounded to bfloat16 when it is packed.  That changes nothing if
it was rounded before; it was not with `rounding="fast"`, nor are the weights of PyTorch's attention
in half precision.

Error of the bfloat16 step: a product of two bfloat16 numbers is exact in float32, so a sum of k
products is within k·2^-24·Σ|a·b| of the exact one, as any float32 sum, in whatever order the
instruction adds its pair; in addition, factors and sums below 2^-126 count as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import Isa, vector_of
from smelt.codegen.llvm.loopir.items import Apply, Cast, Const, Item, Load, Reduction
from smelt.graph.bounds import dtype_range, fits
from smelt.machine.target import Target
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bf16, f32, i8, i16, i32, u8

Value = ir.Value
Step = Literal["bfloats", "words", "bytes"]
I8, I16, I32 = (ir.IntType(n) for n in (8, 16, 32))
SIGN_BITS = 0x80808080
"""A unit of bytes with only the highest bits: each is the offset of packed bytes."""


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """A dot-product instruction and its packing: `count` factors of `dtype` per 32-bit unit."""

    step: Step
    dtype: DType
    left_unsigned: bool = False
    right_unsigned: bool = False
    """For bytes: how each packed operand is read."""
    left_offset: int = 0
    """Offset of the packed left operand: 128, -128 or 0."""
    matrix: str = ""
    """AMX instruction which multiplies tiles of such units, if it is to be used."""

    @property
    def count(self) -> int:
        """Return how many positions of the reduction a unit has."""
        return 4 // self.dtype.itemsize


I16_DOT, BF16_DOT = DotInstruction("words", i16), DotInstruction("bfloats", bf16)
_AMX_BYTES = {
    (True, True): "tdpbssd",
    (True, False): "tdpbsud",
    (False, True): "tdpbusd",
    (False, False): "tdpbuud",
}
"""AMX instructions for bytes, by signedness of the left and the right factors."""
_AMX_BFLOATS_FEATURES = ("avx512bf16", "amx-bf16", "amx-tile", "avx512f")
_AMX_BYTES_FEATURES = ("amx-int8", "amx-tile", "avx512f")


@dataclass(frozen=True, slots=True)
class _Row:
    """An instruction that LLVM has an intrinsic for, and the features that it needs."""

    step: Step
    features: tuple[str, ...]
    intrinsic: str
    """Name, with `bits` of a register, its 32-bit `lanes` and how many `factors` it has."""
    signs: frozenset[tuple[bool, bool]] = frozenset({(False, False)})
    """Whether the factors of bytes are unsigned: of the left and of the right operand."""
    bits: int = 0
    """Width of registers if there is one name for it alone."""
    accumulates: bool = True
    """Whether the sum so far is an operand."""


_MIXED = frozenset({(True, False), (False, True)})
_ROWS = (
    _Row("bfloats", ("avx512bf16",), "x86.avx512bf16.dpbf16ps.{bits}"),
    _Row("bfloats", ("bf16",), "aarch64.neon.bfdot.v{lanes}f32.v{factors}bf16"),
    _Row("words", ("avx512vnni", "avx512f"), "x86.avx512.vpdpwssd.{bits}"),
    _Row("words", ("avx512bw",), "x86.avx512.pmaddw.d.512", bits=512, accumulates=False),
    _Row("words", ("avx2",), "x86.avx2.pmadd.wd", bits=256, accumulates=False),
    _Row("words", ("sse2",), "x86.sse2.pmadd.wd", bits=128, accumulates=False),
    _Row("bytes", ("avx512vnni", "avx512f"), "x86.avx512.vpdpbusd.{bits}", _MIXED),
    _Row("bytes", ("avxvnni",), "x86.avx512.vpdpbusd.{bits}", _MIXED),
    _Row("bytes", ("dotprod",), "aarch64.neon.sdot.v{lanes}i32.v{factors}i8"),
    _Row(
        "bytes",
        ("dotprod",),
        "aarch64.neon.udot.v{lanes}i32.v{factors}i8",
        frozenset({(True, True)}),
    ),
    _Row("bytes", ("i8mm",), "aarch64.neon.usdot.v{lanes}i32.v{factors}i8", _MIXED),
)
"""The first row that fits is taken."""
_SQUARE_ROWS = (
    _Row("bfloats", ("bf16",), "aarch64.neon.bfmmla"),
    _Row("bytes", ("i8mm",), "aarch64.neon.smmla.v4i32.v16i8"),
    _Row("bytes", ("i8mm",), "aarch64.neon.ummla.v4i32.v16i8", frozenset({(True, True)})),
    _Row("bytes", ("i8mm",), "aarch64.neon.usmmla.v4i32.v16i8", frozenset({(True, False)})),
)
"""Instructions that multiply two units of two rows and of two columns."""


def _rows(target: Isa, step: Step) -> list[_Row]:
    return [row for row in _ROWS if row.step == step and all(map(target.has, row.features))]


# ---- choice -------------------------------------------------------------------------------------


def choose_dot_instruction(
    item: Item,
    left: Item,
    right: Item,
    buffers: Mapping[str, DType],
    target: Target,
    matrices: bool = False,
) -> DotInstruction | None:
    """Return the dot-product instruction for a contraction, or None.

    None if its factors are not short or the processor has no such instruction.  With `matrices`
    prefer AMX.
    """
    factors = item.factors if isinstance(item, Reduction) else None
    if item.dtype == f32 and factors == bf16:
        sides = [_is_bfloat(x, buffers) for x in (left, right)]
        loaded = [isinstance(x, Load) for x in (left, right)]
        are_bfloats = all(
            is_bfloat or not load for is_bfloat, load in zip(sides, loaded, strict=True)
        )
        tiles = matrices and all(map(target.has, _AMX_BFLOATS_FEATURES))
        if not are_bfloats or not (tiles or target.has_fast_bf16_dot):
            return None
        return DotInstruction("bfloats", bf16, matrix="tdpbf16ps") if tiles else BF16_DOT
    if item.dtype != i32:
        return None
    first, second = (_span(x, buffers) for x in (left, right))
    if first is None or second is None:
        return None
    byte_dot = _choose_byte_dot(first, second, target, matrices=matrices)
    if byte_dot is None and fits(first, i16) and fits(second, i16):
        return word_dot(target)
    return byte_dot


def word_dot(target: Target) -> DotInstruction | None:
    """Return the dot product of 16-bit integers, if the processor has it."""
    return I16_DOT if _rows(target, "words") else None


def _choose_byte_dot(
    first: tuple[int, int], second: tuple[int, int], target: Target, *, matrices: bool
) -> DotInstruction | None:
    """Return the dot product of bytes whose values are in these ranges.

    None if they are not bytes, or the processor has no such instruction.
    """
    rows = _rows(target, "bytes")
    fitting = [{True: fits(s, u8), False: fits(s, i8)} for s in (first, second)]
    if not rows or not all(any(f.values()) for f in fitting):
        return None
    if matrices and all(map(target.has, _AMX_BYTES_FEATURES)):
        signed = [f[False] for f in fitting]
        matrix = _AMX_BYTES[signed[0], signed[1]]
        return DotInstruction("bytes", i8, not signed[0], not signed[1], matrix=matrix)
    signs = [pair for row in rows for pair in sorted(row.signs, reverse=True)]
    for left, right in signs:
        if fitting[0][left] and fitting[1][right]:
            return DotInstruction("bytes", i8, left, right)
    for left, right in signs:
        if fitting[1][right]:
            return DotInstruction("bytes", i8, left, right, left_offset=128 if left else -128)
    return None


def _is_bfloat(x: Item, buffers: Mapping[str, DType]) -> bool:
    """Return whether every element is a bfloat16 number: loaded as one, or just rounded."""
    if isinstance(x, Load):
        return buffers.get(x.access.buffer) == bf16 and x.access.other == 0
    return isinstance(x, Cast) and x.to == bf16


def _span(x: Item, buffers: Mapping[str, DType]) -> tuple[int, int] | None:
    """Return the value range of an integer item, from its original types."""
    if not x.dtype.is_integer:
        return None
    if isinstance(x, Const) and isinstance(x.value, int):
        return int(x.value), int(x.value)
    type_range = dtype_range(x.dtype)
    if isinstance(x, Load) or not isinstance(x, (Apply, Cast)):
        return type_range
    spans = [_span(a, buffers) for a in x.args]
    if isinstance(x, Cast):
        return spans[0] if spans[0] is not None and fits(spans[0], x.dtype) else type_range
    bounds = SCALARS[x.op].integer_bounds(*spans)
    return bounds if bounds is not None and fits(bounds, x.dtype) else type_range


# ---- code ---------------------------------------------------------------------------------------


def to_packed_bits(m: LLVMMachine, value: Value, item: Item, group: DotInstruction) -> Value:
    """Convert a register of factors to the bits which are packed."""
    b = m.builder
    kind: Any = I8 if group.dtype == i8 else I16
    kind = kind if m.lanes is None else ir.VectorType(kind, m.lanes)
    if group.step == "bfloats":
        rounded = isinstance(item, Cast) and item.to == group.dtype
        if not (rounded or isinstance(item, Load)):  # not rounded yet
            short = vector_of(ir.BFloatType(), m.lanes)
            return b.bitcast(b.fptrunc(value, short), kind)
        bits = m.bitcast(value, i32)
        return b.trunc(m.lshr(bits, m.const(i32, 16)), kind)
    width = item.dtype.bits
    if width == group.dtype.bits:
        return value
    if width > group.dtype.bits:
        return b.trunc(value, kind)
    return b.sext(value, kind) if item.dtype.kind == "int" else b.zext(value, kind)


def pack_pairs(m: LLVMMachine, args: Sequence[Value]) -> Value:
    """Pack two registers of bfloat16 numbers in units, the first in the lower halves.

    With a position and an end, the second is 0 where the position is not before the end.
    """
    first, second, *ends = args
    high = m.and_(m.bitcast(second, i32), m.const(i32, -(1 << 16)))
    if ends:
        high = m.select(m.compare("lt", *ends), high, m.const(i32, 0))
    return m.or_(m.lshr(m.bitcast(first, i32), m.const(i32, 16)), high)


def as_units(b: Any, bits: Value) -> Value:
    """Reinterpret neighbouring factors as 32-bit units."""
    count = bits.type.count * bits.type.element.width // 32
    return b.bitcast(bits, ir.VectorType(I32, count))


def interleave_rows(b: Any, lines: list[Value]) -> list[Value]:
    """Return units interleaved from rows: unit j holds element j of every row."""
    rows = [[line] for line in lines]
    while len(rows) > 1:
        rows = [_interleave_pair(b, x, y) for x, y in zip(rows[::2], rows[1::2], strict=True)]
    return [as_units(b, x) for x in rows[0]]


def _interleave_pair(b: Any, first: list[Value], second: list[Value]) -> list[Value]:
    merged: list[Value] = []
    for x, y in zip(first, second, strict=True):
        count, bits = x.type.count, x.type.element.width
        for half in (0, 1):
            picks = [half * count // 2 + j // 2 + (j % 2) * count for j in range(count)]
            mask = ir.Constant(ir.VectorType(I32, count), picks)
            pairs = b.shuffle_vector(x, y, mask)
            merged.append(b.bitcast(pairs, ir.VectorType(ir.IntType(2 * bits), count // 2)))
    return merged


def ones(lanes: int) -> Value:
    """Return units of four bytes, each 1."""
    return ir.Constant(ir.VectorType(I32, lanes), [0x01010101] * lanes)


def dot_step(
    m: LLVMMachine, group: DotInstruction, left: Value, right: Value, total: Value
) -> Value:
    """Return total + the dot product of two units, in every lane."""
    b, width = m.builder, (m.lanes or 1) * 32
    element: Any = {"bfloats": ir.BFloatType(), "words": I16, "bytes": I8}[group.step]
    kind = ir.VectorType(element, width // (8 * group.dtype.itemsize))
    x, y = b.bitcast(left, kind), b.bitcast(right, kind)
    signs = group.left_unsigned, group.right_unsigned
    row = next(
        row for row in _rows(m.target, group.step) if signs in row.signs and row.bits in (0, width)
    )
    name = row.intrinsic.format(bits=width, lanes=width // 32, factors=kind.count)
    if group.left_unsigned < group.right_unsigned:
        x, y = y, x  # the unsigned operand is the first
    if row.accumulates:
        return _call(b, f"llvm.{name}", total.type, [total, x, y])
    return m.add(total, _call(b, f"llvm.{name}", total.type, [x, y]))


def has_square_step(target: Isa, group: DotInstruction) -> bool:
    """Return whether one instruction multiplies two rows and two columns."""
    return bool(_square_rows(target, group))


def _square_rows(target: Isa, group: DotInstruction) -> list[_Row]:
    signs = group.left_unsigned, group.right_unsigned
    rows = [row for row in _SQUARE_ROWS if row.step == group.step and signs in row.signs]
    return [row for row in rows if all(map(target.has, row.features))]


def square_step(
    m: LLVMMachine, group: DotInstruction, rows: Value, columns: Value, total: Value
) -> Value:
    """Return 2 × 2 sums plus the products of two rows and two columns."""
    row = _square_rows(m.target, group)[0]
    element: Any = ir.BFloatType() if group.step == "bfloats" else I8
    kind = ir.VectorType(element, 16 // group.dtype.itemsize)
    x, y = m.builder.bitcast(rows, kind), m.builder.bitcast(columns, kind)
    return _call(m.builder, f"llvm.{row.intrinsic}", total.type, [total, x, y])


def _call(b: Any, name: str, result: Any, args: list[Value]) -> Value:
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)
