"""Lower elementwise ATen operators, and `_foreach_` ones on lists of tensors.

Operands are cast to the type of the result, those of comparisons to their common type; the tracer
has applied torch's promotion rules already, so that only its answer is read here.

Optimisers use operators on lists. Each tensor follows the rule of the single-tensor operator. All
results of a list are values of one graph: a step over all parameters is planned at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row, rows, same
from smelt.frontends.torch.value import V, number, select
from smelt.ops.elementwise import Cast, Map
from smelt.types.dtype import bool_, f16
from smelt.types.expr import Expr


def _unary(scalar: str) -> Callable[[Call, V], V]:
    return lambda c, x: x.cast(c.dtype).map(scalar)


def _binary(scalar: str) -> Callable[..., V]:
    return lambda c, x, y: c.rounded(x).map(scalar, c.rounded(y))


def _shift(scalar: str) -> Callable[..., V]:
    """Shift integers.

    Counts that are too large or negative give 0 or the sign, as our operators do.
    """

    def lower(c: Call, x: Any, y: Any) -> V:
        if not c.dtype.is_integer:
            raise UnsupportedError(f"shifts of {c.dtype}: they are powers of 2")
        return c.rounded(x).map(scalar, c.rounded(y))

    return lower


def _compare(scalar: str) -> Callable[..., V]:
    return lambda c, x, y: c.value(x, c.common_dtype).map(scalar, c.value(y, c.common_dtype))


def _logical(scalar: str) -> Callable[..., V]:
    return lambda c, x, *others: x.cast(bool_).map(scalar, *(y.cast(bool_) for y in others))


def _of_floats(scalar: str) -> Callable[[Call, V], V]:
    return lambda c, x: x.map(scalar) if x.dtype.is_float else x


def _float_test(scalar: str) -> Callable[[Call, V], V]:
    """Test floats; integers are never infinite nor NaN."""
    return lambda c, x: (
        x.map(scalar) if x.dtype.is_float else c.number(False, bool_).expand(x.shape)
    )


def _sum(c: Call, x: Any, y: Any, *, alpha: Any = 1, minus: bool = False) -> V:
    """Return x ± alpha * y, rounded once.

    A CPU's loops round each operand to a half type first, numbers too; a GPU's do not.
    """
    operand = c.rounded if c.on_cpu else c.unrounded
    a, b = (operand(z).to_compute_type() for z in (x, y))
    if alpha == 1:
        return (a - b if minus else a + b).cast(c.dtype)
    factor = operand(alpha).to_compute_type()
    return _multiply_add(-factor if minus else factor, b, a).cast(c.dtype)


def _multiply_add(a: V, b: V, x: V) -> V:
    """Return a * b + x, rounded once, as eager code's loops compute it."""
    return a.map("fma", b, x) if x.dtype.is_float else a * b + x


def _scaled(c: Call, x: V, factor: Any) -> V:
    return x if factor == 1 else x * factor


def _mul(c: Call, x: Any, y: Any) -> V:
    if c.dtype == bool_:
        return c.value(x, bool_).map("and", c.value(y, bool_))
    return (_first_factor(c, x) * c.unrounded(y)).cast(c.dtype)


def _first_factor(c: Call, x: Any) -> V:
    """Return the first operand of a product or quotient, which a CPU's loops round."""
    return c.rounded(x).to_compute_type() if c.on_cpu else c.unrounded(x)


def _require_nonzero(c: Call, y: Any, what: str) -> None:
    """Raise UnsupportedError unless an integer divisor cannot be 0: torch raises there."""
    if isinstance(y, Expr) and c.sizes.is_positive(y):
        return
    if not isinstance(y, (int, float)) or y == 0:
        raise UnsupportedError(f"{what} of integers by a tensor: a zero must raise")


def _div(c: Call, x: Any, y: Any, *, rounding_mode: str | None = None) -> V:
    if rounding_mode is None:
        return (_first_factor(c, x) / _divisor(c, y)).cast(c.dtype)
    if c.dtype.is_integer:
        _require_nonzero(c, y, "division")
    a, b = c.rounded(x), c.rounded(y)
    if c.dtype.is_float:
        if c.is_number(y):
            a, b = a.to_compute_type(), c.unrounded(y)
        if rounding_mode == "trunc":
            return (a / b).map("trunc").cast(c.dtype)
        return _floor_quotient(a, b).cast(c.dtype)
    if rounding_mode == "floor":
        return a.map("floordiv", b)
    if c.dtype.kind == "uint":
        return a.map("floordiv", b)
    below = a.map("floordiv", b)
    return below + _truncation_differs(a, b).cast(c.dtype)


