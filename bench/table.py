"""The results as text tables, for the terminal, the documentation and the log.

A `Table` is just cells, so that each place renders it in its own way.

>>> print(Table("t", ("row", "time"), (("a", "1 ms"), ("bb", "20 ms"))).plain())
t
row   time
a     1 ms
bb   20 ms
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from bench.peers import TITLES
from bench.results import SMELT, Entry, Results, Row, geomean
from smelt.python.dataclass import dataclass

NOTHING = "–"


@dataclass(frozen=True)
class Table:
    """A title, headers, and rows of as many cells."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def plain(self, width: int | None = None) -> str:
        """Return aligned text: the first column to the left, the others to the right.

        If the table exceeds `width` characters, the first column has lines of its own.

        >>> print(Table("t", ("row", "time"), (("a long name", "1 ms"),)).plain(12))
        t
        row
          time
        a long name
          1 ms
        """
        lines = [self.headers, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headers))]
        narrow = width is not None and sum(widths) + 2 * len(widths) - 2 > width
        shown = [self.title]
        for line in lines:
            name, *numbers = (
                c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in _cells(line, widths)
            )
            parts = ["  ".join([name, *numbers])]
            if narrow:
                parts = [name, "  " + "  ".join(numbers)]
            shown += [part.rstrip() for part in parts]
        return "\n".join(shown)

    @classmethod
    def of_markdown(cls, text: str, title: str = "") -> Table:
        r"""Parse the first table in a Markdown text.

        >>> Table.of_markdown("Times:\n\n| row | time |\n| --- | --: |\n| a | 1 ms |\n").rows
        (('a', '1 ms'),)
        """
        lines = [line.strip() for line in text.splitlines()]
        first = next(i for i, line in enumerate(lines) if line.startswith("|"))
        table_lines = takewhile(lambda line: line.startswith("|"), lines[first:])
        headers, _, *rows = (tuple(x.strip() for x in t.strip("|").split("|")) for t in table_lines)
        return cls(title, headers, tuple(rows))

    def markdown(self) -> str:
        """Return a Markdown table, numbers to the right, without the title."""
        rule = ("---", *("--:" for _ in self.headers[1:]))
        lines = [self.headers, rule, *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(line: Sequence[str], widths: Sequence[int]) -> Iterable[tuple[int, tuple[str, int]]]:
    return enumerate(zip(line, widths, strict=True))


def duration(ns: float | None) -> str:
    """Format nanoseconds with three significant digits and a unit.

    >>> duration(1234.5), duration(98765.4), duration(2.5e6), duration(None)
    ('1.23 µs', '98.8 µs', '2.50 ms', '–')
    """
    if ns is None:
        return NOTHING
    for unit, size in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)):
        value = ns / size
        if value < 999.5 or unit == "s":
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("seconds take every number")


def ratio(value: float | None) -> str:
    """Format a factor with about three digits."""
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def cell(entry: Entry | None) -> str:
    """Return a time, or a word for why there is none."""
    if entry is None:
        return NOTHING
    if entry.times is not None:
        return duration(entry.times.median)
    return "wrong" if entry.problem.startswith("wrong") else "failed"


def times(results: Results) -> Table:
    """Return median times of every library on every row, and three ratios."""
    names = [name for name in TITLES if name in results.peers]
    headers = ("workload", "floor", *(TITLES[n] for n in names))
    headers += ("best peer / floor", "Smelt / floor", "best peer / Smelt")
    rows = [_times_row(row, names) for row in results.rows]
    rows += _means(results, len(names))
    return Table(f"Time of one call (median), {results.threads} threads", headers, tuple(rows))


