"""
Convolutions and images
=======================

Filters of an image are convolutions. Several of them, and the arithmetic between them, are one
kernel.
"""

# %%
# Sobel's edges: two convolutions, squares, a sum, a root and a threshold.

import numpy as np
from matplotlib import pyplot as plt

import smelt as sm

ACROSS = np.asarray([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32)[None, None]
DOWN = ACROSS.transpose(0, 1, 3, 2).copy()


@sm.jit
def edges(image):
    dx = sm.nn.conv(image, ACROSS, padding=1)
    dy = sm.nn.conv(image, DOWN, padding=1)
    size = sm.sqrt(dx * dx + dy * dy)
    return sm.where(size > 0.4, size, 0.0)


rows, columns = np.mgrid[-1:1:256j, -1.5:1.5:384j].astype(np.float32)
radius = np.hypot(rows, columns)
picture = np.where(radius < 0.7, 0.5 + 0.5 * np.sin(14 * radius), 0.1).astype(np.float32)
result = np.asarray(edges(picture[None, None]))[0, 0]

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9))
left.imshow(picture, cmap="gray")
right.imshow(result, cmap="magma")
left.set_title("image")
right.set_title("edges")
for axes in (left, right):
    axes.set_axis_off()
figure.tight_layout()

# %%

print(sm.explain(edges, picture[None, None]))

# %%
# A block of a network, convolution, normalisation, ReLU and pooling, is planned in the same way:


@sm.jit
def block(x, w, scale, shift):
    h = sm.nn.conv(x, w, padding=1)
    return sm.nn.max_pool(sm.nn.relu(h * scale + shift), 2)


rng = np.random.default_rng(0)
x = rng.standard_normal((4, 16, 32, 32), dtype=np.float32)
w = rng.standard_normal((32, 16, 3, 3), dtype=np.float32)
scale, shift = rng.standard_normal((2, 1, 32, 1, 1), dtype=np.float32)
print(sm.explain(block, x, w, scale, shift).text(level=1))
