"""The head of SPLADE: a score for every word of the vocabulary, and the largest over a text.

SPLADE turns a text into weights of words: `max over positions of log(1 + relu(h w + b))`. The
scores have a number for every position and every word, often gigabytes, and all but the largest of
each word is thrown away. The fused kernel keeps a running maximum for each word while it streams
over the positions, so the scores are never stored. ReLU and logarithm grow with their argument, so
it applies them once, to the maximum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import smelt as sm


def splade_head(h: Any, w: Any, b: Any) -> Any:
    """Return the weight of every word for each text."""
    scores = sm.nn.relu(h @ w + b)
    return sm.max(sm.log1p(scores), axis=1)


def inputs() -> dict[str, Any]:
    """Return 2 texts of 512 positions with 256 features, and a vocabulary of 4096 words."""
    rng = np.random.default_rng(0)
    h = rng.standard_normal((2, 512, 256), dtype=np.float32)
    w = rng.standard_normal((256, 4096), dtype=np.float32) / 16
    return {"h": h, "w": w, "b": rng.standard_normal(4096, dtype=np.float32)}


VALUES: dict[str, Any] = {}
"""Quarters chosen by the page."""

if __name__ == "__main__":
    print(sm.explain(splade_head, **inputs()))
