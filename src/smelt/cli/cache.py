"""`smelt cache`: the compiled kernels kept on disk.

>>> sorted(command.commands)
['clear', 'info', 'list', 'path', 'verify']
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from smelt import knobs
from smelt.cli.terminal import console, print_json, table
from smelt.knobs.values import show_bytes
from smelt.runtime.cache import Cache


@click.group("cache")
def command() -> None:
    """Where plans and compiled kernels are kept: show, list, verify, clear.

    The place is SMELT_CACHE_DIR, or the user's cache directory. It is used only if it belongs to
    you and nobody else can write to it.
    """


@command.command("info")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def info(as_json: bool) -> None:
    """Place, size and state."""
    found = Cache.default().info()
    if as_json:
        print_json(asdict(found))
        return
    rows = table("", "")
    rows.add_row("place", found.path or "in memory only")
    rows.add_row("state", _state(found.refused))
    rows.add_row("entries", str(found.entries))
    rows.add_row("size", f"{show_bytes(found.nbytes)} of {show_bytes(found.limit)}")
    console().print(rows)


def _state(refused: str | None) -> str:
    if not knobs.CACHE.get():
        return "switched off (SMELT_CACHE)"
    return f"not used: {refused}" if refused else "in use"


@command.command("path")
def path() -> None:
    """The directory alone, for scripts; exits with 1 if there is none."""
    place = Cache.default().path
    if place is None:
        sys.exit(1)
    click.echo(str(place))


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_entries(as_json: bool) -> None:
    """Every entry: what it is, its size, what it holds; the newest first."""
    found = Cache.default().entries()
    if as_json:
        print_json([entry._asdict() for entry in found])
        return
    rows = table("entry", "", "bytes", "")
    for entry in found:
        rows.add_row(entry.name[:12], entry.what, show_bytes(entry.nbytes), entry.about)
    console().print(rows)


@command.command("verify")
@click.option("--keep", is_flag=True, help="Report damaged entries without removing them.")
def verify(keep: bool) -> None:
    """Check every entry's checksum; remove what is damaged. Exits with 1 if something was."""
    cache = Cache.default()
    before = cache.info().entries
    wrong = cache.verify(remove=not keep)
    for name, problem in sorted(wrong.items()):
        click.echo(f"{name}: {problem}")
    done = "found" if keep else "removed"
    click.echo(f"{before} entries checked, {len(wrong)} damaged{f' and {done}' if wrong else ''}")
    sys.exit(1 if wrong else 0)


@command.command("clear")
def clear() -> None:
    """Remove every entry."""
    cache = Cache.default()
    size = cache.info().nbytes
    removed = cache.clear()
    freed = size - cache.info().nbytes
    click.echo(f"{removed} files removed, {show_bytes(freed)} freed")
