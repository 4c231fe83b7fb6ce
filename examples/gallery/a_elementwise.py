"""
Elementwise chains
==================

A chain of elementwise operators is one kernel, however long it is. Without fusion every operator
reads its operands from memory and writes its result back.
"""

# %%
# A bell curve of clipped scores, in plain array code:

import numpy as np
from charts import curves

import smelt as sm


@sm.jit
def bell(x, mean, scale):
    z = (x - mean) / scale
    z = sm.clip(z, -4.0, 4.0)
    return sm.exp(-0.5 * z * z) / scale


rng = np.random.default_rng(0)
x = rng.standard_normal((2000, 1000), dtype=np.float32)
mean, scale = np.zeros(1000, np.float32), np.full(1000, 1.5, np.float32)
report = sm.explain(bell, x, mean, scale)
print(report)

# %%
# The result is NumPy's, up to rounding:

z = np.clip((x - mean) / scale, -4, 4)
difference = np.abs(np.asarray(bell(x, mean, scale)) - np.exp(-0.5 * z * z) / scale)
print(f"largest difference from NumPy: {difference.max():.1e}")

# %%
# Bytes grow with every operator, unless the operators share a kernel. Here a chain of sines becomes
# longer step by step:


def chain(length):
    def steps(x):
        for _ in range(length):
            x = sm.sin(x) + 1.0
        return x

    return sm.explain(steps, sm.spec("f32[2000,1000]")).data.total


lengths = [1, 2, 4, 8]
totals = [chain(n) for n in lengths]
curves(
    [2 * n for n in lengths],
    {
        "one kernel per operator": [t.bytes_unfused / 1e6 for t in totals],
        "fused": [t.bytes / 1e6 for t in totals],
    },
    xlabel="operators in the chain",
    ylabel="MB through memory",
)
