"""The parts of README.md that a run writes: the example's output and the benchmark's numbers.

The example is the first Python block of the page, run in a process of its own with an empty cache.
The numbers come from `docs/bench.json`, which `smelt bench --write-docs` writes, and from nowhere
else: without Smelt in it there are none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from smelt.bench.peers import TITLES
from smelt.bench.results import SMELT, Results, Row, geomean
from smelt.bench.table import Table, duration, ratio

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BENCH = ROOT / "docs" / "bench.json"
LARGE = "large"
"""The group of rows whose arrays are beyond the caches."""
UNMEASURED = "_No numbers yet: `smelt bench --write-docs` and `make pages` write them._\n"


def example(page: str) -> str:
    """The first Python block of a page."""
    found = re.search(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found is not None, "the page has no Python block"
    return found[1]


def output(source: str) -> str:
    """What a program prints when nothing is in the cache, as a code block.

    It runs as a file called `example.py`, the name that its own lines have in the report.
    Raises CalledProcessError if it fails.
    """
    with tempfile.TemporaryDirectory(prefix="smelt-readme-") as folder:
        path = Path(folder) / "example.py"
        path.write_text(source, encoding="utf-8")
        settings = {"SMELT_CACHE_DIR": str(Path(folder) / "cache"), "PYTHONPATH": str(ROOT / "src")}
        environment = {"SMELT_PROBE": "now"} | os.environ | settings
        done = subprocess.run(
            [sys.executable, path.name],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
    return f"```text\n{done.stdout.strip()}\n```\n"


def bench(path: Path = BENCH) -> str:
    """The benchmark in a few lines: where, against whom, how far from the floor, where it loses."""
    results = Results.from_json(path.read_text(encoding="utf-8"))
    rows = [row for row in results.rows if row.ns(SMELT) is not None]
    if not rows:
        return UNMEASURED
    chart = "![Time of each library over the floor, one group a workload](docs/bench.svg)"
    return "\n\n".join([chart, _where(results), _means(rows), _losses(rows)]) + "\n"


def _where(results: Results) -> str:
    m = results.machine
    peers = ", ".join(dict.fromkeys(results.peers[n] for n in TITLES if n in results.peers))
    return (
        f"{m['cpu']}, {m['isa']}, {results.threads} threads, {m['date']}; {peers}. The *floor* is "
        "the time that reading each input and writing each output once takes on this machine. "
        "Every library runs the same functions in the same rounds, and the fastest of its "
        "variants counts: [the whole table and how it is measured](docs/bench.md)."
    )


def _means(rows: list[Row]) -> str:
    """Geometric means by size, and the range."""
    groups = (
        ("all workloads", rows),
        ("above 16 MiB", [r for r in rows if r.group == LARGE]),
    )
    lines: list[tuple[str, ...]] = []
    for title, found in groups:
        if not found:
            continue
        faster = [r.best_over_smelt for r in found if r.best_over_smelt is not None]
        mean = geomean(r.best_over_smelt for r in found)
        lines.append(
            (
                f"{title} ({len(found)})",
                ratio(geomean(r.over_floor(SMELT) for r in found)),
                ratio(geomean(r.over_floor(r.best_peer or "") for r in found)),
                f"{ratio(mean)}×",
                f"{ratio(min(faster))}× to {ratio(max(faster))}×" if faster else "–",
            )
        )
    headers = (
        "geometric means",
        "Smelt / floor",
        "best peer / floor",
        "best peer / Smelt",
        "range",
    )
    return Table("", headers, tuple(lines)).markdown()


def _losses(rows: list[Row]) -> str:
    """The rows on which somebody is faster, told without being asked."""
    lost = [
        f"{row.title} ({duration(row.ns(SMELT))}, {TITLES[row.best_peer]} "
        f"{duration(row.ns(row.best_peer))})"
        for row in sorted(rows, key=lambda r: r.best_over_smelt or 1.0)
        if row.best_peer and (row.best_over_smelt or 1.0) < 1.0
    ]
    if not lost:
        return "No other library was faster on any of them."
    return "Slower than the best peer: " + "; ".join(lost) + "."


PARTS: Mapping[str, Callable[[], str]] = {
    "output": lambda: output(example(README.read_text(encoding="utf-8"))),
    "bench": bench,
}
"""Part of README.md -> what writes it."""
