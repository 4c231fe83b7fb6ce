"""`smelt opt`: run passes on a graph's text and print the result.

smelt opt --pass canonicalize --pass cse graph.smelt
smelt opt --rounding fast < graph.smelt
"""

from __future__ import annotations

from typing import TextIO

import click

from smelt.cli.inputs import SOURCE, read_source
from smelt.cli.terminal import console, table
from smelt.graph.text import parse, text
from smelt.graph.verify import verify
from smelt.journal.facts import Journal, PassRan
from smelt.passes import PASSES, run, run_named
from smelt.rewrite.rules import RULES


@click.command("opt")
@click.argument("source", type=SOURCE, default="-")
@click.option("--pass", "names", multiple=True, metavar="NAME", help="Run this pass; repeatable.")
@click.option(
    "--rounding",
    type=click.Choice(["fast", "eager", "exact"]),
    default="eager",
    show_default=True,
    help="Without --pass: all passes that this allows, until nothing changes.",
)
@click.option("--time", "timed", is_flag=True, help="Print each pass's effect and time to stderr.")
@click.option("--list", "listing", is_flag=True, help="List the passes.")
@click.option("--rules", is_flag=True, help="List the rewrite rules.")
def command(
    source: TextIO, names: tuple[str, ...], rounding: str, timed: bool, listing: bool, rules: bool
) -> None:
    """Run passes on a graph's text.

    SOURCE is a file with a graph in its text form, or - for stdin. The result is verified and
    printed; the report of a failing pass has the command that reproduces it.
    """
    if listing:
        _list_passes()
        return
    if rules:
        _list_rules()
        return
    graph = verify(parse(read_source(source)))
    journal = Journal()
    if names:
        graph = run_named(graph, names, journal)
    else:
        graph = run(graph, journal, rounding)  # type: ignore[arg-type]
    print(text(verify(graph)))
    if timed:
        for fact in journal.of(PassRan):
            took = f"{fact.seconds * 1e6:8.1f} µs"
            click.echo(f"{took}  {fact.name}: {fact.before} -> {fact.after} nodes", err=True)


def _list_passes() -> None:
    listed = table("pass", "rounding", "what it does")
    for step in PASSES:
        listed.add_row(step.name, "fast" if step.fast else "any", step.doc)
    console().print(listed)


def _list_rules() -> None:
    listed = table("rule", "rounding", "types", "rewrites")
    for rule in RULES:
        condition = "  (condition on constants)" if rule.when else ""
        kinds = ", ".join(rule.kinds)
        listed.add_row(rule.name, "fast" if rule.fast else "any", kinds, rule.text + condition)
    console().print(listed)