def _times_row(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    best = row.best_peer
    return (
        row.title,
        duration(row.floor.median if row.floor else None),
        *(cell(row.entries.get(name)) for name in names),
        ratio(row.over_floor(best) if best else None),
        ratio(row.over_floor(SMELT)),
        ratio(row.best_over_smelt),
    )


def _means(results: Results, count: int) -> list[tuple[str, ...]]:
    """Return geometric means over all rows and over those beyond 16 MiB."""
    rows_of_means: list[tuple[str, ...]] = []
    for title, rows in (
        ("geometric mean", list(results.rows)),
        ("geometric mean above 16 MiB", [r for r in results.rows if r.group == "large"]),
    ):
        peers = geomean(r.over_floor(r.best_peer) if r.best_peer else None for r in rows)
        ours = geomean(r.over_floor(SMELT) for r in rows)
        gain = geomean(r.best_over_smelt for r in rows)
        blank = ("",) * (count + 1)
        rows_of_means.append((title, *blank, ratio(peers), ratio(ours), ratio(gain)))
    return rows_of_means


def starts(results: Results) -> Table | None:
    """Compile times in fresh processes with an empty and with a filled cache."""
    if not results.cold:
        return None
    names = [n for n in TITLES if any(n in by_name for by_name in results.cold.values())]
    headers = ("workload", *(f"{TITLES[n]} {how}" for n in names for how in ("cold", "warm")))
    titles = {row.id: row.title for row in results.rows}
    rows: list[tuple[str, ...]] = []
    for row, by_name in results.cold.items():
        cells: list[str] = []
        for name in names:
            cold = by_name.get(name)
            cells += [duration(cold.empty_ns if cold else None)]
            cells += [duration(cold.warm_ns if cold else None)]
        rows.append((titles.get(row, row), *cells))
    return Table("First call in a fresh process, less a later call", headers, tuple(rows))


def overheads(results: Results) -> Table:
    """Return costs besides computing: import, a tiny call, recording an operator, compiling."""
    names = [name for name in TITLES if name in results.peers]
    tiny = next((row for row in results.rows if row.id == "tiny"), None)
    imports = {"torch": "torch", "inductor": "torch", "jax": "jax", "smelt": "smelt"}
    rows = [
        (
            "import beyond NumPy's",
            *(duration(_look_up(results.import_ns, imports, n)) for n in names),
        ),
        ("call with three small arrays", *(duration(tiny.ns(n) if tiny else None) for n in names)),
        ("recording one operator", *(duration(results.record_ns.get(n)) for n in names)),
        (
            "first call of a row, library warm (geometric mean)",
            *(duration(_first_call_ns(results, n)) for n in names),
        ),
    ]
    return Table("Overheads", ("cost", *(TITLES[n] for n in names)), tuple(rows))


def _look_up(table: object, key: dict[str, str], name: str) -> float | None:
    assert isinstance(table, dict)
    value: float | None = table.get(key.get(name, ""))
    return value


def _first_call_ns(results: Results, name: str) -> float | None:
    """Return the mean first call minus a typical one, in a warm process."""
    if name not in ("inductor", "jax", SMELT):
        return None
    extra: list[float | None] = []
    for row in results.rows:
        entry = row.entries.get(name)
        if entry is not None and entry.times is not None and entry.first_ns is not None:
            extra.append(max(1.0, entry.first_ns - entry.times.median))
    return geomean(extra)


def variants(results: Results) -> Table:
    """Return each library's fastest form of a row, where it had a choice."""
    names = [name for name in TITLES if name in results.peers]
    rows = [
        (
            row.title,
            *((row.entries[n].variant or NOTHING) if n in row.entries else NOTHING for n in names),
        )
        for row in results.rows
    ]
    return Table("Variant that was timed", ("workload", *(TITLES[n] for n in names)), tuple(rows))


def problems(results: Results) -> list[str]:
    """Return a line for each missing library and each row that one failed."""
    lines = [f"{TITLES[name]}: not available, {why}" for name, why in results.missing.items()]
    for row in results.rows:
        lines += [
            f"{row.title}: {TITLES.get(name, name)}: {entry.problem}"
            for name, entry in row.entries.items()
            if entry.problem
        ]
    return lines
