"""Record what `torch.compile` compiles and what becomes of it.

    with smelt.torch.record() as record:
        fast(x)
    print(record)

A record connects every kernel with modules, lines and ATen operators, and lists what was left to
torch, which graphs fell back, and where Dynamo broke the program.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import field
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch._dynamo.utils import counters

from smelt.errors import ArgumentError, UnknownNameError, escape_controls
from smelt.frontends.torch.lower import Left
from smelt.frontends.torch.origins import TracedOrigin
from smelt.frontends.torch.program import Program
from smelt.frontends.torch.segment import Segment
from smelt.knobs.values import show_bytes
from smelt.python.dataclass import dataclass
from smelt.python.imports import fork_safe_import

if TYPE_CHECKING:
    from smelt.explain.api import Lesson, Report
    from smelt.explain.measure import Times
    from smelt.explain.why import Why


@dataclass(frozen=True, slots=True)
class Break:
    """A place where Dynamo ended a graph, with Dynamo's reason."""

    reason: str
    where: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Fate of a forward value that the backward graph needs: kept or recomputed."""

    name: str
    operator: str
    bytes: int
    again: bool
    """Recomputed in the backward graph, not kept for it."""
    where: str
    """The module's path and the line."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a compiled graph, with the operators and modules that it computes."""

    name: str
    operators: tuple[str, ...]
    """ATen overloads, in order of computation."""
    modules: tuple[str, ...]
    places: tuple[str, ...]
    """`file:line` of the user's program."""
    bytes: int
    """Bytes moved by the kernel, at the sizes of the traced call."""
    bytes_unfused: int
    """Bytes moved by the same operators one by one."""
    predicted_ns: float | None
    text: str
    measured_ns: float | None = None
    """Median of some launches of the kernel alone on the data of the first call; set by `explain`.
    """


@dataclass(slots=True)
class Compiled:
    """A traced graph: its program, or why it runs eagerly."""

    kind: str
    """inference, forward or backward; whole for a failure before the graph was split."""
    program: Program | None
    operators: int
    """Number of ATen calls in the traced graph."""
    seconds: float
    fallback: str = ""
    failed: str = ""
    """Why operators were left to torch, or the graph was split: the first failure inside."""
    first_arguments: list[Any] | None = None
    times: dict[Segment, Times] = field(default_factory=dict["Segment", "Times"])
    """Measured times of each graph of the program."""
    kept: tuple[Kept, ...] = ()
    """Of a forward graph: what it keeps, and what the backward graph recomputes."""

    @property
    def left(self) -> tuple[Left, ...]:
        """Operators that torch computes, each with the reason."""
        return () if self.program is None else tuple(self.program.lowering.left)

    def reports(self, target: str | None = None) -> list[Report]:
        """Return `smelt.explain`'s report of each graph of the program.

        With `target`, such as "sm_90", they are planned for a GPU; nothing runs on it.

        Raises:
            ArgumentError for an unknown target.
        """
        if self.program is None:
            return []
        return [_report(s, self, target) for s in self.program.segments]

    def kernels(self) -> list[Kernel]:
        """Return every kernel, in order of execution."""
        if self.program is None:
            return []
        return [k for s in self.program.segments for k in _kernels(s, self)]

    def measure(self, segment: Segment, tensors: Any, sizes: tuple[int, ...]) -> None:
        """Time a graph of the program on the data of a call."""
        arrays, named = segment.arrays(tensors, sizes), dict(zip(segment.size_names, sizes))
        self.times[segment] = _explain_module().measure(segment.compiled.executable, arrays, named)


@cache
def _explain_module() -> Any:
    """Import the package that makes reports at its first use: it loads the whole compiler."""
    return fork_safe_import("smelt.explain.api")


def _report(segment: Segment, home: Compiled, target: str | None = None) -> Report:
    times, sizes = home.times.get(segment), dict(segment.hints)
    return _explain_module().report(
        segment.compiled, sizes, times=times, target=target, frozen=False
    )


