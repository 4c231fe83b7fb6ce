"""Arrays of a device with strides, and arrays of the caller as `out=`."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.fake_triton import FakeTriton

import smelt as sm
from smelt.compiler.device import use_compiler
from smelt.errors import AliasError, DeviceError, OutArgumentError, OutOfMemory, StructureError
from smelt.frontends.array import device_out
from smelt.frontends.array.device_array import DeviceArray
from smelt.frontends.array.device_out import as_host_array
from smelt.journal.facts import ArgumentCopied
from smelt.runtime.cuda.driver import use_library

RANDOM = np.random.default_rng(5)
WAITS = ("cuStreamSynchronize", "cuEventSynchronize")


@pytest.fixture(autouse=True)
def compiler(fake):
    with use_compiler(FakeTriton()), sm.config(cache=False):
        yield


def put(x):
    return sm.asarray(x, device="cuda:0")


def get(x):
    return np.asarray(x.to_device("cpu"))


def view(array, like, x):
    """The part of a device's array that `like` is of the host's array `x`, which it copies."""
    (start, _), (first, _) = (np.lib.array_utils.byte_bounds(a) for a in (x, like))
    low = sum((n - 1) * s for n, s in zip(like.shape, like.strides, strict=True) if s < 0)
    strides = tuple(s // x.itemsize for s in like.strides)
    address = array.buffer.address + first - start - low
    return DeviceArray.of(
        replace(array.buffer, address=address, shape=like.shape, strides=strides, owner=array)
    )


@st.composite
def views(draw):
    """An array, and a view of it: steps forward and back, permuted axes, a shift."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    x = np.arange(np.prod(shape), dtype=draw(st.sampled_from([np.float32, np.int8, np.float64])))
    x = x.reshape(shape)
    steps = st.sampled_from([-3, -2, -1, 1, 2, 3])
    y = x[tuple(slice(draw(st.integers(0, n - 1)), None, draw(steps)) for n in shape)]
    return x, y.transpose(draw(st.permutations(range(y.ndim))))


RARE = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(views(), st.booleans())
@RARE
def test_views_are_copied_before_programs_read_them(fake, case, repeats):
    x, part = case
    repeats = repeats and 0 not in part.strides
    if repeats:
        part = np.broadcast_to(part, (3, *part.shape))
    array = put(x)
    waits = sum(fake.calls.count(c) for c in WAITS)
    y = sm.jit(lambda x: x + 1)(view(array, part, x))
    assert sum(fake.calls.count(c) for c in WAITS) == waits
    np.testing.assert_array_equal(get(y), part + np.ones((), part.dtype))


@given(views())
@RARE
def test_views_are_written(fake, case):
    """Elements around those of `out=` stay."""
    x, part = case
    array, values = put(x), put(np.ascontiguousarray(part))
    target = view(array, part, x)
    double = sm.jit(lambda x: x + x)
    assert double(values, out=target) is target
    part[...] = part + part
    np.testing.assert_array_equal(get(array), x)


@given(views())
@RARE
def test_views_are_read_by_the_host(fake, case):
    x, part = case
    np.testing.assert_array_equal(get(view(put(x), part, x)), part)


def test_views_that_reach_beyond_32_bits_are_copied_by_the_driver(fake, monkeypatch):
    """Offsets of the kernel that copies others would overflow."""
    monkeypatch.setattr(device_out, "MAX_DEVICE_ELEMENTS", 20)
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    double = sm.jit(lambda x: x * 2)
    for part in (x.T, x[::-1, 1:3], x[..., 2], x[::2, ::-3, ::4]):
        launches = len(fake.launches)
        np.testing.assert_array_equal(get(double(view(put(x), part, x))), 2 * part)
        assert len(fake.launches) == launches + 1


def test_a_copied_argument_is_in_the_journal_once(fake):
    x = RANDOM.standard_normal((6, 50)).astype(np.float32)
    array = put(x)
    double = sm.jit(lambda x: x * 2)
    for _ in range(3):
        np.testing.assert_array_equal(get(double(view(array, x.T, x))), 2 * x.T)
        np.testing.assert_array_equal(get(double(view(array, x[1:, 1:], x))), 2 * x[1:, 1:])
    facts = [
        fact
        for group in double.device_recordings.values()
        for recording in group
        for fact in recording.program.journal.of(ArgumentCopied)
    ]
    assert [(f.argument, f.device, f.bytes) for f in facts] == [("x", "cuda:0", 1200)]
    assert facts[0].reason == "it has strides (1, 50) for shape (50, 6)"


