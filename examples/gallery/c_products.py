"""
Matrix products with an epilogue
================================

What follows a matrix product is applied while its results are in registers. What precedes it is
computed while the operand is packed.
"""

# %%
# The feed-forward part of a transformer in the form of SwiGLU: a norm, two products of the same
# rows, a gate.

import numpy as np
from charts import traffic

import smelt as sm


def gated(x, gain, w1, w3):
    h = sm.nn.rms_norm(x, gain)
    return sm.nn.silu(h @ w1) * (h @ w3)


rng = np.random.default_rng(0)
x = rng.standard_normal((512, 256), dtype=np.float32)
gain = np.ones(256, np.float32)
w1, w3 = rng.standard_normal((2, 256, 1024), dtype=np.float32) / 16
report = sm.explain(gated, x, gain, w1, w3)
print(report)

# %%
# Nothing knows SwiGLU. Other epilogues fuse in the same way:


def linear(x, w, b):
    return x @ w + b


def linear_gelu(x, w, b):
    h = x @ w + b
    return h * (1 + sm.erf(h * 0.7071068)) * 0.5


def linear_residual(x, w, b, r):
    return sm.maximum(x @ w + b, 0.0) + r


def largest(x, w):
    return sm.max(x @ w, axis=1)  # the matrix of scores is never stored


types = sm.spec("f32[512,256]"), sm.spec("f32[256,1024]"), sm.spec("f32[1024]")
traffic(
    {
        "x @ w + b": sm.explain(linear, *types),
        "gelu(x @ w + b)": sm.explain(linear_gelu, *types),
        "relu(x @ w + b) + r": sm.explain(linear_residual, *types, sm.spec("f32[512,1024]")),
        "max(x @ w)": sm.explain(largest, *types[:2]),
        "rms_norm, two products, gate": report,
    }
)
