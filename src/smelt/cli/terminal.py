"""Terminal output of the commands: console, plain tables, marks for verdicts.

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
    """Return the console for stdout: coloured on a terminal unless NO_COLOR is set."""
    screen = Console(highlight=False, soft_wrap=False)
    if not screen.is_terminal:
        screen.width = 100
    return screen


def table(*headers: str, title: str | None = None) -> Table:
    """Return a table without lines; the last column takes the remaining width and wraps."""
    result = Table(
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
        result.add_column(header, overflow="fold", no_wrap=number == 0)
    result.add_column(headers[-1] if headers else "", ratio=1, overflow="fold")
    return result


def print_json(data: Any) -> None:
    """Print data as JSON with an indentation of two, without colours."""
    print(json.dumps(data, indent=2, default=str))
