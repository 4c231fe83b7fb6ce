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
from smelt.device import compile_for_device, use_compiler
from smelt.errors import SmeltError
from smelt.kernel.flat_map import flat_map
from smelt.kernel.interp import run
from smelt.kernel.text import parse
from smelt.runtime.cuda import array_tables
from smelt.runtime.cuda import graphs as graphs_of_plans
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
    monkeypatch.setattr(array_tables, "MOST_ARRAYS", 32)
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
    monkeypatch.setattr(array_tables, "LEAST_VECTORS", 64)
    monkeypatch.setattr(array_tables, "MOST_TABLE_ELEMENTS", 500)
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
    monkeypatch.setattr(graphs_of_plans, "LEAST_LAUNCHES", 2)
    shapes = [(k % 7 + 1,) for k in range(20)]
    every = [arrays_of(shapes * 2) for _ in range(2)]
    sets = [(x, on_device(x), on_device(x[:20])) for x in every]
    f = sm.jit(updates)
    for k in range(24):
        arrays, given_, _ = sets[k // 6 % 2]
        results = f(*given_, out=sets[k // 12][2])
        check(updates, arrays, results)
    assert "cuGraphLaunch" in fake.calls


def test_steps_of_a_loop_have_tables(fake):
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


@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=4, max_size=40),
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


@given(graphs(max_nodes=6, dtypes=(f32, f16, i32), symbolic=False, flavours=["uniform"]))
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_flat_map_computes_what_its_kernel_does(device, case):
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
        one = flat_map(kernel)
        event("a flat map" if one is not None else "another kernel")
        if one is None:
            continue
        size = dict.fromkeys(sizes_of(one.axes[0].extent), results[kernel.outputs[0].name].size)
        flattened = run(one, [x.reshape(-1) if x.ndim else x for x in read], size)
        for p, y in zip(kernel.outputs, flattened.values(), strict=True):
            np.testing.assert_array_equal(y.reshape(results[p.name].shape), results[p.name])


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
