"""Softmax: two reductions of a row, and the row is needed again after each.

The largest element is subtracted so that no exponential overflows, and the exponentials are
divided by their sum. A reduction has to see the whole row before the next step can start, so this
cannot be one pass over single elements. The fused kernel takes a row at a time: the row stays in
fast memory while it is read for the maximum, for the sum and for the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import smelt as sm


def softmax(x: Any) -> Any:
    """Return the softmax of each row."""
    largest = sm.max(x, axis=-1, keepdims=True)
    e = sm.exp(x - largest)
    return e / sm.sum(e, axis=-1, keepdims=True)


def inputs() -> dict[str, Any]:
    """Return 4096 rows of 512 scores."""
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((4096, 512), dtype=np.float32)}


VALUES = {"x": np.array([[1, 3, 2, 0], [0.5, 0.5, 2, 1], [-1, 0, 1, 2]], np.float32)}
"""Three rows."""

if __name__ == "__main__":
    print(sm.explain(softmax, **inputs()))
