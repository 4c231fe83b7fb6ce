"""`smelt explain FOLDER --target h100`: an index of a folder's programs, and a page of each.

A program is a function of a module that says the types of all its arguments:

    def softmax(x: "f32[4096,1000]"):
        '''Softmax of rows.'''
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from smelt.cli.inputs import DEFAULT_SIZE
from smelt.errors import SmeltError
from smelt.explain.api import Report
from smelt.explain.program_index import IndexRow, index_page, index_table, row_of
from smelt.types.tensor import TensorType

Function = Callable[..., Any]
ReadArguments = Callable[[Function], Mapping[str, Any]]
Explain = Callable[[Function, Mapping[str, int]], Report]


def programs(module: Any, read: ReadArguments) -> Iterator[tuple[str, Function]]:
    """Iterate over functions of a module that say the types of all arguments."""
    for name, function in vars(module).items():
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        if function.__module__ != module.__name__:
            continue
        try:
            arguments = read(function)
        except click.UsageError:
            continue
        if any(isinstance(t, TensorType) for t in arguments.values()):
            yield name, function


def write_index(
    folder: Path,
    out: Path,
    target: str,
    sizes: Mapping[str, int],
    load: Callable[[Path], Any],
    read: ReadArguments,
    explain: Explain,
) -> list[IndexRow]:
    """Write index and pages of a folder's programs; return the rows of the index.

    An error of a program is its row. Raises UsageError where there is no program.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows: list[IndexRow] = []
    for path in sorted(folder.glob("*.py")):
        for name, function in programs(load(path), read):
            label = f"{path.stem}.{name}"
            what = (inspect.getdoc(function) or "").partition("\n")[0]
            try:
                rows.append(_write(label, what, explain(function, sizes), out))
            except SmeltError as error:
                rows.append(IndexRow(label, what, error=f"{error.code} {error.message}"))
            click.echo(f"{label}: {rows[-1].error or ', '.join(rows[-1].figures)}", err=True)
    if not rows:
        hint = f"def f(x: 'f32[{DEFAULT_SIZE},n]')"
        raise click.UsageError(f"{folder} has no function with types of its arguments, as {hint}")
    title = f"{folder.name} on {target}"
    note = "Plans and programs; times are predicted from published rates, not measured."
    (out / "index.html").write_text(index_page(title, note, rows), encoding="utf-8")
    (out / "index.md").write_text(index_table(rows), encoding="utf-8")
    return rows


def _write(label: str, what: str, report: Report, out: Path) -> IndexRow:
    """Write a program's page and its Triton text; return its row."""
    page, source = f"{label}.html", f"{label}.triton.py"
    report.save(out / page)
    texts = [k.source for k in report.kernels if k.source]
    (out / source).write_text("\n\n".join(texts), encoding="utf-8")
    return row_of(label, what, report.data, page, source)
