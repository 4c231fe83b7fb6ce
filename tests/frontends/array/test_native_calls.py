"""Repeated calls that native code answers: the same results, errors and references as Python's."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import knobs
from smelt.errors import DonatedError, OutArgumentError, OutOfMemory, SmeltError
from smelt.frontends.array.jit import Jit
from smelt.runtime import call_cache, native_call, native_layout
from smelt.runtime.memory import RING_LIMIT, Block, trim, usage

pytestmark = pytest.mark.skipif(not call_cache.is_supported(), reason="another interpreter")
rng = np.random.default_rng(11)


def warm(f: Any, *args: Any) -> Any:
    """The result of a call that native code has answered."""
    for _ in range(3):
        f(*args)
    assert f.line is not None
    assert type(Jit.__call__) is type(list.append)
    return f(*args)


def formula(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


# What is compared


class Sub(np.ndarray[Any, Any]):
    """A subclass is not a plain array."""


class Real(float):
    """Nor is this a plain number."""


def _misaligned() -> Any:
    return np.frombuffer(bytes(1 + 12 * 8), np.float64, offset=1, count=12).reshape(3, 4)


def _memmap(path: Path) -> Any:
    result = np.memmap(path / "x", np.float64, "w+", shape=(3, 4))
    result[...] = 3.0
    return result


def _pending() -> Any:
    return sm.asarray(np.full((3, 4), 2.0)) + 1.0


def _variants(path: Path) -> list[Callable[[], Any]]:
    base = rng.standard_normal((3, 4))
    wide = rng.standard_normal((30, 40))
    read_only = base.copy()
    read_only.flags.writeable = False
    far = np.lib.stride_tricks.as_strided(np.arange(1 << 18, dtype="f8"), (3, 4), (1 << 19, 8))
    mapped = _memmap(path)
    fixed = [
        base, base.astype("f4"), base.astype("i4"), base.astype(">f8"), base.astype("f2"),
        base > 0, np.float64(2.5), np.array(1.5), np.zeros((0, 4)), np.zeros((3, 1)), np.zeros(4),
        np.zeros((1, 3, 4)), np.zeros(5), read_only, _misaligned(), mapped, wide[:3, :4],
        wide[::10, ::10], np.asfortranarray(base), base[::-1], np.broadcast_to(base[0], (3, 4)),
        far, base.view(Sub), np.ma.masked_array(base), sm.asarray(base), sm.asarray(wide)[:3, :4],
        2.0, 7, -(2**63), 2**63, True, Real(1.5), np.complex128(1j), "text", None, [base], object(),
    ]  # fmt: skip
    return [*[lambda x=x: x for x in fixed], _pending]


def outcome(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        result = f(*args)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same
        return type(error), str(error)
    data = np.asarray(result)
    return type(result), data.dtype, data.shape, data.tobytes()


@pytest.mark.parametrize("seed", range(30))
def test_all_kinds_of_arguments(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    variants = _variants(tmp_path)
    native, python = sm.jit(formula), sm.jit(formula)
    base = rng.standard_normal((3, 4))
    warm(native, base, base, base)
    for _ in range(10):
        built = [variants[k]() for k in rng.integers(0, len(variants), 3)]
        args = tuple(x if rng.random() < 0.5 else base for x in built)
        with knobs.config(native_calls=False):
            expected = outcome(python, args)
        for _ in range(3):
            assert outcome(native, args) == expected, args


@pytest.mark.parametrize("part", range(12))
def test_every_variant_repeats(tmp_path: Path, part: int) -> None:
    base = rng.standard_normal((3, 4))
    for make in _variants(tmp_path)[part::12]:
        native = sm.jit(formula)
        with knobs.config(native_calls=False):
            expected = outcome(sm.jit(formula), (base, make(), base))
        for _ in range(5):
            assert outcome(native, (base, make(), base)) == expected, make()


def test_counts_and_keywords() -> None:
    f = sm.jit(formula)
    x = np.arange(4.0)
    warm(f, x, x, x)
    np.testing.assert_array_equal(f(x, x, z=x), x * x + x)
    np.testing.assert_array_equal(f(z=x, x=x, y=x), x * x + x)
    out = np.zeros(4)
    assert f(x, x, x, out=out) is out
    for args, named in (((x, x), {}), ((x,) * 4, {}), ((), {}), ((x,) * 3, {"w": x})):
        with pytest.raises(TypeError):
            f(*args, **named)
    with pytest.raises((TypeError, SmeltError)):
        f(*[x] * 3000)
    np.testing.assert_array_equal(f(x, x, x), x * x + x)


def test_shapes_that_change_in_place() -> None:
    f = sm.jit(lambda x: x + 1.0)
    x = np.arange(12.0)
    warm(f, x)
    for shape in ((3, 4), (2, 6), (12,), (2, 2, 3), (12, 1)):
        x.shape = shape
        for _ in range(4):
            np.testing.assert_array_equal(f(x), x + 1.0)
    x = np.arange(4.0)
    warm(f, x)
    x.resize(3000, refcheck=False)
    np.testing.assert_array_equal(f(x), x + 1.0)


# Results


def test_results_are_as_ever() -> None:
    f = sm.jit(lambda x: x * 2)
    x = np.arange(6, dtype="f4").reshape(2, 3)
    y = warm(f, x)
    assert type(y) is sm.Array
    assert (y.shape, y.dtype) == ((2, 3), sm.float32)
    data = np.asarray(y)
    assert isinstance(data.base, Block)
    assert data.flags.num == np.asarray(sm.jit(lambda x: x * 2)(x)).flags.num
    assert (y + 1).tolist() == (x * 2 + 1).tolist()
    y[0, 0] = 50.0
    assert y[0, 0] == 50.0
    assert f(x)[0, 0] == 0.0


def test_referenced_results_keep_their_memory() -> None:
    f = sm.jit(lambda x: x + 1.0)
    inputs = [rng.standard_normal(100) for _ in range(30)]
    warm(f, inputs[0])
    held = [f(x) for x in inputs]
    views = [np.asarray(f(x))[10:20] for x in inputs]
    foreign = [np.from_dlpack(f(x)) for x in inputs]
    for _ in range(50):
        f(inputs[0])
    for x, y, view, z in zip(inputs, held, views, foreign, strict=True):
        np.testing.assert_array_equal(y, x + 1.0)
        np.testing.assert_array_equal(view, x[10:20] + 1.0)
        np.testing.assert_array_equal(z, x + 1.0)
    where = {np.asarray(f(inputs[0])).ctypes.data for _ in range(20)}
    assert len(where) <= 2  # memory is used again


@pytest.mark.parametrize("kept", [False, True])
def test_many_results_of_one_size_take_no_blocks_from_python(kept: bool) -> None:
    f = sm.jit(lambda x: [x + k for k in range(20)])
    x = rng.standard_normal(1000)
    warm(f, x)
    taken, held = [], None
    for _ in range(20):
        built = f(x)
        held = built if kept else None
        taken.append(usage().fresh + usage().reused)
    assert f.line is not None and taken[5] == taken[-1] and (held is built) == kept


@pytest.mark.parametrize("n", [0, 1, 5, 1000, 20_000, RING_LIMIT // 8, RING_LIMIT // 4])
def test_sizes(n: int) -> None:
    f = sm.jit(lambda x, s: (sm.exp(x) * s, sm.sum(x), {"last": x - 1}))
    x = rng.standard_normal(n)
    for s in (2.0, 3.0, 4.0, 0.5):
        y, total, rest = f(x, s)
        np.testing.assert_allclose(y, np.exp(x) * s, rtol=1e-12)
        np.testing.assert_allclose(total, x.sum(), rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(rest["last"], x - 1)
    assert f.line is not None or not n  # empty results are one constant


def test_rows_and_memory_between_kernels() -> None:
    def f(x: Any, w: Any) -> Any:
        y = sm.nn.softmax(x @ w, axis=-1)
        return y @ w.T, sm.cumulative_sum(y, axis=1)

    g = sm.jit(f)
    for rows in (1, 3, 40):
        x, w = rng.standard_normal((rows, 16)), rng.standard_normal((16, 24))
        with knobs.config(native_calls=False):
            expected = [np.asarray(y) for y in sm.jit(f)(x, w)]
        for _ in range(4):
            for y, e in zip(g(x, w), expected, strict=True):
                np.testing.assert_array_equal(y, e)


def test_nests_of_results() -> None:
    x = np.arange(3.0)
    for f in (
        lambda x: (x + 1, x + 2),
        lambda x: [x + 1, x + 2],
        lambda x: (x + 1,),
        lambda x: x,
        lambda x: (x, x + 1),
        lambda x: {"a": x + 1, "b": (x + 2, None)},
        lambda x: (x + 1, 3),
        lambda x: (x + 1, x.shape[0]),
        lambda x: (x, (x + 1) * 2, x + 1),
    ):
        g = sm.jit(f)
        first = g(x)
        for _ in range(4):
            assert repr(g(x)) == repr(first)


# References


def test_references_are_balanced() -> None:
    f = sm.jit(lambda x, y, s: (x + y * s, x - y))
    x, y = np.arange(7.0), sm.asarray(np.arange(7.0), copy=True)
    warm(f, x, y, 3)
    warm(f, x, y, 2.0)
    with pytest.raises(TypeError):
        f(x, y)
    watched, shared = [x, y, y.node, y.node.data, f], [x.dtype, (), None, y.node.type, y.node.op]
    before = [sys.getrefcount(w) for w in watched]
    about = [sys.getrefcount(w) for w in shared]
    for _ in range(1000):
        f(x, y, 2.0)
    held = [f(x, y, 3) for _ in range(100)]
    with pytest.raises(TypeError):
        f(x, y)
    del held
    assert [sys.getrefcount(w) for w in watched] == before
    now = [sys.getrefcount(w) for w in shared]  # others hold them, too
    assert all(abs(a - b) < 100 for a, b in zip(now, about, strict=True))
    a, _ = f(x, y, 2.0)
    data, plain = a.node.data, object()
    alone = sys.getrefcount(plain)
    assert (sys.getrefcount(a), sys.getrefcount(data)) == (alone, alone + 1)


def test_nothing_leaks() -> None:
    f = sm.jit(lambda x, s: (x * s, x + s))
    x = np.arange(50.0)
    warm(f, x, 2.0)
    gc.collect()
    tracemalloc.start()
    for _ in range(1000):
        f(x, 2.0)
    gc.collect()
    before, live = tracemalloc.get_traced_memory()[0], usage().live
    for _ in range(100_000):
        f(x, 2.0)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 4096
    assert usage().live == live


def test_the_collector_may_come_at_any_time() -> None:
    f = sm.jit(lambda x: {"a": x + 1, "b": x * 2})
    x = np.arange(20.0)
    warm(f, x)
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(300):
            loop: list[Any] = [f(x)]
            loop.append(loop)
            np.testing.assert_array_equal(f(x)["a"], x + 1)
    finally:
        gc.set_threshold(*threshold)


def test_trim_empties_what_waits() -> None:
    f = sm.jit(lambda x: x + 1.0)
    x = np.arange(1000.0)
    y = warm(f, x)
    f(x)
    trim()
    assert usage().pooled == 0
    np.testing.assert_array_equal(f(x), y)
    np.testing.assert_array_equal(y, x + 1.0)


def test_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> Any:
        raise OutOfMemory(f"{nbytes} bytes")

    f = sm.jit(lambda x: (x + 1.0, x - 1.0))
    x = np.arange(600.0)
    warm(f, x)
    trim()
    with monkeypatch.context() as patched:
        patched.setattr(native_call, "allocate", refuse)
        for _ in range(3):
            with pytest.raises(OutOfMemory):
                f(x)
    np.testing.assert_array_equal(f(x)[1], x - 1.0)


# Results in the caller's arrays


def formulas(x: Any, y: Any) -> Any:
    return {"sum": x + y, "nest": (x * 2 - y, [sm.flip(x) * y])}


def _outs(arrays: Any) -> Any:
    first, second, third = arrays
    return {"sum": first, "nest": (second, [third])}


def _draw(room: Any, base: Any) -> Any:
    """An array to write into: alone, an input, a part of a common buffer, or a wrong one."""
    kinds: list[Callable[[], Any]] = [
        lambda: base, lambda: room[:6], lambda: room[6:12], lambda: room[3:9],
        lambda: room[2:14:2], lambda: np.zeros(12)[::2], lambda: np.zeros(5),
        lambda: np.zeros(6, "f4"), lambda: np.zeros(6).view(Sub), lambda: sm.asarray(np.zeros(6)),
        lambda: np.frombuffer(bytes(48), np.float64), lambda: np.zeros((1, 6)), lambda: None,
    ]  # fmt: skip
    return np.zeros(6) if rng.random() < 0.5 else kinds[int(rng.integers(len(kinds)))]()


def test_arrays_written_into_are_as_in_python() -> None:
    """Any mixture of arrays, of which some overlap, gives the results or the error of Python."""
    native: Any = sm.jit(formulas)
    python: Any = sm.jit(formulas)
    for _ in range(400):
        state = rng.bit_generator.state
        ends: list[Any] = []
        for f, use in ((python, False), (native, True), (native, True), (native, True)):
            rng.bit_generator.state = state
            room, x, y = np.arange(14.0), np.arange(6.0), np.ones(6)
            y = room[7:13] if rng.random() < 0.3 else y
            x = sm.asarray(x, copy=False) if rng.random() < 0.3 else x
            outs = _outs([_draw(room, y) for _ in range(3)])
            later = (
                sm.asarray(room) * 2.0 if rng.random() < 0.3 else None
            )  # reads what it holds now
            with nullcontext() if use else knobs.config(native_calls=False):
                try:
                    assert f(x, y, out=outs) is outs
                    end: Any = None
                except SmeltError as error:
                    end = type(error), str(error)
            leaves = (room, x, y, later, outs["sum"], outs["nest"][0], outs["nest"][1][0])
            ends.append((end, [np.asarray(a).tolist() for a in leaves if a is not None]))
        assert all(end == ends[0] for end in ends[1:])


@pytest.mark.parametrize("replaced", [False, True])
def test_calls_into_arrays_are_native(replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    f: Any = sm.jit(lambda p, g, m: (p - m * 0.5, m * 0.9 + g))
    shift = sm.asarray(np.full(40, 0.25))
    g: Any = sm.jit(lambda x: sm.exp(x) + shift)
    p, m, x = (rng.standard_normal(40) for _ in range(3))
    outs = (p, m) if replaced else (np.empty(40), np.empty(40))
    alone = x if replaced else np.empty(40)
    for _ in range(3):
        f(p, x, m, out=outs)
        g(x, out=alone)
    assert f.line is not None
    monkeypatch.setattr(Jit, "_call_into", None)
    before = [sys.getrefcount(a) for a in (p, m, x, alone, outs)]
    expected: Any = None
    value: Any = None
    for _ in range(100):
        expected = p - m * 0.5, m * 0.9 + x
        assert f(p, x, m, out=outs) is outs
        np.testing.assert_allclose(outs, expected)
        x[...] = rng.standard_normal(40)
        value = np.exp(x) + 0.25
        assert g(x, out=alone) is alone
        np.testing.assert_allclose(alone, value)
    del expected, value
    assert [sys.getrefcount(a) for a in (p, m, x, alone, outs)] == before
    for other in (np.empty(40)[::-1], sm.asarray(np.empty(40))):
        with pytest.raises(TypeError, match="NoneType"):  # no record fits: Python answers
            g(x, out=other)


def test_what_is_pending_reads_an_array_before_it_is_written() -> None:
    f: Any = sm.jit(lambda x: x + 1.0)
    x, out = np.arange(2000.0), np.zeros(2000)
    for _ in range(4):
        f(x, out=out)
        out[...] = 3.0
        later = sm.asarray(out) * 2.0
        f(x, out=out)
        assert (np.asarray(later) == 6.0).all()
        assert (out == x + 1.0).all()


def test_complex_arguments_of_calls_into_arrays() -> None:
    z, out, both = np.array([3 + 4j, 5 + 12j]), np.zeros(2), np.zeros(2, complex)
    f: Any = sm.jit(sm.abs)
    g: Any = sm.jit(lambda z: z * 2)
    for k in range(4):
        assert f(z + 0 * k, out=out) is out and out.tolist() == [5.0, 13.0]
        assert g(z, out=both) is both and both.tolist() == (z * 2).tolist()
        out[...], both[...] = 0.0, 0.0


@pytest.mark.clock
def test_calls_into_arrays_take_no_longer_than_others() -> None:
    f: Any = sm.jit(lambda p, g, m: (p - m * 0.5, m * 0.9 + g))
    p, g, m = (rng.standard_normal(40) for _ in range(3))
    outs = np.empty(40), np.empty(40)

    def best(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(200):
                call()
            times.append((time.perf_counter() - start) / 200)
        return min(times)

    plain = best(lambda: f(p, g, m))
    assert best(lambda: f(p, g, m, out=outs)) < plain + 0.5e-6
    assert best(lambda: f(p, g, m, out=(p, m))) < plain + 0.5e-6


# What a record depends on


def test_settings_decide() -> None:
    f = sm.jit(formula)
    x = np.arange(5.0)
    for _ in range(3):
        warm(f, x, x, x)
        with knobs.config(native_calls=False):
            line = f.line
            for _ in range(4):
                f(x, x, x)
            assert f.line == line
        for rounding in ("exact", "fast", "eager"):
            with knobs.config(rounding=rounding, threads=1):
                np.testing.assert_array_equal(warm(f, x, x, x), x * x + x)
        knobs.reset()


def test_settings_that_change_all_the_time() -> None:
    f = sm.jit(lambda x: x + 1)
    for k in range(40):
        with knobs.config(threads=1 + k % 2):
            assert f(np.arange(2.0)).tolist() == [1.0, 2.0]
    steered = sm.jit(lambda x: x + 1, rounding="fast")
    for _ in range(5):
        assert steered(np.arange(2.0)).tolist() == [1.0, 2.0]
    assert steered.line is None


def test_a_tape_sees_every_call() -> None:
    f = sm.jit(lambda x: x * x)
    x = np.arange(4.0)
    warm(f, x)
    warm(f, sm.asarray(x))
    for _ in range(3):
        np.testing.assert_array_equal(sm.grad(lambda x: sm.sum(f(x)))(sm.asarray(x)), 2 * x)
        np.testing.assert_array_equal(f(x), x * x)


def test_what_is_closed_over() -> None:
    c = sm.asarray(np.full(4, 2.0), copy=True)
    f = sm.jit(lambda x: x + c)
    x = np.arange(4.0)
    assert warm(f, x).tolist() == [2.0, 3.0, 4.0, 5.0]
    shared = np.asarray(c)
    shared[0] = 10.0
    assert f(x).tolist() == [10.0, 3.0, 4.0, 5.0]
    d = sm.asarray(np.full(4, 2.0), copy=True)
    g = sm.jit(lambda x: x + d)
    warm(g, x)
    d[0] = 10.0  # a new version: the function closed over the old one
    assert g(x).tolist() == [2.0, 3.0, 4.0, 5.0]


def test_what_was_given_away() -> None:
    f = sm.jit(lambda x: x + 1)
    take = sm.jit(lambda x: x * 2, donate=0)
    x = sm.asarray(np.arange(4.0), copy=True)
    warm(f, x)
    take(x)
    with pytest.raises(DonatedError):
        f(x)


def test_written_arrays_are_read_anew() -> None:
    f = sm.jit(lambda x: x + 1)
    x, y = np.zeros(3), sm.zeros(3)
    warm(f, x)
    warm(f, y)
    x[1] = 5.0
    y[1] = 5.0
    assert f(x).tolist() == f(y).tolist() == [1.0, 6.0, 1.0]


def test_inside_another_recording() -> None:
    f = sm.jit(lambda x: x + 1)
    x = np.arange(3.0)
    warm(f, x)
    copied = sm.asarray(x, copy=True)
    g = sm.jit(lambda y: f(y) * f(copied))
    np.testing.assert_array_equal(warm(g, x), (x + 1) ** 2)


def test_copies_of_a_function() -> None:
    f = sm.jit(lambda x: x + 1)
    x = np.arange(3.0)
    warm(f, x)
    other = copy.copy(f)
    del f
    gc.collect()
    for n in range(20):
        assert other(np.arange(float(n))).shape == (n,)
    np.testing.assert_array_equal(other(x), x + 1)


def test_only_our_own_lines_are_read() -> None:
    f: Any = sm.jit(lambda x: x + 1)
    x = np.arange(3.0)
    warm(f, x)
    twin = copy.deepcopy(f.line), copy.deepcopy(f.records)
    assert twin == (f.line, f.records)
    mine = f.line
    for wrong in (None, bytes(f.line), b"", 3, bytearray(f.line)):
        f.line = wrong
        np.testing.assert_array_equal(f(x), x + 1)
    with pytest.raises(TypeError):
        pickle.dumps(mine)


def test_methods() -> None:
    class Model:
        scale = 3.0

        @sm.jit
        @staticmethod
        def double(x: Any) -> Any:
            return x * 2

    for _ in range(4):
        assert Model.double(np.arange(2.0)).tolist() == [0.0, 2.0]


# Threads and processes


def test_threads_on_one_function() -> None:
    f = sm.jit(lambda x, y: x * 2 + y)
    wrong: list[int] = []

    def work(seed: int) -> None:
        mine = np.random.default_rng(seed)
        inputs = [mine.standard_normal(n) for n in (3, 8, 8, 64, 5000, 200_000)[: 5 + seed % 2]]
        for k in range(400):
            x = inputs[k % len(inputs)]
            if not np.array_equal(f(x, x), x * 2 + x):
                wrong.append(k)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sys.setswitchinterval(interval)
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_goes_on() -> None:
    f = sm.jit(lambda x: sm.exp(x) + 1)
    x, large = np.arange(5.0), np.arange(300_000.0) / 1e5
    expected = np.asarray(warm(f, x)), np.asarray(warm(f, large))
    child = os.fork()
    if not child:
        good = np.array_equal(f(x), expected[0]) and np.array_equal(f(large), expected[1])
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(f(x), expected[0])


# Elsewhere


@pytest.mark.parametrize("field", ["DATA", "RANK", "DIMS", "DESCR", "FLAGS"])
def test_another_layout_is_noticed(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(native_layout.NDARRAY, field, 8)
    assert not call_cache.is_supported()


def test_another_interpreter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert not call_cache.is_supported()


def test_repeated_calls_refuse_an_out_whose_elements_share_memory() -> None:
    f = sm.jit(lambda x: x * 2)
    x, wide = np.ones((4, 3)), np.zeros((4, 6))
    for _ in range(5):
        f(x, out=wide[:, ::2])
    shared = np.lib.stride_tricks.as_strided(np.zeros(3), (4, 3), (0, 8))
    for _ in range(2):
        with pytest.raises(OutArgumentError, match="share memory"):
            f(x, out=shared)
