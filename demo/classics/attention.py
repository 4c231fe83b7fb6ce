"""Attention: the scores of all pairs never exist in memory.

Every query is compared with every key, softmax turns a query's scores into weights, and the
values are averaged by them. The scores are the largest array by far. The fused kernel streams over
blocks of keys and carries three things: the largest score so far, the sum of exponentials and the
weighted values. When a larger score appears, sum and values are rescaled. In the step view you can
watch the running maximum move.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import smelt as sm


def attention(q: Any, k: Any, v: Any) -> Any:
    """Return attention of all heads."""
    return sm.nn.attention(q, k, v)


def inputs() -> dict[str, Any]:
    """Return queries, keys and values of 4 heads, 512 positions and 64 features."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((1, 4, 512, 64), dtype=np.float32) for name in "qkv"}


VALUES: dict[str, Any] = {}
"""Quarters chosen by the page."""

if __name__ == "__main__":
    print(sm.explain(attention, **inputs()))
