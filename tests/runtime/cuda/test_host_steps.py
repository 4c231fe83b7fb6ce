"""Parts of plans that the host drives on a device: loops of steps, branches, chunks of rows."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.cuda.fake_threads import fake_threads
from tests.runtime.cuda.fake_triton import FakeTriton
from tests.strategies.effort import NIGHT, effort

import smelt as sm
from smelt.compiler.device import use_compiler
from smelt.errors import CaptureError, DriverCallError, OutsideError
from smelt.fusion import loops as loop_plans
from smelt.runtime import sliced_plan
from smelt.runtime.cuda import stream
from smelt.runtime.cuda.buffer import copy_to_device, copy_to_host
from smelt.runtime.cuda.copies import copy_slices, fill
from smelt.runtime.cuda.executable import _fill_frame
from smelt.runtime.cuda.memory import driver_memory
from smelt.runtime.cuda.stream import launch_frame
from smelt.runtime.sliced_plan import Slices
from smelt.types.dtype import from_numpy, i16

pytestmark = NIGHT

is_one_program = loop_plans.is_one_program
RANDOM = np.random.default_rng(11)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def compiler(fake, monkeypatch):
    monkeypatch.setattr(loop_plans, "is_one_program", lambda step: False)
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


def test_a_scan_of_one_program_is_launched_once(fake, monkeypatch):
    monkeypatch.setattr(loop_plans, "is_one_program", is_one_program)
    check(fake, scan, floats(5, 4, 8), W, floats(4, 8), calls=1)
    assert fake.calls.count("cuLaunchKernel") == 1


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_a_scan_of_steps_is_launched_again_and_again(fake, steps):
    check(fake, scan, floats(steps, 4, 8), W, floats(4, 8))
    assert not fake.live


def test_a_long_loop_is_several_tables(fake, monkeypatch):
    monkeypatch.setattr(sliced_plan, "RUNS_OF_TABLE", 3)
    check(fake, scan, floats(7, 4, 8), W, floats(4, 8))


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


def test_a_counted_loop_becomes_one_graph(fake):
    """The loop's launches and copies are nodes of the plan's graph."""
    loop = sm.jit(scan)
    arrays = [sm.asarray(a, device="cuda:0") for a in (floats(5, 4, 8), W, floats(4, 8))]
    wanted = [np.asarray(y.to_device("cpu")) for y in leaves(loop(*arrays))]
    (recording,) = next(iter(loop.device_recordings.values()))
    executable, inputs = recording.program.executable, [a.buffer for a in arrays]
    ((sizes, p),) = executable._prepared.items()
    inputs = [inputs[k] for k in recording.trace.arguments]
    block, results = executable._allocate(p, inputs, 0, driver_memory(executable.device))
    frame = _fill_frame(p, inputs, results, block)
    for _ in range(4):
        with executable.device.current():
            launches = len(fake.launches)
            launch_frame(executable.device, p, frame, 0, executable._graphs_of(sizes))
    assert len(fake.launches) == launches  # the last one is replayed, as the one before it
    assert fake.calls.count("cuGraphInstantiateWithFlags") == 1
    assert fake.calls.count("cuGraphLaunch") == 3
    for y, w in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(copy_to_host(y), w)


def test_a_condition_is_not_read_while_a_graph_is_recorded(fake):
    loop = sm.jit(lambda w, x: sm.while_loop(lambda c: sm.sum(c) < 9, lambda c: c @ w + 1, x))
    w, x = (sm.asarray(a, device="cuda:0") for a in (W, floats(1, 8)))
    loop(w, x)
    device = x.buffer.device
    (recording,) = next(iter(loop.device_recordings.values()))
    (sizes,) = recording.program.executable._prepared
    stream = fake.new_stream()
    fake.synchronize()
    fake.begin_capture(stream)
    buffers = [replace(a.buffer, stream=stream) for a in (w, x)]
    with pytest.raises(CaptureError, match="reads the condition"):
        recording.program.executable.run(buffers, sizes, stream, driver_memory(device))
    assert fake.end_capture(stream)


def test_a_position_out_of_bounds_in_a_step_is_an_error_of_a_later_read(fake):
    @sm.jit
    def f(table, rows, w):
        return sm.scan(lambda h, i: (sm.tanh(h @ w + table[i]), None), table[0], rows)[0]

    table, w = (sm.asarray(a, device="cuda:0") for a in (floats(5, 8), W))
    good, bad = (sm.asarray(np.array(i), device="cuda:0") for i in ([0, 4, 2], [0, 5, 2]))
    f(table, good, w).to_device("cpu")
    y = f(table, bad, w)
    with pytest.raises(OutsideError, match="in a call on the GPU before"):
        y.to_device("cpu")
    f(table, good, w).to_device("cpu")


def test_a_launch_that_fails_in_a_loop_frees_what_the_call_took(fake, monkeypatch):
    monkeypatch.setattr(stream, "MAX_LAUNCHES", 0)  # a graph's replay launches nothing
    launch, launches = fake.cuLaunchKernel, []

    def fourth_fails(*arguments):
        launches.append(arguments)
        return 1 if len(launches) == 4 else launch(*arguments)

    fake.cuLaunchKernel = fourth_fails
    loop = sm.jit(scan)
    arrays = [sm.asarray(a, device="cuda:0") for a in (floats(5, 4, 8), W, floats(4, 8))]
    for k in range(3):  # on Python's way, where it fails and does not, then as a known call
        launches[:] = [()] * 4 if k == 1 else []
        gc.collect()
        fake.synchronize()
        before = {*fake.live}
        if k == 1:
            loop(*arrays)
        else:
            with pytest.raises(DriverCallError, match="cuLaunchKernel of k"):
                loop(*arrays)
        gc.collect()
        fake.synchronize()
        assert {*fake.live} == before


def test_a_recurrence_is_one_kernel(fake):
    """Its steps are a stream of the kernel's."""

    def f(xs, a, h):
        return sm.scan(lambda h, x: (h * a + x, h), h, xs)

    before = len(fake.launches)
    check(fake, f, floats(9, 40), floats(40), floats(40), calls=1)
    assert len(fake.launches) == before + 1


