"""Compiled plans and their calls: threads, sizes, outputs of the caller's, library steps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.texts import SOFTMAX

from smelt import knobs
from smelt.compiler import driver
from smelt.compiler.driver import Compiled
from smelt.errors import OutArgumentError, OutOfMemory
from smelt.graph.interp import run as interpret
from smelt.graph.interp import solve_sizes
from smelt.graph.text import parse
from smelt.ops.extern import ExternRow, register
from smelt.runtime import plan_tables
from smelt.runtime.executable import Executable

Array = np.ndarray[Any, Any]


def compiled(source: str, **hints: int) -> Compiled:
    return driver.compile(parse(source), hints=hints)


def call(c: Compiled, *arrays: Array, out: Sequence[Array | None] | None = None) -> list[Array]:
    named = solve_sizes(c.graph, arrays)
    return c.run(list(arrays), tuple(named[n] for n in c.size_names), out)


def noise(*shape: int, seed: int = 0, dtype: Any = "f4") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def near(c: Compiled, actual: Sequence[Array], *arrays: Array) -> bool:
    wanted = interpret(c.graph, list(arrays))
    return all(
        np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
        for a, b in zip(actual, wanted, strict=True)
    )


SUM = "graph f(x: f32[n]) {\n a = exp(x)\n b = reduce.sum(a) {axes=(0,)}\n return b\n}"
COLUMNS = """graph f(x: f32[n,m]) {
  a = reduce.sum(x) {axes=(0,)}
  b = sub(x, a)
  c = mul(b, b)
  d = reduce.sum(c) {axes=(0,)}
  return d, a
}"""
PRODUCT = """graph f(x: f32[n,m]) {
  a = contract(x, x) {spec="i,k; j,k -> i,j"}
  b = tanh(a)
  c = contract(b, x) {spec="i,j; j,k -> i,k"}
  return c
}"""
RUNNING = """graph f(x: f32[n,m]) {
  a = scan.sum(x) {axis=1}
  b = flip(a) {axes=(1,)}
  c = scan.max(b) {axis=0}
  d = reduce.sum(c) {axes=(0,1)}
  return c, d
}"""


def _added(x: np.ndarray, u: np.ndarray, i: np.ndarray) -> np.ndarray:
    x = x.copy()
    np.add.at(x, i, u)
    return x


register(ExternRow("test_added", "rows added at places", lambda x, u, i: x, _added))
CALL = """graph f(x: f32[n,m], u: f32[p,m], i: i64[p]) {
  a = exp(x)
  b = mul(u, 2.0:f32)
  c = extern.test_added(a, b, i)
  d = add(c, x)
  e = reduce.sum(d) {axes=(1,)}
  return e, c
}"""
TWO = "graph f(x: f32[n]) {\n a = exp(x)\n b = sin(x)\n return a, b\n}"
PROGRAMS = {"softmax": SOFTMAX, "columns": COLUMNS, "product": PRODUCT, "running": RUNNING}


# ---- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PROGRAMS, "sum"])
def test_every_number_of_threads_gives_the_same_bits(name: str) -> None:
    if name == "sum":
        c, x = compiled(SUM, n=1 << 19), noise(300_007)
    else:
        c, x = compiled(PROGRAMS[name], n=500, m=700), noise(333, 701) / 8
    with knobs.config(threads=1):
        first = [a.tobytes() for a in call(c, x)]
    assert near(c, call(c, x), x) or name == "sum"
    for threads in (2, 3, 8, 2, 1):
        with knobs.config(threads=threads):
            for _ in range(5):
                assert [a.tobytes() for a in call(c, x)] == first, threads


def test_a_long_sum_is_right() -> None:
    c, x = compiled(SUM, n=1 << 19), noise(300_007)
    wanted = np.exp(x.astype("f8")).sum()
    assert abs(float(call(c, x)[0]) - wanted) <= 2e-7 * wanted


def test_two_python_threads_share_an_executable() -> None:
    """Frames, arenas and scratch memory belong to a call, not to the plan."""
    c = compiled(PRODUCT, n=100, m=50)
    inputs = [noise(n, m, seed=n) / 8 for n, m in ((40, 30), (150, 70), (97, 33), (13, 200))]
    wanted = [call(c, x)[0].tobytes() for x in inputs]
    wrong: list[int] = []

    def work(start: int) -> None:
        numbers = range(start, start + 120)
        wrong.extend(k for k in numbers if call(c, inputs[k % 4])[0].tobytes() != wanted[k % 4])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---- sizes ---------------------------------------------------------------------------------------


def test_tables_of_old_sizes_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_tables, "MAX_PREPARED", 4)
    c = compiled(SOFTMAX)
    for n in (*range(1, 12), 3, 1, 11):
        x = noise(n, 2 * n + 1, seed=n)
        assert near(c, call(c, x), x)
        assert len(c.executable._prepared) <= 4


def test_tables_are_dropped_under_the_feet_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_tables, "MAX_PREPARED", 2)
    c = compiled(SOFTMAX)
    right: list[bool] = []

    def work(start: int) -> None:
        for n in range(start, start + 60):
            x = noise(n % 7 + 1, n % 11 + 1, seed=n)
            right.append(near(c, call(c, x), x))

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 3, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert right == [True] * 180


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_in_nothing_out(name: str) -> None:
    c = compiled(PROGRAMS[name])
    for shape in ((0, 5), *([(5, 0), (0, 0)] if name != "softmax" else [])):
        x = np.zeros(shape, "f4")
        assert near(c, call(c, x), x), shape


def test_one_plan_for_every_size() -> None:
    for source in PROGRAMS.values():
        c = compiled(source, n=64, m=64)
        for n, m in ((1, 1), (1, 300), (300, 1), (17, 63), (200, 129)):
            x = noise(n, m) / 4
            assert near(c, call(c, x), x), (n, m)


def test_chunks_cover_the_tasks_of_every_kernel() -> None:
    """Ranges of one function follow one another from 0 to its number of tasks."""
    c = compiled(COLUMNS, n=1000, m=1000)
    for sizes in ((1, 1), (5, 3000), (3000, 5), (2000, 2000)):
        call(c, np.zeros(sizes, "f4"))
    for prepared in c.executable._prepared.values():
        for segment in prepared.segments:
            chunks, launches = segment.tables
            for first, count, flags, _ in launches:
                rows = chunks[first : first + count]
                assert 0 < count <= 64 * len(set(rows[:, 0]))
                assert flags in (0, 1)
                for function in set(rows[:, 0]):
                    tasks = rows[rows[:, 0] == function]
                    assert tasks[0, 2] == 0
                    assert (tasks[1:, 2] == tasks[:-1, 3]).all()
                    assert (tasks[:, 3] > tasks[:, 2]).all()


# ---- out= ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        (np.zeros(4, "f4"), r"float32\[4\]"),
        (np.zeros((5, 1), "f4"), r"float32\[5, 1\]"),
        (np.zeros(5, "f8"), r"float64\[5\]"),
        (np.zeros(5, "i4"), r"int32\[5\]"),
        (np.frombuffer(bytes(20), "f4"), "read-only"),
        (np.broadcast_to(np.float32(0), (5,)), "read-only"),
    ],
)
def test_an_unfit_out_array_is_refused(inputs: Array, part: str) -> None:
    c, other = compiled(TWO), np.full(5, 7, "f4")
    with pytest.raises(OutArgumentError, match=part):
        call(c, noise(5), out=[other, inputs])
    assert (other == 7).all()
    assert not inputs.any()


def test_out_arrays_of_any_layout() -> None:
    c, x = compiled(COLUMNS), noise(20, 30)
    wanted = [a.copy() for a in call(c, x)]
    wide = np.zeros((2, 90), "f4")
    for out in (
        [np.empty(30, "f4"), None],
        [None, wide[1, ::3]],
        [wide[0, 59:29:-1], wide[1, :30]],
        [None, None],
    ):
        result = call(c, x, out=out)
        for inputs, a, b in zip(out, result, wanted, strict=True):
            assert inputs is None or a is inputs
            assert np.array_equal(a, b)


@pytest.mark.parametrize("shift", [-7, -1, 0, 1, 3, 64])
def test_out_over_an_input(shift: int) -> None:
    """The result is computed first and copied to an overlapping `out` then."""
    c = compiled("graph f(x: f32[n]) {\n a = flip(x) {axes=(0,)}\n b = add(a, x)\n return b\n}")
    memory = noise(2000)
    x, out = memory[100:1100], memory[100 + shift : 1100 + shift]
    wanted = x[::-1] + x
    (actual,) = call(c, x, out=[out])
    assert actual is out
    assert np.array_equal(out, wanted)


def test_out_arrays_over_one_another() -> None:
    """Each result is computed apart; the last one is copied last."""
    c, x = compiled(TWO), noise(1000)
    a, b = (r.copy() for r in call(c, x))
    both = np.zeros(1000, "f4")
    call(c, x, out=[both, both])
    assert np.array_equal(both, b)
    memory = np.zeros(1500, "f4")
    call(c, x, out=[memory[:1000], memory[500:]])
    assert np.array_equal(memory[:500], a[:500])
    assert np.array_equal(memory[500:], b)


def test_out_goes_by_result_where_inputs_are_returned_too() -> None:
    """`out` has a place for each value that is computed, in order of first return."""
    c = compiled("graph f(x: f32[n]) {\n a = exp(x)\n b = sin(x)\n return x, b, a, b\n}")
    x = noise(50)
    p, q = np.empty(50, "f4"), np.empty(50, "f4")
    actual = call(c, x, out=[p, q])
    assert actual[0] is x
    assert actual[1] is p
    assert actual[2] is q
    assert actual[3] is p
    assert near(c, actual, x)


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_belong_to_the_caller(name: str) -> None:
    """Later calls do not touch earlier results; results share no memory with anything."""
    c = compiled(PROGRAMS[name], n=64, m=64)
    calls = [(x := noise(60, 70, seed=k), call(c, x)) for k in range(5)]
    copies = [[a.copy() for a in results] for _, results in calls]
    for k in range(5, 12):
        call(c, noise(60, 70, seed=k))
    everything = [a for x, results in calls for a in (x, *results)]
    for k, a in enumerate(everything):
        assert not any(np.shares_memory(a, b) for b in everything[:k])
    for (_, results), kept in zip(calls, copies, strict=True):
        for a, b in zip(results, kept, strict=True):
            assert a.tobytes() == b.tobytes()
            assert a.flags.writeable
            assert a.flags.c_contiguous
            assert a.ctypes.data % 64 == 0


def test_inputs_are_only_read() -> None:
    for source in PROGRAMS.values():
        c, x = compiled(source), noise(60, 70)
        x.flags.writeable = False
        before = x.tobytes()
        call(c, x)
        assert x.tobytes() == before


def test_memory_that_is_not_there_is_refused_before_anything_runs() -> None:
    c = compiled(
        "graph f(x: f32[n], y: f32[m]) {\n a = reshape(x) {shape=(n,1)}\n b = add(a, y)\n"
        " d = exp(x)\n return d, b\n}"
    )
    x, y, d = np.zeros(1 << 22, "f4"), np.zeros(1 << 22, "f4"), np.zeros(1 << 22, "f4")
    with pytest.raises(OutOfMemory):
        call(c, x, y, out=[d, None])
    assert not d.any()
    assert near(c, call(c, x[:50], y[:60]), x[:50], y[:60])


def test_results_that_no_cache_holds() -> None:
    """Stored past the caches above a size: the same bits, and other code."""
    host = driver.host()
    for name, source in PROGRAMS.items():
        normal = driver.compile(parse(source), hints={"n": 64, "m": 64})
        past = driver.compile(
            parse(source), target=replace(host, l3_bytes=1), hints={"n": 64, "m": 64}
        )
        for shape in ((33, 65), (256, 256)):
            x = noise(*shape) / 4
            for a, b in zip(call(normal, x), call(past, x), strict=True):
                assert a.tobytes() == b.tobytes(), (name, shape)


# ---- strides -------------------------------------------------------------------------------------


def test_strides_are_passed_at_each_call() -> None:
    c = compiled(
        "graph f(x: f32[n,m] strides(?,?), y: f32[m] strides(?)) {\n a = mul(x, y)\n"
        " b = reduce.sum(a) {axes=(1,)}\n return a, b\n}"
    )
    memory = noise(60, 90)
    for x in (
        memory[:20, :30],
        memory[::3, ::-3],
        memory.T[:20, :30],
        memory[5:25, 60:90],
        np.broadcast_to(memory[0, :30], (20, 30)),
        memory[::-3, 2::3],
    ):
        for y in (
            memory[0, :30],
            memory[1, ::3],
            memory[59::-2, 7],
            np.broadcast_to(memory[0, 0], (30,)),
        ):
            assert near(c, call(c, x, y), x, y)


# ---- library steps -------------------------------------------------------------------------------


def test_library_calls_between_kernels() -> None:
    c = compiled(CALL)
    for n, m, p in ((5, 7, 11), (100, 3, 50), (1, 1, 1), (4, 4, 0), (3, 0, 2)):
        x, u = noise(n, m), noise(p, m, seed=1)
        i = np.random.default_rng(2).integers(0, n, p)
        assert near(c, call(c, x, u, i), x, u, i)
        out = [np.empty(n, "f4"), np.empty((n, 2 * m), "f4")[:, ::2]]
        actual = call(c, x, u, i, out=out)
        assert all(a is b for a, b in zip(actual, out, strict=True))
        assert near(c, actual, x, u, i)
    segments = next(iter(c.executable._prepared.values())).segments
    assert [s.call is not None for s in segments].count(True) == 1
    assert len(segments) >= 2


def test_library_calls_do_not_warn_of_arithmetic() -> None:
    """Compiled code never does; the library's part of a program is not an exception."""
    c = compiled(CALL)
    x = np.zeros((3, 2), "f4")
    u = np.array([[np.inf, 1], [-np.inf, 3e38], [np.inf, 3e38]], "f4")
    actual = call(c, x, u, np.array([1, 1, 1]))
    assert np.isnan(actual[1][1, 0])


