"""`smelt why E101`: explain an error, a warning or a reason.

>>> command.name
'why'
"""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from smelt.cli.terminal import console, print_json
from smelt.errors import Page, page


@click.command("why")
@click.argument("code")
@click.option("--json", "as_json", is_flag=True, help="Print the page as JSON.")
def command(code: str, as_json: bool) -> None:
    """Explain an error (E101) or the reason of a decision (F010).

    CODE may also be a name: ShapeError, saves-traffic.
    """
    entry = page(code)
    if as_json:
        print_json(asdict(entry))
    else:
        _show(console(), entry)


def _show(screen: Console, entry: Page) -> None:
    name = f"  {entry.name}" if entry.name != entry.title else ""
    screen.print(Text.assemble((f"{entry.code} {entry.title}", "bold"), (name, "dim")))
    screen.print()
    screen.print(Text(entry.summary))
    for title, body in (
        ("What it means", entry.meaning),
        ("Why", entry.why),
        ("Example", entry.example),
        ("How to fix" if entry.code[0] in "EW" else "How to get the opposite", entry.fix),
    ):
        if body:
            screen.print()
            screen.print(Text(title, style="bold"))
            shown = Syntax(body, "python", theme="ansi_dark", background_color="default")
            prose = Text(flowing(body))
            screen.print(Padding(shown if title == "Example" else prose, (0, 0, 0, 2)))


def flowing(body: str) -> str:
    """Join each paragraph into one line, for any terminal width.

    Lists and code keep their lines.
    """
    paragraphs = body.split("\n\n")
    plain = [not any(line.startswith((" ", "-")) for line in p.split("\n")) for p in paragraphs]
    return "\n\n".join(
        p.replace("\n", " ") if flows else p for p, flows in zip(paragraphs, plain, strict=True)
    )
