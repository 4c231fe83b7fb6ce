"""A pending result that fails: which reader gets the error, and the others' results."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import (
    ChangedError,
    DonatedError,
    ExternError,
    FusionError,
    InternalError,
    OutOfMemory,
    OutsideError,
)

N = 3000


def _changed() -> Any:
    source = np.zeros(N)
    pending = sm.asarray(source) + 1
    source[:] = 5.0
    return pending


def _singular() -> Any:
    return sm.linalg.inv(sm.zeros((2, 2))) + 1


def _outside() -> Any:
    return sm.take(sm.arange(4.0), sm.asarray(np.full(N, 9)) + 0) * 2


FAILING = [(_changed, ChangedError), (_singular, ExternError), (_outside, OutsideError)]


@pytest.mark.parametrize(("fails", "error"), FAILING)
def test_only_the_reader_gets_the_error(fails: Callable[[], Any], error: type[Exception]) -> None:
    bad = fails()
    other = sm.asarray(np.arange(5.0)) * 2
    depends = bad - 1
    assert other.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    for _ in range(2):
        for x in (bad, depends):
            with pytest.raises(error):
                np.asarray(x)
    with pytest.raises(error):
        np.asarray(bad + 1)


@pytest.mark.parametrize(("fails", "error"), FAILING)
@pytest.mark.parametrize("how", ["view", "out", "donate", "setitem"])
def test_what_others_read_is_not_overwritten_behind_it(
    fails: Callable[[], Any], error: type[Exception], how: str
) -> None:
    ready = sm.jit(lambda x: x * 2)(np.arange(float(N)))
    waits, failing = ready * 3 + 1, fails()
    np.asarray(sm.asarray(np.ones(3)) * 2)  # a read that meets it
    also = ready - 1
    if how == "view":
        np.asarray(ready)[7] = 1e9
    elif how == "out":
        shifted: Any = sm.jit(lambda a: a + 1)
        shifted(np.ones(N), out=ready)
    elif how == "donate":
        sm.jit(lambda a: a + 1, donate=0)(ready)
    else:
        ready[:] = 0.0
    np.testing.assert_array_equal(np.asarray(waits), np.arange(float(N)) * 6 + 1)
    np.testing.assert_array_equal(np.asarray(also), np.arange(float(N)) * 2 - 1)
    with pytest.raises(error):
        np.asarray(failing)


@pytest.mark.parametrize(("fails", "error"), FAILING)
def test_a_repeated_error_holds_no_references(
    fails: Callable[[], Any], error: type[Exception]
) -> None:
    bad = fails()
    node, lengths = weakref.ref(bad.node), set[int]()
    for _ in range(3):
        with pytest.raises(error) as caught:
            bad.tolist()
        lengths.add(len(caught.traceback))
        del caught
    del bad
    gc.collect()
    assert node() is None and len(lengths) <= 2  # the first is told by what has computed


def test_memory_that_another_thread_has_given_away() -> None:
    source = sm.asarray(np.arange(float(N)))
    actual: list[Any] = []
    waits, inputs = threading.Event(), threading.Event()

    def read() -> None:
        pending, other = source + 1, sm.ones(2) + 1
        waits.set()
        inputs.wait()
        for x in (pending, other):
            try:
                actual.append(x.tolist())
            except DonatedError as error:
                actual.append(type(error))

    reader = threading.Thread(target=read)
    reader.start()
    waits.wait()
    sm.jit(lambda a: a + 1, donate=0)(source)
    inputs.set()
    reader.join()
    assert actual == [DonatedError, [2.0, 2.0]]


def test_what_cannot_be_compiled_keeps_nobody_else_from_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from smelt.frontends.array import evaluate_pending

    run = evaluate_pending._run  # pyright: ignore[reportPrivateUsage]

    def refusing(outputs: Any, *rest: Any) -> None:
        if any(x.type.shape == (7,) for x in outputs):
            raise InternalError("no kernels")
        run(outputs, *rest)

    monkeypatch.setattr(evaluate_pending, "_run", refusing)
    bad, others = sm.zeros(7) + 1, [sm.ones(2) * k for k in range(4)]
    assert [x.tolist() for x in others] == [[k, k] for k in range(4)]
    np.asarray(others[0])[:] = 3.0
    with pytest.raises(InternalError):
        bad.tolist()


def test_changed_memory_is_read_anew_after_its_error() -> None:
    source = np.zeros(N)
    x = sm.asarray(source)
    pending = x + 1
    source[:] = 5.0
    with pytest.raises(ChangedError):
        np.asarray(pending)
    np.testing.assert_array_equal(np.asarray(x + 1), np.full(N, 6.0))


def test_want_of_memory_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt.frontends.array import evaluate_pending

    run, room = evaluate_pending._run, [False]  # pyright: ignore[reportPrivateUsage]

    def scarce(outputs: Any, *rest: Any) -> None:
        if not room[0] and any(x.type.shape == (7,) for x in outputs):
            raise OutOfMemory("no room")
        run(outputs, *rest)

    monkeypatch.setattr(evaluate_pending, "_run", scarce)
    ready = sm.jit(lambda x: x * 2)(np.ones(7))
    large = ready + 1
    assert (ready + sm.ones(7))[:3].tolist() == [3.0, 3.0, 3.0]
    for _ in range(2):
        with pytest.raises(OutOfMemory):
            large.tolist()
    with pytest.raises(OutOfMemory):  # `large` reads what is given out
        np.asarray(ready)
    room[0] = True
    np.asarray(ready)[:] = 5.0
    assert large.tolist() == [3.0] * 7


def _table(a: Any) -> Any:
    return a[:, None] - a[None, :]  # 32 TB


def _reads(x: Any) -> Any:
    return np.asarray(x)


def _is_argument(x: Any) -> Any:
    return sm.jit(lambda a: a + 0)(x).tolist()


def _is_out(x: Any) -> Any:
    copies: Any = sm.jit(lambda a: a + 0)
    copies(x, out=(to := np.empty(3)))
    return to


def _is_donated(x: Any) -> Any:
    return sm.jit(lambda a: a + 0, donate=0)(x).tolist()


def _is_read_in_a_thread(x: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(np.asarray(x)))
    thread.start()
    thread.join()
    return results[0]


USES = [_reads, _is_argument, _is_out, _is_donated, _is_read_in_a_thread, np.from_dlpack]


@pytest.mark.parametrize("use", USES)
def test_what_is_too_large_keeps_nobody_else_from_being_read(use: Callable[[Any], Any]) -> None:
    source = sm.jit(lambda x: x + 1)(np.arange(2_000_000.0))
    tables = [_table(source), _table(source) + 1, _table(sm.arange(2_000_000.0))]
    for k in range(3):
        assert list(use(sm.ones(3) * k)) == [k, k, k]
        assert list(use(sm.jit(lambda x: x + 1)(np.full(3, k - 1.0)))) == [k, k, k]
        with pytest.raises(OutOfMemory):
            np.asarray(tables[k])
    assert float(tables[1][2, 1]) == 2.0
    for reads_or_writes in (np.asarray, sm.jit(lambda a: a + 1, donate=0)):
        with pytest.raises(OutOfMemory, match="2000000,2000000"):
            reads_or_writes(source)
    tables.clear()
    assert np.asarray(source)[1] == 2.0


def test_operators_are_recorded_beside_what_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt.frontends.array import array, value

    monkeypatch.setattr(array, "PENDING_LIMIT", 8)
    monkeypatch.setattr(value.STATE, "review_at", 8)
    table = _table(sm.arange(2_000_000.0))
    results = [sm.ones(2) * k for k in range(50)]
    assert sm.stack(results)[:, 0].tolist() == list(range(50))
    with pytest.raises(OutOfMemory):
        np.asarray(table)


def test_what_waits_for_memory_is_not_tried_again_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from smelt.frontends.array import evaluate_pending

    run, tried = evaluate_pending._run, list[int]()  # pyright: ignore[reportPrivateUsage]

    def counting(outputs: Any, *rest: Any) -> None:
        tried.append(len(outputs))
        run(outputs, *rest)

    monkeypatch.setattr(evaluate_pending, "_run", counting)
    table, source = _table(sm.arange(2_000_000.0)), np.ones(N)
    reads = sm.asarray(source) + 1
    assert sm.ones(3).tolist() == [1.0] * 3
    tried.clear()
    for k in range(5):
        assert (sm.ones(3) * k).tolist() == [k, k, k]
    assert len(tried) == 5 and reads.tolist() == [2.0] * N
    node = weakref.ref(table.node)
    del table
    assert node() is None  # nor held by the error


def test_memory_that_changed_before_what_is_too_large_has_read_it() -> None:
    source = np.arange(2_000_000.0)
    x, other = sm.asarray(source), sm.asarray(np.ones(N))
    table = _table(x)
    assert float((other + 1)[0]) == 2.0
    assert other.node.sample is None  # only what waits is watched
    source[:] = 5.0
    np.testing.assert_array_equal(np.asarray(x)[:3], [5.0, 5.0, 5.0])
    with pytest.raises(ChangedError):
        np.asarray(table)


def test_a_demand_to_fuse_is_of_what_is_connected() -> None:
    with sm.fuse(must=True):
        part = sm.sort(sm.asarray(np.ones((4, 4))) + 1)
        whole, other = sm.exp(part), sm.exp(sm.zeros(3)) + 1
        assert other.tolist() == [2.0] * 3
        for x in (whole, part, whole):
            with pytest.raises(FusionError):
                np.asarray(x)
        assert (other * 2).tolist() == [4.0] * 3
    np.testing.assert_array_equal(whole, np.exp(np.full((4, 4), 2.0)))


def test_what_is_there_is_read_with_few_calls() -> None:
    """Where nothing waits, there is nothing to tell, and nothing to make for it."""
    result, calls = sm.jit(lambda x: x + 1)(np.ones(3, "f4")), list[str]()
    np.asarray(result)

    def note(frame: FrameType, event: str, _: Any) -> None:
        calls.extend([frame.f_code.co_name] * (event == "call"))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        np.asarray(result)
    finally:
        sys.setprofile(before)
    probes = calls.count("__getattr__")  # NumPy's, for two protocols that come before `__array__`
    assert probes <= 2
    assert len(calls) <= 14 + probes, calls  # one asks whose rules for views hold
