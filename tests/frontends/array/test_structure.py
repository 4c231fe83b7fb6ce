"""Pending operators get structures while they are recorded, which are the keys of programs."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import smelt as sm
import smelt.numpy as smnp
from smelt.frontends.array import evaluate_pending, program_cache, structure
from smelt.frontends.array.value import STATE


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    evaluate_pending.flush()
    program_cache.PROGRAMS.clear()
    yield
    program_cache.PROGRAMS.clear()


def array(*shape: int, seed: int = 0) -> Any:
    return sm.asarray(np.random.default_rng(seed).standard_normal(shape)) + 0


def calls_of_flush(x: Any) -> int:
    """Count the Python functions that a flush calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        evaluate_pending.flush(x.node)
    finally:
        sys.setprofile(None)
    return count


def chain(x: Any, y: Any, operators: int) -> Any:
    for _ in range(operators // 2):
        x = x * 0.75 + y
    return x


def test_a_known_program_is_not_walked() -> None:
    x, y = array(100), array(100, seed=1)
    np.asarray(x), np.asarray(y)
    counts = []
    for operators in (4, 40):
        for _ in range(5):
            calls = calls_of_flush(chain(x, y, operators))
        counts.append(calls)
    assert counts[0] == counts[1] <= 40


def test_arrays_used_twice_are_distinguished_from_two_arrays() -> None:
    x, y = array(5), array(5, seed=1)
    a, b = np.asarray(x), np.asarray(y)
    for _ in range(4):
        np.testing.assert_array_equal(np.asarray(x * 3 + x), a * 3 + a)
        np.testing.assert_array_equal(np.asarray(x * 3 + y), a * 3 + b)
        np.testing.assert_array_equal(np.asarray(y * 3 + x), b * 3 + a)


def test_other_pending_work_changes_no_value() -> None:
    arrays = [array(6, seed=k) for k in range(4)]
    theirs = [np.asarray(x).copy() for x in arrays]
    rng = np.random.default_rng(7)
    for _ in range(60):
        i, j, k, m = rng.integers(0, 4, 4)
        dropped = arrays[i] * 5 if m else None
        kept = arrays[j] - arrays[i]
        result = (arrays[j] * float(m) + arrays[k]) * kept
        del dropped
        expected = (theirs[j] * float(m) + theirs[k]) * (theirs[j] - theirs[i])
        np.testing.assert_array_equal(np.asarray(result), expected)


def test_a_view_that_was_computed_keeps_its_elements_when_its_owner_is_written() -> None:
    for k in range(5):
        m = smnp.asarray(np.arange(20_000.0)) + k
        np.asarray(m * 1)
        part = m[2:9000]
        reader = part * 2.5 + 1
        np.asarray(part)
        m[3] = -1000.0
        expected = (np.arange(20_000.0)[2:9000] + k) * 2.5 + 1
        np.testing.assert_array_equal(np.asarray(reader), expected)


def test_programs_of_transposed_arrays_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.random.default_rng(0).standard_normal((70, 90))
    x, y = sm.asarray(a.T), sm.asarray(a)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(x * 2 + x), a.T * 2 + a.T)
        np.testing.assert_array_equal(np.asarray(y * 2 + y), a * 2 + a)
    monkeypatch.setattr(evaluate_pending, "Program", None)
    np.testing.assert_array_equal(np.asarray(x * 2 + x), a.T * 2 + a.T)
    np.testing.assert_array_equal(np.asarray(y * 2 + y), a * 2 + a)


def test_leaves_are_not_kept_alive() -> None:
    x = array(5)
    np.asarray(x)
    reference = weakref.ref(x.node)
    y = x * 2
    del x, y
    gc.collect()
    assert reference() is None


def test_forgotten_structures_change_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "_LIMIT", 5)
    x = array(5)
    a = np.asarray(x).copy()
    for _ in range(6):
        np.testing.assert_allclose(np.asarray(chain(x, x + 1, 20)), chain(a, a + 1, 20))
    assert len(structure.STRUCTURES) <= 5


def test_epochs_end_in_all_threads() -> None:
    """Two threads record operators on the same arrays, and flush at any time."""
    arrays = [array(8, seed=k) for k in range(3)]
    theirs = [np.asarray(x).copy() for x in arrays]
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(150):
            i, j, k = rng.integers(0, 3, 3)
            shared = arrays[i] * 3.5
            result = (shared - arrays[j]) * arrays[k]
            if k:
                np.asarray(shared)
            expected = (theirs[i] * 3.5 - theirs[j]) * theirs[k]
            if not np.array_equal(np.asarray(result), expected):
                wrong.append((i, j, k))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_a_leaf_that_another_thread_reads_meanwhile_is_one_leaf() -> None:
    """Its second place makes the key that of three leaves: they must not find this program."""
    x, y, z = (array(64, seed=k) for k in range(3))
    theirs = [np.array(a + 0) for a in (x, y, z)]

    def product_of(b: Any, c: Any, between: Any) -> Any:
        kept = []
        difference = x * 3.5 - b
        other = threading.Thread(target=lambda: kept.append(between + 1.5))
        other.start()
        other.join()
        return np.asarray(difference * c)

    assert np.array_equal(product_of(z, z, z), (theirs[0] * 3.5 - theirs[2]) * theirs[2])
    assert np.array_equal(product_of(y, z, x), (theirs[0] * 3.5 - theirs[1]) * theirs[2])


def test_ended_threads_leave_no_epochs() -> None:
    before = len(structure._THREADS)
    for _ in range(3):
        thread = threading.Thread(target=lambda: np.asarray(array(3) * 2))
        thread.start()
        thread.join()
    gc.collect()
    assert len(structure._THREADS) <= before + 1
    assert STATE.epochs in [reference() for reference in structure._THREADS]
