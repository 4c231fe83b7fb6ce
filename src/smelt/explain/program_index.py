"""An index of programs that are planned for one machine: a line each, with links to their pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from smelt.explain.data import ReportData
from smelt.explain.units import show_bytes, show_count, show_time
from smelt.python.dataclass import dataclass

__all__ = ["IndexRow", "index_page", "index_table", "row_of"]

_COLUMNS = ("program", "what", "kernels", "between kernels", "floor", "predicted", "of the floor")
_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
    "td,th{padding:.3em .8em;border-bottom:1px solid #8884;text-align:left}"
    "td:nth-child(n+3){font-variant-numeric:tabular-nums}"
)


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A program of an index: its name, first line of documentation and figures, or its error.

    Links are names of files beside the index.
    """

    name: str
    what: str
    figures: tuple[str, ...] = ()
    """Kernels, bytes stored between them, least and predicted time, and their ratio."""
    page: str = ""
    source: str = ""
    error: str = ""


def row_of(name: str, what: str, data: ReportData, page: str, source: str) -> IndexRow:
    """Return the row of a report for a GPU.

    The floor is the time of the bytes that kernels move; calls of a loop's step are not counted.
    """
    kernels = [k for k in data.kernels if k.within is None]
    predicted, floor = data.total.predicted_ns, data.total.floor_ns
    stored = show_bytes(data.memory.temp) if data.memory.temp else "nothing"
    ratio = f"{floor / predicted:.0%}" if predicted else "unknown"
    time = "unknown" if predicted is None else show_time(predicted)
    figures = show_count(len(kernels), "kernel"), stored, show_time(floor), time, ratio
    return IndexRow(name, what, figures, page, source)


def index_table(rows: Sequence[IndexRow]) -> str:
    """Return the index as a table in Markdown, without links."""
    lines = [" | ".join(_COLUMNS), " | ".join("---" for _ in _COLUMNS)]
    for row in rows:
        cells = row.figures or (row.error, *[""] * (len(_COLUMNS) - 3))
        lines.append(" | ".join(c.replace("|", "\\|") for c in (f"`{row.name}`", row.what, *cells)))
    return "".join(f"| {line} |\n" for line in lines)


def index_page(title: str, note: str, rows: Sequence[IndexRow]) -> str:
    """Return the index as a page of HTML, which requests nothing."""
    head = "".join(f"<th>{c}" for c in (*_COLUMNS, "files"))
    body: list[str] = []
    for row in rows:
        name = escape(row.name)
        links = f'<a href="{escape(row.page)}">page</a> <a href="{escape(row.source)}">Triton</a>'
        if row.error:
            figures, links = f'<td colspan="{len(_COLUMNS) - 2}">{escape(row.error)}', ""
        else:
            figures = "".join(f"<td>{escape(c)}" for c in row.figures)
        body.append(f"<tr><td><code>{name}</code><td>{escape(row.what)}{figures}<td>{links}\n")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>{escape(note)}</p>\n"
        f"<table><tr>{head}\n{''.join(body)}</table></html>\n"
    )
