"""`python -m bench`: compare Smelt with other libraries and the memory floor.

>>> command.name
'bench'
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench import (
    apart,
    attention,
    operators,
    page,
    plot,
    products,
    table,
    training,
)
from bench import isa as instruction_sets
from bench import losses as losses_bench
from bench import models as models_bench
from bench.peers import PEERS
from bench.process import Say
from bench.results import Results
from bench.run import Options, run
from bench.workloads import WORKLOADS
from smelt import knobs
from smelt.cli.terminal import table as listing


@click.command("bench")
@click.option(
    "--only", metavar="ROWS", help="Rows by id, separated by commas; a prefix selects several."
)
@click.option(
    "--peers",
    metavar="NAMES",
    help=f"Libraries: {', '.join(PEERS)}; with --models: {', '.join(models_bench.PEERS)}.",
)
@click.option("--threads", type=click.IntRange(1), help="Threads for all (default: all cores).")
@click.option("--quick", is_flag=True, help="Fewer rounds, no cold starts.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write results as JSON.")
@click.option("--svg", "svg_path", type=click.Path(path_type=Path), help="Write the plot as SVG.")
@click.option("--write-docs", is_flag=True, help="Write docs/bench.md with its plot and data.")
@click.option("--models", is_flag=True, help="Measure models behind torch.compile.")
@click.option("--products", "only_products", is_flag=True, help="Matrix products on one core.")
@click.option("--attention", "only_attention", is_flag=True, help="Attention on one core.")
@click.option("--operators", "only_operators", is_flag=True, help="Single operators on one core.")
@click.option(
    "--apart", "only_apart", is_flag=True, help="Fused kernels against their operators unfused."
)
@click.option("--losses", is_flag=True, help="Losses and heads on one core: time and memory.")
@click.option(
    "--isa",
    type=click.Choice(sorted(instruction_sets.VARIABLES)),
    help="Hold all libraries to an instruction set that is older than the processor's.",
)
@click.option("--list", "list_rows", is_flag=True, help="List the rows and stop.")
def command(
    only: str | None,
    peers: str | None,
    threads: int | None,
    quick: bool,
    json_path: Path | None,
    svg_path: Path | None,
    write_docs: bool,
    models: bool,
    only_products: bool,
    only_attention: bool,
    only_operators: bool,
    only_apart: bool,
    losses: bool,
    isa: str | None,
    list_rows: bool,
) -> None:
    """Measure Smelt against other libraries and the memory floor.

    Needs the peers (torch, jax, onnxruntime) installed; peers that are missing are left out. A full
    run takes some minutes, most of them the peers' compile times. With --isa every library is held
    to an older instruction set, by its own variable; ONNX Runtime and JAX's products heed none, and
    are left out. `python -m bench --gpu --help` describes the measurements of a GPU.
    """
    screen = Console(highlight=False)
    _refuse_unread()
    if isa:
        _run_limited(isa)
        return
    if list_rows:
        _list_rows(screen)
        return
    if models:
        _models(_split(only), _split(peers), write_docs, threads or 1, quick)
        return
    if only_products:
        _products(screen, quick, write_docs)
        return
    if only_attention:
        _attention(screen, quick, write_docs)
        return
    if only_operators:
        _operators(screen, quick, json_path, write_docs)
        return
    if only_apart:
        _apart(screen, quick, json_path, write_docs)
        return
    if losses:
        measured = losses_bench.run(1 if quick else losses_bench.ROUNDS)
        _print(screen, losses_bench.table(measured))
        _write_results(losses_bench, measured, None, write_docs)
        return
    options = Options(_split(only), _split(peers), threads or 0, quick)
    try:
        results = _run(options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _show(screen, results, quick)
    if json_path:
        json_path.write_text(results.to_json() + "\n", encoding="utf-8")
    if svg_path:
        svg_path.write_text(_draw(results), encoding="utf-8")
    if write_docs:
        for path in page.write(results, _docs_folder()):
            click.echo(f"wrote {path}", err=True)


_OPTIONS_READ = {
    "models": ("only", "peers", "write_docs", "threads", "quick"),
    "only_products": ("quick", "write_docs"),
    "only_attention": ("quick", "write_docs"),
    "only_operators": ("quick", "json_path", "write_docs"),
    "only_apart": ("quick", "json_path", "write_docs"),
    "losses": ("quick", "write_docs"),
    "list_rows": (),
}
"""For each flag that selects another table, the options that this table reads."""


def _run_limited(isa: str) -> None:
    """Run the command in a process whose libraries are held to an instruction set."""
    context = click.get_current_context()
    arguments: list[str] = []
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name == "isa" or not value:
            continue
        arguments += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    line = instruction_sets.limited_command(isa, arguments)
    context.exit(subprocess.run(line, check=False).returncode)  # noqa: S603 - our own command


def _docs_folder() -> Path:
    """Return where pages are written: an instruction set other than the machine's has its own."""
    isa = knobs.HOST_ISA.get()
    folder = Path("docs") if isa == "auto" else Path("docs") / isa
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _refuse_unread() -> None:
    """Raise UsageError for an option that the selected table does not read."""
    context = click.get_current_context()
    flag_of = {p.name: p.opts[0] for p in context.command.params}
    passed = [name for name in flag_of if name != "isa" and context.params.get(name or "")]
    kind = next((name for name in _OPTIONS_READ if name in passed), None)
    if kind is None:
        return
    unread = [flag_of[name] for name in passed if name != kind and name not in _OPTIONS_READ[kind]]
    if unread:
        raise click.UsageError(f"{flag_of[kind]} takes no {', '.join(unread)}")


