"""The root of the exception tree and the machinery that every class of it shares.

A class is a row: a stable `code`, a `title`, a message `template` with named fields, a `hint`, and
a docstring that *is* its page of documentation.  An instance adds the fields and the user's line.

>>> class DemoError(SmeltError, ValueError):
...     '''A demonstration.'''
...
...     code, title, template, hint = "E999", "demo", "{op} got {got}", "Give it something else."
>>> print(DemoError(op="add", got=3, origin=Origin("user.py", 12, "f", "y = x + b", 4, 9)))
E999 demo: add got 3
  at user.py:12:  y = x + b
                      ^^^^^
  help: Give it something else.
"""

from __future__ import annotations

import string
import sys
import warnings
from collections.abc import Mapping
from textwrap import indent
from typing import Any, ClassVar

from smelt.origin import Origin, here


class Coded(Exception):
    """What errors and warnings share; use `SmeltError` or `SmeltWarning`."""

    code: ClassVar[str] = ""
    title: ClassVar[str] = ""
    template: ClassVar[str] = ""
    hint: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("smelt.errors."):
            cls.__module__ = "smelt.errors"  # tracebacks name the place to import from

    def __init__(
        self,
        detail: str = "",
        /,
        *,
        origin: Origin | None = None,
        hint: str | None = None,
        **fields: object,
    ) -> None:
        """Fill `template` with `fields`, or say `detail` instead of it.

        `origin` is the user's line: by default the innermost frame outside the package.
        """
        super().__init__(detail)
        self.detail = detail
        self.fields: Mapping[str, object] = fields
        self.origin = here(2) if origin is None else origin
        self.help = self.hint if hint is None else hint

    @property
    def message(self) -> str:
        """The first line without code and title.  A field that is missing reads `?`."""
        return self.detail or _Blanks().vformat(self.template, (), self.fields)

    def __str__(self) -> str:
        lines = [f"{self.code} {self.title}: {self.message}", *self.where()]
        if self.help:
            lines.append(indent(self.help, "        ").replace("        ", "  help: ", 1))
        return "\n".join(lines)

    def where(self) -> list[str]:
        """The lines that show the place: here the user's; text errors show their text instead."""
        if not self.origin.known:
            return []
        lead = f"  at {self.origin}:  "
        lines = [f"{lead}{self.origin.text}".rstrip()]
        caret = self.origin.caret()
        return [*lines, " " * len(lead) + caret] if caret else lines

    def __reduce__(self) -> tuple[Any, ...]:
        # Fields may be anything and need not pickle: the message is told now.
        told = {name: str(value) for name, value in self.fields.items()}
        state = {**vars(self), "detail": self.message, "fields": told}
        return _revive, (type(self), state)


def _revive(cls: type[Coded], state: dict[str, object]) -> Coded:
    """Unpickling: the constructor takes keywords, which exceptions cannot pickle."""
    error = cls(str(state["detail"]))
    vars(error).update(state)
    return error


class SmeltError(Coded):
    """Root of all errors that Smelt raises: `except sm.errors.SmeltError` catches every one."""

    code = "E000"
    title = "error"
    template = "{what}"


class SmeltWarning(Coded, UserWarning):
    """Root of all warnings that Smelt gives; `warnings.simplefilter` takes it as a category."""

    code = "W000"
    title = "warning"
    template = "{what}"


_SHOWN: dict[Any, Any] = {}  # what the filter "default" has shown, as a module keeps it


def tell(warning: SmeltWarning) -> None:
    """Gives a warning at the user's line, however many frames of libraries lie between."""
    place = warning.origin
    if place.known:  # filters may ask for the module's name
        named = (n for n, m in [*sys.modules.items()] if _file(m) == place.file)
        module = next(named, place.file)  # a warning without a module is not given
        warnings.warn_explicit(warning, None, place.file, place.line, module, _SHOWN)
    else:
        warnings.warn(warning, stacklevel=2)


def _file(module: Any) -> Any:
    """Where a module lies; modules that answer for what they lack are not asked."""
    return getattr(module, "__dict__", {}).get("__file__")


def reason_of(error: Exception) -> str:
    """What an error says, in one line."""
    if isinstance(error, SmeltError):
        return error.message
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


class _Blanks(string.Formatter):
    """Formatting must not fail inside the report of a failure: what is missing reads `?`."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "?")


def nearest(name: str, known: list[str]) -> str:
    """The known name closest to a mistyped one, or an empty string.

    >>> nearest("THREDS", ["THREADS", "CACHE"])
    'THREADS'
    """
    best, least = "", 3 + len(name) // 4
    for candidate in known:
        distance = _edits(name.lower(), candidate.lower())
        if distance < least:
            best, least = candidate, distance
    return best


def _edits(a: str, b: str) -> int:
    """Levenshtein distance (two rows), a swap of neighbours counted as two."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]