def _divisor(c: Call, y: Any) -> V:
    """Return a divisor in the type of arithmetic.

    Unlike eager code, do not round integers to a half type first: the number of equal extremes,
    which gradients divide by, may be too large for it.
    """
    exact = isinstance(y, V) and y.dtype.is_integer
    return c.value(y, c.dtype.compute) if exact else c.unrounded(y)


def _floor_quotient(a: V, b: V) -> V:
    """Return the largest integer not above a / b.

    Of two tensors of a half type, eager code rounds every step to that type.
    """
    if a.dtype == a.dtype.compute:
        return a.map("floordiv", b)
    quotient, rest = a / b, _truncated_remainder(a, b)
    overflows = quotient.map("isinf").map("and", a.map("isfinite"))
    whole = select(overflows, a, a - rest) / b
    signs_differ = rest.map("lt", 0).map("xor", b.map("lt", 0))
    whole = select(signs_differ.map("and", rest.map("ne", 0)), whole - 1.0, whole)
    floor = whole.map("floor")
    floor = select((whole - floor).map("gt", 0.5), floor + 1.0, floor)
    floor = select(whole.map("eq", 0), number(0.0, a.dtype).map("copysign", quotient), floor)
    return select(b.map("eq", 0), quotient, floor)


def _truncated_remainder(a: V, b: V) -> V:
    """Return a - trunc(a / b) * b, with the sign of a."""
    return a.map("abs").map("mod", b.map("abs")).map("copysign", a)


def _truncation_differs(a: V, b: V) -> V:
    """Return where integer division towards zero gives one more than rounding down.

    Avoids magnitudes: that of the least number of a type overflows.
    """
    signs_differ = a.map("lt", 0).map("xor", b.map("lt", 0))
    return signs_differ.map("and", a.map("mod", b).map("ne", 0))


def _remainder(c: Call, x: Any, y: Any) -> V:
    """Return the remainder of a division rounded down; a zero has the sign of x."""
    if c.dtype.is_integer:
        _require_nonzero(c, y, "remainder")
    a = c.rounded(x)
    rest = a.map("mod", c.rounded(y))
    return select(rest.map("eq", 0), rest.map("copysign", a), rest) if c.dtype.is_float else rest


def _fmod(c: Call, x: Any, y: Any) -> V:
    if c.dtype.is_integer:
        _require_nonzero(c, y, "fmod")
    a, b = c.value(x, c.dtype), c.value(y, c.dtype)
    if c.dtype.kind == "uint":
        return a.map("mod", b)
    if c.dtype.is_float:
        return _truncated_remainder(a, b)
    rest = a.map("mod", b)
    return select(_truncation_differs(a, b), rest - b, rest)


def _pow(c: Call, x: Any, y: Any) -> V:
    if c.dtype.is_integer and not isinstance(y, V) and not (isinstance(y, int) and y >= 0):
        raise UnsupportedError("a negative power of integers, which must raise")
    if c.dtype == bool_:
        raise UnsupportedError("powers of booleans")
    base = c.rounded(x)
    steps = _POWERS.get(y) if isinstance(y, (int, float)) and c.dtype.is_float else None
    if steps is None or (c.dtype == f16 and c.on_cpu):
        return base.map("pow", c.rounded(y))
    return steps(base)


_POWERS: dict[float, Callable[[V], V]] = {
    3: lambda x: x * x * x,
    -1: lambda x: x.map("reciprocal"),
    -2: lambda x: (x * x).map("reciprocal"),
    0.5: lambda x: x.map("sqrt"),
    -0.5: lambda x: x.map("rsqrt"),
}
"""Exponents that eager code's loops write as other operations, except for float16 on a CPU."""


def _clamp(c: Call, x: V, low: Any = None, high: Any = None) -> V:
    clamped = x.cast(c.dtype)
    if low is not None:
        clamped = _bounded(c, "max", clamped, low)
    return clamped if high is None else _bounded(c, "min", clamped, high)