def _kernels(segment: Segment, home: Compiled) -> list[Kernel]:
    report = _report(segment, home)
    kernels: list[Kernel] = []
    for cluster, kernel in zip(segment.compiled.plan.all_clusters, report.entries, strict=True):
        if cluster.inner_plan is not None or kernel.data.kind == "check":
            continue  # the kernels of a body follow, checks compute nothing
        origins = [n.origin for n in cluster.nodes if isinstance(n.origin, TracedOrigin)]
        data = kernel.data
        kernels.append(
            Kernel(
                data.name,
                tuple(dict.fromkeys(o.operator for o in origins)),
                tuple(dict.fromkeys(o.module for o in origins if o.module)),
                tuple(dict.fromkeys(str(o) for o in origins if o.known)),
                data.bytes,
                data.bytes_unfused,
                data.predicted_ns,
                kernel.text,
                None if data.measured is None else data.measured.median_ns,
            )
        )
    return kernels


@dataclass(slots=True)
class Record:
    """Everything that was compiled while it was open; `print` it."""

    graphs: list[Compiled] = field(default_factory=list[Compiled])
    breaks: list[Break] = field(default_factory=list[Break])
    keep_arguments: bool = False
    measures: bool = False
    """Whether each graph is measured on the data of its first call."""

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels of all graphs."""
        return [k for g in self.graphs for k in g.kernels()]

    @property
    def left(self) -> list[Left]:
        """Operators that were left to torch, in all graphs."""
        return [x for g in self.graphs for x in g.left]

    def save(self, path: str | os.PathLike[str], *, code: bool = True) -> Path:
        """Write the reports of all graphs to a file; return its path.

        A name in `.html` gets one interactive page, in `.json` the data. Without `code` the page
        has no LLVM modules and assembly. Raises ArgumentError for another ending and for a record
        in which nothing was compiled, OSError if the file cannot be written.
        """
        return _explain_module().write(
            path,
            html=lambda: self._page(code=code),
            as_json=lambda: json.dumps(
                [{"title": p.title, "text": p.text, "report": p.data} for p in self._parts()],
                indent=2,
            ),
        )

    def _repr_html_(self) -> str:
        """Show the page in a notebook; the text where nothing was compiled."""
        if not any(g.reports() for g in self.graphs):
            return f"<pre>{escape(str(self))}</pre>"
        return _explain_module().frame(self._page(code=False))

    def _page(self, *, code: bool) -> str:
        return _explain_module().lessons_html(self._parts(page=True, code=code), "Parts of a model")

    def _parts(self, *, page: bool = False, code: bool = False) -> list[Lesson]:
        parts = [part for g in self.graphs for part in _parts(g, page=page, code=code)]
        if not parts:
            raise ArgumentError(
                "save: no graph of this record was compiled, so that there is nothing to show; "
                "print the record to see why"
            )
        return parts

    def why(self, a: str, b: str) -> Why:
        """Explain why two operators are, or are not, in one kernel; `print` the result.

        They are named by ATen (`addmm`), by the path of a module (`layers.0`), by a line
        (`model.py:41`), or as in a graph's report; the first graph that has both answers.

        Raises UnknownNameError for a name that no graph has, or no graph together with the other.
        """
        last: UnknownNameError | None = None
        for candidate in (report for g in self.graphs for report in g.reports()):
            try:
                return candidate.why(a, b)
            except UnknownNameError as error:
                last = last or error
        hint = "; nothing was compiled"
        raise last or UnknownNameError(kind="operator or line", name=a, suggestion=hint)

    def __str__(self) -> str:
        return escape_controls(_page(self))


def _parts(g: Compiled, *, page: bool, code: bool) -> list[Lesson]:
    """Return a graph's parts for a page, with what torch computes between them."""
    reports = g.reports()
    parts: list[Lesson] = []
    for k, report in enumerate(reports):
        nodes = report.compiled.plan.graph.nodes()
        origins = [n.origin for n in nodes if isinstance(n.origin, TracedOrigin)]
        modules = list(dict.fromkeys(o.module for o in origins if o.module))
        shown = ", ".join(modules[:3]) + (", .." if len(modules) > 3 else "")
        number = f" {k + 1} of {len(reports)}" if len(reports) > 1 else ""
        title = f"{g.kind} graph{number}" + (f" ({shown})" if shown else "")
        text = [_head(g).partition(", ")[2], *(line.strip() for line in (*_kept(g), *_left(g)))]
        data = report.to_data(page=page, code=code)
        parts.append(_explain_module().Lesson(title, "; ".join(text), "", data))
    return parts


