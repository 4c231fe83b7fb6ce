"""
A NumPy program
===============

``smelt.numpy`` has NumPy's names. One import changes, and the loop below runs fused.
"""

# %%
# Gray and Scott's reaction of two substances that diffuse:

from matplotlib import pyplot as plt

import smelt as sm
import smelt.numpy as np  # instead of: import numpy as np


def laplace(a):
    return (
        np.roll(a, 1, axis=0) + np.roll(a, -1, axis=0) + np.roll(a, 1, axis=1)
        + np.roll(a, -1, axis=1) - 4 * a
    )  # fmt: skip


@sm.jit
def step(u, v):
    reaction = u * v * v
    u = u + 0.16 * laplace(u) - reaction + 0.035 * (1 - u)
    v = v + 0.08 * laplace(v) + reaction - 0.095 * v
    return u, v


u = np.ones((192, 192), dtype=np.float32)
v = np.zeros((192, 192), dtype=np.float32)
for row, column in ((60, 60), (90, 120), (130, 80)):
    u[row : row + 12, column : column + 12] = 0.5
    v[row : row + 12, column : column + 12] = 0.25
print(sm.explain(step, u, v).text(level=1))

# %%
# The pictures are three moments of the same run:

figure, panels = plt.subplots(1, 3, figsize=(8, 2.9))
for axes, steps in zip(panels, (500, 1500, 3000), strict=True):
    for _ in range(steps):
        u, v = step(u, v)
    axes.imshow(v, cmap="viridis", vmin=0, vmax=0.4)
    axes.set_axis_off()
figure.tight_layout()
