"""A bias, ReLU and a logarithm: `log(relu(x + b))`.

The sum and ReLU each store a whole array that the next kernel loads at once: a round trip to
memory that nobody asked for. Fused, each element passes through all three in registers. The bias
is one row; every block of rows reads it again, but it stays in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import smelt as sm


def log_relu(x: Any, b: Any) -> Any:
    """Return `log(relu(x + b))`."""
    shifted = x + b
    positive = sm.nn.relu(shifted)
    return sm.log(positive)


def inputs() -> dict[str, Any]:
    """Return 4096 rows of 512 positive numbers and a bias."""
    rng = np.random.default_rng(0)
    x = rng.random((4096, 512), dtype=np.float32)
    return {"x": x, "b": rng.random(512, dtype=np.float32)}


VALUES = {
    "x": np.array([[1.5, 0.5, 2, 3], [0.25, 1, 0.75, 2.5], [4, 0.5, 1, 1.25]], np.float32),
    "b": np.array([0.5, 1, 0.25, 1], np.float32),
}
"""A small matrix and a bias."""

if __name__ == "__main__":
    print(sm.explain(log_relu, **inputs()))
