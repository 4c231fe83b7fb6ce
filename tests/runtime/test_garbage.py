"""While Smelt compiles, the collector skips older objects of the process."""

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
from smelt.compiler import driver
from smelt.runtime import compile_scope
from smelt.runtime.compile_scope import hide_live_objects

SEES_ALL_OBJECTS = True  # it counts those that are hidden


@pytest.fixture(autouse=True)
def nothing_hidden() -> Iterator[None]:
    """Starts and ends with all objects in sight."""
    gc.unfreeze()
    compile_scope.forget_frozen_objects()
    yield
    gc.unfreeze()
    compile_scope.forget_frozen_objects()


def test_what_the_user_froze_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting walks all of it, which would take longer than a compilation."""
    kept = [[k] for k in range(10)]
    gc.freeze()
    counts = list[int]()
    count = gc.get_freeze_count
    monkeypatch.setattr(
        compile_scope.gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1]
    )
    for _ in range(5):
        with hide_live_objects():
            kept.append([])
    assert len(counts) == 1 and counts[0] > 10


class Ring:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


def test_what_was_there_is_shown_again_though_something_is_raised() -> None:
    def fails() -> None:
        with hide_live_objects():
            assert gc.get_freeze_count() > 0
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert gc.get_freeze_count() == 0


def test_what_the_user_hides_stays_hidden() -> None:
    gc.freeze()
    kept = [[] for _ in range(1000)]
    gc.freeze()
    hidden = gc.get_freeze_count() - len(kept)  # what else is hidden may die meanwhile
    with hide_live_objects(), hide_live_objects():
        assert gc.get_freeze_count() > hidden
    assert gc.get_freeze_count() > hidden


@pytest.mark.parametrize("inputs", [(700, 10, 10), (0, 10, 10), (500_000, 5, 5)])
def test_new_objects_are_looked_at_in_lots_and_then_as_before(inputs: tuple[int, int, int]) -> None:
    usual = gc.get_threshold()
    try:
        gc.set_threshold(*inputs)
        with hide_live_objects(), hide_live_objects():
            assert gc.get_threshold()[0] >= inputs[0]
            assert bool(gc.get_threshold()[0]) == bool(inputs[0])  # nothing is switched on
            assert gc.get_threshold()[0] not in range(1, 10_000)
        assert gc.get_threshold() == inputs
    finally:
        gc.set_threshold(*usual)


def test_garbage_from_before_is_found_afterwards_and_that_of_within_at_once() -> None:
    before = weakref.ref(Ring())
    with hide_live_objects():
        within = weakref.ref(Ring())
        gc.collect()
        assert before() is not None and within() is None
    gc.collect()
    assert before() is None


def test_what_is_around_a_compilation_is_hidden_with_the_rest() -> None:
    with hide_live_objects():
        built = [[] for _ in range(5000)]
        hidden = gc.get_freeze_count()
        with hide_live_objects():
            assert gc.get_freeze_count() >= hidden + len(built)
    assert gc.get_freeze_count() == 0


def test_compiling_hides_and_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    lowered = driver._lower_one

    def watched(*args: object) -> object:
        seen.append(gc.get_freeze_count())
        return lowered(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(driver, "_lower_one", watched)
    graph = sm.jit(lambda x: sm.exp(x) + 1.0).lower(np.zeros(7, np.float32)).trace.graph
    driver.compile(graph, hints={})
    assert seen and min(seen) > 0 and gc.get_freeze_count() == 0


def test_a_thread_beside_another_leaves_the_lots_as_they_were() -> None:
    usual = gc.get_threshold()
    begun, done = threading.Event(), threading.Event()

    def beside() -> None:
        with hide_live_objects():
            begun.set()
            done.wait(10)

    thread = threading.Thread(target=beside)
    with hide_live_objects():
        gc.unfreeze()  # as if both had looked before either hid anything
        thread.start()
        begun.wait(10)
    done.set()
    thread.join()
    assert gc.get_threshold() == usual and gc.get_freeze_count() == 0


def test_an_exception_at_any_moment_shows_all_objects_again() -> None:
    """A signal's handler may raise after any call: here it does after each of them in turn."""
    usual = gc.get_threshold()
    for number in range(1, 200):
        calls = 0

        def stop(frame: Any, event: str, argument: Any, number: int = number) -> None:
            nonlocal calls
            if frame.f_code.co_filename == compile_scope.__file__ and event == "c_return":
                calls += 1
                if calls == number:
                    raise KeyError

        sys.setprofile(stop)
        try:
            with hide_live_objects():
                pass
        except KeyError:
            pass
        finally:
            sys.setprofile(None)
        assert gc.get_threshold() == usual and gc.get_freeze_count() == 0, number
        assert not compile_scope._HIDING, number
        if calls < number:
            break
    assert 5 < number < 20