def test_a_view_is_no_argument_that_native_calls_answer(fake):
    x = RANDOM.standard_normal((6, 6)).astype(np.float32)
    array = put(x)
    double = sm.jit(lambda x: x * 2)
    for part in (x, x, x.T, x.T, x):
        np.testing.assert_array_equal(get(double(view(array, part, x))), 2 * part)


def test_copies_count_as_memory_of_the_call(fake):
    x = RANDOM.standard_normal((64, 50)).astype(np.float32)
    array, double, y = put(x), sm.jit(lambda x: x * 2), put(np.zeros_like(x.T))
    strided = view(array, x.T, x)
    for limit, is_enough in ((2 * x.nbytes, True), (2 * x.nbytes - 1, False)):
        with sm.config(max_extra_memory=limit):
            if is_enough:
                np.testing.assert_array_equal(get(double(strided)), 2 * x.T)
                continue
            launches = len(fake.launches)
            with pytest.raises(OutOfMemory, match=r"largest result takes"):
                double(strided)
            assert len(fake.launches) == launches  # nothing is copied either
            double(array)
            double(strided, out=y)  # the result needs none
    np.testing.assert_array_equal(get(y), 2 * x.T)


def test_a_report_for_a_device_counts_copies(fake):
    x = np.ones((64, 50), np.float32)
    part = np.ones((64, 100), np.float32)[:, ::2]

    def f(x):
        return x + sm.sum(x)

    with sm.config(device_code="off"):
        plain, strided = (sm.explain(f, a, target="h100").data.memory for a in (x, part))
        on_a_cpu = sm.explain(f, part, target="neon").data.memory
    assert strided.temp - plain.temp == x.nbytes > 0
    assert on_a_cpu.temp < x.nbytes


def test_copies_are_freed_behind_the_kernels(fake):
    x = RANDOM.standard_normal((6, 50)).astype(np.float32)
    array = put(x)
    double = sm.jit(lambda x: x * 2)
    results = [double(view(array, x.T, x)) for _ in range(3)]
    for y in results:
        np.testing.assert_array_equal(get(y), 2 * x.T)
    del results, y
    gc.collect()
    fake.synchronize()
    assert list(fake.live) == [array.buffer.address]


def test_a_loop_reads_views(fake):
    xs, w = (RANDOM.standard_normal(s).astype(np.float32) for s in ((3, 8, 5), (8, 8)))

    def f(xs, w):
        return sm.scan(lambda h, x: (sm.tanh(h @ w + x), h), xs[0], xs)

    part = xs.transpose(2, 0, 1)
    for y, wanted in zip(sm.jit(f)(view(put(xs), part, xs), put(w)), f(part, w), strict=True):
        np.testing.assert_allclose(get(y), np.asarray(wanted), 1e-5, 1e-5)


# --- out= ---------------------------------------------------------------------------------------


X = RANDOM.standard_normal((6, 50)).astype(np.float32)


def test_results_are_computed_where_they_belong(fake):
    f = sm.jit(lambda x: (x * 2, {"sum": sm.sum(x, axis=1)}))
    x, y, total = put(X), put(np.zeros_like(X)), put(np.zeros(6, np.float32))
    calls = len(fake.calls)
    for _ in range(2):
        out = (y, {"sum": total})
        assert f(x, out=out) is out
    calls = fake.calls[calls:]
    assert not {"cuMemcpyDtoDAsync_v2", "cuMemAllocAsync", *WAITS} & {*calls}
    np.testing.assert_array_equal(get(y), 2 * X)
    np.testing.assert_allclose(get(total), X.sum(1), 1e-5)


