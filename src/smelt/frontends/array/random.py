"""Random numbers from explicit keys: a key determines the numbers, in any order.

A key is 64 bits; `split` derives new keys.  Word number i under a key is a pure function of both
(Philox4x32-10, J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), so random
arrays fuse with their consumers and need no memory.

>>> a, b = split(key(0))
>>> bool((bits(a, (2,)) == bits(a, (2,))).tolist() == [True, True]), uniform(b, (3,)).shape
(True, (3,))
"""

from __future__ import annotations

import math
import operator
from typing import Any

from smelt.errors import ArgumentError, DTypeError
from smelt.frontends.array.array import Array, number_or_value, value
from smelt.frontends.array.creation import asarray, iota
from smelt.frontends.array.dtypes import DTypeLike, as_dtype
from smelt.frontends.array.families import BINARY, UNARY, align
from smelt.frontends.array.number import Number, dims
from smelt.frontends.array.numpy_hints import missing_names
from smelt.frontends.array.promote import cast, number
from smelt.frontends.array.value import Value, constant, record
from smelt.frontends.array.views import reshape
from smelt.ops.elementwise import Map
from smelt.types.dtype import bf16, f16, f32, f64, i64, u32, u64
from smelt.types.expr import product
from smelt.types.tensor import Shape

__all__ = ["bernoulli", "bits", "key", "normal", "split", "uniform"]

__getattr__ = missing_names("smelt.random", __all__)


_PHILOX = Map("philox")
_SPLIT = 1 << 63
"""Words from here on make new keys; words before it make numbers."""
_DIGITS = {f64: 53, f32: 24, f16: 11, bf16: 8}
"""Binary digits of precision of each type."""


def key(seed: Any) -> Array:
    """Return a key (uint64, rank 0) for an integer seed.

    Raises ArgumentError for a seed that is not an integer.
    """
    if isinstance(seed, Array):
        return Array.of(cast(seed.node, u64))
    if isinstance(seed, Number):
        if seed.dtype is i64:
            return Array.of(cast(seed.node(i64), u64))
        seed = seed.value()
    try:
        return asarray(operator.index(seed) % 2**64, dtype=u64)
    except TypeError:
        raise ArgumentError.of("key", "seed", seed, "an integer") from None


def _check_key(key: Any) -> Value:
    """Return the value of a key.

    Raises ArgumentError for a number, DTypeError for an array that is not a key.
    """
    if isinstance(key, (int, float)):
        raise ArgumentError.of("random", "key", key, "a key, as sm.random.key(0)")
    node = value(key, "random")
    if node.type.shape or node.type.dtype is not u64:
        raise DTypeError(
            f"a random key is uint64 of rank 0, not {node.type_text}",
            hint="sm.random.key(0) makes one of a number, sm.random.split several of a key.",
        )
    return node


def _words(source: Value, count: Any, first: int = 0, each: int = 1, offset: int = 0) -> Value:
    """Return random words offset, offset + each, ... under a key, uint32 [count]."""
    counters = iota((count,), 0, u64)
    if each != 1:
        counters = BINARY["multiply"](counters, each)
    if first + offset:
        counters = BINARY["add"](counters, constant(first + offset, u64))
    align("random", source, counters)
    return record(_PHILOX, (source, counters))


def _join_words(low: Value, high: Value) -> Value:
    """Combine two 32-bit words to a 64-bit number."""
    upper = BINARY["bitwise_left_shift"](cast(high, u64), constant(32, u64))
    return BINARY["bitwise_or"](upper, cast(low, u64))


def split(key: Any, num: int = 2) -> tuple[Array, ...]:
    """Derive `num` new keys from a key.

    They are independent of each other and of the numbers drawn from `key` itself.  Raises
    ArgumentError, DTypeError for something that is not a key.
    """
    source = _check_key(key)
    low = _words(source, num, _SPLIT, 2)
    keys = Array.of(_join_words(low, _words(source, num, _SPLIT, 2, 1)))
    return tuple(keys[k] for k in range(num))


