"""The page of documentation of an error, a warning or a reason, taken from its row.

>>> page("E101").title
'shape mismatch'
"""

from __future__ import annotations

import re
from inspect import cleandoc
from textwrap import dedent

from smelt.dataclass import dataclass
from smelt.errors import array, machine, memory, text, trace
from smelt.errors.array import UnknownNameError
from smelt.errors.reasons import REASONS, Reason
from smelt.errors.tree import Coded, SmeltError, SmeltWarning, nearest

SECTIONS = ("What it means", "Why", "Example", "How to fix")


@dataclass(frozen=True, slots=True)
class Page:
    """One page as data: `smelt why` prints it, the documentation renders it."""

    code: str
    name: str
    title: str
    summary: str
    meaning: str
    why: str
    example: str
    fix: str


def classes() -> dict[str, type[SmeltError | SmeltWarning]]:
    """Code -> class, in the order of the codes, without the abstract roots."""
    found: dict[str, type[SmeltError | SmeltWarning]] = {}
    for module in (array, trace, memory, text, machine):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, (SmeltError, SmeltWarning)):
                found[value.code] = value
    return {code: found[code] for code in sorted(found) if not code.endswith("00")}


def page(code: str) -> Page:
    """The page of `E101`, `W601`, `F012` or of a class or reason name such as `ShapeError`.

    Raises `UnknownNameError` with the nearest code.
    """
    wanted = code.strip()
    for row in classes().values():
        if wanted.upper() == row.code or wanted == row.__name__:
            return _of_class(row)
    for reason in REASONS.values():
        if wanted.upper() == reason.code or wanted == reason.name:
            return _of_reason(reason)
    known = [*classes(), *(row.code for row in REASONS.values()), *REASONS]
    known += [row.__name__ for row in classes().values()]
    close = nearest(wanted, known)
    suggestion = f"; did you mean {close}?" if close else "; `smelt errors` lists them"
    raise UnknownNameError(kind="error or reason", name=code, suggestion=suggestion)


def pages() -> list[Page]:
    """Every page there is: errors and warnings by code, then reasons by code."""
    rows = sorted(REASONS.values(), key=lambda reason: reason.code)
    return [_of_class(row) for row in classes().values()] + [_of_reason(row) for row in rows]


def _of_class(row: type[Coded]) -> Page:
    summary, parts = _split(cleandoc(row.__doc__ or ""))
    meaning, why, example, fix = (parts[name] for name in SECTIONS)
    return Page(row.code, row.__name__, row.title, summary, meaning, why, example, fix)


def _of_reason(row: Reason) -> Page:
    verdict = "fused" if row.accepts else "not fused"
    sentence = re.sub(r"\{(\w+)[^}]*\}", r"*\1*", row.sentence)  # fields in the place of numbers
    summary = f"A reason for a decision: *{verdict}* because {sentence}."
    return Page(row.code, row.name, row.name, summary, row.doc, "", "", row.override)


def _split(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring's summary, and its sections, which are headings with an indented body."""
    parts: dict[str, list[str]] = {name: [] for name in SECTIONS}
    summary: list[str] = []
    body = summary
    for line in doc.splitlines():
        name = line.rstrip(":")
        if line.endswith(":") and name in parts:
            body = parts[name]
        else:
            body.append(line)
    folded = {name: dedent("\n".join(lines)).strip() for name, lines in parts.items()}
    return "\n".join(summary).strip(), folded
