"""A linear layer and GELU: work on the product's elements while they are still in registers.

A matrix product does many operations for each element that it loads, so memory is not what makes
it slow. What follows it is: bias and GELU would load and store the whole result five more times.
Fused, they run on each tile of the product before it is stored. Such a tail is called an epilogue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import smelt as sm


def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    """Return `gelu(x @ w + b)`."""
    return sm.nn.gelu(x @ w + b)


def inputs() -> dict[str, Any]:
    """Return 512 rows, weights and a bias."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((512, 256), dtype=np.float32)
    w = rng.standard_normal((256, 1024), dtype=np.float32) / 16
    return {"x": x, "w": w, "b": rng.standard_normal(1024, dtype=np.float32)}


VALUES = {
    "x": np.array([[1, 2], [0.5, -1], [-2, 1]], np.float32),
    "w": np.array([[1, 0.5, -1, 2], [0.25, -1, 1, 0]], np.float32),
    "b": np.array([0.5, 0, -0.5, 1], np.float32),
}
"""Three rows through a layer of two inputs and four outputs."""

if __name__ == "__main__":
    print(sm.explain(linear_gelu, **inputs()))
