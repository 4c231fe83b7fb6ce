"""Bound what fusion can gain in NumPy programs: time in operators that it could fuse, and the rest.

    python -m tools.numpy_programs --bounds                  every program at its large size
    python -m tools.numpy_programs --bounds --write-docs     store the figures for the page

A program runs with every operator computed by NumPy (`SMELT_TIERS=numpy`).  What it spends in
operators and functions on large arrays that have compiled forms could be fused; the rest is Python,
small arrays, and what NumPy computes in either case: products of matrices, linear algebra,
transforms, random numbers, sorting and counting.  By Amdahl's law no fusion is faster than the rest
alone: `free` is the ratio if fused operators took no time, `halved` if they took half of NumPy's.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STORED = Path(__file__).parent.parent / "docs" / "numpy_bounds.json"
UNMEASURED = "_No figures yet: `tools.numpy_programs --bounds --write-docs` writes them._\n"
NUMPYS_OWN = frozenset(
    name
    for line in (
        "sort argsort unique searchsorted partition argpartition lexsort median percentile",
        "quantile matmul dot vdot inner tensordot einsum convolve correlate histogram bincount",
        "digitize isin interp nonzero argwhere flatnonzero cov corrcoef",
    )
    for name in line.split()
)
"""Functions whose time is NumPy's with fusion too; those of its linear algebra count as well."""
BAR = 1.8
"""Mean ratio at the large size that the programs are to reach."""
_RUNS = 3
_MOST = 0.95
"""Largest share: there is always some Python, and times of two processes differ."""
_MEANS = ("free", "halved")


class _Clock:
    """Processor time within functions, of the outermost ones alone."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_running = False

    def timed(self, function: Callable[..., Any], counts: Callable[..., bool]) -> Any:
        """Return the function, whose time is added where `counts` says so of its arguments."""

        def call(*args: Any, **options: Any) -> Any:
            if self._is_running or not counts(*args):
                return function(*args, **options)
            self._is_running = True
            start = time.process_time()
            try:
                return function(*args, **options)
            finally:
                self.seconds += time.process_time() - start
                self._is_running = False

        return call


def profile(program: Callable[[], Any]) -> float:
    """Return the seconds that a run spends in what could be fused.

    Raises RuntimeError where operators are not all NumPy's.
    """
    from smelt.frontends.array import families, value
    from smelt.numpy import binding, library
    from smelt.ops.contract import Contract
    from smelt.ops.extern import Extern

    if os.environ.get("SMELT_TIERS") != "numpy":
        raise RuntimeError("set SMELT_TIERS=numpy: operators have to be NumPy's")
    clock = _Clock()

    def is_fused(seen: Any, *rest: Any) -> bool:
        return not isinstance(seen.op, (Contract, Extern))

    def is_recordable(name: str, *rest: Any) -> bool:
        return name not in NUMPYS_OWN and not name.startswith(("linalg.", "fft.", "random."))

    for module, name, counts in (
        (value, "compute", is_fused),
        (value, "in_recycled", is_fused),
        (families, "computed_into", is_fused),
        (binding, "call_at_once", is_recordable),
        (library, "call_at_once", is_recordable),
    ):
        setattr(module, name, clock.timed(getattr(module, name), counts))
    times: list[float] = []
    for _ in range(_RUNS):
        clock.seconds = 0.0
        program()
        times.append(clock.seconds)
    return min(times)


def row(name: str, total: float, fusible: float) -> dict[str, Any]:
    """Return the share and bounds of a program that takes NumPy `total` seconds.

    >>> row("waves", 2.0, 1.0)["free"]
    2.0
    """
    share = min(fusible / total, _MOST)
    free, halved = 1 / (1 - share), 1 / (1 - share / 2)
    return {"program": name, "ms": total * 1e3, "share": share, "free": free, "halved": halved}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of the page, with the geometric means."""
    lines = ["| program | NumPy ms | could be fused | free | halved |"]
    lines.append("| --- | --: | --: | --: | --: |")
    lines += map(_line, rows)
    logs = [[math.log(r[k]) for r in rows] for k in _MEANS]
    means = [f"{math.exp(statistics.fmean(x)):.2f}" for x in logs]
    lines.append(f"| geometric mean | | | {' | '.join(means)} |")
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    ratios = [f"{row[k]:.2f}" for k in _MEANS]
    cells = [row["program"], f"{row['ms']:.1f}", f"{row['share']:.0%}", *ratios]
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Return the table of docs/numpy_programs.md."""
    if not STORED.exists():
        return UNMEASURED
    rows = json.loads(STORED.read_text(encoding="utf-8"))
    shares = [r["share"] for r in rows]
    percents = [p for p in range(101) if mean_gain(shares, p / 100) >= BAR]
    least = f"take {max(percents)} % of NumPy's time or less" if percents else "take less than none"
    sentence = f"For a mean of {BAR} the operators that could be fused would have to {least}."
    return f"{table(rows)}\n{sentence}\n"


def mean_gain(shares: Sequence[float], left: float) -> float:
    """Return the mean ratio if what could be fused took `left` of NumPy's time.

    >>> mean_gain([0.5, 0.5], 0.0)
    2.0
    """
    return math.exp(statistics.fmean(-math.log(1 - s * (1 - left)) for s in shares))


def store(rows: Sequence[dict[str, Any]]) -> None:
    """Write the figures for the page."""
    STORED.write_text(json.dumps(list(rows), indent=1) + "\n", encoding="utf-8")
