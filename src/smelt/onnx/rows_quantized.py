"""Rows of quantised operators: integer products whose scales are elementwise, so that they fuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import smelt as sm
from smelt.frontends.array.array import Array
from smelt.frontends.array.product import matmul
from smelt.onnx import rows_window, tensors
from smelt.onnx.known import Known
from smelt.onnx.row import Call, NeedsHostError, Row, axis_of, computable
from smelt.onnx.rows_elementwise import like
from smelt.onnx.rows_window import convolve
from smelt.types.dtype import DType, from_numpy, i8, i32, u8

# Scales


def _spread(v: Any, x: Array, axis: int, block: int) -> Any:
    """Return scales or zero points in a shape that broadcasts with `x`."""
    if v is None or v.ndim == 0:
        return v
    if block:
        a = axis_of(axis, x.ndim)
        wide = sm.repeat(v, block, axis=a)
        extent = x.shape[a]
        return wide[(slice(None),) * a + (slice(0, extent),)]
    if v.ndim != 1:
        return v
    if isinstance(v.shape[0], int) and v.shape[0] == 1:
        return sm.reshape(v, ())
    return sm.reshape(v, (-1, *(1,) * (x.ndim - 1 - axis_of(axis, x.ndim))))


def quantized(x: Array, scale: Array, zero: Any, dtype: DType) -> Array:
    """Return round(x / scale) + zero point, saturated to an integer type."""
    info = np.iinfo(dtype.numpy)
    steps = sm.round(x / scale)
    if zero is not None:
        steps = steps + sm.astype(zero, steps.dtype)
    wide = sm.astype(
        sm.clip(steps, like(steps, int(info.min)), like(steps, int(info.max))), sm.int32
    )
    return sm.astype(wide, dtype)


def dequantized(x: Array, scale: Array, zero: Any) -> Array:
    """Return (x - zero point) * scale."""
    wide = sm.astype(x, sm.int32)
    if zero is not None:
        wide = wide - sm.astype(zero, sm.int32)
    return sm.astype(sm.astype(wide, sm.float32) * sm.astype(scale, sm.float32), scale.dtype)


def _target(c: Call, zero: Any) -> np.dtype[Any]:
    if zero is not None:
        return zero.dtype if isinstance(zero, Known) else zero.dtype.numpy
    return c.dtype("output_dtype", np.uint8)


def _quantize(c: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    dtype = _target(c, zero)
    if not computable(dtype):
        return _quantize_narrow(c, x, scale, zero, dtype)
    x, scale, zero = c.array(x), c.array(scale), c.array(zero)
    axis, block = c.get("axis", 1), c.get("block_size", 0)
    wide = sm.astype(x, sm.float32) if not x.dtype.is_float or x.dtype.bits < 32 else x
    spread = sm.astype(_spread(scale, x, axis, block), wide.dtype)
    return quantized(wide, spread, _spread(zero, x, axis, block), from_numpy(dtype))


def _quantize_narrow(c: Call, x: Any, scale: Any, zero: Any, dtype: np.dtype[Any]) -> Known:
    """Quantise to a type that arrays do not have."""
    saturate = bool(c.get("saturate", 1))
    return Known(tensors.quantize(*_elements(c, x, scale, zero), dtype, saturate=saturate))


def _elements(c: Call, x: Any, scale: Any, zero: Any) -> tuple[Any, Any, Any]:
    """Return operands in NumPy, scales and zero points in shapes that broadcast."""
    data, *rest = (None if v is None else c.known(v).elements for v in (x, scale, zero))
    axis, block = c.get("axis", 1), c.get("block_size", 0)
    first, second = (tensors.spread(v, data, axis, block) for v in rest)
    return data, first, second


def _dequantize(c: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    if isinstance(x, Known) and not computable(x.dtype) and not _is_small(x.dtype):
        return Known(tensors.dequantize(*_elements(c, x, scale, zero)))
    x, zero = (_whole(c, v) for v in (x, zero))
    scale = c.array(scale)
    axis, block = c.get("axis", 1), c.get("block_size", 0)
    result = dequantized(x, _spread(scale, x, axis, block), _spread(zero, x, axis, block))
    target = c.get("output_dtype", 0)
    return sm.astype(result, from_numpy(c.dtype("output_dtype"))) if target else result


def _is_small(dtype: np.dtype[Any]) -> bool:
    return dtype.name in ("int4", "uint4", "int2", "uint2")


def _whole(c: Call, x: Any) -> Any:
    """Return integers of 2 or 4 bits, which are constants, as bytes."""
    if isinstance(x, Known) and _is_small(x.dtype):
        return Known(x.elements.astype(np.int8 if x.dtype.name[0] == "i" else np.uint8)).array()
    return c.array(x)


def dynamic_quantized(x: Array) -> tuple[Array, Array, Array]:
    """Return x as u8 with one scale and zero point: DynamicQuantizeLinear."""
    low = sm.minimum(sm.min(x), like(x, 0))
    high = sm.maximum(sm.max(x), like(x, 0))
    scale = (high - low) / like(x, 255)
    safe = sm.where(scale == like(x, 0), like(x, 1), scale)
    zero = sm.round(sm.clip(-low / safe, like(x, 0), like(x, 255)))
    steps = sm.clip(sm.round(x / safe) + zero, like(x, 0), like(x, 255))
    return _byte(steps), scale, _byte(zero)


def _byte(x: Array) -> Array:
    return sm.astype(sm.astype(x, sm.int32), sm.uint8)


# Integer products


def _shifted(x: Array, zero: Any, per_row: bool) -> Array:
    """Return x - zero point as i32, one for all or for each row."""
    wide = sm.astype(x, sm.int32)
    if zero is None:
        return wide
    if per_row and zero.ndim == 1 and not (isinstance(zero.shape[0], int) and zero.shape[0] == 1):
        zero = sm.expand_dims(zero, axis=-1)
    return wide - sm.astype(zero, sm.int32)


class IntegerWeights:
    """The right operand of integer products, with what does not depend on the left one.

    Zero points are taken out of the product, a b - za sum(b) - zb sum(a) + k za zb, so that its
    operands stay bytes, which processors multiply by dot-product instructions.
    """

    def __init__(self, b: Array, zero: Any = None) -> None:
        """Prepare `b` [.., k, n], less its zero points: None, one, or one for each column."""
        if isinstance(zero, Known):
            zero = None if not zero.elements.any() else zero.array()
        self.bytes, self.zero = _signed(b, zero)
        columns = sm.sum(sm.astype(self.bytes, sm.int32), axis=-2, dtype=sm.int32)
        self.columns = sm.expand_dims(columns, axis=-2)
        if self.zero is not None:
            self.columns = self.columns - self.zero * sm.full((), b.shape[-2], dtype=sm.int32)

    def product(self, a: Array, zero: Any = None) -> Array:
        """Return the i32 product with `a` [.., m, k], less its zero points: one, or one a row."""
        if zero is not None and zero.ndim == 1:
            zero = sm.reshape(zero, ()) if _is_one(zero) else sm.expand_dims(zero, axis=-1)
        right = self.bytes
        if all(isinstance(n, int) and n == 1 for n in a.shape[:-1]):
            # Sums of columns, by which signs are changed, would serve a single row.
            left, right = (sm.astype(x, sm.int32) for x in (a, right))
            zero = None if zero is None else sm.astype(zero, sm.int32)
        else:
            left, zero = _signed(a, zero)
        result = Array.of(matmul(left.node, right.node, i32))
        if self.zero is not None:
            rows = sm.sum(sm.astype(left, sm.int32), axis=-1, dtype=sm.int32, keepdims=True)
            result = result - rows * self.zero
        return result if zero is None else result - zero * self.columns


def _signed(x: Array, zero: Any) -> tuple[Array, Any]:
    """Return integers as i8, and their zero points, or None, as i32."""
    wide = None if zero is None else sm.astype(zero, sm.int32)
    if x.dtype is not u8:
        return x, wide
    shift = sm.full((), 128, dtype=sm.int32)
    signed = sm.astype(sm.astype(x, sm.int32) - shift, sm.int8)
    return signed, -shift if wide is None else wide - shift


def integer_product(a: Array, b: Array, a_zero: Any = None, b_zero: Any = None) -> Array:
    """Return the i32 product of integer matrices less their zero points."""
    if min(a.ndim, b.ndim) > 1 and {a.dtype, b.dtype} <= {i8, u8}:
        return IntegerWeights(b, b_zero).product(a, a_zero)
    b_zero = b_zero.array() if isinstance(b_zero, Known) else b_zero
    return sm.matmul(_shifted(a, a_zero, True), _shifted(b, b_zero, False))


def _mat_mul_integer(c: Call, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    zero = b_zero if isinstance(b_zero, Known) else c.array(b_zero)
    return integer_product(c.array(a), c.array(b), c.array(a_zero), zero)


def _mat_mul_to_float(
    c: Call,
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero: Any = None,
    b_zero: Any = None,
    bias: Any = None,
) -> Any:
    product = integer_product(a, b, a_zero, b_zero)
    result = sm.astype(product, a_scale.dtype) * (a_scale * b_scale)
    return result if bias is None else result + bias


def _dynamic_mat_mul(
    c: Call, a: Array, b: Array, b_scale: Array, b_zero: Any = None, bias: Any = None
) -> Any:
    steps, scale, zero = dynamic_quantized(a)
    return _mat_mul_to_float(c, steps, b, scale, b_scale, zero, b_zero, bias)


def _channel_zero(zero: Any, rank: int) -> Any:
    if zero is None or zero.ndim == 0:
        return zero
    return sm.reshape(zero, (-1, *(1,) * (rank - 1)))


MAX_EXACT = 1 << 24
"""Integers up to this number are float32 numbers."""


def _conv_integer(c: Call, x: Any, weight: Any, zero: Any = None, w_zero: Any = None) -> Any:
    """Convolve integers less their zero points; i32.

    In float32, as all other convolutions, where no sum of known weights can be rounded.
    """
    x, zero = c.array(x), c.array(zero)
    kernel = _exact_kernel(weight, w_zero)
    if kernel is not None:
        image = sm.astype(x, sm.float32)
        if zero is not None:
            image = image - sm.astype(sm.reshape(zero, ()), sm.float32)
        return sm.astype(convolve(c, image, kernel), sm.int32)
    image = _shifted(x, None if zero is None else sm.reshape(zero, ()), False)
    kernel = sm.astype(c.array(weight), sm.int32)
    if w_zero is not None:
        kernel = kernel - sm.astype(_channel_zero(c.array(w_zero), weight.ndim), sm.int32)
    return convolve(c, image, kernel)


def _exact_kernel(weight: Any, zero: Any) -> Array | None:
    """Return known weights less their zero points as f32.

    None if a sum of their products with differences of bytes, up to 255, may exceed `MAX_EXACT`.
    """
    if not isinstance(weight, Known) or not (zero is None or isinstance(zero, Known)):
        return None
    kernel = weight.elements.astype(np.int32)
    if zero is not None:
        kernel -= zero.elements.astype(np.int32).reshape(-1, *(1,) * (kernel.ndim - 1))
    largest = np.abs(kernel).sum(axis=tuple(range(1, kernel.ndim))).max(initial=0) * 255
    return Known(kernel.astype(np.float32)).array() if largest <= MAX_EXACT else None


class Steps(NamedTuple):
    """Quantised elements, with their scale and zero point."""

    elements: Array
    scale: Array
    zero: Any = None

    @property
    def real(self) -> Array:
        """The numbers that they stand for."""
        return dequantized(*self)


def _operands(inputs: Sequence[Any], count: int) -> tuple[list[Steps], list[Any]]:
    """Return the first operands, of three inputs each, and three more inputs; None for absent."""
    operands = [Steps(*inputs[3 * k : 3 * k + 3]) for k in range(count)]
    return operands, [*inputs[3 * count :], None, None, None][:3]


def _qlinear_conv(c: Call, *inputs: Any) -> Any:
    (x, weight), _ = _operands(inputs, 2)
    total = _conv_integer(c, x.elements, weight.elements, x.zero, weight.zero)
    (x, weight), (scale, zero, bias) = _operands([c.array(v) for v in inputs], 2)
    channels = (-1, *(1,) * (total.ndim - 2))
    if bias is not None:
        total = total + sm.reshape(bias, channels)
    factors = weight.scale if weight.scale.ndim == 0 else sm.reshape(weight.scale, channels)
    real = sm.astype(total, x.scale.dtype) * (x.scale * factors)
    return quantized(real, scale, zero, zero.dtype)


def _qlinear_mat_mul(c: Call, *inputs: Any) -> Any:
    (a, b), (scale, zero, _) = _operands(inputs, 2)
    product = integer_product(a.elements, b.elements, a.zero, b.zero)
    is_one = a.scale.ndim == 0 or _is_one(a.scale)
    rows = a.scale if is_one else sm.expand_dims(a.scale, axis=-1)
    real = sm.astype(product, sm.float32) * sm.astype(rows * b.scale, sm.float32)
    return quantized(real, sm.astype(scale, sm.float32), zero, zero.dtype)


def _q_gemm(c: Call, *inputs: Any) -> Any:
    (a, b), (bias, scale, zero) = _operands(inputs, 2)
    left = sm.matrix_transpose(a.elements) if c.get("transA", 0) else a.elements
    right = sm.matrix_transpose(b.elements) if c.get("transB", 0) else b.elements
    total = integer_product(left, right, a.zero, b.zero)
    total = total if bias is None else total + bias
    factors = a.scale * b.scale * like(a.scale, c.get("alpha", 1.0))
    real = sm.astype(total, sm.float32) * factors
    return real if scale is None else quantized(real, scale, zero, zero.dtype)


def _is_one(x: Array) -> bool:
    return all(isinstance(n, int) and n == 1 for n in x.shape)


def _qlinear(count: int, function: Any) -> Any:
    """Return the rule of a function of `count` numbers: its operands and result are quantised."""

    def rule(c: Call, *inputs: Any) -> Any:
        operands, (scale, zero, _) = _operands(inputs, count)
        real = function(c, *(x.real for x in operands))
        return quantized(real, scale, zero, operands[0].elements.dtype)

    return rule


def _qlinear_concat(c: Call, scale: Array, zero: Array, *inputs: Any) -> Any:
    operands, _ = _operands(inputs, len(inputs) // 3)
    real = sm.concat([x.real for x in operands], axis=c.get("axis"))
    return quantized(real, scale, zero, zero.dtype)


def _pooled(name: str) -> Any:
    """Return the function of a pooling operator, whose images may end in their channels."""
    pool = next(row.lower for row in rows_window.ROWS if row.name == name)

    def function(c: Call, x: Array) -> Array:
        if not c.get("channels_last", 0):
            return pool(c, x)
        return sm.moveaxis(pool(c, sm.moveaxis(x, -1, 1)), 1, -1)

    return function


def _mat_mul_n_bits(
    c: Call,
    x: Array,
    packed: Known,
    scales: Array,
    zeros: Any = None,
    groups: Any = None,
    bias: Any = None,
) -> Any:
    """Multiply by weights of 2, 4 or 8 bits, with scales of blocks."""
    n, k, bits, block = c.get("N"), c.get("K"), c.get("bits", 4), c.get("block_size")
    blocks = -(-k // block)
    codes = _codes(packed.elements.reshape(n, blocks, -1), bits)[..., :block]
    offset: Any = np.full((n, blocks), 1 << (bits - 1), np.int16)
    if zeros is not None:
        if zeros.dtype.kind == "f":
            raise NeedsHostError("MatMulNBits with zero points that are floats")
        offset = _codes(zeros.elements.reshape(n, -1), bits)[:, :blocks].astype(np.int16)
    whole = codes.astype(np.int16) - offset[:, :, None]
    narrow = whole.astype(np.int8) if np.abs(whole).max(initial=0) <= 127 else whole
    factors = sm.reshape(scales, (n, blocks, 1))
    weight = sm.astype(sm.asarray(narrow), x.dtype) * sm.astype(factors, x.dtype)
    weight = sm.reshape(weight, (n, blocks * block))
    weight = weight if blocks * block == k else weight[:, :k]
    result = sm.matmul(x, sm.matrix_transpose(weight))
    return result if bias is None else result + bias


def _codes(raw: Any, bits: int) -> Any:
    """Return the codes of packed bytes along the last dimension, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (raw[..., None] >> shifts) & ((1 << bits) - 1)
    return codes.reshape(*raw.shape[:-1], -1)