DTYPES = [np.float32, np.float64, np.int32, np.float16, np.int8]


@st.composite
def loops(draw):
    """A step on carries and slices of any dtypes and small shapes, and arrays for it.

    Carries swap, stay or are computed; results are slices, carries and new values.
    """
    shapes = st.lists(st.integers(1, 5), min_size=1, max_size=2).map(tuple)
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(shapes)
    count, steps = draw(st.integers(1, 3)), draw(st.integers(0, 5))
    sequences = [draw(st.sampled_from(DTYPES)) for _ in range(draw(st.integers(0, 2)))]
    following = draw(
        st.lists(st.sampled_from(["sum", "other", "same"]), min_size=count, max_size=count)
    )
    results = draw(st.lists(st.integers(0, count + len(sequences)), max_size=3))
    arrays = [RANDOM.integers(-3, 4, shape).astype(dtype) for _ in range(count)]
    arrays += [RANDOM.integers(-3, 4, (steps, *shape)).astype(d) for d in sequences]

    def function(*arrays):
        def step(carry, slices):
            new = {
                "sum": lambda k: sm.astype(
                    sm.flip(carry[k], axis=0) + carry[k - 1], carry[k].dtype
                ),
                "other": lambda k: carry[k - 1],
                "same": lambda k: carry[k],
            }
            values = [*carry, *slices, sm.sum(carry[0], axis=0)]
            after = tuple(new[how](k) for k, how in enumerate(following))
            return after, [values[k] for k in results]

        init, xs = tuple(arrays[:count]), list(arrays[count:])
        return sm.scan(step, init, xs, steps, reverse=reverse)

    reverse = draw(st.booleans())
    return function, arrays


@given(loops())
@effort(10)
def test_any_loop_gives_the_cpu_s_results(fake, case):
    function, arrays = case
    check(fake, function, *arrays, calls=2)


@pytest.mark.parametrize("refused", [False, True])
def test_pieces_at_any_distance_are_copied(fake, device, refused):
    """By one call of the driver, or a call for each piece where it refuses the distance."""
    if refused:
        fake.failing["cuMemcpy2DAsync_v2"] = 1
    x = np.arange(3 * 8 * 5, dtype=np.int16).reshape(3, 8, 5)
    memory = driver_memory(device)
    source = copy_to_device(x, i16, memory, 0)
    target = copy_to_device(np.zeros((3, 2, 5), np.int16), i16, memory, 0)
    pieces = Slices.along(x.shape, 1, 2, 2)
    with device.current():
        copy_slices(device, target.address, pieces.packed, source.address + 4 * 10, pieces, 0)
        fake.failing["cuMemcpy2DAsync_v2"] = 700
        with pytest.raises(DriverCallError, match="cuMemcpy2DAsync"):
            copy_slices(device, target.address, pieces.packed, source.address, pieces, 0)
    np.testing.assert_array_equal(copy_to_host(target), x[:, 4:6])


