"""`python -m demo.classics FILE.html`: one page that teaches fusion with six classics."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from demo import classics


@click.command("classics")
@click.argument("path", type=click.Path(dir_okay=False, writable=True, path_type=Path))
def command(path: Path) -> None:
    """Write one page that teaches fusion with six classics to PATH."""
    names: list[str] = []

    def say(name: str) -> None:
        names.append(name)
        if sys.stderr.isatty():
            click.echo(f"{len(names)} of {len(classics.NAMES)}: {name}", err=True)

    path.write_text(classics.page(say), encoding="utf-8")
    click.echo(f"wrote {path}", err=True)


if __name__ == "__main__":
    command(prog_name="python -m demo.classics")
