"""AttributeErrors whose suggestions are computed when they are shown.

Libraries ask any object for attributes all day (`hasattr`), and drop the error unread.

>>> error = MissingAttribute("module 'smelt.nn'", lambda name: f"; not {name[:4]!r}?", name="relux")
>>> print(error)
module 'smelt.nn' has no attribute 'relux'; not 'relu'?
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from smelt.errors.tree import nearest


class MissingAttribute(AttributeError):
    """AttributeError of an owner and a function that makes the message's end from `name`.

    It has no constructor in Python, which would double the cost of `hasattr`.
    """

    def __str__(self) -> str:
        owner, hint = self.args
        return f"{owner} has no attribute {self.name!r}{hint(self.name)}"

    def __repr__(self) -> str:
        return f"AttributeError({str(self)!r})"

    def __reduce__(self) -> Any:
        return partial(AttributeError, name=self.name), (str(self),)


# Tracebacks show Python's name: the class is not a name to catch.
MissingAttribute.__module__, MissingAttribute.__qualname__ = "builtins", "AttributeError"


def nearest_hint(name: str, names: Iterable[str]) -> str:
    """Return a hint with the public name most like `name`.

    It is empty if none is, or if the name is private.

    >>> nearest_hint("cumsun", ["cumsum", "sum"])
    "; did you mean 'cumsum'?"
    """
    near = "" if name.startswith("_") else nearest(name, [n for n in names if n[:1] != "_"])
    return f"; did you mean {near!r}?" if near else ""