def _bounded(c: Call, extreme: str, x: V, bound: Any) -> V:
    """Return the greater or lesser of a value and a bound.

    Zeros of either sign are equal: of equal operands, it is the second. As in eager code that is
    the value if the bound is a number, else the bound.
    """
    limit = c.rounded(bound)
    return x.map(extreme, limit) if isinstance(bound, V) else limit.map(extreme, x)


def _cast(c: Call, x: Any, *_more: Any, **_options: Any) -> V:
    return c.value(x, c.dtype)  # forward-mode derivatives may cast a number


def _in_compute_type(rule: Callable[..., V]) -> Callable[..., V]:
    """Make a rule compute half types in float32 and round once."""

    def lower(c: Call, x: V, *more: Any, **options: Any) -> V:
        return rule(c, x.to_compute_type(), *more, **options).cast(c.dtype)

    return lower


def _relu6(x: V) -> V:
    return x.map("max", 0).map("min", 6)


@_in_compute_type
def _gelu(c: Call, x: V, *, approximate: str = "none") -> V:
    if approximate == "none":
        return x * 0.5 * (1.0 + (x * math.sqrt(0.5)).map("erf"))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return x * 0.5 * (1.0 + inner.map("tanh"))


def _log_sigmoid(c: Call, x: V) -> tuple[V, V]:
    """Return the value, and exp(-abs(x)), which torch keeps for the backward pass."""
    widened = x.to_compute_type()
    decay = (-widened.map("abs")).map("exp")
    return (widened.map("min", 0) - decay.map("log1p")).cast(c.dtype), decay.cast(c.dtype)


@_in_compute_type
def _softplus(c: Call, x: V, beta: float = 1, threshold: float = 20) -> V:
    scaled = x * float(beta)
    return select(
        scaled.map("gt", float(threshold)), x, scaled.map("exp").map("log1p") / float(beta)
    )


@_in_compute_type
def _mish(c: Call, x: V) -> V:
    plus = x.map("max", 0) + (-x.map("abs")).map("exp").map("log1p")
    return x * plus.map("tanh")


