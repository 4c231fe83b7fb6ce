"""`smelt cache`: inspect and clear the compiled kernels on disk.

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
    """Inspect, verify or clear the cache of plans and compiled kernels.

    The location is SMELT_CACHE_DIR, or the user's cache directory. It is used only if it belongs to
    you and nobody else can write to it.
    """


@command.command("info")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def info(as_json: bool) -> None:
    """Location, size and state."""
    state = Cache.default().info()
    if as_json:
        print_json(asdict(state))
        return
    rows = table("", "")
    rows.add_row("place", state.path or "in memory only")
    rows.add_row("state", _state(state.refused))
    rows.add_row("entries", str(state.entries))
    rows.add_row("size", f"{show_bytes(state.nbytes)} of {show_bytes(state.limit)}")
    console().print(rows)


def _state(refused: str | None) -> str:
    if not knobs.CACHE.get():
        return "switched off (SMELT_CACHE)"
    return f"not used: {refused}" if refused else "in use"


@command.command("path")
def path() -> None:
    """Print only the directory, for scripts; exits with 1 if there is none."""
    place = Cache.default().path
    if place is None:
        sys.exit(1)
    click.echo(str(place))


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_entries(as_json: bool) -> None:
    """List every entry: kind, size and content, the newest first."""
    entries = Cache.default().entries()
    if as_json:
        print_json([entry._asdict() for entry in entries])
        return
    rows = table("entry", "", "bytes", "")
    for entry in entries:
        rows.add_row(entry.name[:12], entry.what, show_bytes(entry.nbytes), entry.about)
    console().print(rows)


@command.command("verify")
@click.option("--keep", is_flag=True, help="Report damaged entries without removing them.")
def verify(keep: bool) -> None:
    """Check every entry's checksum; remove damaged ones. Exits with 1 if there are any."""
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