def _models(
    only: tuple[str, ...], peers: tuple[str, ...], write_docs: bool, threads: int, quick: bool
) -> None:
    """Measure models and print their table; needs torch and transformers."""
    selected = instruction_sets.held(dict.fromkeys((*(peers or models_bench.PEERS), "smelt")))
    try:
        rows = models_bench.run(
            only,
            selected,
            say=lambda name: click.echo(name, err=True),
            threads=threads,
            quick=quick,
        )
    except (ImportError, KeyError) as error:
        raise click.ClickException(f"cannot measure models: {error}") from error
    text = models_bench.page(rows, threads)
    if not only:
        click.echo("training step", err=True)
        text += training.page(training.measure(selected))
    click.echo(text)
    if write_docs:
        path = _docs_folder() / "models.md"
        path.write_text(models_bench.head() + text, encoding="utf-8")
        click.echo(f"wrote {path}", err=True)


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _draw(results: Results) -> str:
    try:
        return plot.draw(results)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _run(options: Options) -> Results:
    with _progress_line() as say:
        return run(options, say=say)


@contextmanager
def _progress_line() -> Generator[Say]:
    """Show progress on standard error, if that is a terminal."""
    errors = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("preparing")
        yield lambda text: bar.update(task, description=text)


def _list_rows(screen: Console) -> None:
    rows = listing("id", "workload", "size", "why")
    for row in WORKLOADS.values():
        rows.add_row(row.id, row.title, row.group, row.why)
    screen.print(rows)


def _products(screen: Console, quick: bool, write_docs: bool) -> None:
    with _progress_line() as say:
        measured = products.run(2 if quick else products.ROUNDS, say)
    _print(screen, products.table(measured))
    _write_results(products, measured, None, write_docs)


def _attention(screen: Console, quick: bool, write_docs: bool) -> None:
    with _progress_line() as say:
        measured = attention.run(1 if quick else attention.ROUNDS, say)
    _print(screen, attention.table(measured))
    _write_results(attention, measured, None, write_docs)


def _operators(screen: Console, quick: bool, json_path: Path | None, write_docs: bool) -> None:
    with _progress_line() as say:
        measured = operators.run(quick, say)
    for size in operators.SIZES:  # one table each: all columns together fit no terminal
        _print(screen, operators.table([t for t in measured if t.size == size]))
    _write_results(operators, measured, json_path, write_docs)


def _apart(screen: Console, quick: bool, json_path: Path | None, write_docs: bool) -> None:
    with _progress_line() as say:
        measured = apart.run(quick, say)
    _print(screen, apart.table(measured))
    _write_results(apart, measured, json_path, write_docs)


def _write_results(
    bench: ModuleType, measured: object, json_path: Path | None, write_docs: bool
) -> None:
    """Write a benchmark's results as JSON and as a page, as requested."""
    if json_path:
        json_path.write_text(bench.to_json(measured) + "\n", encoding="utf-8")
    if write_docs:
        click.echo(f"wrote {bench.write(measured, _docs_folder())}", err=True)


def _show(screen: Console, results: Results, quick: bool) -> None:
    tables = [table.times(results), table.overheads(results), table.starts(results)]
    for shown in tables:
        if shown is not None:
            _print(screen, shown)
            screen.print()
    for line in table.problems(results):
        screen.print(line, markup=False)
    if quick:
        screen.print("A quick run: few rounds. Ratios are rough.")


def _print(screen: Console, shown: table.Table) -> None:
    """Print a table with bold means, as wide as the terminal, or in full."""
    text = shown.plain(screen.width if screen.is_terminal else None)
    screen.print(shown.title, style="bold", soft_wrap=True)
    for line in text.splitlines()[1:]:
        style = "bold" if line.startswith("geometric") else None
        screen.print(line, style=style, markup=False, soft_wrap=True)
