"""Try Smelt's arrays in other libraries, beside NumPy's in the same calls.

    python -m tools.libraries                  every library that is installed
    python -m tools.libraries scipy sklearn    some of them
    python -m tools.pages docs/libraries.md    write the tables (`make pages`)

Needs `pip install '.[libraries]'`; a library that is not installed keeps its last record. Each case
of `tools.libraries_cases` is a function of a namespace. It runs with NumPy and with Smelt, and its
values are compared. What is recorded is the kind of result, or the error. The record is
docs/libraries.json.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import smelt as sm

__all__ = ["PARTS", "main", "outcome", "table"]

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "docs" / "libraries.json"
PACKAGES = {
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "einops": "einops",
    "xarray": "xarray",
    "pandas": "pandas",
    "matplotlib": "matplotlib",
    "dask": "dask",
}
"""Import name -> distribution."""

Case = Callable[[Any], Any]
WORKS = ("smelt", "numpy", "number")


def outcome(case: Case) -> str:
    """Return "smelt", "numpy" or "number" for what comes out, or what is wrong.

    >>> outcome(lambda xp: xp.sum(xp.asarray([1.0, 2.0])))
    'smelt'
    >>> outcome(lambda xp: np.asarray(xp.asarray([1.0, 2.0])))
    'numpy'
    >>> outcome(lambda xp: float(xp.asarray(2.0)))
    'number'
    >>> outcome(lambda xp: xp.asarray([1.0]) if xp is np else xp.asarray([2.0]))
    'differs by 1'
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = _leaves(case(np))
        except Exception as error:  # noqa: BLE001 - whatever NumPy's arrays do is the measure
            return f"NumPy's arrays fail too: {_short(error)}"
        try:
            result = case(sm)
            actual = _leaves(result)
        except Exception as error:  # noqa: BLE001 - whatever fails is a finding of the table
            return _short(error)
    if len(actual) != len(expected):
        return f"{len(actual)} results for {len(expected)}"
    for x, y in zip(actual, expected, strict=True):
        a, b = np.asarray(x), np.asarray(y)
        if a.shape != b.shape:
            return f"shape {a.shape} for {b.shape}"
        close = np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) if a.size else True
        if not close:
            return f"differs by {np.abs(a - b).max():.3g}"
    if any(isinstance(x, sm.Array) for x in actual):
        return "smelt"
    return "numpy" if any(isinstance(x, np.ndarray) for x in actual) else "number"


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text[:120]}"


def table(rows: Mapping[str, str], reasons: Mapping[str, str]) -> str:
    """Return a sentence with the counts, and a table of the calls that fail.

    >>> print(table({"f": "smelt", "g": "numpy", "h": "TypeError: x"}, {"h": "it wants its own"}))
    2 of 3 calls work. Results: 1 Smelt's arrays, 1 NumPy's arrays, 0 numbers.
    <BLANKLINE>
    | call | what happens | why |
    |---|---|---|
    | `h` | TypeError: x | it wants its own |
    """
    kinds = list(rows.values())
    ours, theirs, numbers = (kinds.count(kind) for kind in WORKS)
    results = f"{ours} Smelt's arrays, {theirs} NumPy's arrays, {numbers} numbers"
    lines = [f"{ours + theirs + numbers} of {len(rows)} calls work. Results: {results}."]
    failed = {name: why for name, why in rows.items() if why not in WORKS}
    if failed:
        lines += ["", "| call | what happens | why |", "|---|---|---|"]
        lines += [
            f"| `{name}` | {why.replace('|', '/')} | {reasons.get(name, '')} |"
            for name, why in failed.items()
        ]
    return "\n".join(lines)


def _part(library: str) -> Callable[[], str]:
    def text() -> str:
        from tools.libraries_cases import REASONS

        record = json.loads(RECORD.read_text(encoding="utf-8"))[library]
        names = ", ".join(f"`{name}`" for name in record["calls"])
        tried = table(record["calls"], REASONS)
        return f"{PACKAGES[library]} {record['version']}: {tried}\n\nTried: {names}.\n"

    return text


PARTS = {library: _part(library) for library in PACKAGES}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, show and record what happens; return 1 if a call fails unexplained."""
    os.environ["SCIPY_ARRAY_API"] = "1"
    from tools.libraries_cases import CASES, REASONS

    selected = list(sys.argv[1:] if argv is None else argv) or list(PACKAGES)
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    shown = Table("library", "call", "result")
    unexplained = 0
    for library in selected:
        if find_spec(library) is None:
            shown.add_row(library, "–", "not installed")
            continue
        calls = {name: outcome(case) for name, case in track(CASES[library].items(), library)}
        record[library] = {"version": metadata.version(PACKAGES[library]), "calls": calls}
        for name, why in calls.items():
            if why not in WORKS:
                unexplained += name not in REASONS
                shown.add_row(library, name, why)
        shown.add_row(library, f"{len(calls)} calls", table(calls, {}).splitlines()[0])
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    Console().print(shown)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
