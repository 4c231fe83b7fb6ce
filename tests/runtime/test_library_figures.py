"""Figures of a library's products: measured in little time, stored, and never believed blindly."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from smelt import knobs
from smelt.compiler import driver, warm
from smelt.graph.text import parse
from smelt.journal.facts import Journal, LibraryProduct
from smelt.machine.target import Target
from smelt.ops.library_product import DTYPES, PROVIDERS
from smelt.runtime import library_figures
from smelt.runtime.cache import Cache
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
    assert library_figures.library_identity(target) == "" or threads == target.cores
    with knobs.config(threads=threads):
        assert "large f32" in library_figures.library_identity(target)


# ---- in the background ---------------------------------------------------------------------------


def test_a_class_counts_once_two_tries_agree() -> None:
    def add(*pair: float) -> library_figures.Figures:
        library_figures.add_try(MACHINE, "numpy", 2, "large f32", (pair[0], pair[1]))
        return library_figures.load(MACHINE)

    assert add(200.0, 100.0) == add(200.0, 300.0) == {}, "one is wrong"
    assert len(library_figures.tries(MACHINE)["numpy 2 large f32"]) == 2
    assert add(190.0, 110.0) == {"numpy": {"2": {"large f32": (190.0, 100.0)}}}
    assert library_figures.tries(MACHINE) == {}
    library_figures.store(MACHINE, {"other": {"2": {"large f32": (1.0, 2.0)}}})
    assert set(library_figures.load(MACHINE)) == {"numpy", "other"}


@pytest.mark.parametrize(("ratio", "taken"), [(0.94, True), (0.96, False)])
def test_the_second_plan_follows_what_was_measured_beside_the_first(
    ratio: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library on either side of the border: a product, a fused one, a small one."""
    monkeypatch.setattr(library_speed, "_measured", set[str]())
    race = library_speed._Race  # pyright: ignore[reportPrivateUsage] - instead of a clock
    monkeypatch.setattr(race, "times", lambda *_: (100.0, 100.0 * ratio))
    target, library = driver.host(), PROVIDERS["numpy"]
    graph = parse("""graph f(x: f32[n,512], w: f32[512,512], u: f32[17,128], t: f32[128,128]) {
      v0 = contract(x, w) {spec="m,k; k,j -> m,j"}
      v1 = contract(v0, w) {spec="m,k; k,j -> m,j"}
      v2 = exp(v1)
      v3 = contract(u, t) {spec="m,k; k,j -> m,j"}
      return v0, v2, v3
    }""")

    def reasons() -> list[str]:
        c = driver.compile(graph, hints={"n": 512}, journal=Journal(), target=target)
        return [d.reason for d in c.journal.of(LibraryProduct)]

    with knobs.config(threads=library.get_threads() or 1):
        assert reasons() == [], "nothing is measured yet"
        classes = ["large f32"]
        build = partial(driver.compile, target=target)
        thread = library_speed.start_background(build, target, library, classes)
        assert thread is not None
        thread.join()
        assert library_speed.start_background(build, target, library, classes) is None
        assert reasons() == ["faster" if taken else "slower", "fused", "small"]
        identity = library_figures.library_identity(target)
        assert ("large f32" in identity) == taken, "a plan is made again only for what it calls"


def test_only_a_program_that_is_compiled_here_starts_a_measurement() -> None:
    source = """graph f(x: f32[600,512], w: f32[512,512]) {
      v0 = contract(x, w) {spec="m,k; k,j -> m,j"}
      return v0
    }"""
    started: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library_speed, "start_background", lambda *a: started.append(a[3]))
        with knobs.config(probe="auto", cache=True, verify=False):
            for _ in range(2):
                warm.compile(parse(source), hints={})
        with knobs.config(probe="off", cache=True, verify=False):
            warm.compile(parse(source.replace("600", "601")), hints={})
    assert started == [["large f32"]]
