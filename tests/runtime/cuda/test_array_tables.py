"""Elementwise kernels of many arrays in one launch: tables of arrays, run by the fake driver."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from tests.runtime.cuda.fake_triton import FakeTriton
from tests.strategies.graphs import graphs

import smelt as sm
from smelt.compiler.device import compile_for_device, use_compiler
from smelt.errors import SmeltError
from smelt.fusion import loops as loop_plans
from smelt.kernel import flat_kernels as flat_module
from smelt.kernel.flat_kernels import flat_kernels, flat_map
from smelt.kernel.interp import run
from smelt.kernel.text import parse
from smelt.runtime.cuda import array_tables
from smelt.runtime.cuda import stream as graphs_of_plans
from smelt.runtime.cuda.array_tables import ArrayTables, families, launches_of
from smelt.types.dtype import f16, f32, i32
from smelt.types.expr import size, sizes_of

RANDOM = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def compiler():
    compiler = FakeTriton()
    with use_compiler(compiler), sm.config(cache=False):
        yield compiler


def arrays_of(shapes):
    return [RANDOM.standard_normal(s).astype(np.float32) for s in shapes]


def on_device(arrays):
    return [sm.asarray(a, device="cuda:0") for a in arrays]


def host(y):
    return np.asarray(y.to_device("cpu"))


def updates(*arrays):
    half = len(arrays) // 2
    return [p - 0.1 * g for p, g in zip(arrays[:half], arrays[half:], strict=True)]


def adam(rate, *arrays):
    count = len(arrays) // 4
    p, g, m, v = (arrays[k * count : (k + 1) * count] for k in range(4))
    moments = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
    squares = [0.99 * a + 0.01 * b * b for a, b in zip(v, g, strict=True)]
    steps = zip(p, moments, squares, strict=True)
    return [a - rate * b / (sm.sqrt(c) + 1e-8) for a, b, c in steps], moments, squares


def flat(results):
    return [y for part in results for y in (part if isinstance(part, list) else [part])]


def check(function, arrays, results):
    wanted = flat(function(*arrays))
    for y, w in zip(flat(results), wanted, strict=True):
        np.testing.assert_allclose(host(y), np.asarray(w), 1e-5, 1e-6)


def launched(fake, first=0):
    return Counter(launch["symbol"] for launch in fake.launches[first:])


def test_a_hundred_small_arrays_are_one_launch_and_its_table(fake):
    arrays = arrays_of([(50 + 7 * k,) for k in range(100)] * 2)
    f = sm.jit(updates)
    given_ = on_device(arrays)
    check(updates, arrays, f(*given_))
    assert launched(fake) == {"smelt_fill": launches_of(100, [3]) - 1, "kernel_k": 1}
    before = len(fake.launches)
    check(updates, arrays, f(*given_))  # the native call fills the table
    assert len(fake.launches) - before == 3


def test_arrays_of_any_shape_share_a_launch(fake):
    shapes = [(4, 5), (5,), (16, 16), (1, 7), (2, 3, 4), (3, 1, 2)] * 6
    arrays = [np.float32(0.01), *(abs(a) for a in arrays_of(shapes * 4))]
    given_ = on_device([np.asarray(a) for a in arrays])
    check(adam, arrays, sm.jit(adam)(*given_))
    assert launched(fake)["kernel_k"] == 1


def test_tables_have_a_limit_and_empty_arrays_no_programs(fake, monkeypatch):
    monkeypatch.setattr(array_tables, "MAX_ARRAYS", 32)
    shapes = [(k % 9 * 5,) for k in range(60)]
    arrays = arrays_of(shapes * 2)
    check(updates, arrays, sm.jit(updates)(*on_device(arrays)))
    fills = [launches_of(n, [3]) - 1 for n in (32, sum(s != (0,) for s in shapes) - 32)]
    assert launched(fake) == {"kernel_k": 2, "smelt_fill": sum(fills)}


def test_more_than_a_thousand_arrays(fake):
    arrays = arrays_of([(2,)] * 1020)

    def program(*xs):
        return [x + 1 for x in xs]

    check(program, arrays, sm.jit(program)(*on_device(arrays)))
    assert launched(fake) == {"kernel_k": 1, "smelt_fill": launches_of(1020, [2]) - 1}


def test_only_empty_arrays_launch_nothing(fake):
    arrays = arrays_of([(0,)] * 40)
    assert all(host(y).size == 0 for y in sm.jit(updates)(*on_device(arrays)))
    assert not fake.launches


def test_large_arrays_are_read_in_vectors_or_launched_alone(fake, monkeypatch):
    monkeypatch.setattr(array_tables, "MIN_VECTORS", 64)
    monkeypatch.setattr(array_tables, "MAX_MAPPED_ELEMENTS", 500)
    shapes = [(64,), (128,), (65,), (7,), (501,), (512,)] * 5
    arrays = arrays_of(shapes * 2)
    check(updates, arrays, sm.jit(updates)(*on_device(arrays)))
    assert launched(fake)["kernel_k"] == 2 + 10  # arrays of whole vectors, others, large ones


def test_a_compiler_without_tables_launches_one_by_one(fake, compiler):
    compiler.has_tables = False
    arrays = arrays_of([(5 + k,) for k in range(9)] * 2)
    check(updates, arrays, sm.jit(updates)(*on_device(arrays)))
    assert launched(fake) == {"kernel_k": 9}


def test_parameters_are_updated_in_place(fake):
    shapes = [(k % 5 + 1, 6) for k in range(20)]
    arrays = arrays_of(shapes * 2)
    f, given_ = sm.jit(updates), on_device(arrays)
    parameters = given_[:20]
    for _ in range(4):
        f(*given_, out=parameters)
    for p, a, g in zip(parameters, arrays[:20], arrays[20:], strict=True):
        np.testing.assert_allclose(host(p), a - 0.4 * g, 1e-5, 1e-5)
    assert launched(fake)["kernel_k"] == 4


def test_donated_arrays_give_their_memory(fake):
    arrays = arrays_of([(6, k % 5 + 1) for k in range(20)] * 2)
    f = sm.jit(updates, donate=tuple(range(20)))
    given_ = on_device(arrays)
    places = {x.buffer.address for x in given_[:20]}
    results = f(*given_)
    assert {y.buffer.address for y in results} == places
    check(updates, arrays, results)


def test_graphs_replay_the_addresses_that_they_have(fake, monkeypatch):
    """Calls read one of two sets of arrays, and write one of two."""
    monkeypatch.setattr(graphs_of_plans, "MIN_LAUNCHES", 2)
    shapes = [(k % 7 + 1,) for k in range(20)]
    every = [arrays_of(shapes * 2) for _ in range(2)]
    sets = [(x, on_device(x), on_device(x[:20])) for x in every]
    f = sm.jit(updates)
    for k in range(24):
        arrays, given_, _ = sets[k // 6 % 2]
        results = f(*given_, out=sets[k // 12][2])
        check(updates, arrays, results)
    assert "cuGraphLaunch" in fake.calls


def test_steps_of_a_loop_have_tables(fake, monkeypatch):
    monkeypatch.setattr(loop_plans, "is_one_program", lambda step: False)
    arrays = arrays_of([(k % 3 + 2, 4) for k in range(8)])

    def train(*xs):
        def step(carry, _):
            return tuple(x * 0.5 + 1 for x in carry), None

        return list(sm.scan(step, xs, None, 5)[0])

    results = sm.jit(train)(*on_device(arrays))
    for y, w in zip(results, sm.jit(train)(*arrays), strict=True):
        np.testing.assert_allclose(host(y), np.asarray(w), 1e-6)
    assert launched(fake)["smelt_fill"]


def test_code_of_tables_comes_from_the_cache_for_other_sizes(fake, compiler, tmp_path):
    with sm.config(cache=True, cache_dir=tmp_path):
        for count, step in ((20, 1), (30, 3), (32, 2)):
            arrays = arrays_of([(5 + step * k,) for k in range(count)] * 2)
            check(updates, arrays, sm.jit(updates)(*on_device(arrays)))
    assert compiler.compiled == [("kernel_k", "sm_90")]


# ---- reductions ----------------------------------------------------------------------------------


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks of few elements, of which some arrays have several, and more than are merged once."""
    for name, n in (("CHUNK", 64), ("LOADED", 16), ("MERGED", 4)):
        monkeypatch.setattr(flat_module, name, n)


