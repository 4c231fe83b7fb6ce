"""`smelt errors`: list every error, warning and reason code.

>>> command.name
'errors'
"""

from __future__ import annotations

from dataclasses import asdict

import click

from smelt.cli.terminal import console, print_json, table
from smelt.errors import pages

_GROUPS = {
    "E1": "array code",
    "E2": "recording (sm.jit)",
    "E3": "memory",
    "E4": "texts and verifiers",
    "E5": "back ends",
    "E6": "settings and cache",
    "E7": "GPUs",
    "E8": "ONNX models",
    "E9": "bugs",
    "W6": "warnings",
    "F0": "not fused because",
    "F1": "fused because",
}


@click.command("errors")
@click.option("--json", "as_json", is_flag=True, help="Print every page as JSON.")
def command(as_json: bool) -> None:
    """List every error, warning and reason with its code.

    `smelt why CODE` explains a code.
    """
    rows = pages()
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    screen = console()
    for prefix, title in _GROUPS.items():
        listed = table("", "", "", title=f"{prefix}xx  {title}")
        for row in rows:
            if row.code.startswith(prefix):
                name = row.name if row.name != row.title else ""
                listed.add_row(row.code, row.title, name)
        screen.print(listed)
        screen.print()
