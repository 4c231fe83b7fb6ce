"""Where a value came from: the right line, cheaply."""

from __future__ import annotations

import pickle
import sys
import time
import timeit
import traceback
from types import SimpleNamespace

import pytest
from tests.pace import pace

from smelt.python import origin
from smelt.python.origin import UNKNOWN, Origin, here

PACKAGE = origin.__file__.removesuffix("python/origin.py")


def library(name: str, depth: int):
    """A function that records its origin under `depth` frames which pretend to be the package's."""
    source = "from smelt.python.origin import here\ndef f0(): return here()\n"
    source += "".join(f"def f{i}(): return f{i - 1}()\n" for i in range(1, depth))
    space: dict[str, object] = {}
    exec(compile(source, PACKAGE + name, "exec"), space)
    return space[f"f{depth - 1}"]


def test_frames_of_the_package_are_skipped():
    actual = library("graph/build.py", 5)()
    assert actual.file == __file__
    assert actual.function == "test_frames_of_the_package_are_skipped"
    assert actual.text == 'actual = library("graph/build.py", 5)()'
    assert actual.caret() == " " * 9 + "^" * 30


@pytest.mark.parametrize("guest", ["bench/workloads.py", "demo/minilm.py"])
def test_shipped_workloads_are_user_code(guest):
    assert library(guest, 1)().file == PACKAGE + guest


def test_caret_counts_characters_not_bytes():
    record = library("a.py", 1)
    π = 1.0  # noqa: PLC2401 - the point of the test
    actual = (π, "äöü", record())[2]
    start = actual.text.index("record()")
    assert actual.caret() == " " * start + "^" * len("record()")


def test_expression_of_several_lines_ends_with_its_first():
    record = library("a.py", 1)

    def call(*_):
        return record()

    actual = call(
        1,
        2,
    )
    assert actual.text == "return record()"
    assert set(actual.caret().strip()) == {"^"}


def test_unreadable_source_gives_no_text():
    space: dict[str, object] = {"here": here}
    exec(compile("def f():\n    return here()", "<nowhere>", "exec"), space)
    actual = space["f"]()
    assert (actual.file, actual.line, actual.text, actual.caret()) == ("<nowhere>", 2, "", "")


def test_no_frame_outside_gives_unknown(monkeypatch):
    monkeypatch.setattr(origin, "_OURS", dict.fromkeys(_files_on_the_stack(), True))
    assert here() is UNKNOWN
    assert not UNKNOWN.known and str(UNKNOWN) == "<unknown>" and UNKNOWN.caret() == ""


def _files_on_the_stack() -> set[str]:
    return {frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe())}


def test_equality_hash_and_pickle():
    recorded = here()
    built = Origin(*recorded.place)
    assert recorded == built and hash(recorded) == hash(built)
    assert pickle.loads(pickle.dumps(recorded)) == recorded
    assert recorded != Origin("other.py", 1)
    assert recorded != "other.py:1"


def test_resolving_releases_the_code_object():
    recorded = here()
    assert recorded.line > 0
    assert recorded._code is None


@pytest.mark.clock
def test_recording_costs_less_than_a_microsecond():
    record = library("frontends/array/array.py", 4)
    # Processor time, of many short turns: what else the machine does changes that least.
    times = timeit.repeat(record, timer=time.thread_time, number=2_000, repeat=50)
    best = min(times) / 2_000
    assert best < 1e-6 * pace(), f"{best * 1e9:.0f} ns"


def test_packages_without_sources_are_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(__file__="/site/numpy/__init__.pyc")
    monkeypatch.setitem(sys.modules, "numpy", package)
    assert origin._is_ours("/site/numpy/fft.py")
    assert not origin._is_ours("/site/numpy_user.py")
