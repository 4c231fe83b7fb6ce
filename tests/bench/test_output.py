"""Tables, plot, page and command: the numbers of a run appear where and as they should."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench import command as cli
from bench import floor, page, plot, table
from bench import isa as instruction_sets
from bench.peers import TITLES
from bench.process import command
from bench.results import Cold, Entry, Results, Row, Times
from bench.workloads import WORKLOADS
from smelt.machine.target import Target

SVG = "{http://www.w3.org/2000/svg}"


def _times(median: float) -> Times:
    return Times(median, median * 0.9, median * 1.2, median * 0.8, 15)


def _row(name: str, floor_ns: float | None, **ns: float) -> Row:
    work = WORKLOADS[name]
    entries = {n: Entry(_times(v), "array API", 0.2, v + 3e7) for n, v in ns.items()}
    return Row(
        name,
        work.title,
        work.group,
        1 << 26,
        1 << 26,
        _times(floor_ns) if floor_ns else None,
        entries,
    )


@pytest.fixture
def results() -> Results:
    rows = [
        _row("a1", 2e6, numpy=60e6, torch=30e6, inductor=20e6, jax=24e6, smelt=2.4e6),
        _row("adam", 3e6, numpy=60e6, torch=6e6, inductor=5e6, jax=12e6, smelt=3.3e6),
        _row("tiny", None, numpy=700.0, torch=1800.0, inductor=9600.0, jax=4700.0, smelt=4000.0),
    ]
    wrong = Entry(problem="wrong result, 7 times the tolerance (array API)")
    rows[1] = replace(rows[1], entries={**rows[1].entries, "jax": wrong})
    return Results(
        machine={
            "cpu": "Chip <9>",
            "isa": "avx512",
            "cores": 2,
            "date": "2026-01-02",
            "load": 0.5,
            "l1_bytes": 49152,
            "l2_bytes": 1 << 20,
            "l3_bytes": 32 << 20,
            "measured": True,
            "dram_read_gbs": 40.0,
            "dram_copy_gbs": 59.0,
            "fma_gflops": 288.0,
            "system": "Linux 6",
            "python": "3.11.7",
        },
        threads=2,
        peers={name: f"{name} 1.0" for name in ("numpy", "torch", "inductor", "jax", "smelt")},
        missing={},
        rows=rows,
        cold={"a1": {"inductor": Cold(2.5e9, 4e7), "smelt": Cold(4e7, 3e6)}},
        import_ns={"smelt": 5e7, "torch": 7e8},
        record_ns={"smelt": 3000.0, "jax": 27000.0},
    )


# Tables ---------------------------------------------------------------------------------------


def test_times_table(results: Results) -> None:
    shown = table.times(results)
    assert shown.headers[:3] == ("workload", "floor", "NumPy")
    assert shown.rows[0] == (
        "log(relu(x + b))",
        "2.00 ms",
        "60.0 ms",
        "30.0 ms",
        "20.0 ms",
        "24.0 ms",
        "2.40 ms",
        "10.0",
        "1.20",
        "8.33",
    )
    assert shown.rows[1][5] == "wrong"
    assert shown.rows[2][1] == "–"
    assert shown.rows[2][-1] == "0.17"
    assert shown.rows[-1][0] == "geometric mean above 16 MiB"
    assert shown.rows[-1][-1] == table.ratio((20 / 2.4 * 5 / 3.3) ** 0.5)
    assert all(len(row) == len(shown.headers) for row in shown.rows)


def test_other_tables(results: Results) -> None:
    starts = table.starts(results)
    assert starts is not None
    assert starts.rows == (("log(relu(x + b))", "2.50 s", "40.0 ms", "40.0 ms", "3.00 ms"),)
    costs = {row[0]: row[1:] for row in table.overheads(results).rows}
    assert costs["import beyond NumPy's"] == ("–", "700 ms", "700 ms", "–", "50.0 ms")
    assert costs["call with three small arrays"][-1] == "4.00 µs"
    assert costs["recording one operator"] == ("–", "–", "–", "27.0 µs", "3.00 µs")
    assert table.variants(results).rows[1][1:] == (*("array API",) * 3, "–", "array API")
    assert table.problems(results) == [
        "Adam, 4 M parameters: JAX jit: wrong result, 7 times the tolerance (array API)"
    ]


def test_tables_without_smelt_or_cold_starts(results: Results) -> None:
    rows = [_row("a1", 2e6, numpy=60e6)]
    run_results = Results(
        results.machine, 2, {"numpy": "numpy 2"}, {"smelt": "smelt.jit is not there yet"}, rows
    )
    assert table.starts(run_results) is None
    assert table.times(run_results).rows[0][-3:] == ("30.0", "–", "–")
    assert "Smelt: not available, smelt.jit is not there yet" in table.problems(run_results)
    assert "30.0" in page.render(run_results)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0.5, "0.50 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 µs"),
        (9.994e3, "9.99 µs"),
        (9.996e3, "10.0 µs"),
        (99.96e3, "100 µs"),
        (5e8, "500 ms"),
        (3.2e12, "3200 s"),
    ],
)
def test_duration(ns: float, text: str) -> None:
    assert table.duration(ns) == text


def test_markdown_has_as_many_cells_in_each_line(results: Results) -> None:
    lines = table.times(results).markdown().splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[1].startswith("| --- | --: |")


# Plot -----------------------------------------------------------------------------------------


def test_plot_is_well_formed_and_says_itself_in_words(results: Results) -> None:
    root = ET.fromstring(plot.draw(results))
    assert root.tag == f"{SVG}svg"
    description = root.find(f"{SVG}desc")
    assert description is not None
    assert "log(relu(x + b)): NumPy 30.0" in (description.text or "")
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert "floor" in texts
    assert any("logarithmic" in text for text in texts)
    assert any("Chip <9>" in text for text in texts)
    assert {TITLES[name] for name in results.peers} <= set(texts)
    assert "x * y + z of 16 elements" not in texts, "a row without a floor has no ratio"


def test_plot_positions_are_logarithmic(results: Results) -> None:
    text = plot.draw(results)
    circles = [float(x) for x in re.findall(r'<circle [^>]*cx="([\d.]+)"', text)]
    floors = re.findall(r'class="floor" x1="([\d.]+)"', text)
    legend, a1, adam = circles
    assert legend < plot.WIDTH
    # NumPy is 30 times the floor on A1 and 20 times on Adam.
    unit = (a1 - float(floors[0])) / 1.4771
    assert adam - float(floors[0]) == pytest.approx(unit * 1.3010, rel=1e-3)
    for x in circles:
        assert plot.LEFT <= x <= plot.WIDTH - plot.RIGHT


def test_plot_needs_nothing_from_outside(results: Results) -> None:
    text = plot.draw(results)
    assert "<script" not in text
    assert "href" not in text
    assert text.count("http") == 1, "the namespace only"
    assert len(set(plot.COLOURS.values())) == len(TITLES)


def test_nothing_to_draw_is_an_error(results: Results) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.draw(Results(results.machine, 1, {}, {}, [results.rows[2]]))


# Page and command -----------------------------------------------------------------------------


def test_page_has_all_parts(results: Results, tmp_path: Path) -> None:
    paths = page.write(results, tmp_path / "docs")
    assert {p.name for p in paths} == {"bench.md", "bench.json", "bench.svg"}
    text = (tmp_path / "docs" / "bench.md").read_text()
    for part in ("## Times", "## Overheads", "## Compile times", "## How it is", "## Variants"):
        assert part in text
    assert "(bench.svg)" in text
    assert "4096×4096" in text
    assert "40 GB/s read" in text
    assert Results.from_json((tmp_path / "docs" / "bench.json").read_text()) == results


def test_page_without_a_plot(results: Results, tmp_path: Path) -> None:
    only_calls = Results(results.machine, 2, results.peers, {}, [results.rows[2]])
    assert {p.name for p in page.write(only_calls, tmp_path)} == {"bench.md", "bench.json"}


def test_command_writes_the_requested_files(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def fake(options: object, say: object = None) -> Results:
        seen.append(options)
        return results

    monkeypatch.setattr(cli, "run", fake)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        cli.command,
        [
            "--only",
            "a1, adam",
            "--peers",
            "numpy",
            "--quick",
            "--threads",
            "2",
            "--json",
            "r.json",
            "--svg",
            "r.svg",
            "--write-docs",
        ],
    )
    assert done.exit_code == 0, done.output
    assert seen == [cli.Options(("a1", "adam"), ("numpy",), 2, quick=True)]
    assert "quick run" in done.output
    assert Results.from_json((tmp_path / "r.json").read_text()) == results
    ET.fromstring((tmp_path / "r.svg").read_text())
    assert (tmp_path / "docs" / "bench.md").is_file()


def test_command_lists_rows_and_refuses_unknown_ones() -> None:
    listed = CliRunner().invoke(cli.command, ["--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in WORKLOADS)
    refused = CliRunner().invoke(cli.command, ["--only", "b9"])
    assert refused.exit_code == 2
    assert "unknown row 'b9'" in refused.output


# Floor ----------------------------------------------------------------------------------------


def test_floor_tables() -> None:
    target = Target.for_isa("avx2", cores=4)
    shown = floor.rates(target)
    assert [row[0] for row in shown.rows] == ["l1", "l2", "l3", "dram", "past the caches"]
    assert all(len(row) == len(shown.headers) for row in shown.rows)
    assert any("first touch" in row[0] for row in floor.costs(target).rows)


def test_floor_of_rows_in_cache() -> None:
    shown = floor.row_floors(["chain_64kib", "tiny"], Target.host())
    assert shown.rows[0][1] == "0.188 MiB"
    assert shown.rows[1][1:] == ("–", "–", "–")


def test_floor_refuses_unknown_rows() -> None:
    with pytest.raises(SystemExit, match="b9"):
        floor.main(["b9"])


def test_every_library_gets_the_instruction_set(tmp_path, monkeypatch):
    lines: list[list[str]] = []

    def run(line, **_):
        lines.append(line)
        return subprocess.CompletedProcess(line, 0)

    monkeypatch.setattr(cli.subprocess, "run", run)
    done = CliRunner().invoke(cli.command, ["--isa", "avx2", "--models", "--only", "bert"])
    assert done.exit_code == 0, done.output
    (line,) = lines
    assert "SMELT_HOST_ISA=avx2" in line and "ATEN_CPU_CAPABILITY=avx2" in line
    assert line[line.index("bench") + 1 :] == ["--only", "bert", "--models"]


def test_numpy_and_smelt_are_held_to_the_instruction_set():
    program = (
        "from numpy._core._multiarray_umath import __cpu_features__ as features\n"
        "from smelt.runtime.host import host\n"
        "print(any(features.get(k) for k in ('X86_V4', 'AVX512_ICL', 'AVX512_SPR')), host().isa)"
    )
    line = command(["-c", program], instruction_sets.VARIABLES["avx2"])
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "avx2"]


@pytest.mark.parametrize(
    ("words", "unread"),
    [
        ("--apart --only a1", "--only"),
        ("--products --json x.json", "--json"),
        ("--losses --apart", "--losses"),
        ("--list --threads 2", "--threads"),
    ],
)
def test_a_benchmark_refuses_what_it_does_not_read(words, unread):
    """Options were passed over without a word."""
    done = CliRunner().invoke(cli.command, words.split())
    assert done.exit_code == 2 and f"takes no {unread}" in done.output


def test_rows_of_the_benchmark_are_listed_whole_when_narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = CliRunner().invoke(cli.command, ["--list"]).output.splitlines()
    assert any(line.startswith("residual_layer_norm") for line in lines)


def test_a_table_of_the_benchmark_is_whole_in_a_pipe_and_fits_a_terminal():
    """Names of rows were folded to a few letters a line wherever the numbers took the width."""
    name = "nearest of 100000 to each of 1000, 128 numbers"
    result = table.Table("Products", ("product", *"abcdefgh"), ((name, *(8 * ["12.5 ms"])),))
    for is_terminal, longest in ((False, 140), (True, 80)):
        screen = Console(file=StringIO(), force_terminal=is_terminal, width=80, color_system=None)
        cli._print(screen, result)
        lines = screen.file.getvalue().splitlines()
        assert max(len(line) for line in lines) <= longest
        assert any(line.startswith(name) for line in lines)
        assert any(line.count("12.5 ms") == 8 for line in lines)
