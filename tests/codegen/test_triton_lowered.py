"""Kernels that lowering makes of array programs print, and compute what the interpreter does."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.checked_triton import launch
from tests.codegen.test_triton_goldens import with_lanes

import smelt as sm
from smelt.kernel.interp import run


def softmax(x):
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


def attention(q, k, v):
    return sm.nn.attention(q, k, v)


def causal_attention(q, k, v):
    return sm.nn.attention(q, k, v, causal=True)


def attention_gradients(q, k, v):
    """Blocks of queries visit keys up to their last one: a range of another axis."""
    loss = sm.grad(lambda *a: sm.sum(causal_attention(*a) ** 2), argnums=(0, 1, 2))
    return loss(q, k, v)


MATRIX = {"x": (37, 100)}
HEADS = {"q": (2, 2, 19, 24), "k": (2, 2, 35, 24), "v": (2, 2, 35, 20)}
SQUARE = {"q": (1, 2, 35, 24), "k": (1, 2, 35, 24), "v": (1, 2, 35, 20)}
PROGRAMS = {
    "softmax": (softmax, MATRIX),
    "tanh": (lambda x: sm.tanh(x) + 1, MATRIX),
    "transposed": (lambda x: sm.exp(x.T) * 2, MATRIX),
    "flipped": (lambda x: sm.flip(x, axis=1) + sm.roll(x, 3, axis=1), MATRIX),
    "argmax": (lambda x: sm.argmax(x, axis=1), MATRIX),
    "argmin of all": (lambda x: sm.argmin(-x), MATRIX),
    "variance": (lambda x: sm.var(x, axis=1), MATRIX),
    "least": (lambda x: sm.min(x, axis=1), MATRIX),
    "total": (lambda x: sm.sum(x * x), MATRIX),
    "columns": (lambda x: sm.sum(x, axis=0), MATRIX),
    "concatenated": (lambda x: sm.concat([x, x * 2], axis=1), MATRIX),
    "cumulative": (lambda x: sm.cumulative_sum(x, axis=1), MATRIX),
    "erf": (lambda x: sm.erf(x) * x, MATRIX),
    "sine": (lambda x: sm.sin(x * 1e6), MATRIX),
    "power": (lambda x: sm.abs(x) ** 2.5, MATRIX),
    "selected": (lambda x: sm.where(x > 0, x, sm.log1p(sm.abs(x))), MATRIX),
    "float64": (lambda x: sm.exp(sm.astype(x, sm.float64)), MATRIX),
    "integers": (lambda x: sm.astype(x * 10, sm.int32) // 3 % 5, MATRIX),
    "pairs": (lambda x: x[:, None, :] * x[None, :, :], {"x": (5, 33)}),
    "product": (lambda x, w: sm.tanh(x @ w), {"x": (37, 70), "w": (70, 41)}),
    "batched product": (lambda x, w: x @ w, {"x": (3, 20, 33), "w": (3, 33, 18)}),
    "attention": (attention, HEADS),
    "causal attention": (causal_attention, SQUARE),
    "attention's gradients": (attention_gradients, SQUARE),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_lowered_kernel_computes_what_the_interpreter_does(name):
    function, shapes = PROGRAMS[name]
    random = np.random.default_rng(5)
    arrays = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    sizes: dict[str, int] = {}
    for report in sm.explain(function, **arrays, target="sm_90").kernels:
        kernel, inputs = report.kernel, {}
        arguments = [p for p in kernel.inputs if p.name in arrays]
        for p in (*arguments, *(p for p in kernel.inputs if p not in arguments)):
            if p in arguments:
                x = arrays[p.name]
                x = x.squeeze(0) if len(p.shape) < x.ndim else x  # axes of 1 are left out
                sizes |= zip(map(str, p.shape), x.shape, strict=True)
            else:  # what another kernel computes is drawn
                shape = [sizes.get(str(n)) or int(str(n)) for n in p.shape]
                x = random.uniform(1.0, 2.0, shape).astype(p.dtype.numpy)
            inputs[p.name] = x
        wanted = run(kernel, inputs)
        source = with_lanes(report.source, 16)
        outputs = launch(source, [inputs[p.name] for p in kernel.inputs])
        for p, actual in zip(kernel.outputs, outputs, strict=True):
            np.testing.assert_allclose(actual, wanted[p.name], 5e-6, 5e-6)
