"""Rows of elementwise operators: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

import smelt as sm
from smelt.frontends.array.array import Array
from smelt.frontends.array.number import Number, Size
from smelt.onnx.known import Known, on_elements
from smelt.onnx.row import Call, NeedsHostError, Row, computable
from smelt.onnx.tensors import convert
from smelt.types.dtype import from_numpy, i64


def like(x: Array, number: float) -> Array:
    """Return a number as an array of rank 0 of the type of `x`."""
    return sm.full((), number, dtype=x.dtype)


def _host(plain: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    """Return a host rule: NumPy's function, or one of Python numbers where sizes take part."""

    def rule(c: Call, *x: Any) -> Any:
        if any(e is None or e.dtype == object for e in x):
            if any(e is None or not _has_numbers(e) for e in x):
                return NotImplemented
            return on_elements(symbolic, *x)
        with np.errstate(all="ignore"):
            return np.asarray(plain(*x))

    return rule


def _has_numbers(e: Any) -> bool:
    return e.dtype != object or all(isinstance(x, (Number, int, float)) for x in e.flat)


def _is_text(e: Any) -> bool:
    return e.dtype == object and all(isinstance(x, str) for x in e.flat)


def _predicate(plain: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    rule = _host(plain, symbolic)

    def host(c: Call, *x: Any) -> Any:
        if all(_is_text(e) for e in x):
            return np.asarray(plain(*x)).astype(np.bool_)
        result = rule(c, *x)
        return result if result is NotImplemented else np.asarray(result).astype(np.bool_)

    return host


# Division


def truncated_quotient(a: Any, b: Any) -> Any:
    """Divide integers, rounded towards zero, as in C."""
    quotient = sm.floor_divide(a, b)
    if not _is_signed(a):
        return quotient
    rest = a - quotient * b
    one, zero = like(a, 1), like(a, 0)
    return quotient + sm.where((rest != zero) & ((a < zero) != (b < zero)), one, zero)


def _is_signed(x: Array) -> bool:
    return x.dtype.kind == "int"


def _divide(c: Call, a: Array, b: Array) -> Any:
    return truncated_quotient(a, b) if a.dtype.is_integer else sm.divide(a, b)


def _divide_host(a: Any, b: Any) -> Any:
    if a.dtype.kind in "iu":
        quotient = np.floor_divide(a, b)
        return quotient + ((a - quotient * b != 0) & ((a < 0) != (b < 0))).astype(a.dtype)
    return np.true_divide(a, b)


def _divide_symbolic(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    if isinstance(a, int) and isinstance(b, int):
        return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    return a // b


def _mod(c: Call, a: Array, b: Array) -> Any:
    if c.get("fmod", 0) and a.dtype.is_float:  # between numbers of one sign nothing is rounded
        return sm.copysign(sm.remainder(sm.abs(a), sm.abs(b)), a)
    rest = sm.remainder(a, b)
    if not c.get("fmod", 0) or not _is_signed(a):
        return rest
    zero = like(a, 0)
    return sm.where((rest != zero) & ((a < zero) != (rest < zero)), rest - b, rest)


def _mod_host(c: Call, a: Any, b: Any) -> Any:
    if a.dtype == object or b.dtype == object:
        return on_elements(operator.mod, a, b)
    return np.fmod(a, b) if c.get("fmod", 0) else np.mod(a, b)


# Powers, extrema, selection


def _pow(c: Call, a: Array, b: Any) -> Any:
    if isinstance(b, Known):
        flat = b.elements.reshape(-1)
        if flat.size == 1 and b.dtype.kind != "O" and float(flat[0]).is_integer():
            exponent = int(flat[0])
            if exponent == 2:
                return sm.reshape(sm.square(a), _raised(a, b.ndim))
            if exponent == 1:
                return sm.reshape(a, _raised(a, b.ndim))
        b = c.array(b)
    if a.dtype.is_integer:
        if b.dtype.is_float:
            wide = sm.float64
            return sm.astype(sm.pow(sm.astype(a, wide), sm.astype(b, wide)), a.dtype)
        wide = (
            sm.result_type(a.dtype, b.dtype)
            if {a.dtype.kind, b.dtype.kind} != {"int", "uint"}
            else sm.int64
        )
        return sm.astype(sm.pow(sm.astype(a, wide), sm.astype(b, wide)), a.dtype)
    if b.dtype != a.dtype:
        wide = sm.float64 if b.dtype.bits > 32 or a.dtype.bits > 32 else sm.float32
        return sm.astype(sm.pow(sm.astype(a, wide), sm.astype(b, wide)), a.dtype)
    return sm.pow(a, b)


def _raised(a: Array, rank: int) -> tuple[Any, ...]:
    return (*(1,) * (rank - a.ndim), *a.shape)


def _pow_row(c: Call, a: Any, b: Any) -> Any:
    if isinstance(a, Known) and isinstance(b, Known) and not a.is_symbolic and a.is_content:
        with np.errstate(all="ignore"):
            if a.dtype.kind in "iuf" and (a.dtype.kind == "f" or np.all(b.elements >= 0)):
                return Known(np.power(a.elements, b.elements).astype(a.dtype))
    return _pow(c, c.array(a), b)


def _fold(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda c, *x: reduce(function, x)


def _extreme_host(plain: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    return _host(lambda *x: reduce(plain, x), lambda *x: reduce(symbolic, x))


def _clip(c: Call, x: Any, low: Any = None, high: Any = None) -> Any:
    if low is None and c.get("min") is not None:
        low = like(x, c.get("min"))
    if high is None and c.get("max") is not None:
        high = like(x, c.get("max"))
    x = x if low is None else sm.maximum(x, low)
    return x if high is None else sm.minimum(x, high)


def _clip_host(c: Call, x: Any, low: Any = None, high: Any = None) -> Any:
    if any(e is not None and e.dtype == object for e in (x, low, high)) or c.version < 11:
        return NotImplemented
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _where_host(c: Call, condition: Any, a: Any, b: Any) -> Any:
    if a.dtype == object or b.dtype == object:
        return on_elements(lambda k, x, y: x if k else y, condition, a, b)
    return np.where(condition, a, b)


def _where(c: Call, condition: Any, a: Any, b: Any) -> Any:
    if any(isinstance(x, Known) and not computable(x.dtype) for x in (a, b)):
        raise NeedsHostError("Where of a type that arrays do not have")
    return sm.where(c.array(condition), c.array(a), c.array(b))


# Casts


def _concat_text(c: Call, a: Any, b: Any) -> Known:
    return Known(c.known(a).elements + c.known(b).elements, object)


def cast(x: Any, dtype: np.dtype[Any], c: Call) -> Any:
    """Return a value as another element type, as ONNX's Cast does."""
    if isinstance(x, Known) and x.is_symbolic:
        if dtype.kind == "f":
            return Known(x.elements, dtype)
        if dtype.kind == "i":
            return Known(on_elements(_to_integer, x.elements), dtype)
    source = x.dtype if isinstance(x, Known) else x.dtype.numpy
    if not computable(dtype) or not computable(source):
        content = c.known(x)
        saturate, rounding = bool(c.get("saturate", 1)), c.get("round_mode", "up")
        return Known(convert(content.elements, dtype, saturate, rounding))
    if isinstance(x, Known) and x.is_content:
        with np.errstate(all="ignore"):
            return Known(x.elements.astype(dtype))
    return sm.astype(c.array(x), from_numpy(dtype))


def _to_integer(x: Any) -> Any:
    """Return a number made of sizes as an integer; others are pinned."""
    is_whole = isinstance(x, Size) or (isinstance(x, Number) and x.dtype is i64)
    return x if is_whole else int(x)


def _cast_like(c: Call, x: Any, target: Any) -> Any:
    dtype = target.dtype if isinstance(target, Known) else target.dtype.numpy
    return cast(x, dtype, c)


# Activations


def _celu(c: Call, x: Array) -> Any:
    alpha, zero = like(x, c.get("alpha", 1.0)), like(x, 0)
    return sm.maximum(x, zero) + sm.minimum(alpha * sm.expm1(x / alpha), zero)


def _selu(c: Call, x: Array) -> Any:
    alpha, gamma = c.get("alpha", 1.6732631921768188), c.get("gamma", 1.0507010221481323)
    return like(x, gamma) * sm.where(x > like(x, 0), x, like(x, alpha) * sm.expm1(x))


def _hard_sigmoid(c: Call, x: Array, alpha: float = 0.2) -> Any:
    scaled = like(x, c.get("alpha", alpha)) * x + like(x, c.get("beta", 0.5))
    return sm.clip(scaled, like(x, 0), like(x, 1))


def _hard_swish(c: Call, x: Array) -> Any:
    return x * sm.clip(like(x, 1 / 6) * x + like(x, 0.5), like(x, 0), like(x, 1))


def _shrink(c: Call, x: Array) -> Any:
    y = sm.astype(x, sm.float64) if x.dtype.is_integer else x
    bias, bound = like(y, c.get("bias", 0.0)), like(y, c.get("lambd", 0.5))
    result = sm.where(y < -bound, y + bias, sm.where(y > bound, y - bias, like(y, 0)))
    return sm.astype(result, x.dtype)


def _softplus(c: Call, x: Array) -> Any:
    return sm.maximum(x, like(x, 0)) + sm.log1p(sm.exp(-sm.abs(x)))


def _swish(c: Call, x: Array, alpha: float = 1.0) -> Any:
    return x * sm.sigmoid(like(x, c.get("alpha", alpha)) * x)


def _fast_gelu(c: Call, x: Array, bias: Any = None) -> Any:
    return sm.nn.gelu(x if bias is None else x + bias, approximate="tanh")


def _is_inf(c: Call, x: Array) -> Any:
    positive, negative = c.get("detect_positive", 1), c.get("detect_negative", 1)
    result = sm.isinf(x)
    if not negative:
        result = result & (x > like(x, 0))
    return result if positive else result & (x < like(x, 0))


def _bit_shift(c: Call, x: Array, by: Array) -> Any:
    """Shift; a distance of the type's width or more leaves zeros, or the sign."""
    most = like(x, x.dtype.bits - 1)
    inside = sm.minimum(by, most)
    if c.get("direction") == "LEFT":
        return sm.where(by > most, like(x, 0), sm.bitwise_left_shift(x, inside))
    shifted = sm.bitwise_right_shift(x, inside)
    return shifted if _is_signed(x) else sm.where(by > most, like(x, 0), shifted)


def _unary(name: str, theirs: str = "") -> Row:
    function = getattr(sm, name)
    return Row(theirs or name.capitalize(), lambda c, x: function(x))


_UNARY = """
    acos acosh asin asinh atan atanh cos cosh erf exp log reciprocal sigmoid sign sin sinh tan tanh
"""


def _known(name: str, function: Any, plain: Any, symbolic: Any) -> Row:
    return Row(name, lambda c, *x: function(*x), host=_host(plain, symbolic))


def _comparison(name: str, function: Any, plain: Any, symbolic: Any) -> Row:
    return Row(name, lambda c, *x: function(*x), host=_predicate(plain, symbolic))


ROWS: tuple[Row, ...] = (
    *map(_unary, _UNARY.split()),
    _unary("isnan", "IsNaN"),
    _unary("bitwise_invert", "BitwiseNot"),
    _known("Neg", sm.negative, np.negative, operator.neg),
    _known("Abs", sm.abs, np.abs, abs),
    _known("Floor", sm.floor, np.floor, math.floor),
    _known("Ceil", sm.ceil, np.ceil, math.ceil),
    _known("Round", sm.round, np.round, round),
    _known("Sqrt", sm.sqrt, np.sqrt, math.sqrt),
    _comparison("Not", sm.logical_not, np.logical_not, operator.not_),
    _known("Add", sm.add, np.add, operator.add),
    _known("Sub", sm.subtract, np.subtract, operator.sub),
    _known("Mul", sm.multiply, np.multiply, operator.mul),
    Row("Div", _divide, host=_host(_divide_host, _divide_symbolic)),
    Row("Mod", _mod, host=_mod_host),
    Row("Pow", _pow_row, raw=True),
    _comparison("Equal", sm.equal, np.equal, operator.eq),
    _comparison("Greater", sm.greater, np.greater, operator.gt),
    _comparison("Less", sm.less, np.less, operator.lt),
    _comparison("GreaterOrEqual", sm.greater_equal, np.greater_equal, operator.ge),
    _comparison("LessOrEqual", sm.less_equal, np.less_equal, operator.le),
    _comparison("And", sm.logical_and, np.logical_and, lambda a, b: bool(a and b)),
    _comparison("Or", sm.logical_or, np.logical_or, lambda a, b: bool(a or b)),
    _comparison("Xor", sm.logical_xor, np.logical_xor, operator.ne),
    Row("StringConcat", _concat_text, raw=True),
    Row("BitwiseAnd", lambda c, a, b: sm.bitwise_and(a, b)),
    Row("BitwiseOr", lambda c, a, b: sm.bitwise_or(a, b)),
    Row("BitwiseXor", lambda c, a, b: sm.bitwise_xor(a, b)),
    Row("BitShift", _bit_shift),
    Row("Max", _fold(sm.maximum), host=_extreme_host(np.maximum, max)),
    Row("Min", _fold(sm.minimum), host=_extreme_host(np.minimum, min)),
    Row("Sum", _fold(sm.add), host=_extreme_host(np.add, operator.add)),
    Row("Mean", lambda c, *x: reduce(sm.add, x) / like(x[0], len(x))),
    Row("Clip", _clip, host=_clip_host),
    Row("Where", _where, host=_where_host, raw=True),
    Row("Cast", lambda c, x: cast(x, c.dtype("to"), c), raw=True),
    Row("CastLike", _cast_like, raw=True),
    Row("Relu", lambda c, x: sm.maximum(x, like(x, 0))),
    Row("LeakyRelu", lambda c, x: sm.where(x < like(x, 0), x * like(x, c.get("alpha", 0.01)), x)),
    Row("PRelu", lambda c, x, slope: sm.where(x < like(x, 0), x * slope, x)),
    Row(
        "Elu", lambda c, x: sm.where(x < like(x, 0), like(x, c.get("alpha", 1.0)) * sm.expm1(x), x)
    ),
    Row("Celu", _celu),
    Row("Selu", _selu),
    Row("Gelu", lambda c, x: sm.nn.gelu(x, approximate=c.get("approximate", "none"))),
    Row("Gelu", lambda c, x: sm.nn.gelu(x), domain="com.microsoft"),
    Row("FastGelu", _fast_gelu, domain="com.microsoft"),
    Row("BiasGelu", lambda c, x, bias: sm.nn.gelu(x + bias), domain="com.microsoft"),
    Row("QuickGelu", lambda c, x: _swish(c, x, 1.702), domain="com.microsoft"),
    Row("HardSigmoid", _hard_sigmoid),
    Row("HardSwish", _hard_swish),
    Row("Shrink", _shrink),
    Row("ThresholdedRelu", lambda c, x: sm.where(x > like(x, c.get("alpha", 1.0)), x, like(x, 0))),
    Row("Softplus", _softplus),
    Row("Softsign", lambda c, x: x / (like(x, 1) + sm.abs(x))),
    Row("Mish", lambda c, x: x * sm.tanh(_softplus(c, x))),
    Row("Swish", _swish),
    Row("SwiGLU", lambda c, x, y: _swish(c, x) * y),
    Row("IsInf", _is_inf),
)
