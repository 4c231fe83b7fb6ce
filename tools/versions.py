"""Try Smelt under other versions of Python and PyTorch: ten models, forward and backward.

    python -m tools.versions PYTHON [PYTHON ..]     try interpreters; write docs/versions.json

Each interpreter must have NumPy, llvmlite, ml_dtypes, platformdirs, click, rich and, for the
models, PyTorch (`pip install torch==2.6.0`). It is a process of its own with this tree's
sources and an empty cache. A model passes if its results for two batch sizes and the gradients of
all parameters are at most four times as far from float64's as those of eager execution.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

__all__ = ["PARTS", "main", "table", "try_interpreter"]

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "docs" / "versions.json"
MODELS = ROOT / "tools" / "versions_models.py"


def try_interpreter(python: str) -> dict[str, Any]:
    """Return the versions of an interpreter, whether Smelt works there, and models by outcome."""
    with tempfile.TemporaryDirectory() as cache:
        settings = os.environ | {
            "PYTHONPATH": str(ROOT / "src"),
            "SMELT_CACHE_DIR": cache,
            "PYTHONNOUSERSITE": "1",
        }
        done = subprocess.run(
            [python, str(MODELS)], env=settings, capture_output=True, text=True, check=False
        )
    if done.returncode:
        message = f"{python} failed:\n{done.stderr[-2000:]}"
        raise RuntimeError(message)
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of interpreters.

    >>> row = {"python": "3.12.1", "torch": "2.6.0", "llvmlite": "0.50.0", "numpy": "2.4.6"}
    >>> print(table([row | {"array": True, "models": {"mlp": "", "lstm": "differs by 1"}}]))
    | Python | PyTorch | NumPy | llvmlite | array code | models like eager |
    |---|---|---|---|---|---|
    | 3.12.1 | 2.6.0 | 2.4.6 | 0.50.0 | yes | 1 of 2 (not lstm: differs by 1) |
    """
    lines = [
        "| Python | PyTorch | NumPy | llvmlite | array code | models like eager |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        failed = {name: why for name, why in row["models"].items() if why}
        models = f"{len(row['models']) - len(failed)} of {len(row['models'])}"
        if failed:
            models += f" (not {'; '.join(f'{name}: {why}' for name, why in failed.items())})"
        cells = (
            row["python"],
            row["torch"] or "–",
            row["numpy"],
            row["llvmlite"],
            "yes" if row["array"] else "no",
            models if row["models"] else "–",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _recorded() -> str:
    return table(json.loads(RECORD.read_text(encoding="utf-8"))) + "\n"


PARTS = {"versions": _recorded}


def main() -> int:
    """Try the interpreters that the command line names, and record the result."""
    if not sys.argv[1:]:
        print(__doc__)
        return 2
    rows = [try_interpreter(python) for python in track(sys.argv[1:], "interpreters")]
    rows.sort(key=lambda row: [_numbers(row[k]) for k in ("python", "torch", "llvmlite")])
    RECORD.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    Console().print(table(rows))
    return 0


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split("+", maxsplit=1)[0].split(".") if part.isdigit()]


if __name__ == "__main__":
    sys.exit(main())