_MICROSOFT: tuple[tuple[str, Any], ...] = (
    ("QLinearAdd", _qlinear(2, lambda c, a, b: a + b)),
    ("QLinearMul", _qlinear(2, lambda c, a, b: a * b)),
    ("QLinearSigmoid", _qlinear(1, lambda c, x: sm.sigmoid(x))),
    (
        "QLinearLeakyRelu",
        _qlinear(1, lambda c, x: sm.where(x < 0, x * like(x, c.get("alpha", 0.01)), x)),
    ),
    ("QLinearSoftmax", _qlinear(1, lambda c, x: sm.nn.softmax(x, axis=c.get("axis", -1)))),
    ("QLinearAveragePool", _qlinear(1, _pooled("AveragePool"))),
    ("QLinearGlobalAveragePool", _qlinear(1, _pooled("GlobalAveragePool"))),
    ("QLinearConcat", _qlinear_concat),
    ("QGemm", _q_gemm),
    ("MatMulIntegerToFloat", _mat_mul_to_float),
    ("DynamicQuantizeMatMul", _dynamic_mat_mul),
)

ROWS: tuple[Row, ...] = (
    *(
        Row(name, rule, raw=True, domain=domain)
        for domain in ("", "com.microsoft")
        for name, rule in (("QuantizeLinear", _quantize), ("DequantizeLinear", _dequantize))
    ),
    Row("DynamicQuantizeLinear", lambda c, x: dynamic_quantized(x)),
    Row("MatMulInteger", _mat_mul_integer, raw=True),
    Row("ConvInteger", _conv_integer, raw=True),
    Row("QLinearConv", _qlinear_conv, raw=True),
    Row("QLinearMatMul", _qlinear_mat_mul),
    Row("MatMulNBits", _mat_mul_n_bits, (1, 3), domain="com.microsoft"),
    *(Row(name, rule, domain="com.microsoft") for name, rule in _MICROSOFT),
)
