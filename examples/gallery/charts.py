"""Draw the two charts that several examples share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

import smelt as sm

UNFUSED, FUSED, LIMIT = "#9aa7b5", "#d9822b", "#2b6cb0"
"""Colours: one kernel per operator, fused, and what no plan can beat."""


def traffic(reports: Mapping[str, sm.Report]) -> Axes:
    """Draw the bytes through memory of some programs, with fusion and without."""
    axes = plt.figure(figsize=(7.5, 0.9 + 0.6 * len(reports))).gca()
    names = list(reports)[::-1]
    totals = [reports[name].data.total for name in names]
    before = axes.barh(
        [y + 0.2 for y in range(len(names))],
        [t.bytes_unfused / 1e6 for t in totals],
        0.38,
        color=UNFUSED,
        label="one kernel per operator",
    )
    after = axes.barh(
        [y - 0.2 for y in range(len(names))],
        [t.bytes / 1e6 for t in totals],
        0.38,
        color=FUSED,
        label="fused",
    )
    axes.bar_label(before, [f" {t.operators} operators" for t in totals], fontsize=8)
    axes.bar_label(after, [_units(t.kernels, t.calls) for t in totals], fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("MB through memory")
    axes.margins(x=0.16)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8)
    return _finish(axes)


def curves(x: Sequence[float], lines: Mapping[str, Sequence[float]], **labels: str) -> Axes:
    """Draw one line per entry over `x`: the first as unfused, the second as fused."""
    axes = plt.figure(figsize=(7, 3.6)).gca()
    for (name, y), colour in zip(lines.items(), (UNFUSED, FUSED, LIMIT), strict=False):
        axes.plot(x, y, "o-", color=colour, label=name)
    axes.set(**labels)
    axes.set_xticks(x, [f"{value:,}" for value in x])
    axes.legend(frameon=False)
    return _finish(axes)


def _units(kernels: int, calls: int) -> str:
    words = f" {kernels} kernel{'' if kernels == 1 else 's'}"
    return words + (f", {calls} library call" if calls else "")


def _finish(axes: Axes) -> Axes:
    axes.spines[["top", "right"]].set_visible(False)
    axes.figure.tight_layout()
    return axes
