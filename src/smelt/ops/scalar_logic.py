"""Define scalar rows for comparison, classification, bits, selection and random bits.

>>> from smelt.ops.scalar import SCALARS
>>> from smelt.types.dtype import f32
>>> SCALARS["lt"].result(f32, f32), SCALARS["shl"].numpy(np.uint8(1), np.uint8(9))
(bool, array(0, dtype=uint8))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.ops.machine import Machine, Predicate
from smelt.ops.reference import Array, plain
from smelt.ops.scalar_arithmetic import INTEGERS, NUMBERS
from smelt.ops.spec import Rule, ScalarOp
from smelt.types.dtype import DType, Kind, u32, u64

M = Machine[Any]
V = Any

ANY: tuple[Kind, ...] = ("bool", *NUMBERS)
BITS: tuple[Kind, ...] = ("bool", *INTEGERS)
BITWISE = Rule((BITS, BITS))
SHIFT = Rule((INTEGERS, INTEGERS))


def _comparison(name: Predicate, doc: str, infix: str, ufunc: Any, **columns: Any) -> ScalarOp:
    def lower(m: M, d: DType, x: V, y: V) -> V:
        return m.compare(name, x, y, signed=d.kind == "int")

    return ScalarOp(
        name,
        2,
        doc,
        Rule((ANY, ANY), "bool"),
        plain(ufunc),
        lower,
        cost=0.5,
        infix=infix,
        **columns,
    )


def _isinf(m: M, d: DType, x: V) -> V:
    if not d.is_float:
        return m.compare("ne", x, x)
    return m.compare("eq", m.abs(x), m.const(d, float("inf")))


def _isfinite(m: M, d: DType, x: V) -> V:
    if not d.is_float:
        return m.compare("eq", x, x)
    return m.compare("lt", m.abs(x), m.const(d, float("inf")))


def _all_ones(d: DType) -> int | bool:
    if d.kind == "bool":
        return True
    return -1 if d.kind == "int" else (1 << d.bits) - 1


def _no_bits(d: DType) -> int | bool:
    return False if d.kind == "bool" else 0


def _in_range(m: M, d: DType, count: V) -> V:
    """Whether a shift count is in [0, bits).

    As an unsigned number, a negative count is large.
    """
    return m.compare("lt", count, m.const(d, d.bits), signed=False)


def _shl(m: M, d: DType, x: V, count: V) -> V:
    zero = m.const(d, 0)
    inside = _in_range(m, d, count)
    return m.select(inside, m.shl(x, m.select(inside, count, zero)), zero)


def _shr(m: M, d: DType, x: V, count: V) -> V:
    inside = _in_range(m, d, count)
    if d.kind == "int":
        return m.ashr(x, m.select(inside, count, m.const(d, d.bits - 1)))
    zero = m.const(d, 0)
    return m.select(inside, m.lshr(x, m.select(inside, count, zero)), zero)


def _shift_reference(ufunc: np.ufunc) -> Any:
    """Wrap NumPy's shifts, which give 0 (or the sign) for counts out of range."""

    def reference(x: Array, count: Array) -> Array:
        return np.asarray(ufunc(x, count))

    return reference


# Philox4x32-10: J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random numbers: as easy as
# 1, 2, 3", SC'11.  Two 32×32→64-bit products and a key schedule by Weyl sequences, ten rounds.
_PHILOX_M0, _PHILOX_M1 = 0xD2511F53, 0xCD9E8D57
_PHILOX_W0, _PHILOX_W1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_LOW = 0xFFFFFFFF


