"""Random numbers from explicit keys: the same key gives the same numbers, in any order.

A key is 64 bits; `split` makes new ones.  Word number i under a key is a pure function of both
(Philox4x32-10, J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), so random
arrays fuse with what uses them and need no memory of their own.

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
from smelt.frontends.array.promote import cast, number
from smelt.frontends.array.value import Value, constant, record
from smelt.frontends.array.views import reshape
from smelt.ops.elementwise import Map
from smelt.types.dtype import bf16, f16, f32, f64, i64, u32, u64
from smelt.types.expr import product
from smelt.types.tensor import Shape

__all__ = ["bernoulli", "bits", "key", "normal", "split", "uniform"]

_PHILOX = Map("philox")
_SPLIT = 1 << 63
"""Words from here on make new keys; the others make numbers."""
_DIGITS = {f64: 53, f32: 24, f16: 11, bf16: 8}
"""Binary digits that a type holds."""


def key(seed: Any) -> Array:
    """A key (uint64, rank 0) from an integer.  Raises ArgumentError for a seed that is none."""
    if isinstance(seed, Array):
        return Array.of(cast(seed.node, u64))
    if isinstance(seed, Number):
        if seed.dtype is i64:
            return Array.of(cast(seed.node(i64), u64))
        seed = seed.value()
    try:
        return asarray(operator.index(seed) % 2**64, dtype=u64)
    except TypeError:
        raise ArgumentError(
            op="key", argument="seed", value=repr(seed), expected="an integer"
        ) from None


def _key(given: Any) -> Value:
    if isinstance(given, (int, float)):
        raise ArgumentError(
            op="random", argument="key", value=repr(given), expected="a key, as sm.random.key(0)"
        )
    node = value(given, "random")
    if node.type.shape or node.type.dtype is not u64:
        raise DTypeError(f"a random key is uint64 of rank 0 (sm.random.key), not {node.told}")
    return node


def _words(source: Value, count: Any, first: int = 0, each: int = 1, offset: int = 0) -> Value:
    """Words offset, offset + each, .. under a key: uint32 [count]."""
    at = iota((count,), 0, u64)
    if each != 1:
        at = BINARY["multiply"](at, each)
    if first + offset:
        at = BINARY["add"](at, constant(first + offset, u64))
    align("random", source, at)
    return record(_PHILOX, (source, at))


def _join(low: Value, high: Value) -> Value:
    """Two words as a number of 64 bits."""
    upper = BINARY["bitwise_left_shift"](cast(high, u64), constant(32, u64))
    return BINARY["bitwise_or"](upper, cast(low, u64))


def split(key: Any, num: int = 2) -> tuple[Array, ...]:
    """`num` new keys, independent of each other and of the numbers drawn from `key` itself."""
    source = _key(key)
    low = _words(source, num, _SPLIT, 2)
    keys = Array.of(_join(low, _words(source, num, _SPLIT, 2, 1)))
    return tuple(keys[k] for k in range(num))


def bits(key: Any, shape: Any = (), *, dtype: DTypeLike = "uint32") -> Array:
    """Uniform random bits, uint32 or uint64.  Raises DTypeError for other dtypes."""
    target = as_dtype(dtype)
    if target not in (u32, u64):
        raise DTypeError(f"random bits are uint32 or uint64, not {target.long}")
    return Array.of(_bits(_key(key), dims(shape), wide=target is u64))


def _bits(source: Value, shape: Shape, *, wide: bool) -> Value:
    count = product(shape)
    if not wide:
        return reshape(_words(source, count), shape)
    low, high = (_words(source, count, each=2, offset=k) for k in (0, 1))
    return reshape(_join(low, high), shape)


def _unit(source: Value, shape: Shape, dtype: Any) -> Value:
    """Numbers in [0, 1), as many binary digits after the point as the type has in 1: what is drawn
    with more would round to 1.  Half types come as float32."""
    wide = dtype is f64
    digits = _DIGITS[dtype]
    words = _bits(source, shape, wide=wide)
    spare = constant((64 if wide else 32) - digits, u64 if wide else u32)
    whole = BINARY["bitwise_right_shift"](words, spare)
    return BINARY["multiply"](cast(whole, dtype.compute), 2.0**-digits)


def uniform(
    key: Any, shape: Any = (), *, low: float = 0.0, high: float = 1.0, dtype: DTypeLike = "float32"
) -> Array:
    """Uniform numbers in [low, high) of a floating dtype.  None of [0, 1) is 1; where other ends
    are large beside what is between them, a number may be rounded to `high`."""
    target = _floating(dtype)
    unit = _unit(_key(key), dims(shape), target)
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
    """Normally distributed numbers (Box and Muller, 1958) of a floating dtype."""
    target = _floating(dtype)
    wide = f64 if target is f64 else f32
    first, second = split(key)
    shape = dims(shape)
    radius = BINARY["subtract"](number(1.0, wide, "normal"), _unit(first.node, shape, wide))
    angle = BINARY["multiply"](_unit(second.node, shape, wide), 2 * math.pi)
    length = UNARY["sqrt"](BINARY["multiply"](UNARY["log"](radius), -2.0))
    found = BINARY["multiply"](length, UNARY["cos"](angle))
    if std != 1.0:
        found = BINARY["multiply"](found, std)
    if mean != 0.0:
        found = BINARY["add"](found, mean)
    return Array.of(cast(found, target))


def bernoulli(key: Any, p: Any = 0.5, shape: Any = ()) -> Array:
    """True with probability `p` (a number, or an array that broadcasts with `shape`), bool."""
    unit = _unit(_key(key), dims(shape), f32)
    chance = number_or_value(p, "bernoulli")
    return Array.of(BINARY["less"](unit, chance))
