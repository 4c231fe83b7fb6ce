"""Generate the table of docs/numpy.md: the verdict on every public function of NumPy."""

from __future__ import annotations

from collections import Counter

from smelt.numpy.table import ROWS

__all__ = ["PARTS"]


def table() -> str:
    """Return the counts of the verdicts, and a table with a row for each function."""
    counts = Counter(row.way for row in ROWS.values())
    summary = ", ".join(f"{count} {way}" for way, count in sorted(counts.items()))
    rows = [f"| `{row.name}` | {row.way} | {row.note} |" for row in ROWS.values()]
    head = ["| function | verdict | reason or hint |", "| --- | --- | --- |"]
    return "\n".join([f"{len(ROWS)} functions: {summary}.", "", *head, *rows]) + "\n"


PARTS = {"table": table}
