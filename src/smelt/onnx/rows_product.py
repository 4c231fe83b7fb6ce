"""Rows of products: MatMul, Gemm, Einsum, convolutions."""

from __future__ import annotations

from typing import Any

import smelt as sm
from smelt.errors import UnsupportedError
from smelt.frontends.array.array import Array
from smelt.onnx.row import Call, Row
from smelt.onnx.rows_elementwise import like
from smelt.onnx.rows_view import product


def _gemm(c: Call, a: Array, b: Array, bias: Any = None) -> Any:
    a = sm.matrix_transpose(a) if c.get("transA", 0) else a
    b = sm.matrix_transpose(b) if c.get("transB", 0) else b
    alpha, beta = c.get("alpha", 1.0), c.get("beta", 1.0)
    result = sm.matmul(a, b)
    if alpha != 1:
        result = result * like(result, alpha if result.dtype.is_float else int(alpha))
    if bias is None or beta == 0:
        return result
    if beta != 1:
        bias = bias * like(bias, beta if bias.dtype.is_float else int(beta))
    return result + bias


def _fused_mat_mul(c: Call, a: Array, b: Array) -> Any:
    a = sm.matrix_transpose(a) if c.get("transA", 0) else a
    b = sm.matrix_transpose(b) if c.get("transB", 0) else b
    result = sm.matmul(a, b)
    return result * like(result, c.get("alpha", 1.0)) if c.get("alpha", 1.0) != 1 else result


# Windows


def padding_pairs(c: Call, count: int) -> list[tuple[int, int]]:
    """Return the padding of each spatial dimension as the attribute says it."""
    pads = c.get("pads") or (0,) * (2 * count)
    return [(pads[k], pads[count + k]) for k in range(count)]


def auto_padding(
    mode: str, shape: Any, extent: Any, steps: Any, dilations: Any
) -> list[tuple[int, int]] | None:
    """Return the padding of `auto_pad`; None for NOTSET. Sizes are pinned for a stride above 1."""
    if mode in ("NOTSET", ""):
        return None
    if mode == "VALID":
        return [(0, 0)] * len(extent)
    pairs: list[tuple[int, int]] = []
    for n, k, s, d in zip(shape, extent, steps, dilations, strict=True):
        span = d * (k - 1) + 1
        total = span - 1 if s == 1 else max((-(-int(n) // s) - 1) * s + span - int(n), 0)
        small = total // 2
        pairs.append((small, total - small) if mode == "SAME_UPPER" else (total - small, small))
    return pairs


def convolve(c: Call, x: Array, weight: Array, bias: Any = None) -> Any:
    """Return a convolution by the attributes of a node."""
    count = x.ndim - 2
    extent = [int(n) for n in weight.shape[2:]]
    steps = tuple(c.get("strides") or (1,) * count)
    dilations = tuple(c.get("dilations") or (1,) * count)
    padding = auto_padding(c.get("auto_pad", "NOTSET"), x.shape[2:], extent, steps, dilations)
    return sm.nn.conv(
        x,
        weight,
        bias,
        stride=steps,
        padding=tuple(padding_pairs(c, count) if padding is None else padding),
        dilation=dilations,
        groups=c.get("group", 1),
    )


def _conv_transpose(c: Call, x: Array, weight: Array, bias: Any = None) -> Any:
    count = x.ndim - 2
    extent = [int(n) for n in weight.shape[2:]]
    steps = tuple(c.get("strides") or (1,) * count)
    dilations = tuple(c.get("dilations") or (1,) * count)
    extra: list[int] = list(c.get("output_padding") or (0,) * count)
    wanted, mode = c.get("output_shape"), c.get("auto_pad", "NOTSET")
    pairs = padding_pairs(c, count)
    if mode == "VALID":
        pairs = [(0, 0)] * count
    elif wanted is not None or mode.startswith("SAME"):
        pairs = []
        for k, n in enumerate(x.shape[2:]):
            full = (n - 1) * steps[k] + extra[k] + (extent[k] - 1) * dilations[k] + 1
            goal = n * steps[k] if wanted is None else wanted[-count:][k]
            total = int(full - goal)
            if total < 0:
                extra[k] -= total
                total = 0
            small, large = total // 2, total - total // 2
            pairs.append((small, large) if mode == "SAME_UPPER" else (large, small))
    grown = [max(-a, 0) for pair in pairs for a in pair]
    if any(grown):
        raise UnsupportedError("ConvTranspose with negative pads")
    beyond = [max(e - max(s, d) + 1, 0) for e, s, d in zip(extra, steps, dilations, strict=True)]
    result = sm.nn.conv_transpose(
        x,
        weight,
        bias,
        stride=steps,
        padding=tuple(pairs),
        output_padding=tuple(e - b for e, b in zip(extra, beyond, strict=True)),
        dilation=dilations,
        groups=c.get("group", 1),
    )
    if not any(beyond):
        return result
    fill = like(x, 0) if bias is None else sm.reshape(bias, (1, -1, *(1,) * count))
    padded = sm.pad(result - fill, [(0, 0), (0, 0), *((0, b) for b in beyond)])
    return padded + fill


def _col2im(c: Call, x: Array, image: Any, block: Any) -> Any:
    """Sum columns into the image that they are windows of: a transposed convolution."""
    sides, extent = [int(n) for n in image.ints()], [int(n) for n in block.ints()]
    count = len(sides)
    steps = tuple(c.get("strides") or (1,) * count)
    dilations = tuple(c.get("dilations") or (1,) * count)
    pairs = padding_pairs(c, count)
    windows = [
        (n + low + high - d * (k - 1) - 1) // s + 1
        for n, k, s, d, (low, high) in zip(sides, extent, steps, dilations, pairs, strict=True)
    ]
    batch, depth = x.shape[0], x.shape[1]
    size = product(extent)
    channels = depth // size
    columns = sm.reshape(x, (batch * channels, size, *windows))
    kernel = sm.reshape(sm.eye(size, dtype=x.dtype), (size, 1, *extent))
    extra = tuple(
        n - ((w - 1) * s - low - high + d * (k - 1) + 1)
        for n, w, k, s, d, (low, high) in zip(
            sides, windows, extent, steps, dilations, pairs, strict=True
        )
    )
    result = sm.nn.conv_transpose(
        columns,
        kernel,
        stride=steps,
        padding=tuple(pairs),
        dilation=dilations,
        output_padding=extra,
    )
    return sm.reshape(result, (batch, channels, *sides))


ROWS: tuple[Row, ...] = (
    Row("MatMul", lambda c, a, b: sm.matmul(a, b)),
    Row("Gemm", _gemm),
    Row("FusedMatMul", _fused_mat_mul, domain="com.microsoft"),
    Row("Einsum", lambda c, *x: sm.einsum(c.get("equation").replace(" ", ""), *x)),
    Row("Conv", convolve),
    Row("ConvTranspose", _conv_transpose),
    Row("Det", lambda c, x: sm.linalg.det(x)),
    Row("Col2Im", _col2im, (1, 2)),
)
