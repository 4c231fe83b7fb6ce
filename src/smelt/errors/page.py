"""Documentation pages of errors, warnings and reasons, built from their definitions.

>>> page("E101").title
'shape mismatch'
"""

from __future__ import annotations

import re
from inspect import cleandoc
from textwrap import dedent

from smelt.errors import array, files, gpu, machine, memory, onnx, text, trace
from smelt.errors.array import UnknownNameError
from smelt.errors.reasons import REASONS, Reason
from smelt.errors.tree import Coded, SmeltError, SmeltWarning, nearest
from smelt.python.dataclass import dataclass

SECTIONS = ("What it means", "Why", "Example", "How to fix")


@dataclass(frozen=True, slots=True)
class Page:
    """A page as data: `smelt why` prints it, the documentation renders it."""

    code: str
    name: str
    title: str
    summary: str
    meaning: str
    why: str
    example: str
    fix: str


def classes() -> dict[str, type[SmeltError | SmeltWarning]]:
    """Return code -> class in the order of the codes, without the abstract roots."""
    by_code: dict[str, type[SmeltError | SmeltWarning]] = {}
    for module in (array, trace, memory, text, machine, gpu, files, onnx):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, (SmeltError, SmeltWarning)):
                by_code[value.code] = value
    return {code: by_code[code] for code in sorted(by_code) if not code.endswith("00")}


def page(code: str) -> Page:
    """Return the page of a code (`E101`), or of a class or reason name.

    Raises `UnknownNameError` with the nearest code.
    """
    name = code.strip()
    for row in classes().values():
        if name.upper() == row.code or name == row.__name__:
            return _of_class(row)
    for reason in REASONS.values():
        if name.upper() == reason.code or name == reason.name:
            return _of_reason(reason)
    names = [*classes(), *(row.code for row in REASONS.values()), *REASONS]
    names += [row.__name__ for row in classes().values()]
    close = nearest(name, names)
    suggestion = f"; did you mean {close}?" if close else "; `smelt errors` lists them"
    raise UnknownNameError(kind="error or reason", name=code, suggestion=suggestion)


def pages() -> list[Page]:
    """Return all pages: errors and warnings by code, then reasons by code."""
    rows = sorted(REASONS.values(), key=lambda reason: reason.code)
    return [_of_class(row) for row in classes().values()] + [_of_reason(row) for row in rows]


def _of_class(row: type[Coded]) -> Page:
    summary, parts = _split(cleandoc(row.__doc__ or ""))
    meaning, why, example, fix = (parts[name] for name in SECTIONS)
    return Page(row.code, row.__name__, row.title, summary, meaning, why, example, fix)


def _of_reason(row: Reason) -> Page:
    verdict = "fused" if row.accepts else "not fused"
    sentence = re.sub(r"\{(\w+)[^}]*\}", r"*\1*", row.sentence)  # field names instead of numbers
    summary = f"A reason for a decision: *{verdict}* because {sentence}."
    return Page(row.code, row.name, row.name, summary, row.doc, "", "", row.override)


def _split(doc: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its summary and its sections, headings with an indented body."""
    parts: dict[str, list[str]] = {name: [] for name in SECTIONS}
    summary: list[str] = []
    body = summary
    for line in doc.splitlines():
        name = line.rstrip(":")
        if line.endswith(":") and name in parts:
            body = parts[name]
        else:
            body.append(line)
    sections = {name: dedent("\n".join(lines)).strip() for name, lines in parts.items()}
    return "\n".join(summary).strip(), sections
