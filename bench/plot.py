"""Draw the results as SVG: a line per workload, a mark per library.

The axis is logarithmic, so that equal distances are equal factors. Libraries differ by colour (a
palette for all kinds of colour vision) and by shape; whiskers are quartiles. The file needs no
script and no font, works in light and dark mode, and has a text alternative.

    Path("bench.svg").write_text(draw(results))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.peers import TITLES
from bench.results import Results, Row
from smelt.python.dataclass import dataclass

LEFT, RIGHT, TOP, LINE, FOOT = 250, 30, 84, 26, 64
WIDTH = 900

COLOURS = {
    "numpy": "#999999",
    "torch": "#E69F00",
    "inductor": "#D55E00",
    "jax": "#0072B2",
    "smelt": "#009E73",
}
"""Okabe and Ito's palette; Smelt's mark is also the largest and the only star."""

_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #222; }
  .title { font-size: 16px; font-weight: 600; } .small { font-size: 11px; fill: #555; }
  .grid { stroke: #ddd; } .floor { stroke: #222; stroke-width: 2; } .paper { fill: #fff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #eee; } .small { fill: #bbb; } .grid { stroke: #444; }
    .floor { stroke: #eee; } .paper { fill: #161616; }
  }"""


@dataclass(frozen=True)
class _Axis:
    """Maps a factor to a horizontal coordinate, logarithmically."""

    low: float
    high: float

    def x(self, factor: float) -> float:
        share = math.log(factor / self.low) / math.log(self.high / self.low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> list[float]:
        """Return ticks at 1, 2 and 5 times each power of ten."""
        marks: list[float] = []
        for power in range(-3, 7):
            marks += [step * 10.0**power for step in (1, 2, 5)]
        return [t for t in marks if self.low * 0.999 <= t <= self.high * 1.001]


def draw(results: Results) -> str:
    """Return the plot of all rows with a floor and a time, else raise ValueError."""
    rows = [row for row in results.rows if row.floor and any(row.ns(n) for n in row.entries)]
    if not rows:
        raise ValueError("no row has both a floor and a time: nothing to draw")
    names = [name for name in TITLES if any(row.ns(name) for row in rows)]
    axis = _axis(rows, names)
    height = TOP + LINE * len(rows) + FOOT
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-labelledby="title desc">'
        ),
        '<title id="title">Time of each library over the floor of each workload</title>',
        f'<desc id="desc">{escape(_description(rows, names))}</desc>',
        f"<style>{_STYLE}\n</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        (
            f'<text class="title" x="16" y="28">Time over the floor, {results.threads} threads: '
            "left is faster</text>"
        ),
        *_legend(names),
        *_grid(axis, len(rows)),
    ]
    for number, row in enumerate(rows):
        parts += _line(row, names, axis, TOP + LINE * number + LINE / 2)
    parts += _foot(results, height)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axis(rows: Sequence[Row], names: Sequence[str]) -> _Axis:
    factors = [f for row in rows for name in names if (f := row.over_floor(name))]
    low, high = min(0.8, *factors, 1.0), max(12.0, *factors)
    return _Axis(low * 0.9, high * 1.15)


def _description(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Describe the plot in one sentence per row."""
    lines: list[str] = []
    for row in rows:
        factors = [
            f"{TITLES[n]} {factor:.1f}" for n in names if (factor := row.over_floor(n)) is not None
        ]
        lines.append(f"{row.title}: {', '.join(factors)}.")
    return "Times the floor, smaller is faster. " + " ".join(lines)


def _mark(name: str, x: float, y: float) -> str:
    """Return a library's mark, by shape and colour."""
    paint = f'fill="{COLOURS[name]}"'
    if name == "numpy":
        return f'<circle {paint} cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    corners = {
        "torch": [(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)],
        "inductor": [(0, -6), (6, 0), (0, 6), (-6, 0)],
        "jax": [(0, -5.5), (5.5, 4.5), (-5.5, 4.5)],
        "smelt": [_spoke(i) for i in range(10)],
    }[name]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon {paint} points="{points}"/>'


def _spoke(number: int) -> tuple[float, float]:
    """Return a corner of a five-pointed star; outer and inner corners alternate."""
    radius = 9.0 if number % 2 == 0 else 4.0
    angle = math.pi * (number / 5 - 0.5)
    return radius * math.cos(angle), radius * math.sin(angle)


def _legend(names: Sequence[str]) -> list[str]:
    parts: list[str] = []
    for number, name in enumerate(names):
        x = LEFT + 10 + number * 118
        parts.append(_mark(name, x, 50))
        parts.append(f'<text x="{x + 12}" y="54">{escape(TITLES[name])}</text>')
    return parts


def _grid(axis: _Axis, count: int) -> list[str]:
    bottom = TOP + LINE * count
    parts: list[str] = []
    for tick in axis.ticks():
        x = axis.x(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
        label = f"{tick:g}"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    floor = axis.x(1.0)
    parts.append(
        f'<line class="floor" x1="{floor:.1f}" x2="{floor:.1f}" y1="{TOP - 8}" y2="{bottom}"/>'
    )
    parts.append(f'<text x="{floor:.1f}" y="{TOP - 12}" text-anchor="middle">floor</text>')
    return parts


def _line(row: Row, names: Sequence[str], axis: _Axis, y: float) -> list[str]:
    """Return a workload's line: its name, and each library's whisker and mark."""
    title = escape(row.title)
    parts = [f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{title}</text>']
    for name in names:
        spread = row.spread(name)
        if spread is None:
            continue
        low, high = axis.x(spread.low), axis.x(spread.high)
        low, high = max(low, LEFT), min(high, WIDTH - RIGHT / 2)
        span = f'x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(f'<line stroke="{COLOURS[name]}" stroke-width="1.5" {span}/>')
        parts.append(_mark(name, axis.x(spread.median), y))
    return parts


def _foot(results: Results, height: int) -> list[str]:
    machine = results.machine
    where = f"{machine.get('cpu', '')}, {machine.get('isa', '')}, {machine.get('date', '')}"
    return [
        (
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{height - 26}" text-anchor="middle">'
            "time of a call / time to move its compulsory bytes (factor, logarithmic)</text>"
        ),
        (
            f'<text class="small" x="16" y="{height - 8}">{escape(where)}. '
            "Marks are medians, whiskers quartiles of one interleaved run.</text>"
        ),
    ]
