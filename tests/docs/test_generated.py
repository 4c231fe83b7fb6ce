"""Generated parts of the pages are up to date."""

from __future__ import annotations

import pytest
from tests.docs.pages import ROOT, read
from tools import pages, readme

from bench.results import SMELT, Entry, Results, Row, Times


@pytest.mark.parametrize("page", sorted(pages.PAGES))
def test_generated_parts_are_not_stale(page):
    assert not (wrong := pages.stale(page)), "\n".join([*wrong, "run: make pages"])


def test_a_part_that_differs_is_stale(tmp_path):
    name = "docs/fusion.md"
    (tmp_path / "docs").mkdir()
    (tmp_path / name).write_text(read(name).replace("F101", "F102"))
    assert f"{name}: chain is stale" in pages.stale(name, tmp_path)
    pages.write(name, tmp_path)
    assert pages.stale(name, tmp_path) == []
    assert (tmp_path / name).read_text() == read(name)


def test_missing_and_unknown_parts_are_reported(tmp_path):
    (tmp_path / "docs").mkdir()
    text = read("docs/fusion.md").replace("generated: row", "generated: odd")
    (tmp_path / "docs" / "fusion.md").write_text(text.replace("end: row", "end: odd"))
    wrong = pages.stale("docs/fusion.md", tmp_path)
    assert "docs/fusion.md: no part 'row'" in wrong
    assert "docs/fusion.md: nothing writes the part 'odd'" in wrong


def test_times_and_machines_do_not_make_a_page_stale():
    here = (
        "f: 3 operators became 1 kernel; 9 MB through memory became 3 MB\n"
        "for      n0=6   AMD EPYC, 2 cores, avx512\n"
        "takes    9.82 ms a call, 966 us predicted; compiled in 137 ms\n\n"
        "k0  exp  grid n0  5.16 ms  118 GFLOP/s (21 % of roof)  saved 34.7 MB\n\n"
        "k0, 97 % of the time: reads 6.88 MB, compiled in 120 ms"
    )
    there = (
        "f: 3 operators became 1 kernel; 9 MB through memory became 3 MB\n"
        "for      n0=6   Some CPU @ 2, GHz, 8 cores, avx2\n"
        "takes    82 us a call, 1.5 us predicted; compiled in 7 ms (cached)\n\n"
        "k0  exp  grid n0    51.6 us  8.5 GFLOP/s (1 % of roof)  saved 34.7 MB\n\n"
        "k0: reads 6.88 MB, code known already\n\n"
        "Speeds of this machine are assumed; `smelt doctor --probe` measures them."
    )
    assert pages.normalise(here) == pages.normalise(there)
    assert pages.normalise(here) != pages.normalise(here.replace("34.7 MB", "34.8 MB"))
    assert pages.normalise(here) != pages.normalise(here.replace("1 kernel", "2 kernels"))


# ---- the benchmark on the first page -----------------------------------------------------------


def times(ns: float) -> Times:
    return Times(ns, ns, ns, ns, 5)


def row(name: str, floor: float, **ns: float) -> Row:
    entries = {library: Entry(times(t), "own", 0.1, t) for library, t in ns.items()}
    return Row(name, name.title(), "large", 1 << 26, 1 << 26, times(floor), entries)


def written(tmp_path, *rows: Row) -> str:
    machine = {"cpu": "Some CPU", "isa": "avx2", "date": "2026-01-31"}
    peers = {"numpy": "numpy 2.4", "torch": "torch 2.13"}
    path = tmp_path / "bench.json"
    path.write_text(Results(machine, 2, peers, {}, rows).to_json())
    return readme.bench(path)


def test_no_numbers_without_a_measurement(tmp_path):
    assert written(tmp_path, row("softmax", 1e6, numpy=4e6)) == readme.UNMEASURED


def test_the_numbers_are_those_of_the_file(tmp_path):
    text = written(
        tmp_path,
        row("softmax", 1e6, numpy=8e6, torch=4e6, **{SMELT: 1e6}),
        row("adam", 1e6, numpy=4e6, torch=1e6, **{SMELT: 4e6}),
    )
    # 4 times as fast and a quarter as fast: equal on the geometric mean, one of two slower.
    line = next(line for line in text.splitlines() if "programs bound by memory" in line)
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "[2 programs bound by memory](docs/bench.md)",
        "1.00×",
        "0.25 to 4.00",
        "1 of 2",
        "NumPy, PyTorch",
        "Some CPU, avx2",
    ]


def test_every_measured_page_that_the_table_quotes_has_a_line(tmp_path):
    text = written(tmp_path, row("softmax", 1e6, numpy=8e6, **{SMELT: 1e6}))
    pages = [folder + claim.page for folder in readme.CLASSES for claim in readme.CLAIMS]
    columns = [claim.column for _ in readme.CLASSES for claim in readme.CLAIMS]
    measured = [(p, c) for p, c in zip(pages, columns, strict=True) if (ROOT / "docs" / p).exists()]
    assert len(measured) > len(readme.CLAIMS)  # more than one class of machines
    for page, column in measured:
        ratios = readme.column(read(f"docs/{page}"), column)
        line = next(line for line in text.splitlines() if f"(docs/{page})" in line)
        assert ratios
        assert f"{sum(r < 1.0 for r in ratios)} of {len(ratios)}" in line
        assert readme.cpu(read(f"docs/{page}")) in line


def test_a_class_names_the_peers_that_were_measured_there():
    claim = readme.Claim("products", "p.md", "gain", "NumPy, PyTorch, JAX")
    rows = ("| what | numpy | torch | gain |", "|-|-|-|-|", "| a | 1 | 2 | 3 |")
    page = "Taken on Some CPU, avx2, one core.\n\n" + "\n".join(rows) + "\n"
    assert readme._claimed(claim, "avx2/", page)[0] == "[products](docs/avx2/p.md)"
    assert readme._claimed(claim, "avx2/", page)[4] == "NumPy, PyTorch"


def test_the_example_is_the_first_block():
    source = readme.example(read("README.md"))
    assert source.startswith("import numpy as np\nimport smelt as sm\n")
    assert len([line for line in source.splitlines() if line.strip()]) <= 12
    assert (ROOT / "docs" / "bench.md").exists()
