"""
Reductions and normalisation
============================

A reduction has to finish before its result can be used. If the row stays in cache, a softmax or a
norm is still one kernel that reads its input once from memory.
"""

# %%
# Nobody has to call a function named ``layer_norm``: the mathematics is enough.

import numpy as np
from charts import FUSED, UNFUSED, traffic
from matplotlib import pyplot as plt

import smelt as sm


def layer_norm(x, residual, gain, bias):
    h = x + residual
    centred = h - sm.mean(h, axis=-1, keepdims=True)
    variance = sm.mean(centred * centred, axis=-1, keepdims=True)
    return centred / sm.sqrt(variance + 1e-5) * gain + bias


def rms_norm(x, gain):
    return x / sm.sqrt(sm.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain


def softmax(x):
    e = sm.exp(x - sm.max(x, axis=-1, keepdims=True))
    return e / sm.sum(e, axis=-1, keepdims=True)


def statistics(x):
    return sm.mean(x), sm.var(x), sm.max(x), sm.min(x)


rng = np.random.default_rng(0)
x, residual = rng.standard_normal((2, 2048, 768), dtype=np.float32)
gain, bias = np.ones(768, np.float32), np.zeros(768, np.float32)
reports = {
    "residual + LayerNorm": sm.explain(layer_norm, x, residual, gain, bias),
    "RMSNorm": sm.explain(rms_norm, x, gain),
    "softmax": sm.explain(softmax, x),
    "mean, var, max, min": sm.explain(statistics, x),
}
print(reports["residual + LayerNorm"])

# %%
# Each program is one kernel, and its traffic is close to what it has to read and write anyway:

traffic(reports)

# %%
# The time of a call follows. The bars are medians of several runs, with fusion and with
# ``sm.config(fuse=False)``, which runs every operator as a kernel of its own:


def milliseconds(report):
    return report.data.total.measured.median_ns / 1e6


with sm.config(fuse=False):
    apart = [
        sm.explain(layer_norm, x, residual, gain, bias),
        sm.explain(rms_norm, x, gain),
        sm.explain(softmax, x),
        sm.explain(statistics, x),
    ]
axes = plt.figure(figsize=(7, 3)).gca()
places = np.arange(len(reports))
axes.bar(places - 0.2, [milliseconds(r) for r in apart], 0.38, color=UNFUSED, label="fuse=False")
axes.bar(
    places + 0.2, [milliseconds(r) for r in reports.values()], 0.38, color=FUSED, label="fused"
)
axes.set_xticks(places, list(reports))
axes.set_ylabel("ms a call")
axes.legend(frameon=False)
axes.figure.tight_layout()
