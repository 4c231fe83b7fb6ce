"""The texts to search: every docstring of this Python's standard library.

All importable modules that `sys.stdlib_module_names` lists, their submodules, and the public
classes, functions and methods in them. To import a whole standard library is not a thing to do to
a user's process, so a child interpreter does it: isolated (`-I -S`: no environment variables, no
site-packages, so that nothing installed can change the result) and with its output thrown away.
The result depends on nothing but the interpreter: two runs give the same passages in the same
order. Nothing is kept on disk.

>>> inspect_docstring("csv.reader", "  Read rows.\\n\\n  From any iterable.  ")
Passage(name='csv.reader', text='Read rows.\\n\\nFrom any iterable.')

Run as a script, this file prints the passages as JSON; it therefore imports nothing of Smelt.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

SKIPPED = frozenset(
    {
        "antigravity",  # opens a browser
        "this",  # prints a poem
        "turtle",  # needs a display
        "turtledemo",
        "idlelib",  # an application
        "tkinter",  # may or may not be built in, and wants a display
        "test",  # a test suite, where installed
        "lib2to3",  # compiles grammars into files when imported
        "distutils",  # gone since 3.12
        "ensurepip",
        "msilib",
        "nt",
    }
)
"""Top-level modules that are left out, with what they do when imported."""

BEHIND = frozenset({"genericpath", "ntpath", "posixpath"})
"""Modules that stand behind another (`os.path`), whose name their texts should bear."""

SHORTEST = 24
"""Docstrings of fewer characters ("Return self.") say nothing one could search for."""

TIMEOUT_SECONDS = 120


class Passage(NamedTuple):
    """One docstring: the full name of what it documents, and its text without indentation."""

    name: str
    text: str

    @property
    def summary(self) -> str:
        """The first sentence-like paragraph on one line, for a list of answers."""
        return " ".join(self.text.split("\n\n", 1)[0].split())

    @property
    def searchable(self) -> str:
        """What is embedded: the name, then the text."""
        return f"{self.name}: {self.text}"


def collect() -> list[Passage]:
    """Every docstring of the running interpreter's standard library, in a fixed order.

    Raises:
        RuntimeError: the child interpreter failed; the message holds the end of what it said.
    """
    command = [sys.executable, "-I", "-S", "-W", "ignore", str(Path(__file__).resolve())]
    done = subprocess.run(  # noqa: S603 - our own interpreter on our own file
        command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace")[-2000:]
        raise RuntimeError(f"reading the standard library's docstrings failed:\n{said}")
    return [Passage(name, text) for name, text in json.loads(done.stdout)]


def sample(passages: list[Passage], count: int) -> list[Passage]:
    """`count` passages evenly spread over all of them, the same ones every time."""
    if count >= len(passages):
        return list(passages)
    return [passages[index * len(passages) // count] for index in range(count)]


def inspect_docstring(name: str, text: object) -> Passage | None:
    """The passage for a `__doc__`, or None if there is nothing to search in it."""
    if not isinstance(text, str):
        return None
    cleaned = inspect.cleandoc(text).strip()
    return Passage(name, cleaned) if len(cleaned) >= SHORTEST else None


def read_library() -> list[Passage]:
    """Import the standard library *in this process* and read its docstrings.

    A text that several names share (an alias, a re-export) is kept once, under the first name
    in order: modules before their submodules, then by the alphabet, and last the modules that
    users know by another name.
    """
    found: dict[str, Passage] = {}
    for name in sorted(_module_names(), key=lambda n: (n in BEHIND, n.count("."), n)):
        module = _import(name)
        if module is None:
            continue
        for passage in _module_passages(module, name):
            found.setdefault(passage.text, passage)
    return list(found.values())


def _module_names() -> Iterator[str]:
    """Public modules and submodules, found without running any but the packages' own code."""
    for top in sorted(sys.stdlib_module_names - SKIPPED):
        if not top.startswith("_"):
            yield top
            yield from _submodules(top)


def _submodules(package: str) -> Iterator[str]:
    module = _import(package)
    path = getattr(module, "__path__", None)
    if path is None:
        # A module that is no package may still have entered one beneath itself: `os.path`.
        yield from sorted(name for name in sys.modules if name.startswith(f"{package}."))
        return
    for info in pkgutil.iter_modules(path):
        if not info.name.startswith("_") and info.name not in {"tests", "test"}:
            yield f"{package}.{info.name}"
            if info.ispkg:
                yield from _submodules(f"{package}.{info.name}")


def _import(name: str) -> ModuleType | None:
    """The module, or None where this platform's build does not have it."""
    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001 - whatever a foreign module raises, it is not importable
        return None


def _module_passages(module: ModuleType, name: str) -> Iterator[Passage]:
    if (passage := inspect_docstring(name, module.__doc__)) is not None:
        yield passage
    declared = getattr(module, "__all__", None)
    members = vars(module)
    public = sorted(declared) if declared is not None else sorted(members)
    for member in public:
        value = members.get(member)
        if declared is None and (member.startswith("_") or not _defined_in(value, module)):
            continue
        yield from _member_passages(f"{name}.{member}", value)


def _defined_in(value: object, module: ModuleType) -> bool:
    """Whether a member is the module's own: an import without `__all__` is not."""
    home = getattr(value, "__module__", None)
    # A module in C often names its private or public twin (`_csv`, `csv`).
    return isinstance(home, str) and home.lstrip("_") == module.__name__.lstrip("_")


def _member_passages(name: str, value: object) -> Iterator[Passage]:
    """A function's own docstring, or a class's and those of its public methods."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return  # an instance's __doc__ is its class's
    if (passage := inspect_docstring(name, value.__doc__)) is not None:
        yield passage
    if inspect.isclass(value):
        for attribute, inner in sorted(vars(value).items()):
            if attribute.startswith("_"):
                continue
            if inspect.isroutine(inner) or inspect.isdatadescriptor(inner):
                passage = inspect_docstring(f"{name}.{attribute}", inner.__doc__)
                if passage is not None:
                    yield passage


def _print_library() -> None:
    """The script: passages as JSON on standard output, whatever the modules themselves print."""
    sys.path.pop(0)  # this file's folder: its modules must not stand in for the library's
    output = os.dup(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    warnings.simplefilter("ignore")
    passages = read_library()
    with os.fdopen(output, "w", encoding="utf-8") as stream:
        json.dump(passages, stream)


if __name__ == "__main__":
    _print_library()
