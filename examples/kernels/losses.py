"""Losses, some with the linear layer before them."""

from __future__ import annotations

import smelt as sm


def cross_entropy(x: "f32[8192,32768]", labels: "i64[8192]"):
    """Mean cross-entropy."""
    return sm.nn.cross_entropy(x, labels)


def linear_cross_entropy(x: "bf16[8192,4096]", w: "bf16[4096,131072]", labels: "i64[8192]"):
    """Cross-entropy of a classifier, with both gradients."""
    return sm.value_and_grad(lambda x, w: sm.nn.cross_entropy(x @ w, labels), (0, 1))(x, w)


def contrast(x: "bf16[16384,512]", y: "bf16[16384,512]"):
    """Contrastive loss of pairs, in both directions."""
    z = x @ y.T * 20.0
    hot = sm.arange(16384)
    return (sm.nn.cross_entropy(z, hot) + sm.nn.cross_entropy(z.T, hot)) / 2


def divergence(x: "f32[8192,32768]", y: "f32[8192,32768]"):
    """Kullback-Leibler divergence of two softmaxes."""
    p, q = sm.nn.log_softmax(x, axis=1), sm.nn.log_softmax(y, axis=1)
    return sm.mean(sm.sum(sm.exp(q) * (q - p), axis=1))


def huber(x: "f32[67108864]", y: "f32[67108864]"):
    """Mean Huber loss."""
    d = sm.abs(x - y)
    return sm.mean(sm.where(d < 1, 0.5 * d * d, d - 0.5))
