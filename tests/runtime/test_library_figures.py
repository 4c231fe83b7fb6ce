"""Figures of a library's products: measured in little time, stored, and never believed blindly."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from smelt import driver, knobs
from smelt.graph.text import parse
from smelt.journal import Journal, LibraryProduct
from smelt.ops.library_product import DTYPES, PROVIDERS
from smelt.runtime import library_choice, library_figures
from smelt.runtime.cache import Cache
from smelt.target import Target
from smelt.tune import library_speed
from smelt.tune.library_speed import PROGRAMS, measure_products

MACHINE = Target.for_isa("avx2")
FIGURES = {"numpy": {"2": {"large f32": (200.0, 100.0)}}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(Cache, "_defaults", {})
    with knobs.config(cache_dir=str(tmp_path / "cache"), probe="off"):
        yield tmp_path / "cache"


def test_figures_are_stored_for_a_machine_and_a_library() -> None:
    assert library_figures.load(MACHINE) == {}
    assert library_figures.store(MACHINE, FIGURES) is not None
    library_figures.store(MACHINE, {"other": {"2": {"large f32": (1.0, 2.0)}}})
    stored = library_figures.load(MACHINE)
    assert stored["numpy"] == FIGURES["numpy"] and set(stored) == {"numpy", "other"}
    assert library_figures.load(Target.for_isa("portable")) == {}
    assert library_figures.ratios(stored, "numpy", 2) == {"large f32": 0.5}
    assert library_figures.ratios(stored, "numpy", 1) == {}
    assert library_figures.ratios(stored, "none", 2) == {}


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "[]",
        '{"format": 0}',
        {"numpy": {"2": {"large f32": [0.0, 1.0]}}},
        {"numpy": {"2": {"large f32": [1.0]}}},
        {"numpy": {"2": []}},
        {"numpy": {"2": {"large f32": ["fast", 1.0]}}},
    ],
)
def test_a_damaged_file_is_no_file(folder: Path, broken: Any) -> None:
    library_figures.store(MACHINE, FIGURES)
    (file,) = folder.glob("libraries-*.json")
    if not isinstance(broken, str):
        broken = json.dumps({**json.loads(file.read_text()), "figures": broken})
    file.write_text(broken)
    library_figures._load.cache_clear()  # pyright: ignore[reportPrivateUsage] - as in a new process
    assert library_figures.load(MACHINE) == {}


def test_every_class_is_measured_for_one_thread_and_for_all() -> None:
    target = driver.host()
    figures = measure_products(partial(driver.compile, target=target), target, PROVIDERS["numpy"])
    names = {f"{name} {d.name}" for d in DTYPES for name in PROGRAMS if name != "convolution"}
    rows = figures["numpy"]
    assert str(target.cores) in rows and all(set(r) <= names for r in rows.values())
    assert any(rows.values()), "a busy machine confirms some of them"
    assert all(ns > 0 for r in rows.values() for pair in r.values() for ns in pair)


def test_times_of_a_busy_machine_are_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = (1.5**k for k in itertools.count())  # every run takes longer than the one before
    monkeypatch.setattr(library_speed, "perf_counter_ns", lambda: next(clock))
    target = driver.host()
    build = partial(driver.compile, target=target)
    figures = measure_products(build, target, PROVIDERS["numpy"])
    assert not any(figures["numpy"].values())


def test_figures_of_this_number_of_threads_decide() -> None:
    graph = parse("""graph f(x: f32[n,512], w: f32[512,512]) {
      v0 = contract(x, w) {spec="m,k; k,j -> m,j"}
      return v0
    }""")
    target = driver.host()
    library = PROVIDERS["numpy"]
    threads = library.get_threads() or 1
    library_figures.store(target, {"numpy": {str(threads): {"large f32": (200.0, 100.0)}}})

    def decided(**settings: Any) -> list[bool]:
        with knobs.config(**settings):
            c = driver.compile(graph, hints={"n": 512}, journal=Journal(), target=target)
        return [d.taken for d in c.journal.of(LibraryProduct)]

    assert decided(threads=threads) == [True]
    assert decided(threads=threads + 1) == [], "not measured for so many"
    assert decided(threads=threads, library_products="never") == []
    assert library_choice.library_identity(target) == "" or threads == target.cores
    with knobs.config(threads=threads):
        assert "large f32:0.5" in library_choice.library_identity(target)
