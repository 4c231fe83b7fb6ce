"""
A training step
===============

Gradients are programs: forward pass, backward pass and update are recorded together and planned
together.
"""

# %%
# A small network learns to tell two spirals apart.

import numpy as np
from matplotlib import pyplot as plt

import smelt as sm

rng = np.random.default_rng(0)
turn = np.linspace(0.5, 3 * np.pi, 400)
arm = np.stack([np.cos(turn), np.sin(turn)], axis=1) * turn[:, None] / 10
points = np.concatenate([arm, -arm]).astype(np.float32)
points += rng.normal(0, 0.02, points.shape).astype(np.float32)
labels = np.repeat(np.asarray([0.0, 1.0], np.float32), 400)


def network(p, x):
    h = sm.tanh(x @ p["w1"] + p["b1"])
    h = sm.tanh(h @ p["w2"] + p["b2"])
    return (h @ p["w3"])[:, 0]


def loss(p, x, y):
    z = network(p, x)
    return sm.mean(sm.maximum(z, 0.0) - z * y + sm.log1p(sm.exp(-sm.abs(z))))


optimiser = sm.optim.adamw(0.01, decay=0.0)


@sm.jit
def step(p, state, x, y):
    value, slopes = sm.value_and_grad(loss)(p, x, y)
    p, state = optimiser.step(p, slopes, state)
    return value, p, state


def weights(rows, columns):
    return (rng.standard_normal((rows, columns)) * 1.5 / np.sqrt(rows)).astype(np.float32)


parameters = {
    "w1": weights(2, 32),
    "b1": np.zeros(32, np.float32),
    "w2": weights(32, 32),
    "b2": np.zeros(32, np.float32),
    "w3": weights(32, 1),
}
state = optimiser.start(parameters)
print(sm.explain(step, parameters, state, points, labels).text(level=1))

# %%
# Run it:

values = []
for _ in range(600):
    value, parameters, state = step(parameters, state, points, labels)
    values.append(float(value))

grid = np.stack(np.meshgrid(np.linspace(-1.1, 1.1, 160), np.linspace(-1.1, 1.1, 160)), axis=-1)
answer = np.asarray(sm.jit(network)(parameters, grid.reshape(-1, 2).astype(np.float32)))

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4))
left.semilogy(values, color="#d9822b")
left.set(xlabel="step", ylabel="loss")
right.contourf(
    grid[..., 0], grid[..., 1], answer.reshape(160, 160), levels=[-1e9, 0, 1e9], alpha=0.3
)
right.scatter(*points.T, c=labels, s=3, cmap="coolwarm")
right.set_aspect("equal")
figure.tight_layout()
