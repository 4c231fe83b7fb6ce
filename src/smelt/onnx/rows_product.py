"""Rows of products: MatMul, Gemm, Einsum, attention, and states over a sequence."""

from __future__ import annotations

import math
from typing import Any

import smelt as sm
from smelt.errors import UnsupportedError
from smelt.frontends.array.array import Array
from smelt.onnx.row import Call, Row
from smelt.onnx.rows_elementwise import like
from smelt.onnx.rows_view import slice_along
from smelt.onnx.tensors import dtype_of
from smelt.types.dtype import from_numpy


def _fused_mat_mul(c: Call, a: Array, b: Array) -> Any:
    a = sm.matrix_transpose(a) if c.get("transA", 0) else a
    b = sm.matrix_transpose(b) if c.get("transB", 0) else b
    result, alpha = sm.matmul(a, b), c.get("alpha", 1.0)
    if alpha == 1:
        return result
    return result * like(result, alpha if result.dtype.is_float else int(alpha))


def _gemm(c: Call, a: Array, b: Array, bias: Any = None) -> Any:
    result, beta = _fused_mat_mul(c, a, b), c.get("beta", 1.0)
    if bias is None or beta == 0:
        return result
    if beta != 1:
        bias = bias * like(bias, beta if bias.dtype.is_float else int(beta))
    return result + bias


# Attention


