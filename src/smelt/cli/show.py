"""`smelt show`: list what a program file holds; nothing of it runs.

smelt show layer.smelt --verify
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from smelt.cli.terminal import console, table
from smelt.knobs.values import show_bytes
from smelt.saved.file import ProgramFile


@click.command("show")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--verify", is_flag=True, help="Compare every byte with its checksum.")
def command(file: Path, verify: bool) -> None:
    """List what a program file holds.

    For each program: arguments, instruction sets, likely sizes, code and constants.  Nothing of the
    file runs.
    """
    opened = ProgramFile(file)
    if verify:
        opened.verify()
    rows = table("program", "arguments", "code for", "planned at", "code", "constants")
    with opened.reading():
        for name, entries in opened.facts["programs"].items():
            for entry in entries:
                rows.add_row(*map(escape, (name, *_cells(opened, entry))))
        head = (
            f"{file.name}: saved by Smelt {opened.facts['smelt']}, {len(opened.sections)} sections"
        )
    click.echo(head + (", every checksum agrees" if verify else ""))
    console().print(rows)
    if reason := opened.distrust():
        click.echo(f"its code would not be run: {reason}", err=True)


def _cells(file: ProgramFile, entry: Mapping[str, Any]) -> Iterator[str]:
    r, plans = entry["recording"], entry["plans"]
    yield ", ".join(f"{n}: {_leaf(x)}" for n, x in zip(r["names"], r["leaves"], strict=True))
    yield ", ".join(dict.fromkeys(p["isa"] for p in plans))
    hints = (", ".join(f"{n}={v}" for n, v in p["hints"].items()) for p in plans)
    yield "; ".join(dict.fromkeys(hints))
    code = {row["section"] for p in plans for row in p["code"].values()}
    constants = {x["section"] for x in r["constants"]}
    constants |= {x["section"] for p in plans for x in p["held"]}
    for numbers in (code, constants):
        yield show_bytes(sum(file.sections[n].length for n in numbers))


def _leaf(facts: Mapping[str, Any]) -> str:
    if "dtype" in facts:
        return f"{facts['dtype']}[{','.join(facts['shape'])}]"
    return str(facts.get("number") or facts["constant"][1])