def test_threads_of_llvm_run_steps_too(fake):
    """Without Triton the host drives steps of maps and reductions in the same way."""

    def f(xs, h):
        def step(h, x):
            h = h + sm.sum(x * h, axis=1, keepdims=True)
            return h, sm.max(h, axis=1)

        return sm.scan(step, h, xs)

    with use_compiler(fake_threads()):
        check(fake, f, floats(4, 3, 7), floats(3, 7))


# --- chunks of rows -----------------------------------------------------------------------------


def chunks_of(jitted):
    """The chunks of the plans that a function has on a device."""
    recordings = [r for group in jitted.device_recordings.values() for r in group]
    bodies = [c.body for r in recordings for c in r.program.plan.clusters if c.body is not None]
    return [(*b.chunks.reads, *b.chunks.makes) for b in bodies]


def cross_entropy(axis):
    def loss(x, w):
        scores = x @ w if axis else w @ x
        top = sm.max(scores, axis=axis, keepdims=True)
        total = sm.log(sm.sum(sm.exp(scores - top), axis=axis, keepdims=True)) + top
        return sm.mean(total)

    return sm.value_and_grad(loss, argnums=(0, 1))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_limit_of_memory_gives_chunks_of_rows(fake, axis):
    """Rows along the first axis are passed by address, those along the second one are copied."""
    x, w = floats(300, 24), floats(24, 200)
    shapes = (x, w) if axis else (x.T.copy(), w.T.copy())
    limit = 230_000
    jitted = check(fake, cross_entropy(axis), *shapes, max_extra_memory=limit)
    (cuts,) = chunks_of(jitted)
    assert {c.axis for c in cuts} >= {-1, -2, 1 - axis}
    copies = fake.calls.count("cuMemcpy2DAsync_v2")
    assert (copies == 0) == bool(axis)
    x, w = (sm.asarray(a, device="cuda:0") for a in shapes)
    fake.synchronize()
    before = fake.most_used = fake.used
    with sm.config(max_extra_memory=limit):
        results = jitted(x, w)
    fake.synchronize()
    assert fake.most_used - before <= limit
    del results


def test_chunks_of_no_rows_become_a_graph(fake, monkeypatch):
    """Sums are initialised by the device, also where a call's graph is replayed."""
    monkeypatch.setattr(stream, "MIN_LAUNCHES", 1)
    loss = cross_entropy(1)
    jitted = sm.jit(lambda x, w: loss(x, w)[1][1])
    x, w = (sm.asarray(a, device="cuda:0") for a in (floats(300, 24), floats(24, 200)))
    with sm.config(max_extra_memory=230_000):
        out = jitted(x, w)
    (recording,) = next(iter(jitted.device_recordings.values()))
    executable, sizes = recording.program.executable, (0, 24, 200)
    inputs = [sm.asarray(floats(0, 24), device="cuda:0").buffer, w.buffer]
    for _ in range(4):
        executable.run(inputs, sizes, 0, driver_memory(executable.device), out=[out.buffer])
        np.testing.assert_array_equal(copy_to_host(out.buffer), np.zeros((24, 200), np.float32))
        jitted(x, w, out=out)
    assert executable._graphs_of(sizes)._graphs


@pytest.mark.parametrize("element", [np.int8(-3), np.float16(-np.inf), np.float32(2.5), 2**40, 0.1])
def test_elements_of_any_size_are_filled(fake, device, element):
    data = np.zeros(5, np.asarray(element).dtype)
    array = copy_to_device(data, from_numpy(data.dtype), driver_memory(device), 0)
    with device.current():
        fill(device, array.address + data.itemsize, element, 3, 0)
        fill(device, array.address, element, 0, 0)
    np.testing.assert_array_equal(copy_to_host(array), [0, *[element] * 3, 0])


def test_chunks_of_no_rows_are_the_identities(fake):
    f = cross_entropy(1)
    jitted = sm.jit(lambda x, w: f(x, w)[1])
    w = floats(24, 200)
    for rows in (300, 0):
        x = floats(rows, 24)
        with sm.config(max_extra_memory=230_000):
            results = jitted(*(sm.asarray(a, device="cuda:0") for a in (x, w)))
            wanted = jitted(x, w)
        for y, expected in zip(results, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(y.to_device("cpu")), expected, 2e-5, 1e-6)
    assert len(chunks_of(jitted)) == 1
