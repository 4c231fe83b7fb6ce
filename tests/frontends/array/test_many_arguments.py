"""Calls with many arguments and results: native code answers them, Python in linear time."""

from __future__ import annotations

import gc
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import AliasError, DonatedError
from smelt.frontends.array.jit import Jit
from smelt.runtime import call_cache
from smelt.runtime.memory import Spans, usage

native = pytest.mark.skipif(not call_cache.is_supported(), reason="another interpreter")
COUNTS = (1, 64, 65, 600)
"""Around a power of two, and so many that their memory is not from the stack."""


def arrays(count: int) -> list[Any]:
    return [np.full(4, float(k)) for k in range(count)]


def nest(xs: list[Any]) -> Any:
    """Containers of all kinds, with empty ones and None between."""
    third = len(xs) // 3
    return {
        "a": xs[:third],
        "b": (xs[third], None, {}, {str(k): (x,) for k, x in enumerate(xs[third + 1 :])}),
    }


def total(d: Any) -> Any:
    _, _, _, last = d["b"]
    result = d["b"][0] * 2
    for (x,) in [*last.values()][-1:]:
        result = result + x
    return result + d["a"][-1] if d["a"] else result


def python_calls(f: Any, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """Number of calls that reach Python, of five."""
    for _ in range(4):
        call()
    assert type(Jit.__call__) is type(list.append)
    calls = list[object]()
    bind, find = type(f.options).bind, Jit.find_trace
    monkeypatch.setattr(type(f.options), "bind", lambda *a: calls.append(1) or bind(*a))
    monkeypatch.setattr(Jit, "find_trace", lambda *a, **k: calls.append(1) or find(*a, **k))
    for exact in f._exact.values():
        exact.calls = 0
    for _ in range(5):
        call()
    monkeypatch.undo()
    return len(calls) + sum(exact.calls for exact in f._exact.values())


@native
@pytest.mark.parametrize("count", COUNTS)
def test_native_code_takes_any_number(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    xs = arrays(count)
    star: Any = sm.jit(lambda *xs: xs[0] + xs[-1])
    named: Any = sm.jit(lambda **xs: xs["x0"] + xs[f"x{count - 1}"])
    listed: Any = sm.jit(lambda xs: xs[0] + xs[-1])
    nested: Any = sm.jit(total)
    names = {f"x{k}": x for k, x in enumerate(xs)}
    for f, call, expected in (
        (star, lambda: star(*xs), xs[0] + xs[-1]),
        (named, lambda: named(**names), xs[0] + xs[-1]),
        (listed, lambda: listed(xs), xs[0] + xs[-1]),
        (nested, lambda: nested(nest(xs)), total(nest(xs))),
    ):
        assert python_calls(f, call, monkeypatch) == 0
        np.testing.assert_array_equal(call(), expected)
    xs[-1] = np.full(5, 1.0)  # another shape in the last argument matches no record
    xs[0] = np.full(5, 2.0)
    np.testing.assert_array_equal(listed(xs), xs[0] + xs[-1])
    with pytest.raises(sm.errors.SmeltError):
        listed([*xs[:-1], object()])


@native
@pytest.mark.parametrize("count", [2, 20])
def test_native_code_builds_nests_of_results(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(4.0)

    def many(x: Any, wrap: Any) -> Any:
        return wrap([x + k for k in range(count)])

    for wrap in (
        tuple,
        list,
        lambda xs: {str(k): y for k, y in enumerate(xs)},
        nest,
        lambda xs: ([], (), {}, {None: (None, [xs])}),
        lambda xs: ({1: xs[0]}, *xs[1:], None),
    ):
        f: Any = sm.jit(lambda x: many(x, wrap))  # noqa: B023 - used in this pass only
        first = f(x)
        assert python_calls(f, lambda: f(x), monkeypatch) == 0  # noqa: B023
        assert repr(f(x)) == repr(first) == repr(wrap([sm.asarray(x + k) for k in range(count)]))


@native
def test_nests_of_results_keep_no_reference() -> None:
    key = ("a", 1)
    f: Any = sm.jit(lambda x: {key: [x + 1, (x + 2, None)], "b": x * 3})
    x = np.arange(3.0)
    for _ in range(4):
        f(x)
    result = f(x)
    assert list(result) == [key, "b"] and type(result[key]) is list
    plain = object()
    alone = sys.getrefcount(plain)
    assert sys.getrefcount(result) == alone
    assert sys.getrefcount(result[key]) == sys.getrefcount(result["b"]) == alone + 1
    assert sys.getrefcount(result[key][1]) == alone + 1
    del result
    gc.collect()
    tracemalloc.start()
    for _ in range(100):
        f(x)
    gc.collect()
    before, live, keys = tracemalloc.get_traced_memory()[0], usage().live, sys.getrefcount(key)
    for _ in range(2000):
        f(x)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 4096 and usage().live == live
    assert abs(sys.getrefcount(key) - keys) < 10


@native
def test_containers_that_only_python_builds() -> None:
    import collections

    pair = collections.namedtuple("pair", "a b")  # noqa: PYI024
    x = np.arange(3.0)
    for f in (
        sm.jit(lambda x: pair(x + 1, [x + 2])),
        sm.jit(lambda x: collections.OrderedDict(b=x + 1, a=(x + 2,))),
    ):
        first = f(x)
        for _ in range(4):
            assert repr(f(x)) == repr(first) and type(f(x)) is type(first)


@native
def test_a_call_keeps_its_arguments_while_others_run() -> None:
    """Kernels without the lock read memory that no other call writes."""
    count = 600
    f: Any = sm.jit(lambda xs: sm.sum(sm.exp(xs[0]) + sm.exp(xs[-1]) + xs[1]))
    expected: dict[int, float] = {}
    wrong: list[object] = []

    def inputs(seed: int) -> list[Any]:
        return [np.full(30_000 if k in (0, 1, count - 1) else 2, seed / 10) for k in range(count)]

    def work(seed: int) -> None:
        xs = inputs(seed)
        wrong.extend(seed for _ in range(20) if float(f(xs)) != expected[seed])

    for seed in range(4):
        for _ in range(3):
            expected[seed] = float(f(inputs(seed)))
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(set(expected.values())) == 4


def step(p: Any, g: Any) -> Any:
    return {k: p[k] - 0.5 * g[k] for k in p}


@pytest.mark.parametrize("count", [3, 80])
def test_out_and_donate(count: int) -> None:
    p = {str(k): x for k, x in enumerate(arrays(count))}
    g = {str(k): x + 1 for k, x in enumerate(arrays(count))}
    expected = step(p, g)
    f: Any = sm.jit(step)
    for _ in range(4):
        out = {k: np.empty(4) for k in p}
        assert f(p, g, out=out) is out
        for k, y in expected.items():
            np.testing.assert_array_equal(out[k], y)
    over = {k: x.copy() for k, x in p.items()}
    f(over, g, out=over)
    for k, y in expected.items():
        np.testing.assert_array_equal(over[k], y)
    donating: Any = sm.jit(step, donate=0)
    for _ in range(4):
        state = {k: sm.asarray(x, copy=True) for k, x in p.items()}
        where = {x.node.data.ctypes.data for x in state.values()}
        updated = donating(state, g)
        assert {x.node.data.ctypes.data for x in updated.values()} == where
        with pytest.raises(DonatedError):
            np.asarray(state["0"])
        for k, y in expected.items():
            np.testing.assert_array_equal(updated[k], y)
    shared = np.zeros(6)
    with pytest.raises(AliasError):
        f(p, g, out={**over, "0": shared[:4], str(count - 1): shared[2:]})
    with pytest.raises(AliasError):
        f({**p, "0": shared[:4]}, g, out={**over, str(count - 1): shared[1:5]})


def test_overlaps_are_those_of_numpy() -> None:
    rng = np.random.default_rng(5)
    base = rng.standard_normal(200)
    for count in (0, 3, 15, 16, 60):
        views: list[Any] = [None, base[:0], base] if count > 15 else []
        for _ in range(count - len(views)):
            first, size = rng.integers(0, 190), rng.integers(0, 30)
            views.append(base[first : first + size : rng.choice([1, 2, -1])])
        spans = Spans(views)
        for view in (*views, base[3:3], np.zeros(3)):
            if view is not None:
                expected = [
                    k
                    for k, other in enumerate(views)
                    if other is not None and np.may_share_memory(view, other)
                ]
                assert spans.overlapping(view) == expected


def test_overlaps_are_not_looked_for_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with `out=` and `donate=` ask NumPy for no overlap of arrays that are apart."""
    count = 40
    p = {str(k): x for k, x in enumerate(arrays(count))}
    f: Any = sm.jit(step)
    donating: Any = sm.jit(step, donate=0)
    state = {k: sm.asarray(x, copy=True) for k, x in p.items()}
    out = {k: np.empty(4) for k in p}
    f(p, p, out=out)
    state = donating(state, p)
    pairs = list[object]()
    ask = np.may_share_memory
    monkeypatch.setattr(np, "may_share_memory", lambda *a: pairs.append(a) or ask(*a))
    f(p, p, out=out)
    donating(state, p)
    assert len(pairs) <= 2 * count


@native
@pytest.mark.clock
def test_an_argument_takes_50_ns() -> None:
    f: Any = sm.jit(lambda xs: xs[0] + xs[-1])

    def best(count: int) -> float:
        xs = arrays(count)
        for _ in range(5):
            f(xs)
        times = []
        for _ in range(60):
            start = time.perf_counter()
            f(xs)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(2000) - best(1000) < 1000 * 50e-9
