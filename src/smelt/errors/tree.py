"""Root classes of Smelt's errors and warnings, and what they share.

A class has a stable `code`, a `title`, a message `template` with named fields, a `hint`, and a
docstring that is its page of documentation. An instance adds the fields and the user's line.

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

from smelt.errors.escape import escape_controls
from smelt.python.origin import Origin, here


class Coded(Exception):
    """Common base of errors and warnings; use `SmeltError` or `SmeltWarning`."""

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
        """Fill `template` with `fields`, or use `detail` instead.

        `origin` is the user's line: by default the innermost frame outside the package.
        """
        super().__init__(detail)
        self.detail = detail
        self.fields: Mapping[str, object] = fields
        self.origin = here(2) if origin is None else origin
        self.help = self.hint if hint is None else hint

    @property
    def message(self) -> str:
        """The first line without code and title; a missing field reads `?`."""
        return self.detail or _Blanks().vformat(self.template, (), self.fields)

    def __str__(self) -> str:
        lines = [f"{self.code} {self.title}: {self.message}", *self.where()]
        if self.help:
            lines.append(indent(self.help, "        ").replace("        ", "  help: ", 1))
        return escape_controls("\n".join(lines))

    def where(self) -> list[str]:
        """Return the lines that show the user's line; text errors show their text instead."""
        if not self.origin.known:
            return []
        lead = f"  at {self.origin}:  "
        lines = [f"{lead}{self.origin.text}".rstrip()]
        caret = self.origin.caret()
        return [*lines, " " * len(lead) + caret] if caret else lines

    def __reduce__(self) -> tuple[Any, ...]:
        # Fields may be unpicklable: format the message now.
        fields = {name: str(value) for name, value in self.fields.items()}
        state = {**vars(self), "detail": self.message, "fields": fields}
        return _revive, (type(self), state)


def _revive(cls: type[Coded], state: dict[str, object]) -> Coded:
    """Restore a pickled error; the constructor takes keywords, which exceptions cannot pickle."""
    error = cls(str(state["detail"]))
    vars(error).update(state)
    return error


class SmeltError(Coded):
    """Root of all errors that Smelt raises: `except sm.errors.SmeltError` catches every one."""

    code = "E000"
    title = "error"
    template = "{what}"


class SmeltWarning(Coded, UserWarning):
    """Root of all warnings that Smelt gives, a category for `warnings.simplefilter`."""

    code = "W000"
    title = "warning"
    template = "{what}"


_REGISTRY: dict[Any, Any] = {}  # registry of shown warnings for the filter "default"


def warn_at_origin(warning: SmeltWarning) -> None:
    """Issue a warning at the user's line, however many library frames are in between."""
    place = warning.origin
    if place.known:  # filters may match the module's name
        module_names = (n for n, m in [*sys.modules.items()] if _file(m) == place.file)
        module = next(module_names, place.file)  # a warning without a module would be dropped
        warnings.warn_explicit(warning, None, place.file, place.line, module, _REGISTRY)
    else:
        warnings.warn(warning, stacklevel=2)


def _file(module: Any) -> Any:
    """Return a module's file, without triggering a lazy module's `__getattr__`."""
    return getattr(module, "__dict__", {}).get("__file__")


def reason_of(error: Exception) -> str:
    """Return an error's message in one line."""
    if isinstance(error, SmeltError):
        return error.message
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


class _Blanks(string.Formatter):
    """Formatter that prints `?` for missing fields: it must not fail inside an error report."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "?")


def nearest(name: str, candidates: list[str]) -> str:
    """Return the known name closest to a mistyped one, or an empty string.

    >>> nearest("THREDS", ["THREADS", "CACHE"])
    'THREADS'
    """
    best, least = "", 3 + len(name) // 4
    name = name.lower()
    letters = [(letter, name.count(letter)) for letter in set(name)]
    for candidate in candidates:
        lower = candidate.lower()
        # Letters without a counterpart are inserted, deleted or replaced: a bound that is cheap.
        common = sum([min(count, lower.count(letter)) for letter, count in letters])
        if max(len(name), len(lower)) - common >= least:
            continue
        distance = _edits(name, lower)
        if distance < least:
            best, least = candidate, distance
    return best


def _edits(a: str, b: str) -> int:
    """Return the number of insertions, deletions, replacements and swaps of neighbours.

    This is the optimal string alignment distance (G. Navarro, "A Guided Tour to Approximate String
    Matching", ACM Computing Surveys 33, 2001).
    """
    above: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        earlier, above, row = above, row, [i]
        for j, y in enumerate(b, 1):
            least = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                least = min(least, earlier[j - 2] + 1)
            row.append(least)
    return row[-1]
