"""Loops whose step sums over what it carries: one program computes all steps."""

from __future__ import annotations

import numpy as np
import pytest
from tests.catalogue import harness
from tests.codegen.device_catalogue import planned, recorded
from tests.codegen.device_programs import rates
from tests.codegen.test_triton_ahead import NEEDS_TRITON
from tests.codegen.test_triton_goldens import with_lanes
from tests.codegen.test_triton_programs import complaint

import smelt as sm
from smelt.backend.gpus import gpu
from smelt.codegen.triton.ahead import TritonCompiler
from smelt.codegen.triton.candidates import candidates
from smelt.codegen.triton.schedule import EXACT
from smelt.codegen.triton.select import select
from smelt.codegen.triton.source import print_file, print_stage
from smelt.tune.scheduled_gpu import scheduled


def linear_attention(q, k, v, a, s, n):
    """y_t = q_t S_t of S_t = a_t S_(t-1) + k_t v_t'."""

    def step(s, x):
        q, k, v, a = x
        s = s * a[:, :, None, None] + k[..., None] * v[:, :, None, :]
        return s, sm.sum(q[..., None] * s, axis=2)

    return sm.scan(step, s, (q, k, v, a))


def normalised(q, k, v, a, s, n):
    """Linear attention divided by what a second, smaller state says."""

    def step(carry, x):
        s, n = carry
        q, k, v, a = x
        s = s * a[:, :, None, None] + k[..., None] * v[:, :, None, :]
        n = n * a[:, :, None] + k
        scale = sm.maximum(abs(sm.sum(q * n, axis=-1, keepdims=True)), 1)
        return (s, n), ((q[:, :, None, :] @ s)[:, :, 0] / scale, scale)

    return sm.scan(step, (s, n), (q, k, v, a))


def delta_rule(q, k, v, a, s, n):
    """What the state predicts for a key is replaced: the step reads the state before its update."""

    def step(s, x):
        q, k, v, a = x
        error = v - sm.sum(k[..., None] * s, axis=2)
        s = s + a[:, :, None, None] * k[..., None] * error[:, :, None, :]
        return s, sm.sum(q[..., None] * s, axis=2)

    return sm.scan(step, s, (q, k, v, a), reverse=True)[1]


def selective(q, k, v, a, s, n):
    """A row of numbers for each channel, as in a state space model."""

    def step(h, x):
        q, k, v, a = x
        h = h * sm.exp(-a[:, :, None, None] * s) + (a[..., None] * v)[:, :, None] * k[..., None]
        return h, sm.sum(h * q[..., None], axis=2)

    return sm.scan(step, s, (q, k, v, a))[1]


def normed(q, k, v, a, s, n):
    """A vector that is normalised in each step."""

    def step(h, x):
        q, k, a = x
        h = h * 0.5 + q * a[..., None]
        h = h / sm.sqrt(sm.mean(h * h, axis=-1, keepdims=True) + 1e-3)
        return h, h * k

    return sm.scan(step, n, (q, k, a))


def elman(x, w, u, b, h):
    """A vector times a matrix in each step."""

    def step(h, x):
        h = sm.tanh(h @ w + x)
        return h, h

    return sm.scan(step, h, x)


def gated(x, w, u, b, h):
    """A GRU: three products of the state, one of them of a product with it."""

    def step(h, x):
        reset = sm.nn.sigmoid(h @ w + x)
        update = sm.nn.sigmoid(h @ u - x)
        new = sm.tanh((h * reset) @ b + x)
        h = update * h + (1 - update) * new
        return h, h

    return sm.scan(step, h, x, reverse=True)[1]


def memory_cell(x, w, u, b, h):
    """An LSTM: a state that is multiplied, and one that is not."""

    def step(carry, x):
        h, c = carry
        keep, new = sm.nn.sigmoid(h @ w + x), sm.tanh(h @ u + x)
        c = keep * c + (1 - keep) * new
        h = sm.nn.sigmoid(h @ b - x) * sm.tanh(c)
        return (h, c), h

    return sm.scan(step, (h, h), x)


def transposed(x, w, u, b, h):
    """A matrix by the state, a column of numbers."""
    return sm.scan(lambda h, x: ((w @ h[..., None])[..., 0] * 0.1 + x, h), h, x)


CELLS = (elman, gated, memory_cell, transposed)
PROGRAMS = (linear_attention, normalised, delta_rule, selective, normed)


SHAPE = (256, 4, 16, 64, 64)
"""Steps, sequences, heads, and both sizes of a state."""


def example_of(code, shape=SHAPE, dtype="f32", small=(5, 2, 3, 6, 7)):
    """Return a recorded program with arrays of small shapes."""
    random = np.random.default_rng(0)
    if code in CELLS:

        def cells(t, b, h, d, e):
            return (t, b * h, d), (d, d), (d, d), (d, d), (b * h, d)

        arrays = [random.uniform(-0.5, 0.5, s).astype(np.float32) for s in cells(*small)]
        return recorded(code, arrays, cells(*shape), dtype)

    def shapes(t, b, h, d, e):
        return (t, b, h, d), (t, b, h, d), (t, b, h, e), (t, b, h), (b, h, d, e), (b, h, d)

    arrays = [random.uniform(0.1, 1, s).astype(np.float32) for s in shapes(*small)]
    return recorded(code, arrays, shapes(*shape), dtype)


def kernel_of(code, shape=SHAPE):
    """Return the only kernel of a program with its sizes."""
    example = example_of(code, shape)
    plan = planned(example.trace, example.sizes, scheduled(gpu("sm_90")))
    ((kernel, sizes),) = plan.launched
    assert len(plan.plan.clusters) == 1
    return kernel, sizes


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("code", [*PROGRAMS, *CELLS], ids=lambda f: f.__name__)
def test_programs_of_all_steps_compute_what_the_interpreter_does(code, dtype):
    example = example_of(code, dtype=dtype)
    arrays = harness.inputs(example.trace, example.arrays)
    for number in range(3):  # a few of the schedules

        def sources(plan, small, number=number):
            ((kernel, sizes),) = plan.launched
            ((*every,),) = candidates(kernel, sizes, rates("sm_90"), EXACT, small[0])
            c = every[number % len(every)]
            stage = print_stage(c.launch, c.schedule)
            return {id(kernel): with_lanes(print_file(kernel, [stage]), 16)}

        assert not complaint(example.trace.graph, arrays, 8, print_sources=sources)


def test_wide_states_are_in_several_programs():
    """A program has all of the summed axis, and as many columns as its registers hold."""
    kernel, sizes = kernel_of(linear_attention, (256, 1, 4, 256, 256))
    ((best, *_),) = candidates(kernel, sizes, rates("sm_90"), EXACT)
    assert best.time.fits
    assert 1 < list(best.schedule.grid.values())[-1] < 256


@NEEDS_TRITON
@pytest.mark.parametrize("code", [*PROGRAMS, *CELLS], ids=lambda f: f.__name__)
def test_states_stay_in_registers(code):
    kernel, sizes = kernel_of(code)
    (chosen,) = select(kernel, sizes, rates("sm_90"), TritonCompiler(), EXACT).launches
    assert chosen.warning is None
    assert chosen.program.resources.spills == 0
