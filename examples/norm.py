"""The function that ARCHITECTURE.md follows through the compiler: residual and RMS norm.

    python examples/norm.py                 run it, and say what became of it
    smelt explain examples/norm.py:norm     the same, with sizes of the command's choice

The same function runs with NumPy's arrays and with Smelt's, because both speak the array API.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import smelt as sm


def norm(x: "f32[n,d]", r: "f32[n,d]", g: "f32[d]") -> Any:  # noqa: F821, UP037 - shapes
    """Rows of `x + r` divided by their root mean square, times `g`."""
    scale = sm.sqrt(sm.mean((x + r) ** 2, axis=-1, keepdims=True) + 1e-6)
    return (x + r) / scale * g


def main() -> None:
    """Compare with NumPy and print the report."""
    rng = np.random.default_rng(0)
    x, r = rng.standard_normal((2, 4096, 768), dtype=np.float32)
    g = rng.standard_normal(768, dtype=np.float32)
    h = (x + r).astype(np.float64)
    expected = h / np.sqrt(np.mean(h**2, axis=-1, keepdims=True) + 1e-6) * g
    found = np.asarray(sm.jit(norm)(x, r, g))
    print(f"largest difference from NumPy in float64: {np.max(np.abs(found - expected)):.1e}\n")
    print(sm.explain(norm, x, r, g))


if __name__ == "__main__":
    main()
