"""`smelt doctor`: versions, processor, threads, cache, machine figures and settings.

>>> command.name
'doctor'
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from typing import Any

import click
from rich.text import Text

from smelt import knobs
from smelt.cli.checks import Check, all_checks
from smelt.cli.terminal import MARKS, console, print_json, table
from smelt.compiler import driver
from smelt.ops.library_product import PROVIDERS
from smelt.python.imports import fork_safe_import
from smelt.runtime import figures, host, library_figures, probe
from smelt.tune import library_speed


@click.command("doctor")
@click.option("--knobs", "show_knobs", is_flag=True, help="Print every setting instead.")
@click.option("--probe", "measure", is_flag=True, help="Measure this machine first (about 5 s).")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(show_knobs: bool, measure: bool, as_json: bool) -> None:
    """Check the installation, and show what Smelt detects on this machine.

    Exits with 1 if a check fails.
    """
    if show_knobs:
        _print_knobs(as_json)
        return
    if measure:
        _probe()
    checks = list(all_checks())
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        _print_checks(checks)
    if any(check.verdict == "fail" for check in checks):
        sys.exit(1)


def _probe() -> None:
    samples = probe.measure_samples(say=lambda part: click.echo(f"measuring {part} ...", err=True))
    share = figures.quietest_share(samples)
    if share < figures.MIN_QUIET_SHARE:
        click.echo(
            f"other processes used {1 - share:.0%} of the processor meanwhile: these are the "
            "figures of a busy machine, and plans will be tuned for it; run again when it is idle",
            err=True,
        )
    measured = figures.target_of(host.usable_host(), samples)
    assert measured is not None
    stored = host.store(measured, samples=samples)
    click.echo("measuring products, ours and a library's ...", err=True)
    if stored is None or library_figures.store(host.host(), _product_figures()) is None:
        click.echo("the figures could not be stored: the cache directory is not usable", err=True)


def _product_figures() -> library_figures.Figures:
    """Measure the products of NumPy and, where it is installed, of PyTorch."""
    if find_spec("torch") is not None:
        fork_safe_import("smelt.frontends.torch.library")
    target = host.host()
    build = partial(driver.compile, target=target)
    measured: dict[str, Any] = {}
    for library in PROVIDERS.values():
        measured |= library_speed.measure_products(build, target, library)
    return measured


def _print_checks(checks: list[Check]) -> None:
    screen = console()
    for group in dict.fromkeys(check.group for check in checks):
        rows = table("", "", "", title=group)
        for check in checks:
            if check.group == group:
                note = f"  ({check.note})" if check.note else ""
                value = Text.assemble(check.value, (note, "dim"))
                rows.add_row(check.name, MARKS[check.verdict], value)
        screen.print(rows)
        screen.print()
    bad = [check for check in checks if check.verdict in ("warn", "fail")]
    words = ", ".join(f"{check.group}: {check.name}" for check in bad)
    screen.print(f"Look at {words}." if bad else "All is well.")


def _print_knobs(as_json: bool) -> None:
    rows = [
        {
            "name": knob.name,
            "env": knob.env,
            "value": knob.show(knob.get()),
            "source": knob.source,
            "default": knob.show(knob.default),
            "values": knob.values,
            "changes": knob.changes,
            "doc": knob.doc,
        }
        for knob in knobs.KNOBS.values()
    ]
    if as_json:
        print_json(rows)
        return
    screen = console()
    shown = table("variable", "value", "from", "takes", "what it does")
    for row in rows:
        shown.add_row(
            str(row["env"]),
            Text(str(row["value"]), style="" if row["source"] == "default" else "bold"),
            str(row["source"]),
            Text(str(row["values"])),
            Text(str(row["doc"])),
        )
    screen.print(shown)
    screen.print()
    screen.print(Text("In a program: with sm.config(threads=2): ...   Others that are honoured:"))
    for name, about in knobs.FOREIGN.items():
        screen.print(Text(f"  {name}  {about}"))
