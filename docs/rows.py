"""Writes the reference pages from the rows: errors, reasons, settings, operators, commands.

>>> cell("a | b")
'a \\\\| b'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from smelt import errors, knobs
from smelt.cli.main import COMMANDS, smelt
from smelt.errors import Page
from smelt.ops import (  # noqa: F401 - every module registers its rows
    combine,
    contract,
    create,
    elementwise,
    extern,
    index,
    reduce,
    scalar,
    spec,
    view,
)


def write(folder: Path) -> None:
    """All pages, replacing what differs only, so that an unchanged page is not built again."""
    pages = {
        "errors.md": _listing("Errors and warnings", "E", "W"),
        "reasons.md": _listing("Reasons of decisions", "F"),
        "knobs.md": _knobs(),
        "operators.md": _operators(),
        "commands.md": _commands(),
    }
    pages |= {f"codes/{page.code}.md": _page(page) for page in errors.pages()}
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in folder.rglob("*.md"):
        if path.relative_to(folder).as_posix() not in pages:
            path.unlink()


def cell(text: object) -> str:
    """Text inside a table."""
    return " ".join(str(text).split()).replace("|", r"\|")


def _table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(cell(item) for item in line) + " |" for line in lines)


def _listing(title: str, *kinds: str) -> str:
    pages = [page for page in errors.pages() if page.code[0] in kinds]
    rows = [
        (f"[{page.code}](codes/{page.code}.md)", page.title, page.summary.splitlines()[0])
        for page in pages
    ]
    toc = "\n".join(f"codes/{page.code}" for page in pages)
    about = (
        "`smelt why CODE` prints the same pages. Codes are stable: they never change their meaning."
    )
    hidden = f"```{{toctree}}\n:hidden:\n\n{toc}\n```"
    return f"# {title}\n\n{about}\n\n{_table(('code', 'title', 'summary'), rows)}\n\n{hidden}\n"


def _page(page: Page) -> str:
    name = f"`smelt.errors.{page.name}`\n\n" if page.name != page.title else ""
    parts = [f"# {page.code} {page.title}\n\n{name}{page.summary}\n"]
    last = "How to fix" if page.code[0] in "EW" else "How to get the opposite"
    for title, body in (("What it means", page.meaning), ("Why", page.why)):
        if body:
            parts.append(f"## {title}\n\n{body}\n")
    if page.example:
        parts.append(f"## Example\n\n```python\n{page.example}\n```\n")
    parts.append(f"## {last}\n\n{page.fix}\n")
    return "\n".join(parts)


def _knobs() -> str:
    rows = [
        (
            f"`{knob.env}`",
            f"`{knob.show(knob.default)}`",
            f"`{knob.values}`",
            knob.doc + (" Part of the cache key." if knob.changes_code else ""),
        )
        for knob in knobs.KNOBS.values()
    ]
    foreign = [(f"`{name}`", about) for name, about in knobs.FOREIGN.items()]
    return (
        "# Settings\n\n"
        "One table with three faces: an environment variable, `with sm.config(threads=2):` for a "
        "while, or a mapping of options. The innermost wins. `smelt doctor --knobs` prints the "
        "values in force.\n\n"
        f"{_table(('variable', 'default', 'takes', 'what it does'), rows)}\n\n"
        "## Variables of others\n\n"
        f"{_table(('variable', 'what it does here'), foreign)}\n"
    )


def _operators() -> str:
    scalars = [
        (f"`{row.name}`", row.arity, row.doc, ", ".join(_algebra(row)), row.cost)
        for row in scalar.SCALARS.values()
    ]
    folds = [(f"`{row.name}`", row.doc, f"`{row.scalar}`") for row in combine.COMBINES.values()]
    kinds = [(f"`{kind.__name__}`", (kind.__doc__ or "").split("\n\n")[0]) for kind in _kinds()]
    library = [(f"`{row.name}`", row.doc) for row in extern.EXTERNS.values()]
    text = (
        "# Operators\n\n"
        "Every operator is one row: its type rule, its meaning in NumPy, its algebra, how it is "
        "lowered. Everything else is written in these.\n\n"
        "## Tensor operators\n\n"
        f"{_table(('operator', 'meaning'), kinds)}\n\n"
        "## Scalar operators\n\n"
        "Cost is in approximate cycles for 16 float32 lanes.\n\n"
        f"{_table(('operator', 'operands', 'meaning', 'algebra', 'cost'), scalars)}\n\n"
        "## Reductions and scans\n\n"
        f"{_table(('operator', 'meaning', 'step'), folds)}\n"
    )
    if library:
        text += f"\n## Library calls\n\n{_table(('operator', 'meaning'), library)}\n"
    return text


def _algebra(row: Any) -> list[str]:
    return [name for name in ("commutative", "associative", "idempotent") if getattr(row, name)]


def _kinds() -> list[type[spec.TensorOp]]:
    found: list[type[spec.TensorOp]] = []
    pending = [spec.TensorOp]
    while pending:
        for kind in pending.pop(0).__subclasses__():
            pending.append(kind)
            if not kind.__subclasses__() and kind.__module__.startswith("smelt.ops."):
                found.append(kind)
    return sorted(found, key=lambda kind: kind.__name__)


def _commands() -> str:
    parts = ["# Commands\n"]
    context = click.Context(smelt, info_name="smelt")
    for name in sorted(COMMANDS):
        command = smelt.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        parts.append(f"## smelt {name}\n\n```text\n{command.get_help(inner)}\n```\n")
    return "\n".join(parts)