def bits(key: Any, shape: Any = (), *, dtype: DTypeLike = "uint32") -> Array:
    """Return uniform random bits in a shape, uint32 or uint64.

    Raises DTypeError for other dtypes.
    """
    target = as_dtype(dtype)
    if target not in (u32, u64):
        raise DTypeError(f"random bits are uint32 or uint64, not {target.long}")
    return Array.of(_bits(_check_key(key), dims(shape), is_64_bit=target is u64))


def _bits(source: Value, shape: Shape, *, is_64_bit: bool) -> Value:
    count = product(shape)
    if not is_64_bit:
        return reshape(_words(source, count), shape)
    low, high = (_words(source, count, each=2, offset=k) for k in (0, 1))
    return reshape(_join_words(low, high), shape)


def _unit_interval(source: Value, shape: Shape, dtype: Any) -> Value:
    """Return uniform numbers in [0, 1) with as many binary digits as the dtype holds.

    More digits would let numbers round to 1.  Half types come as float32.
    """
    is_64_bit = dtype is f64
    digits = _DIGITS[dtype]
    words = _bits(source, shape, is_64_bit=is_64_bit)
    shift = constant((64 if is_64_bit else 32) - digits, u64 if is_64_bit else u32)
    integers = BINARY["bitwise_right_shift"](words, shift)
    return BINARY["multiply"](cast(integers, dtype.compute), 2.0**-digits)


def uniform(
    key: Any, shape: Any = (), *, low: float = 0.0, high: float = 1.0, dtype: DTypeLike = "float32"
) -> Array:
    """Return uniform numbers in [low, high) of a floating dtype.

    Args:
        key: a key.
        shape: of the result; rank 0 by default.
        low: the lower end.
        high: the upper end, excluded.  If an end is large compared with high - low, a number may be
            rounded to `high`.
        dtype: float32 by default.

    Raises DTypeError for other dtypes, ArgumentError for a key that is none.
    """
    target = _floating(dtype)
    unit = _unit_interval(_check_key(key), dims(shape), target)
    if high != 1.0 or low != 0.0:
        unit = BINARY["add"](BINARY["multiply"](unit, high - low), low)
    return Array.of(cast(unit, target))


def _floating(dtype: DTypeLike) -> Any:
    target = as_dtype(dtype)
    if not target.is_float:
        raise DTypeError(f"random numbers are floats, not {target.long}")
    return target


def normal(
    key: Any, shape: Any = (), *, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike = "float32"
) -> Array:
    """Return normally distributed numbers of a floating dtype.

    Args:
        key: a key.
        shape: of the result; rank 0 by default.
        mean: the mean.
        std: the standard deviation.
        dtype: float32 by default.

    Computed by the method of Box and Muller (1958).  Raises DTypeError for other dtypes,
    ArgumentError for a key that is none.
    """
    target = _floating(dtype)
    compute_type = f64 if target is f64 else f32
    first, second = split(key)
    shape = dims(shape)
    radius = BINARY["subtract"](
        number(1.0, compute_type, "normal"), _unit_interval(first.node, shape, compute_type)
    )
    angle = BINARY["multiply"](_unit_interval(second.node, shape, compute_type), 2 * math.pi)
    length = UNARY["sqrt"](BINARY["multiply"](UNARY["log"](radius), -2.0))
    samples = BINARY["multiply"](length, UNARY["cos"](angle))
    if std != 1.0:
        samples = BINARY["multiply"](samples, std)
    if mean != 0.0:
        samples = BINARY["add"](samples, mean)
    return Array.of(cast(samples, target))


def bernoulli(key: Any, p: Any = 0.5, shape: Any = ()) -> Array:
    """Return true with probability `p` for each element, as bool.

    `p` is a number or an array that broadcasts with `shape`.  Raises ArgumentError and DTypeError
    for a key that is none.
    """
    unit = _unit_interval(_check_key(key), dims(shape), f32)
    chance = number_or_value(p, "bernoulli")
    return Array.of(BINARY["less"](unit, chance))
