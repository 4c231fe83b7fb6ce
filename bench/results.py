"""Results of a benchmark run, as data with a stable JSON form.

Times are nanoseconds. A row has, for each library, the quartiles of its samples, its fastest
variant, the error relative to the reference, and its first call; or the reason why there is no
time. Ratios are computed here once, for the table, the plot and the page.

>>> quartiles([3.0, 1.0, 2.0, 5.0, 4.0])
Times(median=3.0, low=2.0, high=4.0, best=1.0, count=5)
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from smelt.python.dataclass import dataclass

FORMAT = 1
SMELT = "smelt"


@dataclass(frozen=True)
class Times:
    """Median, first and third quartile, and best, of `count` samples in ns."""

    median: float
    low: float
    high: float
    best: float
    count: int


@dataclass(frozen=True)
class Entry:
    """Results of one library on one row. `problem` is empty exactly if there are times.

    `error` is the largest deviation from the float64 reference relative to the tolerance.
    `over_floor` has ratios of samples to the floor measured next to each, not times.
    """

    times: Times | None = None
    variant: str = ""
    error: float | None = None
    first_ns: float | None = None
    problem: str = ""
    over_floor: Times | None = None


@dataclass(frozen=True)
class Row:
    """Results of one workload, with its compulsory traffic, its floor and all libraries."""

    id: str
    title: str
    group: str
    read: int
    written: int
    floor: Times | None
    entries: Mapping[str, Entry]

    def ns(self, name: str) -> float | None:
        """Return the median of one library, if it has one."""
        entry = self.entries.get(name)
        return entry.times.median if entry and entry.times else None

    @property
    def best_peer(self) -> str | None:
        """The fastest library other than Smelt."""
        medians = {n: self.ns(n) for n in self.entries if n != SMELT}
        measured = {n: ns for n, ns in medians.items() if ns is not None}
        return min(measured, key=lambda n: measured[n]) if measured else None

    def spread(self, name: str) -> Times | None:
        """Return a library's time over the floor, from adjacent measurements if there are any."""
        entry = self.entries.get(name)
        if entry is None or entry.times is None or self.floor is None:
            return None
        if entry.over_floor is not None:
            return entry.over_floor
        t, floor = entry.times, self.floor.median
        return Times(t.median / floor, t.low / floor, t.high / floor, t.best / floor, t.count)

    def over_floor(self, name: str) -> float | None:
        """Return the median time of a library over the floor."""
        spread = self.spread(name)
        return spread.median if spread else None

    @property
    def best_over_smelt(self) -> float | None:
        """Time of the best peer over Smelt's."""
        return _ratio(self.ns(self.best_peer) if self.best_peer else None, self.ns(SMELT))


@dataclass(frozen=True)
class Cold:
    """First calls in fresh processes: with an empty cache, then with the filled cache.

    Both are the first call minus a later one: the cost of tracing, compiling and loading.
    """

    empty_ns: float | None = None
    warm_ns: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Results:
    """Results of a run.

    `cold` is keyed by row, then library; `import_ns` excludes NumPy's import.
    """

    machine: Mapping[str, Any]
    threads: int
    peers: Mapping[str, str]
    missing: Mapping[str, str]
    rows: Sequence[Row]
    cold: Mapping[str, Mapping[str, Cold]] = field(default_factory=dict[str, dict[str, Cold]])
    import_ns: Mapping[str, float] = field(default_factory=dict[str, float])
    record_ns: Mapping[str, float] = field(default_factory=dict[str, float])

    def to_json(self) -> str:
        """Return the run as JSON; `format` rises when a field changes its meaning."""
        ratios = {
            "best_peer_over_smelt": geomean(r.best_over_smelt for r in self.rows),
            "best_peer_over_smelt_large": geomean(
                r.best_over_smelt for r in self.rows if r.group == "large"
            ),
            "smelt_over_floor_large": geomean(
                r.over_floor(SMELT) for r in self.rows if r.group == "large"
            ),
        }
        data = {"format": FORMAT, "geomeans": ratios, **asdict(self)}
        return json.dumps(data, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Results:
        """Read a stored run; raise ValueError for another format."""
        data: dict[str, Any] = json.loads(text)
        if data.pop("format", None) != FORMAT:
            raise ValueError(f"not a benchmark result of format {FORMAT}")
        data.pop("geomeans", None)
        data["rows"] = [_row(item) for item in data["rows"]]
        data["cold"] = {
            row: {name: Cold(**cold) for name, cold in of_row.items()}
            for row, of_row in data["cold"].items()
        }
        return cls(**data)


def _row(data: dict[str, Any]) -> Row:
    fields: dict[str, Any] = dict(data)
    entries: dict[str, Any] = fields["entries"]
    fields["entries"] = {name: _entry(entry) for name, entry in entries.items()}
    fields["floor"] = Times(**fields["floor"]) if fields["floor"] else None
    return Row(**fields)


def _entry(data: dict[str, Any]) -> Entry:
    fields: dict[str, Any] = dict(data)
    for name in ("times", "over_floor"):
        fields[name] = Times(**fields[name]) if fields.get(name) else None
    return Entry(**fields)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def quartiles(samples: Sequence[float]) -> Times:
    """Summarise at least one sample; the quartiles are samples, not interpolations."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    low, high = ordered[round(last * 0.25)], ordered[round(last * 0.75)]
    return Times(statistics.median(ordered), low, high, ordered[0], len(ordered))


def geomean(ratios: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the existing ratios; None if there are none.

    >>> geomean([2.0, None, 8.0])
    4.0
    """
    logarithms = [math.log2(r) for r in ratios if r]
    return 2.0 ** (sum(logarithms) / len(logarithms)) if logarithms else None