SHAPES = [(k % 9 * 40 + 2, k % 3 + 1) for k in range(20)]


def norms(*arrays):
    return [sm.sqrt(sm.sum(x * x)) for x in arrays]


def clipped(*arrays):
    """Gradient descent whose gradients have at most a norm of 1 together."""
    half = len(arrays) // 2
    total = sm.sqrt(sum(sm.sum(g * g) for g in arrays[half:]))
    scale = sm.minimum(1 / (total + 1e-6), 1.0)
    return [p - 0.1 * scale * g for p, g in zip(arrays[:half], arrays[half:], strict=True)]


def lamb(*arrays):
    """Steps of each array by the ratio of its norm and its update's, and new averages."""
    third = len(arrays) // 3
    p, g, m = (arrays[k * third : (k + 1) * third] for k in range(3))
    means = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
    updates = [b + 0.01 * a for a, b in zip(p, means, strict=True)]
    ratios = [n / (u + 1e-6) for n, u in zip(norms(*p), norms(*updates), strict=True)]
    return [a - 0.1 * r * u for a, r, u in zip(p, ratios, updates, strict=True)], means


def unscaled(inverse, *arrays):
    scaled = [x * inverse for x in arrays]
    wrong = [sm.any(~sm.isfinite(x)) for x in scaled]
    return scaled, [sm.any(sm.stack(wrong))]


