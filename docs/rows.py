"""Writes the reference pages from the rows and from the sources' own documentation.

>>> cell("a | b")
'a \\\\| b'
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import smelt as sm
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
from smelt.types.dtype import DType


def write(folder: Path) -> None:
    """All pages, replacing what differs only, so that an unchanged page is not built again."""
    pages = {
        "errors.md": _listing("Errors and warnings", "E", "W"),
        "reasons.md": _listing("Reasons of decisions", "F"),
        "knobs.md": _knobs(),
        "operators.md": _operators(),
        "commands.md": _commands(),
        "api.md": _api(),
        "modules.md": _modules(),
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
            knob.doc + (" Part of the cache key." if knob.changes != "nothing" else ""),
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
            places = ("smelt.ops.", "smelt.graph.loop")
            if not kind.__subclasses__() and kind.__module__.startswith(places):
                found.append(kind)
    return sorted(found, key=lambda kind: kind.__name__)


def _api() -> str:
    """Every public name, by the chapter that it is defined in."""
    chapters: dict[str, list[tuple[str, str]]] = {}
    spaces = [("sm", sm, sm.__all__)]
    spaces += [
        (f"sm.{m}", getattr(sm, m), getattr(sm, m).__all__) for m in ("nn", "random", "linalg")
    ]
    for prefix, module, names in spaces:
        for name in names:
            thing = getattr(module, name)
            if isinstance(thing, ModuleType) or name.startswith("_"):
                continue
            chapter = prefix if prefix != "sm" else _chapter(thing)
            chapters.setdefault(chapter, []).append((f"`{prefix}.{name}`", _first_line(thing)))
    head = (
        "# Functions\n\nNames and meanings are those of the [array API standard 2024.12]"
        "(https://data-apis.org/array-api/2024.12/) where it has them; `help(sm.take)` prints the "
        "whole documentation of one.\n"
    )
    headers = ("name", "meaning")
    found = (
        f"## {name}\n\n{_table(headers, sorted(chapters[name]))}\n" for name in sorted(chapters)
    )
    return "\n".join([head, *found])


def _chapter(thing: Any) -> str:
    """The module of a function says its chapter; what has none is a value."""
    module = getattr(thing, "__module__", "") or ""
    last = module.rpartition(".")[2]
    if isinstance(thing, DType):
        return "data types"
    return (
        last if module.startswith("smelt.frontends") and callable(thing) else "constants and more"
    )


def _first_line(thing: Any) -> str:
    if isinstance(thing, (float, str, DType)) or thing is None:
        return f"`{thing}`"
    return (getattr(thing, "__doc__", None) or "").strip().split("\n\n")[0]


def _modules() -> str:
    """Every module with the first line of its documentation: the map of the sources."""
    parts = ["# Map of the sources\n\nEach folder is a stage; imports go down only.\n"]
    package = Path(sm.__file__).parent
    for folder in sorted({path.parent for path in package.rglob("*.py")}):
        rows = [(f"`{p.name}`", _module_line(p)) for p in sorted(folder.glob("*.py"))]
        title = folder.relative_to(package.parent).as_posix()
        parts.append(f"## {title}\n\n{_table(('module', 'what it is'), rows)}\n")
    return "\n".join(parts)


def _module_line(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return doc.split("\n\n")[0]


def _commands() -> str:
    parts = ["# Commands\n"]
    context = click.Context(smelt, info_name="smelt", **smelt.context_settings)
    for name in sorted(COMMANDS):
        command = smelt.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        parts.append(f"## smelt {name}\n\n```text\n{command.get_help(inner)}\n```\n")
    return "\n".join(parts)
