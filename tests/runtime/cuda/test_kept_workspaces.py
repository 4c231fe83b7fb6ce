"""Workspaces that follow from captured arrays alone: computed by the first call, kept after it."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.codegen.triton.device_source import compile_source, source_of_stages
from smelt.codegen.triton.pack_operands import pack_operands
from smelt.codegen.triton.schedule import choose_schedule
from smelt.codegen.triton.source import prepare, print_stage
from smelt.compiler.device import use_compiler
from smelt.errors import OutOfMemory

RANDOM = np.random.default_rng(11)
IMAGE = RANDOM.standard_normal((2, 6, 6, 4)).astype(np.float32)
WEIGHTS = RANDOM.standard_normal((8, 4, 3, 3)).astype(np.float32)


class PackingTriton(FakeTriton):
    """Compiler whose products read operands in the order of their tiles."""

    def prepare(self, kernel, sizes):
        launches = [x for k in prepare(kernel, sizes) for x in pack_operands(k, sizes)]
        stages = [print_stage(k, choose_schedule(k, sizes)) for k in launches]
        source = source_of_stages(kernel, stages, sizes)
        return repr(source), lambda arch: compile_source(source, arch, self)


@pytest.fixture(autouse=True)
def compiler():
    with use_compiler(PackingTriton()), sm.config(cache=False):
        yield


def on_device(x):
    return sm.asarray(x, device="cuda:0")


def host(y):
    return np.asarray(y.to_device("cpu"))


def layer(weights):
    return sm.jit(lambda x: sm.nn.conv(sm.permute_dims(x, (0, 3, 1, 2)), weights, padding=1) * 2)


def counts(fake, first):
    names = [x["symbol"] for x in fake.launches[first:]]
    return sum("packed" in n for n in names), len(names)


def test_captured_weights_are_packed_once(fake):
    f, x = layer(sm.asarray(WEIGHTS, copy=True)), on_device(IMAGE)
    first = host(f(x))
    np.testing.assert_allclose(first, layer(WEIGHTS)(IMAGE), 1e-5, 1e-5)
    assert counts(fake, 0) == (1, 2)
    before = len(fake.launches)
    for _ in range(3):
        np.testing.assert_array_equal(host(f(x)), first)
    assert counts(fake, before) == (0, 3)
    del f
    gc.collect()
    fake.synchronize()
    assert sorted(fake.live) == [x.buffer.address]


def test_other_sizes_share_what_is_kept(fake):
    f = layer(sm.asarray(WEIGHTS, copy=True))
    for images in (2, 3, 2):
        x = RANDOM.standard_normal((images, 6, 6, 4)).astype(np.float32)
        np.testing.assert_allclose(host(f(on_device(x))), layer(WEIGHTS)(x), 1e-5, 1e-5)
    assert counts(fake, 0) == (1, 4)


def test_arguments_and_shared_arrays_are_packed_in_every_call(fake):
    f = sm.jit(lambda x, w: sm.nn.conv(sm.permute_dims(x, (0, 3, 1, 2)), w, padding=1))
    x, w = on_device(IMAGE), on_device(WEIGHTS)
    for _ in range(3):
        f(x, w)
    fake.synchronize()
    assert counts(fake, 0) == (3, 6)
    first, shared = len(fake.launches), WEIGHTS.copy()  # NumPy may write to it
    g = layer(shared)
    g(x)
    shared[:] = 0
    assert not host(g(x)).any() and counts(fake, first)[0] == 2


def test_no_room_for_constants(fake):
    x = on_device(IMAGE)
    with sm.config(constants=WEIGHTS.nbytes - 1):
        f = layer(sm.asarray(WEIGHTS, copy=True))
        for _ in range(2):
            f(x)
    fake.synchronize()
    assert counts(fake, 0)[0] == 2
    limit = 2 * 8 * 6 * 6 * 4 + WEIGHTS.nbytes // 2
    with sm.config(max_extra_memory=limit), pytest.raises(OutOfMemory):
        layer(sm.asarray(WEIGHTS, copy=True))(x)


def test_another_stream_waits_for_the_first_call(fake):
    f = layer(sm.asarray(WEIGHTS, copy=True))
    x = on_device(IMAGE)
    first = host(f(x))
    other = on_device(IMAGE)
    fake.synchronize()
    other.buffer.stream = stream = fake.new_stream()
    waits = fake.calls.count("cuStreamWaitEvent")
    np.testing.assert_array_equal(host(f(other)), first)
    assert fake.calls.count("cuStreamWaitEvent") > waits and stream
