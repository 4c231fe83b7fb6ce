"""Softmax and norms, with gradients."""

from __future__ import annotations

import smelt as sm


def softmax(x: "f32[16384,4096]"):
    """Softmax of rows."""
    return sm.nn.softmax(x, axis=1)


def softmax_long(x: "f32[1024,131072]"):
    """Softmax of rows that no program keeps."""
    return sm.nn.softmax(x, axis=1)


def layer_norm(x: "bf16[16384,4096]", g: "bf16[4096]", b: "bf16[4096]"):
    """Layer norm."""
    return sm.nn.layer_norm(x, g, b)


def layer_norm_gradients(
    x: "bf16[16384,4096]", g: "bf16[4096]", b: "bf16[4096]", dy: "bf16[16384,4096]"
):
    """Gradients of a layer norm."""
    return sm.vjp(sm.nn.layer_norm, x, g, b)[1](dy)


def batch_norm(x: "f32[64,64,112,112]", g: "f32[64]", b: "f32[64]"):
    """Batch norm of images, in training."""
    mean = sm.mean(x, axis=(0, 2, 3), keepdims=True)
    var = sm.mean((x - mean) ** 2, axis=(0, 2, 3), keepdims=True)
    return (x - mean) / sm.sqrt(var + 1e-5) * g[:, None, None] + b[:, None, None]
