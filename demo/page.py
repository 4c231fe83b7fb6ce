"""Print the demo's outcome in the terminal.

>>> mebibytes(3 << 20), seconds(0.0123), mebibytes(None)
('3 MiB', '12.3 ms', '–')
"""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from demo.job import Outcome
from demo.race import AGREEMENT, Result
from demo.search import Answer

UNKNOWN = "–"


def show(outcome: Outcome, console: Console) -> None:
    """Print the page."""
    parts: list[RenderableType] = []
    if outcome.raced:
        parts += [race_table(outcome), *notes(outcome), *compiler_lines(outcome)]
    parts += [index_line(outcome), *(answers(*asked) for asked in outcome.answers)]
    console.print(Group(*parts))


def race_table(outcome: Outcome) -> Table:
    """Return a table of engines; engines that did not run have no numbers.

    `peak` is the peak memory of the process after the parameters were loaded, `working` its share
    on top of them; `cosine` is the minimum over all texts, relative to the first row.
    """
    table = Table(
        title=f"{outcome.raced} of {outcome.passages} docstrings, {outcome.tokens} tokens, "
        f"{outcome.padding:.1%} of all positions padding",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    # Fits 80 columns: names wrap, numbers do not.
    table.add_column("engine", min_width=12)
    for heading in ("texts/s", "ratio", "first\nbatch", "peak\nMiB", "working\nMiB", "cosine\n1 -"):
        table.add_column(heading, justify="right", no_wrap=True)
    reference = outcome.results[0].speed(outcome.raced)
    for result in outcome.results:
        table.add_row(escape(result.title), *_cells(result, outcome.raced, reference))
    return table


def _cells(result: Result, texts: int, reference: float | None) -> list[str]:
    speed = result.speed(texts)
    work = None
    if result.peak is not None and result.resident is not None:
        work = max(0, result.peak - result.resident)
    return [
        UNKNOWN if speed is None else f"{speed:.1f}",
        UNKNOWN if speed is None or not reference else f"{speed / reference:.2f}×",
        seconds(result.first_seconds),
        UNKNOWN if result.peak is None else f"{result.peak / (1 << 20):.0f}",
        UNKNOWN if work is None else f"{work / (1 << 20):.0f}",
        _agreement(result),
    ]


def _agreement(result: Result) -> str:
    if result.agreement is None:
        return UNKNOWN
    # Show the distance from one: a cosine of nearly one is all nines.
    shown = f"{max(0.0, 1.0 - result.agreement):.0e}"
    return shown if result.agrees else f"[red]{shown}[/]"


def notes(outcome: Outcome) -> list[str]:
    """Return a line for each engine that did not run, failed or disagrees."""
    lines: list[str] = []
    for result in outcome.results:
        if result.absent is not None:
            lines.append(f"[yellow]{result.title} is not available: {escape(result.absent)}.[/]")
        elif result.failed is not None:
            lines.append(f"[red]{result.title} failed: {escape(result.failed)}[/]")
        elif not result.agrees:
            lines.append(
                f"[red]{result.title} disagrees with {outcome.results[0].title}: "
                f"the cosine must be at least 1 - {1 - AGREEMENT:.0e}.[/]"
            )
    return lines


def compiler_lines(outcome: Outcome) -> list[str]:
    """Return the compiler's facts, for each engine that has them and ran."""
    lines: list[str] = []
    for result in outcome.results:
        facts = result.facts
        if result.name != "smelt" or result.peak is None:
            continue
        lines += [
            f"kernels before fusion {_count(facts.operators)}, after {_count(facts.kernels)}",
            f"intermediates avoided {mebibytes(facts.bytes_avoided)} in the largest batch",
            f"compile time {seconds(facts.compile_seconds)}",
        ]
    return lines


def index_line(outcome: Outcome) -> str:
    """Return how the searched passages were embedded."""
    result = outcome.indexer
    if result is None or not result.turns:
        return ""
    took = min(result.turns)
    return (
        f"\nSearched {outcome.indexed} of {outcome.passages} docstrings, embedded by "
        f"{escape(result.title)} in {took:.1f} s."
    )


def answers(question: str, results: list[Answer]) -> RenderableType:
    """Return a question and its answers: score, name, first words."""
    lines = [Text(f"\n{question}", style="bold")]
    for answer in results:
        passage = answer.passage
        line = Text.assemble(
            f"  {answer.score:.3f}  ", (passage.name, "cyan"), f"  {passage.summary}"
        )
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
    return Group(*lines)


def mebibytes(count: int | None) -> str:
    """Format a number of bytes in MiB."""
    return UNKNOWN if count is None else f"{count / (1 << 20):.0f} MiB"


def seconds(value: float | None) -> str:
    """Format a time with a suitable unit."""
    if value is None:
        return UNKNOWN
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def _count(value: int | None) -> str:
    return "not reported" if value is None else str(value)