def test_norms_of_many_arrays_are_two_launches_and_their_tables(fake, short_chunks):
    arrays = arrays_of(SHAPES)
    f, given_ = sm.jit(norms), on_device(arrays)
    check(norms, arrays, f(*given_))
    assert launched(fake) == {"smelt_fill": launches_of(20, [2, 2]) - 2, "kernel_k": 2}
    before = len(fake.launches)
    check(norms, arrays, f(*given_))  # the native call
    assert len(fake.launches) - before == launches_of(20, [2, 2])


def test_reductions_have_the_same_bits_in_every_call(fake, short_chunks):
    """The emulation runs programs in random order."""
    f, given_ = sm.jit(norms), on_device(arrays_of(SHAPES))
    first = [host(y).tobytes() for y in f(*given_)]
    assert all([host(y).tobytes() for y in f(*given_)] == first for _ in range(3))


def test_clipping_by_a_common_norm(fake, short_chunks):
    arrays = arrays_of(SHAPES * 2)
    check(clipped, arrays, sm.jit(clipped)(*on_device(arrays)))
    assert sum(n for name, n in launched(fake).items() if name != "smelt_fill") == 4


def test_arrays_are_stored_beside_their_reductions(fake, short_chunks):
    arrays = arrays_of(SHAPES * 3)
    check(lamb, arrays, sm.jit(lamb)(*on_device(arrays)))
    assert launched(fake)["kernel_k"] <= 6  # an update is stored, or computed again


def test_reductions_of_several_kinds(fake, short_chunks):
    arrays = arrays_of(SHAPES)
    arrays[7][3, 0] = np.inf
    numbers = np.float32(0.5), *arrays
    given_ = on_device([np.asarray(x) for x in numbers])
    check(unscaled, numbers, sm.jit(unscaled)(*given_))

    def extremes(*xs):
        return [sm.max(x) - sm.min(abs(x)) for x in xs]

    check(extremes, arrays, sm.jit(extremes)(*given_[1:]))
    assert launched(fake)["kernel_k"] >= 4


def test_means_of_many_arrays_know_their_elements(fake, short_chunks):
    def rms(*xs):
        return [x / sm.sqrt(sm.mean(x * x) + 1e-6) for x in xs]

    arrays = arrays_of(SHAPES)
    check(rms, arrays, sm.jit(rms)(*on_device(arrays)))
    assert launched(fake)["kernel_k"] == 3


def test_empty_arrays_have_a_sum(fake):
    arrays = arrays_of([(k % 4 * 3,) for k in range(16)])
    check(norms, arrays, sm.jit(norms)(*on_device(arrays)))


def test_parameters_are_clipped_in_place(fake, short_chunks):
    arrays = arrays_of(SHAPES * 2)
    f, given_ = sm.jit(clipped), on_device(arrays)
    for _ in range(3):
        f(*given_, out=given_[:20])
    wanted = arrays
    for _ in range(3):
        wanted = [*(np.asarray(x) for x in clipped(*wanted)), *arrays[20:]]
    for y, w in zip(given_[:20], wanted, strict=False):
        np.testing.assert_allclose(host(y), w, 1e-5, 1e-6)


