"""
Attention from matmul, softmax, matmul
======================================

Attention needs no name either. Smelt derives the streamed form of it: keys are visited block by
block with a running maximum, and the matrix of N × N scores is never stored.
"""

# %%
# Three lines, with a causal mask:

import numpy as np
from charts import curves

import smelt as sm


@sm.jit
def attention(q, k, v):
    n = q.shape[1]
    scores = q @ sm.matrix_transpose(k) / 8.0
    later = sm.arange(n)[None, :] > sm.arange(n)[:, None]
    return sm.nn.softmax(sm.where(later, -sm.inf, scores)) @ v


rng = np.random.default_rng(0)
q, k, v = rng.standard_normal((3, 4, 512, 64), dtype=np.float32)
report = sm.explain(attention, q, k, v)
print(report)

# %%
# Without fusion the traffic grows with the square of the length; fused, with the length. Both axes
# are logarithmic:

lengths = [256, 512, 1024, 2048]
totals = [sm.explain(attention, *[sm.spec(f"f32[4,{n},64]")] * 3).data.total for n in lengths]
axes = curves(
    lengths,
    {
        "one kernel per operator": [t.bytes_unfused / 1e6 for t in totals],
        "fused": [t.bytes / 1e6 for t in totals],
    },
    xlabel="length of the sequence",
    ylabel="MB through memory",
)
axes.set_xscale("log", base=2)
axes.set_yscale("log")
axes.set_xticks(lengths, [str(n) for n in lengths])

# %%
# Why are the exponential and the division by the sum one kernel? The decision says it:

print(report.why("exp", "div"))