@_in_compute_type
def _elu(c: Call, x: V, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> V:
    below = (x * float(input_scale)).map("expm1") * float(alpha * scale)
    return select(x.map("lt", 0), below, x * float(scale))


@_in_compute_type
def _leaky_relu(c: Call, x: V, slope: float = 0.01) -> V:
    return select(x.map("gt", 0), x, x * float(slope))


def _xlogy(c: Call, x: Any, y: Any) -> V:
    """Return x * log(y), 0 where x is 0, but NaN where y is."""
    a, b = c.rounded(x), c.rounded(y)
    product = select(a.map("eq", 0), c.number(0.0, c.dtype), a * b.map("log"))
    return select(b.map("isnan"), b, product)


def _logit(c: Call, x: V, eps: float | None = None) -> V:
    p = x.cast(c.dtype)
    if eps is not None:
        low = c.rounded(float(eps))
        p = low.map("max", p)
        p = (1.0 - low).map("min", p)
    return (p / (1.0 - p)).map("log")


def _addcmul(c: Call, x: Any, a: Any, b: Any, *, value: Any = 1) -> V:
    x, a, b = (c.rounded(y).to_compute_type() for y in (x, a, b))
    return _multiply_add(_scaled(c, a, value), b, x).cast(c.dtype)


def _addcdiv(c: Call, x: V, a: V, b: V, *, value: Any = 1) -> V:
    x, a, b = (c.rounded(y).to_compute_type() for y in (x, a, b))
    return (x + _scaled(c, a, value) / b).cast(c.dtype)


def _fma(c: Call, a: V, b: Any, x: V) -> V:
    """Return a * b + x, rounded once.

    Dynamo writes `x.addcmul_(p, q, value=b)` as `fma(p * q, b, x)`, and `addcdiv_` likewise. Eager
    code rounds neither p * q nor p / q to a half type, so the call is restored.
    """
    node = a.node.inputs[0] if isinstance(a.node.op, Cast) else a.node
    steps = {"mul": _addcmul, "div": _addcdiv}
    if isinstance(b, V) or not isinstance(node.op, Map) or node.op.row.name not in steps:
        return _addcmul(c, x, a, b)
    first, second = (V(operand, a.origin) for operand in node.inputs)
    return steps[node.op.row.name](c, x, first, second, value=b)


def _lerp(c: Call, x: V, y: V, weight: Any) -> V:
    """Interpolate from the nearer end, as eager code does.

    At weight 1 the result is exactly `y`, whatever `x` is.
    """
    x, y = (c.rounded(z).to_compute_type() for z in (x, y))
    is_number = isinstance(weight, (int, float))
    w = c.value(weight if is_number else c.rounded(weight), x.dtype)
    from_x, from_y = _multiply_add(w, y - x, x), _multiply_add(w - 1.0, y - x, y)
    if is_number:
        return (from_x if abs(weight) < 0.5 else from_y).cast(c.dtype)
    return select(w.map("abs").map("lt", 0.5), from_x, from_y).cast(c.dtype)


def _sign(c: Call, x: V) -> V:
    """Return the sign; as in eager code that of NaN is 0."""
    if x.dtype == bool_:
        return x
    sign = x.map("sign")
    return select(x.map("isnan"), number(0, x.dtype), sign) if x.dtype.is_float else sign


_UNARY = """
    acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log10 log1p log2 neg
    reciprocal rsqrt sigmoid sin sinh sqrt square tan tanh
"""
_SHIFTS = {"left": ("lshift", "shl"), "right": ("rshift", "shr")}

_ROWS = (
    *rows("{}.{}", _unary, _UNARY),
    *rows("{}.{}", _of_floats, "ceil floor round trunc"),
    *rows("{}.{}", _float_test, "isnan isinf"),
    *rows("{}.{}", _compare, "eq ne lt le gt ge", "Tensor Scalar"),
    *rows("bitwise_{}.{}", _binary, "and or xor", "Tensor Scalar"),
    *(
        Row(f"aten.bitwise_{side}_shift.{kind}", _shift(scalar))
        for side, (_, scalar) in _SHIFTS.items()
        for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    ),
    *(
        Row(f"aten.__{name}__.{kind}", _shift(scalar))
        for name, scalar in _SHIFTS.values()
        for kind in ("Tensor", "Scalar")
    ),
    *rows("logical_{}.{}", _logical, "and or xor not"),
    Row("aten.bitwise_not.default", _unary("not")),
    Row("aten.abs.default", lambda c, x: x.map("abs") if x.dtype.kind in ("int", "float") else x),
    Row("aten.sign.default", _sign),
    *same("add.Tensor add.Scalar", _sum),
    *same("sub.Tensor sub.Scalar", partial(_sum, minus=True)),
    *same(
        "rsub.Tensor rsub.Scalar",
        lambda c, x, y, alpha=1: _sum(c, y, x, alpha=alpha, minus=True),
    ),
    *same("mul.Tensor mul.Scalar", _mul),
    *same("true_divide.Tensor div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode", _div),
    *same("floor_divide.default floor_divide.Scalar", partial(_div, rounding_mode="floor")),
    *same("remainder.Tensor remainder.Scalar", _remainder),
    *same("fmod.Tensor fmod.Scalar", _fmod),
    *same("pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar", _pow),
    Row("aten.maximum.default", _binary("max")),
    Row("aten.minimum.default", _binary("min")),
    *rows("{}.{}", _binary, "atan2 hypot logaddexp"),
    Row("aten.copysign.Tensor", _binary("copysign")),
    *same("clamp.default clamp.Tensor clamp_min.default", _clamp),
    Row("aten.clamp_max.default", lambda c, x, high: _clamp(c, x, None, high)),
    Row("aten.hardtanh.default", lambda c, x, low=-1.0, high=1.0: _clamp(c, x, low, high)),
    Row("aten.relu.default", lambda c, x: _clamp(c, x, 0)),
    Row(
        "aten.where.self",
        lambda c, mask, x, y: select(mask.cast(bool_), c.rounded(x), c.rounded(y)),
    ),
    *same(
        "masked_fill.Scalar masked_fill.Tensor",
        lambda c, x, mask, y: select(mask, c.rounded(y), x),
    ),
    Row("aten._to_copy.default", _cast),
    Row("aten.clone.default", lambda c, x, **_: x),
    Row("aten.copy.default", lambda c, x, y, non_blocking=False: y.cast(c.dtype).expand(c.shape)),
    Row("aten.gelu.default", _gelu),
    Row("aten.silu.default", _in_compute_type(lambda c, x: x * x.map("sigmoid"))),
    Row("aten.log_sigmoid_forward.default", _log_sigmoid),
    Row("aten.softplus.default", _softplus),
    Row("aten.mish.default", _mish),
    Row("aten.elu.default", _elu),
    Row("aten.leaky_relu.default", _leaky_relu),
    Row("aten.hardsigmoid.default", _in_compute_type(lambda c, x: _relu6(x + 3.0) / 6.0)),
    Row("aten.hardswish.default", _in_compute_type(lambda c, x: x * _relu6(x + 3.0) / 6.0)),
    *same("xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other", _xlogy),
    Row("aten.logit.default", _logit),
    Row(
        "aten.threshold_backward.default",
        lambda c, grad, x, threshold: select(
            x.map("le", float(threshold)), c.number(0, c.dtype), grad
        ),
    ),
    Row("aten.addcmul.default", _addcmul),
    Row("aten.addcdiv.default", _addcdiv),
    Row("prims.fma.default", _fma),
    Row("prims.convert_element_type.default", _cast),
    *same("lerp.Scalar lerp.Tensor", _lerp),
)
ROWS = tuple(replace(row, elementwise=True) for row in _ROWS)
"""Rows of elementwise operators."""


_LISTS: Mapping[str, str] = {
    "abs.default": "abs.default", "neg.default": "neg.default", "sqrt.default": "sqrt.default",
    "rsqrt.default": "rsqrt.default", "reciprocal.default": "reciprocal.default",
    "exp.default": "exp.default", "log.default": "log.default", "sign.default": "sign.default",
    "sigmoid.default": "sigmoid.default", "tanh.default": "tanh.default",
    **{f"{name}.{kind}": f"{name}.Tensor" for name in ("add", "mul", "div")
       for kind in ("List", "Scalar", "ScalarList", "Tensor")},
    **{f"{name}.{kind}": f"{name}.default" for name in ("addcmul", "addcdiv")
       for kind in ("Scalar", "ScalarList")},
    "sub.List": "sub.Tensor", "sub.Scalar": "sub.Tensor", "sub.ScalarList": "sub.Tensor",
    "lerp.Scalar": "lerp.Scalar", "lerp.List": "lerp.Tensor", "lerp.ScalarList": "lerp.Scalar",
    "pow.Scalar": "pow.Tensor_Scalar", "pow.ScalarList": "pow.Tensor_Scalar",
    "pow.List": "pow.Tensor_Tensor", "pow.ScalarAndTensor": "pow.Scalar",
    "maximum.List": "maximum.default", "minimum.List": "minimum.default",
    "norm.Scalar": "linalg_vector_norm.default", "clamp_min.Scalar": "clamp_min.default",
    "clamp_max.Scalar": "clamp_max.default",
}  # fmt: skip
"""Overload of `_foreach_...` -> the overload whose rule each tensor of the list follows."""


def _each(rule: Callable[..., Any], values: bool) -> Callable[..., tuple[Any, ...]]:
    """Apply `rule` at every position of the lists.

    With `values` a third list is a factor.
    """

    def lower(c: Call, *args: Any, **options: Any) -> tuple[Any, ...]:
        count = len(c.out)
        results: list[Any] = []
        for k in range(count):
            operands = [_item_at(a, k, count) for a in args]
            fakes = [_item_at(f, k, count) for f in c.fakes]
            more = dict(options)
            if values and len(operands) > 3:
                more["value"] = operands.pop()
            one = Call(c.out[k], fakes, c.sizes, c.origin)
            results.append(rule(one, *operands, **more))
        return tuple(results)

    return lower


def _item_at(a: Any, k: int, count: int) -> Any:
    if not isinstance(a, (list, tuple)):
        return a
    if len(a) != count:
        raise UnsupportedError("lists of different lengths")
    return a[k]


def foreach_rows(table: Mapping[str, Row]) -> tuple[Row, ...]:
    """Return a row for each list operator, by the rules of `table`."""
    return tuple(
        Row(f"aten._foreach_{name}", _each(table[f"aten.{one}"].lower, one.startswith("addc")))
        for name, one in _LISTS.items()
    )
