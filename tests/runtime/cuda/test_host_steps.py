"""Parts of plans that the host drives on a device: loops of steps, branches, chunks of rows."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.device import use_compiler

RANDOM = np.random.default_rng(11)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def compiler(fake):
    with use_compiler(FakeTriton()), sm.config(cache=False):
        yield


def waits(fake):
    """How often the host has waited for the device."""
    return sum(c in ("cuStreamSynchronize", "cuEventSynchronize") for c in fake.calls)


def leaves(x):
    return [y for item in x for y in leaves(item)] if isinstance(x, (tuple, list)) else [x]


def check(fake, function, *arrays, reads=0, calls=3, **config):
    """A function gives the CPU's results on a device; each call waits as often as it may."""
    jitted = sm.jit(function)
    with sm.config(**config):
        wanted = [np.asarray(y) for y in leaves(jitted(*arrays))]
        placed = [sm.asarray(x, device="cuda:0") for x in arrays]
        for _ in range(calls):  # on Python's way, then as a known call, then as a graph
            before = waits(fake)
            results = leaves(jitted(*placed))
            assert waits(fake) - before == reads
            for y, w in zip(results, wanted, strict=True):
                got = np.asarray(y.to_device("cpu"))
                assert got.dtype == w.dtype and got.shape == w.shape
                np.testing.assert_allclose(got, w, 2e-5, 2e-5)
            del results, y
            gc.collect()
        del placed
    gc.collect()
    fake.synchronize()
    return jitted


W = floats(8, 8) * 0.4


def scan(xs, w, h):
    def step(h, x):
        h = sm.tanh(h @ w + x)
        return h, (sm.sum(h, axis=1), h * 2)

    return sm.scan(step, h, xs)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_a_scan_of_steps_is_launched_again_and_again(fake, steps):
    check(fake, scan, floats(steps, 4, 8), W, floats(4, 8))
    assert not fake.live


def test_a_scan_in_reverse_stacks_where_its_slices_were(fake):
    def f(xs, w, h):
        return sm.scan(lambda h, x: (sm.tanh(h @ w + x), sm.max(h @ w)), h, xs, reverse=True)

    check(fake, f, floats(5, 3, 8), W, floats(3, 8))


def test_slices_between_vectors_are_copied(fake):
    """Rows of 3 and 5 floats begin anywhere in 16 bytes."""

    def f(xs, w, h):
        return sm.scan(lambda h, x: (sm.tanh(h @ w + x), x @ w), h, xs)

    check(fake, f, floats(6, 3), floats(3, 3), floats(3))
    check(fake, f, floats(6, 5), floats(5, 5), floats(5))


def test_carries_that_a_step_only_moves_are_copied(fake):
    def f(w, a, b, c):
        def step(carry, _):
            a, b, c = carry
            return (b, sm.tanh(a @ w), c), (a, c)

        return sm.scan(step, (a, b, c), None, 5)

    check(fake, f, W, floats(8, 8), floats(8, 8), floats(2))


def test_the_gradient_of_a_scan_runs_back_on_the_device(fake):
    def loss(xs, w, h):
        h, (sums, _) = scan(xs, w, h)
        return sm.sum(h * h) + sm.sum(sums)

    check(fake, sm.value_and_grad(loss, argnums=(0, 1, 2)), floats(4, 2, 8), W, floats(2, 8))


def test_a_loop_in_a_loop(fake):
    def f(xs, w, h):
        def step(h, x):
            inner, _ = sm.scan(lambda c, _: (sm.tanh(c @ w + x), None), h, None, 3)
            return inner, sm.sum(inner @ w, axis=0)

        return sm.scan(step, h, xs)

    check(fake, f, floats(4, 3, 8), W, floats(3, 8))


def test_a_counted_loop(fake):
    def f(w, x):
        return sm.fori_loop(2, 6, lambda i, c: sm.tanh(c @ w) + i, x)

    check(fake, f, W, floats(3, 8))


def test_a_while_loop_reads_its_condition_before_each_step(fake):
    def f(w, x):
        def body(c):
            n, x = c
            return n + 1, sm.tanh(x @ w) + 1

        return sm.while_loop(lambda c: c[0] < 4, body, (sm.asarray(0), x))

    check(fake, f, W, floats(3, 8), reads=5)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_runs_alone(fake, sign):
    def f(p, w, x):
        return sm.cond(sm.sum(p) > 0, lambda x: sm.tanh(x @ w), lambda x: (x @ w) @ w, x)

    check(fake, f, sign * np.ones(4, np.float32), W, floats(3, 8), reads=2)
