"""Generate parts of README.md: the example's output and the benchmark's numbers.

The example is the first Python block of the page, run in a process of its own with an empty cache.
The numbers come from `docs/bench.json` only, which `smelt bench --write-docs` writes: without Smelt
in it there are none.
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
"""The group of rows whose arrays exceed the caches."""
UNMEASURED = "_No numbers yet: `smelt bench --write-docs` and `make pages` write them._\n"


def example(page: str) -> str:
    """Return the first Python block of a page."""
    match = re.search(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert match is not None, "the page has no Python block"
    return match[1]


def output(source: str) -> str:
    """Return the output of a program with an empty cache, as a code block.

    It runs as a file called `example.py`, the name of its lines in the report. Raises
    CalledProcessError if it fails.
    """
    with tempfile.TemporaryDirectory(prefix="smelt-readme-") as folder:
        path = Path(folder) / "example.py"
        path.write_text(source, encoding="utf-8")
        settings = {"SMELT_CACHE_DIR": str(Path(folder) / "cache"), "PYTHONPATH": str(ROOT / "src")}
        environment = {"SMELT_PROBE": "now"} | os.environ | settings
        completed = subprocess.run(
            [sys.executable, path.name],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
    return f"```text\n{completed.stdout.strip()}\n```\n"


def bench(path: Path = BENCH) -> str:
    """Summarise the benchmark: machine, peers, ratios to the floor, and lost rows."""
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
    """Return geometric means by size, and the range."""
    groups = (
        ("all workloads", rows),
        ("above 16 MiB", [r for r in rows if r.group == LARGE]),
    )
    lines: list[tuple[str, ...]] = []
    for title, group in groups:
        if not group:
            continue
        faster = [r.best_over_smelt for r in group if r.best_over_smelt is not None]
        mean = geomean(r.best_over_smelt for r in group)
        lines.append(
            (
                f"{title} ({len(group)})",
                ratio(geomean(r.over_floor(SMELT) for r in group)),
                ratio(geomean(r.over_floor(r.best_peer or "") for r in group)),
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
    """List the rows on which another library is faster."""
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
"""Part of README.md -> the function that generates it."""
