"""Three steps on every element: scale, cut off below zero, add.

Take the number 3. Scaled by 2 it is 6, ReLU leaves 6, and adding 1 gives 7. Without fusion every
step is a kernel: it loads an array from memory and stores one, so one number makes six trips. The
fused kernel loads 3, computes 6, 6 and 7 in registers, and stores 7: two trips.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import smelt as sm


def scale_relu_add(x: Any) -> Any:
    """Return `relu(2 x) + 1`."""
    scaled = x * 2.0
    positive = sm.maximum(scaled, 0.0)
    return positive + 1.0


def inputs() -> dict[str, Any]:
    """Return four million numbers."""
    return {"x": np.linspace(-3, 3, 1 << 22, dtype=np.float32)}


VALUES = {"x": np.array([3, -1.5, 0.5, 2], np.float32)}
"""A few numbers to follow, starting with 3."""

if __name__ == "__main__":
    print(sm.explain(scale_relu_add, **inputs()))
