"""Memory of dropped results is used again, and never memory that something refers to."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy  # noqa: ICN001 - `np` is ours
import pytest

import smelt as sm
import smelt.numpy as np
from smelt.frontends.array import evaluate_pending, memory

SIDE = 300  # 720,000 bytes: above the smallest memory that is kept


@pytest.fixture
def a() -> Any:
    return np.asarray(numpy.random.default_rng(0).random((SIDE, SIDE)))


def test_a_loop_of_results_takes_no_fresh_memory(a: Any) -> None:
    with sm.config(tiers="numpy"):
        x: Any = a * 1.0
        for _ in range(4):
            x = x * 0.5 + a
        tracemalloc.start()
        for _ in range(4):
            x = x * 0.5 + a
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < SIDE * SIDE * 8


def test_memory_of_views_exports_and_results_is_left_alone(a: Any) -> None:
    with sm.config(tiers="numpy"):
        kept = [a * float(k) for k in range(8)]
        rows = (a * 9.0)[3:5]
        exported = numpy.asarray(a * 10.0)
        for k in range(20):
            _ = a * float(100 + k)
        expected = numpy.asarray(a)
        for k, x in enumerate(kept):
            numpy.testing.assert_array_equal(numpy.asarray(x), expected * k)
        numpy.testing.assert_array_equal(numpy.asarray(rows), (expected * 9)[3:5])
        numpy.testing.assert_array_equal(exported, expected * 10)


@pytest.fixture(params=[False, True], ids=["plain", "torch-compile"])
def evaluation_of_frames(request: Any) -> Iterator[None]:
    """Python's own way to run functions, and torch's, in which callers hold arguments too."""
    if not request.param:
        yield
        return
    eval_frame = pytest.importorskip("torch._C._dynamo").eval_frame
    eval_frame.set_eval_frame(False)
    yield
    eval_frame.set_eval_frame(None)


@pytest.mark.usefixtures("evaluation_of_frames")
def test_a_result_that_is_kept_for_reuse_is_still_written_in_place(a: Any) -> None:
    with sm.config(tiers="numpy"):
        x: Any = a * 2.0
        x += 1.0  # its types are known from now on
        x = a * 2.0
        data = x.node.data
        assert memory.is_recycled(x.node.type, data)
        at = data.__array_interface__["data"][0]
        del data
        x += 1.0
        x[2:] *= 3.0
        assert x.node.data.__array_interface__["data"][0] == at


def test_views_of_memory_have_no_value_until_they_are_recorded(a: Any) -> None:
    with sm.config(tiers="auto"):
        b: Any = np.asarray(numpy.asarray(a).copy()) + 0.0
        part, other = b[1:], b.T
        assert evaluate_pending.present_value(part) is None
        assert evaluate_pending.present_value(other) is None
        total = part[:, 1:] * 2.0 + part[:, :-1]
        part += b[:-1]
        b[:, 0] = b[:, 1]
        expected = numpy.asarray(a).copy()
        theirs = expected[1:, 1:] * 2.0 + expected[1:, :-1]
        expected[1:] += expected[:-1]
        expected[:, 0] = expected[:, 1]
        numpy.testing.assert_array_equal(numpy.asarray(total), theirs)
        numpy.testing.assert_array_equal(numpy.asarray(b), expected)
        numpy.testing.assert_array_equal(numpy.asarray(other), expected.T)


def test_fresh_memory_beyond_the_limit_empties_the_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_LIMIT_BYTES", 4 << 20)
    with sm.config(tiers="numpy"):
        for side in range(256, 300):
            _ = np.asarray(numpy.ones((side, side))) * 2.0
    lists = memory._RECYCLED.values()  # pyright: ignore[reportPrivateUsage]
    kept = sum(b.nbytes for x in lists for b in x.buffers)
    assert kept <= 4 << 20