def philox_block(m: M, counter: tuple[V, V, V, V], key: tuple[V, V]) -> tuple[V, V, V, V]:
    """Apply ten rounds to 32-bit words in u64 registers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    low, half = m.const(u64, _LOW), m.const(u64, 32)
    for round_ in range(_ROUNDS):
        if round_:
            k0 = m.and_(m.add(k0, m.const(u64, _PHILOX_W0)), low)
            k1 = m.and_(m.add(k1, m.const(u64, _PHILOX_W1)), low)
        p0 = m.mul(c0, m.const(u64, _PHILOX_M0))
        p1 = m.mul(c2, m.const(u64, _PHILOX_M1))
        c0, c2 = (
            m.xor(m.xor(m.lshr(p1, half), c1), k0),
            m.xor(m.xor(m.lshr(p0, half), c3), k1),
        )
        c1, c3 = m.and_(p1, low), m.and_(p0, low)
    return c0, c1, c2, c3


def _philox(m: M, d: DType, key: V, index: V) -> V:
    low, half, zero = m.const(u64, _LOW), m.const(u64, 32), m.const(u64, 0)
    block = m.lshr(index, m.const(u64, 2))
    counter = (m.and_(block, low), m.lshr(block, half), zero, zero)
    w0, w1, w2, w3 = philox_block(m, counter, (m.and_(key, low), m.lshr(key, half)))
    odd = m.compare("ne", m.and_(index, m.const(u64, 1)), zero)
    upper = m.compare("ne", m.and_(index, m.const(u64, 2)), zero)
    word = m.select(upper, m.select(odd, w3, w2), m.select(odd, w1, w0))
    return m.convert(word, u64, u32)


def _philox_reference(key: Array, index: Array) -> Array:
    """Compute the cipher in NumPy, independently of the lowering."""
    key, index = np.broadcast_arrays(np.asarray(key, np.uint64), np.asarray(index, np.uint64))
    block, half = index >> np.uint64(2), np.uint64(32)
    mask = np.uint64(_LOW)
    zero = np.zeros_like(block)
    words = [block & mask, block >> half, zero, zero]
    keys = [key & mask, key >> half]
    for _ in range(_ROUNDS):
        first, second = words[0] * np.uint64(_PHILOX_M0), words[2] * np.uint64(_PHILOX_M1)
        words = [
            (second >> half) ^ words[1] ^ keys[0],
            second & mask,
            (first >> half) ^ words[3] ^ keys[1],
            first & mask,
        ]
        keys = [(keys[0] + np.uint64(_PHILOX_W0)) & mask, (keys[1] + np.uint64(_PHILOX_W1)) & mask]
    return np.choose((index & np.uint64(3)).astype(np.intp), words).astype(np.uint32)


def _select_partial(a: Any, chosen: float, other: float, mask: Any) -> Any:
    return a.select(mask, a.const(chosen), a.const(other))


ROWS = (
    _comparison("eq", "x = y", "==", np.equal, commutative=True),
    _comparison("ne", "x ≠ y; true where either is NaN", "!=", np.not_equal, commutative=True),
    _comparison("lt", "x < y", "<", np.less, monotone=(-1, 1)),
    _comparison("le", "x ≤ y", "<=", np.less_equal, monotone=(-1, 1)),
    _comparison("gt", "x > y", ">", np.greater, monotone=(1, -1)),
    _comparison("ge", "x ≥ y", ">=", np.greater_equal, monotone=(1, -1)),
    ScalarOp(
        "isnan", 1, "whether x is NaN", Rule((NUMBERS,), "bool"), plain(np.isnan),
        lambda m, d, x: m.compare("ne", x, x), cost=0.5,
    ),
    ScalarOp(
        "isinf", 1, "whether x is infinite", Rule((NUMBERS,), "bool"), plain(np.isinf), _isinf,
        cost=0.8,
    ),
    ScalarOp(
        "isfinite", 1, "whether x is neither infinite nor NaN", Rule((NUMBERS,), "bool"),
        plain(np.isfinite), _isfinite, cost=0.8,
    ),
    ScalarOp(
        "and", 2, "both: logical on bool, bit by bit on integers", BITWISE, plain(np.bitwise_and),
        lambda m, d, x, y: m.and_(x, y), cost=0.3, commutative=True, associative=True,
        idempotent=True, identity=_all_ones, annihilator=_no_bits, infix="&",
    ),
    ScalarOp(
        "or", 2, "either: logical on bool, bit by bit on integers", BITWISE, plain(np.bitwise_or),
        lambda m, d, x, y: m.or_(x, y), cost=0.3, commutative=True, associative=True,
        idempotent=True, identity=_no_bits, annihilator=_all_ones, infix="|",
    ),
    ScalarOp(
        "xor", 2, "one but not both: logical on bool, bit by bit on integers", BITWISE,
        plain(np.bitwise_xor), lambda m, d, x, y: m.xor(x, y), cost=0.3, commutative=True,
        associative=True, identity=_no_bits, infix="^",
    ),
    ScalarOp(
        "not", 1, "the opposite: logical on bool, bit by bit on integers", Rule((BITS,)),
        plain(np.invert), lambda m, d, x: m.not_(x), cost=0.3,
    ),
    ScalarOp(
        "shl", 2, "x · 2^n, wrapping; 0 where n is negative or too large", SHIFT,
        _shift_reference(np.left_shift), _shl, cost=1.0, infix="<<",
    ),
    ScalarOp(
        "shr", 2, "x / 2^n rounded down; the sign where n is negative or too large", SHIFT,
        _shift_reference(np.right_shift), _shr, cost=1.0, infix=">>",
    ),
    ScalarOp(
        "select", 3, "x where the mask is true, else y", Rule((("bool",), ANY, ANY), lead=1),
        np.where, lambda m, d, mask, x, y: m.select(mask, x, y),
        cost=0.5, monotone=(0, 1, 1), is_select=True,
        derivative=(
            None,
            lambda a, mask, x, y, r: _select_partial(a, 1.0, 0.0, mask),
            lambda a, mask, x, y, r: _select_partial(a, 0.0, 1.0, mask),
        ),
    ),
    ScalarOp(
        "philox", 2, "random word number `index` under `key` (Philox4x32-10, 32 bits)",
        Rule((("uint",), ("uint",)), u32), _philox_reference, _philox, cost=53.0,
    ),
)  # fmt: skip
