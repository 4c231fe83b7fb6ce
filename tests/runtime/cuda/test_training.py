"""Training steps on a device: forward and backward in one program, executed by the emulation."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.compiler.device import use_compiler


def norm(x, gain):
    centred = x - sm.mean(x, axis=-1, keepdims=True)
    return centred / sm.sqrt(sm.mean(centred**2, axis=-1, keepdims=True) + 1e-5) * gain


def bert(x, q, k, v, up, down, gain):
    """A block: attention of one head, norm, GELU, residuals."""
    a = sm.nn.softmax((x @ q) @ (x @ k).T * 8**-0.5, axis=-1) @ (x @ v)
    h = norm(x + a, gain)
    y = h + sm.nn.gelu(h @ up) @ down
    return sm.mean(y * y)


def gpt(x, table, w, gain):
    """Prediction of the next token, with a causal mask and tied weights."""
    n = x.shape[0]
    mask = sm.arange(n)[:, None] >= sm.arange(n)[None, :]
    a = sm.nn.softmax(sm.where(mask, (x @ w) @ x.T * 8**-0.5, -1e9), axis=-1) @ x
    logits = norm(x + a, gain) @ table.T
    chosen = sm.sum(sm.where(sm.eye(n, dtype=sm.bool), logits, 0.0), axis=-1)
    top = sm.max(logits, axis=-1, keepdims=True)
    return sm.mean(sm.log(sm.sum(sm.exp(logits - top), axis=-1)) + top[:, 0] - chosen)


def conv(x, w, gain, head):
    """A convolution, a norm of channels, ReLU, pooling, a linear layer."""
    y = sm.nn.conv(x, w, padding=1)
    mean = sm.mean(y, axis=(0, 2, 3), keepdims=True)
    var = sm.mean((y - mean) ** 2, axis=(0, 2, 3), keepdims=True)
    y = sm.maximum((y - mean) / sm.sqrt(var + 1e-5) * sm.reshape(gain, (1, -1, 1, 1)), 0)
    return sm.mean((sm.mean(y, axis=(2, 3)) @ head) ** 2)


STEPS = {
    "bert": (bert, [(5, 8), (8, 8), (8, 8), (8, 8), (8, 12), (12, 8), (8,)]),
    "gpt": (gpt, [(6, 8), (6, 8), (8, 8), (8,)]),
    "conv": (conv, [(2, 3, 6, 6), (4, 3, 3, 3), (4,), (4, 3)]),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_gives_the_cpu_s_loss_and_gradients(fake, name):
    loss, shapes = STEPS[name]
    step = sm.jit(sm.value_and_grad(loss, argnums=tuple(range(len(shapes)))))
    random = np.random.default_rng(7)
    arrays = [(random.standard_normal(s) * 0.5).astype(np.float32) for s in shapes]
    wanted, gradients = step(*arrays)
    with use_compiler(FakeTriton()), sm.config(cache=False):
        for _ in range(2):  # the second call is native code's
            value, computed = step(*[sm.asarray(x, device="cuda:0") for x in arrays])
            np.testing.assert_allclose(float(value), float(wanted), 1e-4)
            for g, w in zip(computed, gradients, strict=True):
                np.testing.assert_allclose(np.asarray(g.to_device("cpu")), w, 2e-3, 2e-5)


@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_is_explained_for_a_device_that_is_not_here(name):
    loss, shapes = STEPS[name]
    step = sm.value_and_grad(loss, argnums=tuple(range(len(shapes))))
    specs = [sm.spec(f"f32[{','.join(map(str, s))}]") for s in shapes]
    with sm.config(device_code=False):
        report = sm.explain(step, *specs, target="sm_90")
    assert report.kernels
    for kernel in report.kernels:
        assert "@triton.jit" in kernel.source, kernel.name