def _page(r: Record) -> str:
    kernels = r.kernels
    operators = sum(g.operators for g in r.graphs)
    moved, unfused = (sum(getattr(k, n) for k in kernels) for n in ("bytes", "bytes_unfused"))
    counts = (
        f"{_count(len(r.graphs), 'graph')}, {_count(len(r.breaks), 'break')}: "
        f"{_count(operators, 'ATen operator')} in {_count(len(kernels), 'kernel')} and "
        f"{_count(len(r.left), 'call')} of torch"
    )
    lines = [counts, f"moves {show_bytes(moved)} instead of {show_bytes(unfused)}"]
    for g in r.graphs:
        lines += ["", _head(g)]
        if g.fallback:
            lines.append(f"  runs eagerly: {g.fallback}")
        if g.failed:
            lines.append(f"  runs in parts: {g.failed}")
        lines += [_line(k) for k in g.kernels()]
        lines += _kept(g)
        lines += _left(g)
    if r.breaks:
        lines += ["", "breaks", *(f"  {b.where}: {b.reason}" for b in r.breaks)]
    return "\n".join(lines)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _short(name: str) -> str:
    return name.removeprefix("aten.").partition(".")[0]


def _line(k: Kernel) -> str:
    names = [_short(name) for name in k.operators]
    shown = " ".join(names[:5]) + (f" +{len(names) - 5}" if len(names) > 5 else "")
    where = "".join(k.modules[:1]) + (f" +{len(k.modules) - 1}" if len(k.modules) > 1 else "")
    location = k.places[0].rpartition("/")[2] if k.places else ""
    saved = show_bytes(max(0, k.bytes_unfused - k.bytes))
    time = "" if k.measured_ns is None else _explain_module().show_time(k.measured_ns)
    return "  ".join(
        part for part in (f"  {k.name}", shown, where, location, time, f"saved {saved}") if part
    )


def _head(g: Compiled) -> str:
    head = f"{g.kind}, compiled in {g.seconds:.2f} s"
    if not g.times:
        return head
    calls = sum(t.call.median_ns for t in g.times.values())
    return f"{head}, {_explain_module().show_time(calls)} a call"


def _kept(g: Compiled) -> list[str]:
    if not g.kept:
        return []
    again = [k for k in g.kept if k.again]
    nbytes = sum(k.bytes for k in g.kept if not k.again)
    line = (
        f"  keeps {_count(len(g.kept) - len(again), 'value')} of {show_bytes(nbytes)} for backward"
    )
    if not again:
        return [line]
    counts = Counter(_short(k.operator) for k in again)
    names = ", ".join(f"{name} x{n}" for name, n in counts.items())
    return [f"{line}; {show_bytes(sum(k.bytes for k in again))} computed again there: {names}"]


def _left(g: Compiled) -> list[str]:
    counts: dict[tuple[str, str], list[str]] = {}
    for x in g.left:
        counts.setdefault((x.operator, x.reason), []).append(x.where)
    return [
        f"  torch: {name} x{len(where)}, {reason}; at {where[0].rpartition('/')[2]}"
        for (name, reason), where in counts.items()
    ]


_OPEN: list[Record] = []
"""Open records; compiling is rare and under Dynamo's lock."""


@contextmanager
def record(
    *, keep_arguments: bool = False, measures: bool = False
) -> Generator[Record, None, None]:
    """Record what is compiled inside the `with` block.

    Models compiled before are not traced again. `keep_arguments` keeps copies of the arguments of
    each graph's first call; with `measures` that call also measures each kernel alone.
    """
    new = Record(keep_arguments=keep_arguments, measures=measures)
    before = _dynamo_failures()
    _OPEN.append(new)
    try:
        yield new
    finally:
        _OPEN.remove(new)
        new.breaks += _skipped_frames(_dynamo_failures() - before)


_FRAME = re.compile(r"frame skipped: .*? \((.+) line (\d+)\)")


def _dynamo_failures() -> Counter[str]:
    """Count how often Dynamo gave up, by its reasons."""
    return Counter(counters["unimplemented"])


def _skipped_frames(refused: Counter[str]) -> list[Break]:
    """Return the functions that Dynamo left to Python completely, of which there is no graph."""
    breaks: list[Break] = []
    for reason in refused:
        if frame := _FRAME.search(reason):
            what = f"{reason.splitlines()[0]}: the whole function runs eagerly"
            breaks.append(Break(what, f"{frame[1]}:{frame[2]}"))
    return breaks


def open_records() -> list[Record]:
    """Return the records that are open."""
    return _OPEN