def _heads(x: Array, count: int | None) -> Array:
    """Return [batch, heads, length, width] of [batch, length, heads * width]."""
    if x.ndim == 4:
        return x
    if not count:
        raise UnsupportedError("attention of 3 dimensions without a number of heads")
    batch, length, width = x.shape
    return sm.permute_dims(sm.reshape(x, (batch, length, count, width // count)), (0, 2, 1, 3))


def _joined(x: Array) -> Array:
    """Return [batch, length, heads * width]: the inverse of `_heads`."""
    batch, heads, length, width = x.shape
    return sm.reshape(sm.permute_dims(x, (0, 2, 1, 3)), (batch, length, heads * width))


def _grouped(x: Array, heads: int) -> Array:
    """Repeat each head of keys or values, for the queries that share it."""
    batch, key_heads, length, width = x.shape
    key_heads = int(key_heads)
    if key_heads == heads:
        return x
    wide = sm.broadcast_to(
        sm.expand_dims(x, axis=2), (batch, key_heads, heads // key_heads, length, width)
    )
    return sm.reshape(wide, (batch, heads, length, width))


def _attention(
    c: Call,
    query: Array,
    key: Array,
    value: Array,
    mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    lengths: Any = None,
) -> Any:
    flat, dtype = query.ndim == 3, query.dtype
    query = _heads(query, c.get("q_num_heads"))
    key, value = (_heads(x, c.get("kv_num_heads")) for x in (key, value))
    past: Any = 0
    if past_key is not None:
        past = past_key.shape[2]
        key = sm.concat([past_key, key], axis=2)
        value = sm.concat([past_value, value], axis=2)
    heads = int(query.shape[1])
    scale = c.get("scale") or 1 / math.sqrt(int(query.shape[3]))
    root = like(query, math.sqrt(scale))
    every = _grouped(key, heads)
    scores = sm.matmul(query * root, sm.matrix_transpose(every) * root)
    mode, cap = c.get("qk_matmul_output_mode", 0), c.get("softcap", 0.0)
    shown = scores
    if cap:
        scores = sm.tanh(scores / like(scores, cap)) * like(scores, cap)
        shown = scores if mode == 1 else shown
    bias = _bias(c, query, key, mask, past, lengths)
    if bias is not None:
        scores = scores + bias
    shown = scores if mode == 2 else shown
    precision = c.get("softmax_precision")
    wide = sm.astype(scores, from_numpy(dtype_of(precision))) if precision else scores
    weights = sm.astype(_masked_softmax(wide, bias), dtype)
    shown = weights if mode == 3 else shown
    result = sm.matmul(weights, _grouped(value, heads))
    return _joined(result) if flat else result, key, value, shown


def _bias(c: Call, query: Array, key: Array, mask: Any, past: Any, lengths: Any) -> Any:
    """Return what is added to the scores: 0 for keys that count, -inf for others; or None."""
    rows, columns = query.shape[2], key.shape[2]
    zero, hidden = like(query, 0), like(query, -math.inf)
    bias: Any = None
    if mask is not None:
        missing = columns - mask.shape[-1]
        if not isinstance(missing, int) or missing:
            fill: Any = False if mask.dtype.kind == "bool" else -math.inf
            mask = sm.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=fill)
        bias = sm.where(mask, zero, hidden) if mask.dtype.kind == "bool" else mask
    offset: Any = past
    if lengths is not None:
        lengths = sm.reshape(sm.astype(lengths, sm.int64), (-1, 1, 1, 1))
        offset = lengths - rows
    left, right = c.get("left_window_size", -1), c.get("right_window_size", -1)
    allowed: Any = None
    position = sm.reshape(sm.arange(rows), (-1, 1)) + offset
    keys = sm.arange(columns)
    if c.get("is_causal", 0):
        allowed = keys <= position
    if left >= 0:
        near = position - keys <= left
        allowed = near if allowed is None else allowed & near
    if right >= 0:
        near = keys - position <= right
        allowed = near if allowed is None else allowed & near
    if lengths is not None:
        inside = keys < lengths
        allowed = inside if allowed is None else allowed & inside
    if allowed is None:
        return bias
    hides = sm.where(allowed, zero, hidden)
    return hides if bias is None else bias + hides


def _masked_softmax(x: Array, bias: Any) -> Array:
    """Return the softmax over keys; 0 for queries without any key."""
    weights = sm.nn.softmax(x, axis=-1)
    if bias is None:
        return weights
    largest = sm.max(bias, axis=-1, keepdims=True)
    return sm.where(largest == like(largest, -math.inf), like(weights, 0), weights)


def _rotary(c: Call, x: Array, cosine: Array, sine: Array, positions: Any = None) -> Any:
    heads = c.get("num_heads")
    y = _heads(x, heads)
    width = int(y.shape[3])
    rotated = c.get("rotary_embedding_dim") or width
    half = rotated // 2
    if positions is not None:
        cosine, sine = (sm.take(t, sm.reshape(positions, (-1,)), axis=0) for t in (cosine, sine))
        shape = (*positions.shape, half)
        cosine, sine = sm.reshape(cosine, shape), sm.reshape(sine, shape)
    cosine, sine = sm.expand_dims(cosine, axis=1), sm.expand_dims(sine, axis=1)
    part = slice_along(y, 3, 0, rotated) if rotated < width else y
    if c.get("interleaved", 0):
        a, b = part[..., 0::2], part[..., 1::2]
    else:
        a, b = slice_along(part, 3, 0, half), slice_along(part, 3, half, rotated)
    real, imaginary = cosine * a - sine * b, sine * a + cosine * b
    if c.get("interleaved", 0):
        joined = sm.reshape(sm.stack([real, imaginary], axis=-1), part.shape)
    else:
        joined = sm.concat([real, imaginary], axis=-1)
    if rotated < width:
        joined = sm.concat([joined, slice_along(y, 3, rotated, width)], axis=-1)
    return _joined(joined) if x.ndim == 3 else joined


def _linear_attention(
    c: Call,
    query: Array,
    key: Array,
    value: Array,
    state: Any = None,
    decay: Any = None,
    beta: Any = None,
) -> Any:
    """Run state = decay * state + key ⊗ value, read by queries."""
    heads, key_heads = c.get("q_num_heads"), c.get("kv_num_heads")
    dtype = query.dtype
    q, k, v = (
        sm.astype(_heads(x, n), sm.float32)
        for x, n in ((query, heads), (key, key_heads), (value, key_heads))
    )
    batch, steps, width, depth = q.shape[0], q.shape[2], int(k.shape[3]), int(v.shape[3])
    kept = dtype if state is None else state.dtype
    start = (
        sm.zeros((batch, key_heads, width, depth), dtype=sm.float32)
        if state is None
        else sm.astype(state, sm.float32)
    )
    sequences: dict[str, Array] = {"q": q, "k": k, "v": v}
    if decay is not None:
        per_head = int(decay.shape[-1]) == key_heads
        gates = sm.permute_dims(sm.reshape(decay, (batch, steps, key_heads, -1)), (0, 2, 1, 3))
        if per_head:
            gates = sm.broadcast_to(gates, k.shape)
        sequences["g"] = sm.exp(sm.astype(gates, sm.float32))
    if beta is not None:
        rates = sm.permute_dims(sm.reshape(beta, (batch, steps, -1, 1)), (0, 2, 1, 3))
        sequences["b"] = sm.astype(sm.broadcast_to(rates, (batch, key_heads, steps, 1)), sm.float32)

    def step(memory: Array, at: dict[str, Array]) -> tuple[Array, Array]:
        if "g" in at:
            memory = memory * sm.expand_dims(at["g"], axis=-1)
        values = at["v"]
        if "b" in at:
            values = at["b"] * (values - sm.einsum("bhdm,bhd->bhm", memory, at["k"]))
        memory = memory + sm.expand_dims(at["k"], axis=-1) * sm.expand_dims(values, axis=-2)
        read = memory
        if heads != key_heads:
            wide = sm.broadcast_to(
                sm.expand_dims(memory, axis=2), (batch, key_heads, heads // key_heads, width, depth)
            )
            read = sm.reshape(wide, (batch, heads, width, depth))
        return memory, sm.einsum("bhd,bhdm->bhm", at["q"], read)

    xs = {name: sm.moveaxis(x, 2, 0) for name, x in sequences.items()}
    last, results = sm.scan(step, start, xs)
    scale = c.get("scale") or 1 / math.sqrt(width)
    results = sm.permute_dims(results * like(results, scale), (1, 0, 2, 3))
    flat = sm.reshape(results, (batch, steps, heads * depth))
    return sm.astype(flat, dtype), sm.astype(last, kept)


def _causal_conv(c: Call, x: Array, weight: Array, bias: Any = None, state: Any = None) -> Any:
    kernel = int(weight.shape[2])
    before = sm.zeros((*x.shape[:2], kernel - 1), dtype=x.dtype) if state is None else state
    padded = sm.concat([before, x], axis=2) if kernel > 1 else x
    result = sm.nn.conv(padded, weight, bias, groups=int(weight.shape[0]))
    if c.get("activation", "none") in ("silu", "swish"):
        result = sm.nn.silu(result)
    length = padded.shape[2]
    return result, slice_along(padded, 2, length - (kernel - 1), length)


ROWS: tuple[Row, ...] = (
    Row("MatMul", lambda c, a, b: sm.matmul(a, b)),
    Row("Gemm", _gemm),
    Row("FusedMatMul", _fused_mat_mul, domain="com.microsoft"),
    Row("Einsum", lambda c, *x: sm.einsum(c.get("equation").replace(" ", ""), *x)),
    Row("Det", lambda c, x: sm.linalg.det(x)),
    Row("Attention", _attention),
    Row("RotaryEmbedding", _rotary),
    Row("LinearAttention", _linear_attention),
    Row("CausalConvWithState", _causal_conv),
)
