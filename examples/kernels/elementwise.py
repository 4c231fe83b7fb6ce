"""Chains of elementwise operators."""

from __future__ import annotations

import smelt as sm


def gelu(x: "bf16[16384,4096]"):
    """GELU by the error function."""
    return sm.nn.gelu(x)


def swish_chain(x: "f32[16384,4096]", b: "f32[4096]"):
    """Bias, Swish, scale and clip."""
    y = x + b
    return sm.clip(y * sm.sigmoid(y) * 0.5, -1.0, 1.0)


def gated(x: "bf16[8192,22528]"):
    """SwiGLU of the halves of rows."""
    a, b = x[:, :11264], x[:, 11264:]
    return sm.nn.silu(a) * b


def rotated(q: "bf16[8,32,4096,128]", cos: "f32[4096,64]", sin: "f32[4096,64]"):
    """Rotary positions of queries."""
    a, b = q[..., :64], q[..., 64:]
    return sm.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)


def adam(p: "f32[67108864]", g: "f32[67108864]", m: "f32[67108864]", v: "f32[67108864]"):
    """A step of Adam with weight decay."""
    m = 0.9 * m + 0.1 * g
    v = 0.95 * v + 0.05 * g * g
    return p - 1e-3 * (m / (sm.sqrt(v) + 1e-8) + 0.1 * p), m, v