def test_an_error_in_a_library_call_leaves_everything_usable() -> None:
    c = compiled(CALL)
    x, u = noise(5, 3), noise(2, 3)
    with pytest.raises(IndexError):
        call(c, x, u, np.array([0, 99]))
    i = np.array([0, 4])
    assert near(c, call(c, x, u, i), x, u, i)


def test_an_executable_of_nothing() -> None:
    """A program that returns its inputs has no steps; they are copies."""
    c = compiled("graph f(x: f32[n], y: f32[]) {\n return y, x, y\n}")
    x, y = noise(5), noise()
    actual = call(c, x, y)
    for k, (one, inputs) in enumerate(zip(actual, (y, x, y), strict=True)):
        assert np.array_equal(one, inputs)
        assert not any(np.shares_memory(one, other) for other in (x, y, *actual[:k]))
    assert isinstance(c.executable, Executable)


def test_constants_alone() -> None:
    c = compiled(
        "graph f(x: f32[n]) {\n a = iota() {shape=(n,), axis=0, dtype=f32}\n"
        " b = expand(2.5:f32) {shape=(n,3)}\n return a, b, 1.5:f32\n}"
    )
    for n in (0, 1, 100):
        assert near(c, call(c, np.zeros(n, "f4")), np.zeros(n, "f4"))