def test_graphs_of_reductions_have_the_addresses_of_their_calls(fake, short_chunks, monkeypatch):
    monkeypatch.setattr(graphs_of_plans, "MIN_LAUNCHES", 2)
    every = [arrays_of(SHAPES * 2) for _ in range(2)]
    sets = [(x, on_device(x), on_device(x[:20])) for x in every]
    f = sm.jit(clipped)
    for k in range(24):
        arrays, given_, _ = sets[k // 6 % 2]
        check(clipped, arrays, f(*given_, out=sets[k // 12][2]))
    assert "cuGraphLaunch" in fake.calls


@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=4, max_size=20),
    kinds=st.lists(st.integers(0, 2), min_size=1, max_size=3),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_arrays_give_the_cpu_s_results(fake, shapes, kinds):
    """Each array has one of a few formulas."""
    formulas = [lambda x: x * 2 + 1, lambda x: sm.where(x > 0, x, x * x), lambda x: x - 0.5]

    def program(*xs):
        return [formulas[kinds[k % len(kinds)]](x) for k, x in enumerate(xs)]

    arrays = arrays_of(shapes)
    results = sm.jit(program)(*on_device(arrays))
    for y, w in zip(results, sm.jit(program)(*arrays), strict=True):
        np.testing.assert_allclose(host(y), np.asarray(w), 1e-6)


REDUCED = (
    lambda x: [sm.sum(x * x)],
    lambda x: [sm.max(abs(x)), x * 2],
    lambda x: [sm.any(x > 1), sm.sum(x)],
    lambda x: [sm.mean(x) - 1],
    lambda x: [x / (1 + sm.sum(abs(x)))],
)
DTYPES = (np.float32, np.float16, np.int32)


@given(
    shapes=st.lists(st.lists(st.integers(1, 40), max_size=2).map(tuple), min_size=8, max_size=16),
    kinds=st.lists(
        st.tuples(st.sampled_from(REDUCED), st.sampled_from(DTYPES)), min_size=1, max_size=3
    ),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_reductions_give_the_cpu_s_results(fake, short_chunks, shapes, kinds):
    """Each array has one of a few formulas and types."""

    def program(*xs):
        return [y for k, x in enumerate(xs) for y in kinds[k % len(kinds)][0](x)]

    arrays = [(3 * x).astype(kinds[k % len(kinds)][1]) for k, x in enumerate(arrays_of(shapes))]
    before = len(fake.launches)
    results = sm.jit(program)(*on_device(arrays))
    event("a table" if launched(fake, before)["smelt_fill"] else "no table")
    for y, w in zip(results, sm.jit(program)(*arrays), strict=True):
        tolerance = 2e-3 if y.dtype == sm.float16 else 1e-4
        np.testing.assert_allclose(host(y), np.asarray(w), tolerance, tolerance)


@given(graphs(max_nodes=6, dtypes=(f32, f16, i32), symbolic=False, flavours=["uniform"]))
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_flat_kernels_compute_what_their_kernel_does(device, case):
    graph, arrays = case
    try:
        program = compile_for_device(graph, {}, device)
    except SmeltError:  # a library call
        assume(False)
    values = dict(zip(program.plan.graph.inputs, arrays, strict=True))
    for cluster, kernel in program.clustered_kernels:
        assume(all(x in values for x in cluster.inputs))
        read = [np.asarray(values[x]) for x in cluster.inputs]
        results = run(kernel, read)
        values |= {n: results[p.name] for n, p in zip(cluster.outputs, kernel.outputs, strict=True)}
        every = flat_kernels(kernel)
        event(f"{len(every)} flat kernels")
        for p, y in zip(kernel.outputs, run_flat(every, read, results, kernel), strict=True):
            w = results[p.name]
            equal = np.testing.assert_array_equal if len(every) < 2 else close
            equal(np.reshape(y, w.shape), w)


def close(y, w):
    """Compare sums in another order."""
    np.testing.assert_allclose(y.astype(np.float64), w.astype(np.float64), 1e-2, 1e-2)


def run_flat(every, read, results, kernel):
    """Return what flat kernels compute one after another; the results if there are none."""
    values = {k: x.reshape(-1) if x.ndim else x for k, x in enumerate(read)}
    wanted = [results[p.name] for p in kernel.outputs]
    if not every:
        return wanted
    elements = next(x.size for x in (*read, *wanted) if x.ndim)
    for flat, columns in every:
        inputs, outputs = columns[: len(flat.inputs)], columns[len(flat.inputs) :]
        names = dict.fromkeys((n for a in flat.axes for n in sizes_of(a.extent)), elements)
        computed = run(flat, [values[c] for c in inputs], names)
        values |= {c: computed[p.name] for c, p in zip(outputs, flat.outputs, strict=True)}
    return [values[len(read) + k] for k in range(len(wanted))]


@pytest.mark.parametrize(
    "body",
    [
        "k(x: f32[n,m]) -> y: f32[m,n]\n  grid n, m\n  y[m,n] = x[n,m]",
        "k(x: f32[n,m], b: f32[m]) -> y: f32[n,m]\n  grid n, m\n  y[n,m] = x[n,m] + b[m]",
        "k(x: f32[n]) -> y: f32[n]\n  grid n\n  y[n] = x[n] * f32(n)",
        "k(x: f32[n,n]) -> y: f32[n,n]\n  axis m in n\n  grid n, m\n  y[n,m] = x[n,m] + x[m,n]",
        "k(x: f32[n,m]) -> y: f32[n]\n  grid n\n  y[n] = sum(x[n,m] over m)",
        "k(x: f32[]) -> y: f32[n]\n  grid n\n  y[n] = x[] + sum(x[] over n)",
    ],
)
def test_other_kernels_are_no_flat_maps(body):
    assert flat_map(parse(f"kernel {body}\n")) is None


@pytest.mark.parametrize(
    "body",
    [
        "k(x: f32[n,m]) -> y: f32[n]\n  grid n\n  y[n] = sum(x[n,m] over m)",
        "k(x: f32[n]) -> y: i64[]\n  v = argmax(x[n] over n)\n  y[] = v",
        "k(x: f32[n], b: f32[m]) -> y: f32[]\n  v = sum(x[n] over n)\n  y[] = v + sum(b[m] over m)",
        "k(x: f32[n]) -> y: f32[n]\n  v = sum(x[n] over n)\n  y[n] = x[n] - v",
        "k(x: f32[n,m], b: f32[m]) -> y: f32[]\n  v = sum(x[n,m] + b[m] over n, m)\n  y[] = v",
        "k(x: f32[n]) -> y: f32[]\n  v = sum(x[n] * f32(n) over n)\n  y[] = v",
        "k(x: f32[n]) -> y: f32[]\n  v = sum(x[n] over n)\n  w = sum(x[n] - v over n)\n  y[] = w",
        "k(x: f32[n,n]) -> y: f32[]\n  axis m in n\n  y[] = sum(x[n,m] * x[m,n] over n, m)",
    ],
)
def test_other_reductions_are_not_flat(body):
    assert flat_kernels(parse(f"kernel {body}\n")) == ()


def test_a_square_may_be_read_in_any_order():
    """Every element is read where it is written, so that the order is of no importance."""
    body = "k(x: f32[n,n]) -> y: f32[n,n]\n  axis m in n\n  grid n, m\n  y[m,n] = x[m,n] + 1\n"
    assert flat_map(parse(f"kernel {body}")) is not None


def test_a_table_has_rows_of_every_array():
    grid = (size("n") + 3) // 4
    (table,) = ArrayTables.make([5, 0, 9], [(0, 4), (1, 5), (2, 6)], [(0, 1)], [grid], []).tables
    assert (table.programs, table.members) == (5, 4)
    assert table.numbers == (0, 2, 2, 5, 2, 2, 5, 2**31 - 1, 5, 0, 9, 0)
    addresses = [(0, 0), (0, 1), (0, 2), (0, -1), (0, 4), (0, 5), (0, 6), (0, -1)]
    assert table.words()[12:] == addresses


def test_a_table_is_worth_its_launches():
    assert families([(k, "f", 8, [3]) for k in range(3)]) == [[0], [1], [2]]
    assert families([(k, "f", 8, [3]) for k in range(4)]) == [[0, 1, 2, 3]]
    kinds = [(k, "fg"[k % 2], 8, [3]) for k in range(8)]
    assert families(kinds) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert families([(k, "", 8, [3]) for k in range(9)]) == [[k] for k in range(9)]


def test_a_plan_says_which_kernels_are_flat_maps(fake, device):
    trace = sm.jit(lambda x, y: (x * 2, y + 1, sm.sum(x))).lower(*arrays_of([(3, 4), (5,)])).trace
    program = compile_for_device(trace.graph, trace.hints, device)
    stored = type(program.recipe).from_data(program.recipe.to_data())
    assert stored == program.recipe
    assert [bool(use.flat) for use in stored.kernels].count(True) >= 1
