"""Attention forward and backward."""

from __future__ import annotations

import smelt as sm


def causal(q: "bf16[4,16,4096,128]", k: "bf16[4,16,4096,128]", v: "bf16[4,16,4096,128]"):
    """Causal attention."""
    return sm.nn.attention(q, k, v, causal=True)


def causal_gradients(
    q: "bf16[4,16,4096,64]", k: "bf16[4,16,4096,64]", v: "bf16[4,16,4096,64]",
    dy: "bf16[4,16,4096,64]",
):  # fmt: skip
    """Gradients of causal attention."""
    return sm.vjp(lambda *xs: sm.nn.attention(*xs, causal=True), q, k, v)[1](dy)


def window(q: "bf16[64,8192,64]", k: "bf16[64,8192,64]", v: "bf16[64,8192,64]"):
    """The last 512 positions."""
    i = sm.arange(8192)
    near = (i[:, None] >= i) & (i[:, None] - i < 512)
    return sm.nn.attention(q, k, v, mask=near)


def grouped(q: "bf16[4,8,4,4096,128]", k: "bf16[4,8,4096,128]", v: "bf16[4,8,4096,128]"):
    """Four heads of queries to each head of keys."""
    return sm.nn.attention(q, k[:, :, None], v[:, :, None], causal=True)


def decoding(q: "bf16[32,16,1,128]", k: "bf16[32,16,8192,128]", v: "bf16[32,16,8192,128]"):
    """One query of each head: the keys are split over programs."""
    return sm.nn.attention(q, k, v)