def test_an_argument_may_be_out(fake):
    x = put(X)
    f = sm.jit(lambda x: sm.flip(x, axis=1) + x)
    assert f(x, out=x) is x
    np.testing.assert_array_equal(get(x), X[:, ::-1] + X)
    y = put(X)
    swap = sm.jit(lambda x, y: (y, x))
    swap(x, y, out=(x, y))
    np.testing.assert_array_equal(get(x), X)
    np.testing.assert_array_equal(get(y), X[:, ::-1] + X)
    z = put(np.zeros_like(X))
    sm.jit(lambda x: (x + 1, x * 1))(x, out=(x, z))
    np.testing.assert_array_equal(get(z), X)
    np.testing.assert_array_equal(get(x), X + 1)


def test_a_result_that_is_an_argument_or_a_constant_is_written(fake):
    table = sm.asarray(np.arange(6, dtype=np.float32), copy=True)
    x, outs = put(X), [put(np.zeros_like(X)), put(np.zeros(6, np.float32)), put(np.zeros(()))]
    sm.jit(lambda x, k: [x, table, k])(x, 2.5, out=outs)
    np.testing.assert_array_equal(get(outs[0]), X)
    np.testing.assert_array_equal(get(outs[1]), np.arange(6))
    assert float(outs[2]) == 2.5


def test_two_results_of_one_value_are_written_twice(fake):
    x, outs = put(X), [put(np.zeros_like(X)) for _ in range(2)]

    def f(x):
        y = sm.exp(x)
        return [y, y]

    sm.jit(f)(x, out=outs)
    for y in outs:
        np.testing.assert_allclose(get(y), np.exp(X), 1e-6)


def test_a_loop_writes_where_its_results_belong(fake):
    w = RANDOM.standard_normal((8, 8)).astype(np.float32)
    f = sm.jit(lambda h, w: sm.scan(lambda h, _: (sm.tanh(h @ w), h), h, None, 4))
    h = w[:3]
    wanted = [np.asarray(y) for y in f(h, w)]
    outs = tuple(put(np.zeros(y.shape, y.dtype)) for y in wanted)
    for _ in range(2):
        f(put(h), put(w), out=outs)
    for y, expected in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(get(y), expected, 1e-5, 1e-5)


def test_wrong_arrays_are_refused_before_anything_runs(fake):
    f = sm.jit(lambda x: x * 2)
    x = put(X)
    launches = len(fake.launches)
    for wrong, kind, message in [
        (put(X[:5]), OutArgumentError, r"is f32\[6,50\], out= is f32\[5,50\]"),
        (put(X.astype(np.float64)), OutArgumentError, r"out= is f64\[6,50\]"),
        (np.zeros_like(X), DeviceError, "out= is on the CPU"),
        ((put(X),), StructureError, "out="),
        ("x", OutArgumentError, "str"),
        (view(x, np.broadcast_to(X[:1], X.shape), X), OutArgumentError, "share memory"),
    ]:
        with pytest.raises(kind, match=message):
            f(x, out=wrong)
    long = np.zeros(310, np.float32)
    whole = put(long)
    first, second = (view(whole, long[k : k + 300], long) for k in (0, 8))
    with pytest.raises(AliasError, match="an input"):
        f(first, out=second)
    with pytest.raises(AliasError, match="another"):
        sm.jit(lambda x: (x * 2, x + 1))(put(long[:300]), out=(first, second))
    assert len(fake.launches) == launches
    with use_library(FakeDriver(devices=2)):
        x, y = (sm.asarray(X, device=f"cuda:{k}") for k in range(2))
        with pytest.raises(DeviceError, match="out= is on cuda:1"):
            f(x, out=y)


def test_another_stream_s_array_is_written_in_order(fake):
    stream = fake.new_stream()
    x, y = put(X), put(np.zeros_like(X))
    fake.synchronize()
    y.buffer.stream = stream
    sm.jit(lambda x: x * 2)(x, out=y)
    np.testing.assert_array_equal(get(y), 2 * X)


def test_what_describes_an_array_of_a_device_has_its_layout():
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    for part in (x, x[1:, ::2, 3], x.T, x[::-1, :, ::-2], x[:, :0]):
        described = as_host_array(view(put(x), part, x).buffer)
        assert (described.shape, described.dtype) == (part.shape, part.dtype)
        assert part.size == 0 or described.strides == part.strides
        assert repr([described]) == f"[<float32 {part.shape} on a device>]"  # reads no element
