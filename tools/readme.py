"""The parts of README.md that a run writes: the example's output and the benchmark's numbers.

The example is the first Python block of the page, run in a process of its own with an empty cache.
The numbers come from `docs/bench.json`, which `python -m bench --write-docs` writes, and from
nowhere else: without Smelt in it there are none.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.results import SMELT, Results, geomean
from bench.table import Table, ratio

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BENCH = ROOT / "docs" / "bench.json"
SHOWN_LINES = 6
"""Lines of the last block of a report that README.md shows."""
UNMEASURED = "_No numbers yet: `python -m bench --write-docs` and `make pages` write them._\n"


def example(page: str) -> str:
    """The first Python block of a page."""
    block = re.search(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert block is not None, "the page has no Python block"
    return block[1]


def output(source: str) -> str:
    """Return what a program prints with an empty cache, as a code block.

    It runs as a file called `example.py`, the name that its own lines have in the report.
    Raises CalledProcessError if it fails.
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
    return f"```text\n{shortened(completed.stdout.strip())}\n```\n"


def shortened(report: str) -> str:
    """Return the start of a report: the summary, the kernels, the first lines about one."""
    summary, kernels, *details = report.split("\n\n")
    first = next(text for text in details if not text.startswith("kept apart"))
    return "\n\n".join(
        [summary, kernels, "\n".join(first.splitlines()[:SHOWN_LINES]) + "\n    ..."]
    )


@dataclass(frozen=True)
class Claim:
    """A line of the README's table: a set of measured programs and where their numbers are."""

    title: str
    page: str
    """The page of `docs/` with the measured table."""
    column: str
    """The column that holds best peer's time / Smelt's time; its last occurrence counts."""
    peers: str


NAMES = {
    "numpy": "NumPy",
    "torch": "PyTorch",
    "inductor": "Inductor",
    "onnxruntime": "ONNX Runtime",
    "jax": "JAX",
}
CLAIMS = (
    Claim("matrix products", "products.md", "best peer / smelt", "NumPy, PyTorch, Inductor, JAX"),
    Claim("attention variants", "attention.md", "best peer / smelt", "PyTorch, flex, JAX"),
    Claim("losses and heads", "losses.md", "best peer / smelt", "PyTorch, Inductor, JAX"),
    Claim(
        "convolutions and networks of them",
        "convolutions.md",
        "best peer / Smelt",
        "PyTorch, Inductor, ONNX Runtime, JAX",
    ),
    Claim("16 PyTorch models", "models.md", "over inductor", "Inductor"),
    Claim("one operator, 64 MiB", "operators.md", "best / smelt", "NumPy, PyTorch"),
)
"""The measured tables that README.md quotes besides the benchmark's."""


CLASSES = ("", "avx2/")
"""Folders of `docs/` with the measured pages of each class of machines."""


def bench(path: Path = BENCH, docs: Path = ROOT / "docs") -> str:
    """Return the table of ratios against the best peer, one class of machines after another.

    `path` is the first class's benchmark, without which there is no table.
    """
    lines = [*_benchmark("bench.md", path)]
    if not lines:
        return UNMEASURED
    for folder in CLASSES:
        if folder:
            lines += _benchmark(f"{folder}bench.md", docs / folder / "bench.json")
        for claim in CLAIMS:
            file = docs / folder / claim.page
            if file.exists() or not folder:
                lines.append(_claimed(claim, folder, file.read_text(encoding="utf-8")))
    headers = ("what", "best peer / Smelt", "range", "slower", "peers", "processor")
    return Table("", headers, tuple(lines)).markdown() + "\n"


def _benchmark(page: str, path: Path) -> list[tuple[str, ...]]:
    """Return the line of a benchmark's results; none if Smelt was not measured."""
    results = Results.from_json(path.read_text(encoding="utf-8"))
    rows = [row for row in results.rows if row.ns(SMELT) is not None]
    ratios = [r.best_over_smelt for r in rows if r.best_over_smelt is not None]
    peers = ", ".join(NAMES[n] for n in NAMES if n in results.peers)
    machine = f"{results.machine['cpu']}, {results.machine['isa']}"
    title = f"{len(rows)} programs bound by memory"
    return [_line(title, page, ratios, peers, machine)] if rows else []


def _claimed(claim: Claim, folder: str, page: str) -> tuple[str, ...]:
    """Return a claim's line for one class, with the peers that were measured there."""
    header = next(line for line in page.splitlines() if claim.column in _cells(line))
    names = {shown: name for name, shown in NAMES.items()}
    shown = [n for n in claim.peers.split(", ") if names.get(n, n.lower()) in header]
    ratios = column(page, claim.column)
    return _line(claim.title, folder + claim.page, ratios, ", ".join(shown), cpu(page))


def _line(title: str, page: str, ratios: list[float], peers: str, machine: str) -> tuple[str, ...]:
    lost = sum(r < 1.0 for r in ratios)
    span = f"{ratio(min(ratios))} to {ratio(max(ratios))}"
    share = f"{lost} of {len(ratios)}"
    return (f"[{title}](docs/{page})", f"{ratio(geomean(ratios))}×", span, share, peers, machine)


def column(page: str, name: str) -> list[float]:
    """Return the numbers of a column in a page's first table with it.

    The last column called `name` counts.

    >>> column("| a | r |\\n| --- | --: |\\n| x | 2.5x |\\n| y | – |\\n", "r")
    [2.5]
    """
    lines = iter(page.splitlines())
    for line in lines:
        cells = _cells(line)
        if name in cells:
            at = len(cells) - 1 - cells[::-1].index(name)
            next(lines)
            rows = itertools.takewhile(lambda text: text.startswith("|"), lines)
            found = [_cells(row)[at].rstrip("x×") for row in rows]
            return [float(number) for number in found if re.fullmatch(r"[\d.]+", number)]
    raise ValueError(f"no column {name!r}")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def cpu(page: str) -> str:
    """Return the processor and instruction set that a generated page says it was measured on.

    >>> cpu("do not edit. Taken on Some CPU (1.2), avx2, one core: 7 GFLOP/s")
    'Some CPU (1.2), avx2'
    """
    found = re.search(r"\bon ([^.\n]*?(?:\([^)]*\))?, (?:avx512|avx2|neon|portable))", page)
    assert found is not None, "the page names no processor"
    return found[1]


PARTS: Mapping[str, Callable[[], str]] = {
    "output": lambda: output(example(README.read_text(encoding="utf-8"))),
    "bench": bench,
}
"""Part of README.md -> what writes it."""
