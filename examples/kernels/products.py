"""Products of matrices, with what precedes and follows them."""

from __future__ import annotations

import smelt as sm


def square(a: "bf16[8192,8192]", b: "bf16[8192,8192]"):
    """A large product."""
    return a @ b


def few_rows(x: "bf16[16,8192]", w: "bf16[8192,8192]"):
    """Sixteen rows by a weight: the weight is all the traffic."""
    return x @ w


def long_sum(a: "bf16[256,131072]", b: "bf16[131072,256]"):
    """A product with a long summed axis, which is split over programs."""
    return a @ b


def batched(a: "bf16[512,128,64]", b: "bf16[512,64,128]"):
    """Small products of a batch."""
    return a @ b


def linear_gelu(x: "bf16[8192,4096]", w: "bf16[4096,16384]", b: "bf16[16384]"):
    """A linear layer with GELU."""
    return sm.nn.gelu(x @ w + b)


def linear_residual_norm(
    x: "bf16[8192,4096]", w: "bf16[4096,4096]", r: "bf16[8192,4096]", g: "bf16[4096]"
):
    """A linear layer, the residual and an RMS norm."""
    return sm.nn.rms_norm(x @ w + r, g)


def linear_pool(x: "f32[16384,1024]", w: "f32[1024,4096]", b: "f32[4096]"):
    """A linear layer whose rows are reduced to their largest element."""
    return sm.max(sm.nn.relu(x @ w + b), axis=1)


def packed_weight(x: "bf16[4096,4096]", w: "i8[4096,4096]", s: "f32[4096]"):
    """A product with int8 weights and a scale for each column."""
    return (x @ sm.astype(w, sm.bfloat16)) * s
