"""The command `python -m demo`, with progress bar and page.

>>> command.name
'demo'
"""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

from demo import engines, job, page
from demo.race import EngineFailedError
from demo.weights import MissingPackagesError

NAMES = [engine.name for engine in engines.ENGINES]


@click.command("demo")
@click.argument("questions", nargs=-1)
@click.option(
    "--race/--no-race", default=None, help="Race the engines [default: without QUESTIONS]."
)
@click.option(
    "--sample",
    default=512,
    show_default=True,
    type=click.IntRange(2),
    metavar="N",
    help="Texts that the engines race over.",
)
@click.option(
    "--turns",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="How often each engine embeds them; its best turn counts.",
)
@click.option(
    "--index",
    default=None,
    type=click.IntRange(2),
    metavar="N",
    help="Passages to search [default: all with Smelt, else as many as raced].",
)
@click.option(
    "--engine",
    default=None,
    type=click.Choice(NAMES),
    help="Who embeds the passages [default: smelt, else numpy].",
)
@click.option(
    "--answers",
    default=3,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Answers to each question.",
)
def command(
    questions: tuple[str, ...],
    race: bool | None,
    sample: int,
    turns: int,
    index: int | None,
    engine: str | None,
    answers: int,
) -> None:
    """Search the documentation of this Python by meaning.

    Without QUESTIONS, races NumPy, PyTorch (eager and compiled) and Smelt over the same texts and
    answers some questions of its own; with QUESTIONS, answers those.
    """
    options = job.Options(questions, sample, turns, race, index, engine, answers)
    console = Console()
    try:
        outcome = _run_with_progress(options, Console(stderr=True))
    except (MissingPackagesError, EngineFailedError) as error:
        raise click.ClickException(str(error)) from error
    page.show(outcome, console)
    if not outcome.succeeded:
        raise click.ClickException("an engine failed or does not agree: see the table")


def _run_with_progress(options: job.Options, console: Console) -> job.Outcome:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def watch(what: str, texts: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.advance(tasks[what], texts)

        return job.run(options, watch)
