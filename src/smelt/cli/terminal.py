"""What the commands print with: one console for answers, tables without lines, marks for verdicts.

>>> table("name", "value").columns[0].header
'name'
"""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]", "": ""}


def console() -> Console:
    """Answers go to stdout: coloured on a terminal unless NO_COLOR is set, plain in a pipe."""
    made = Console(highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made.width = 100
    return made


def table(*headers: str, title: str | None = None) -> Table:
    """A table of columns apart by two blanks; the last column takes what is left and wraps."""
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        show_header=any(headers),
        header_style="dim",
    )
    for number, header in enumerate(headers[:-1]):
        made.add_column(header, overflow="fold", no_wrap=number == 0)
    made.add_column(headers[-1] if headers else "", ratio=1, overflow="fold")
    return made


def print_json(data: Any) -> None:
    """Data for programs: two blanks of indentation, keys as given, no colours."""
    print(json.dumps(data, indent=2, default=str))
