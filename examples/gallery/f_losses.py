"""
Losses over a vocabulary
========================

A language model multiplies hidden states with a large vocabulary and takes the cross-entropy. The
logits are by far the largest array of the step. Fused, they are never stored whole.
"""

# %%
# The loss in plain array code, without a function named cross-entropy:

import numpy as np
from charts import curves

import smelt as sm


def loss(h, w, labels):
    logits = h @ w
    top = sm.max(logits, axis=-1, keepdims=True)
    log_sum = sm.log(sm.sum(sm.exp(logits - top), axis=-1)) + top[:, 0]
    right = sm.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return sm.mean(log_sum - right)


rng = np.random.default_rng(0)
h = rng.standard_normal((256, 64), dtype=np.float32)
w = rng.standard_normal((64, 4000), dtype=np.float32) / 8
labels = rng.integers(0, 4000, 256)
report = sm.explain(loss, h, w, labels)
print(report)

# %%
# Memory that a call needs besides its arguments and results, as the vocabulary grows. The grey line
# is the matrix of logits alone:

sizes = [2000, 4000, 8000, 16000]
held = []
for size in sizes:
    types = sm.spec("f32[256,64]"), sm.spec(f"f32[64,{size}]"), sm.spec("i64[256]")
    held.append(sm.explain(loss, *types).data.memory.temp / 1e6)
curves(
    sizes,
    {"the logits alone": [256 * size * 4 / 1e6 for size in sizes], "intermediates of Smelt": held},
    xlabel="vocabulary",
    ylabel="MB",
)
