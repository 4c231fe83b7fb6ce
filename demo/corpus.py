r"""Collect the texts to search: every docstring of this Python's standard library.

All importable modules in `sys.stdlib_module_names`, their submodules, and the public classes,
functions and methods in them. Importing the complete standard library has side effects, so a child
interpreter does it: isolated (`-I -S`: no environment variables, no site-packages, so that nothing
installed can change the result), its output discarded. The result depends on the interpreter only:
two runs give the same passages in the same order. Nothing is kept on disk.

>>> inspect_docstring("csv.reader", "  Read rows.\n\n  From any iterable.  ")
Passage(name='csv.reader', text='Read rows.\n\nFrom any iterable.')

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
"""Top-level modules that are skipped, because of what they do when imported."""

IMPLEMENTATION_MODULES = frozenset({"genericpath", "ntpath", "posixpath"})
"""Modules that implement another one (`os.path`), whose name their texts should have."""

SHORTEST = 24
"""Minimum length of a docstring in characters: shorter ones ("Return self.") are not worth
searching."""

TIMEOUT_SECONDS = 120


class Passage(NamedTuple):
    """A docstring: the full name of what it documents, and its text without indentation."""

    name: str
    text: str

    @property
    def summary(self) -> str:
        """The first paragraph on one line, for a list of answers."""
        return " ".join(self.text.split("\n\n", 1)[0].split())

    @property
    def searchable(self) -> str:
        """The text that is embedded: the name, then the docstring."""
        return f"{self.name}: {self.text}"


def collect() -> list[Passage]:
    """Return every docstring of the standard library, in a fixed order.

    Raises:
        RuntimeError: the child interpreter failed; the message has the end of its output.
    """
    command = [sys.executable, "-I", "-S", "-W", "ignore", str(Path(__file__).resolve())]
    completed = subprocess.run(  # noqa: S603 - our own interpreter on our own file
        command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
    )
    if completed.returncode != 0:
        output = completed.stderr.decode(errors="replace")[-2000:]
        raise RuntimeError(f"reading the standard library's docstrings failed:\n{output}")
    return [Passage(name, text) for name, text in json.loads(completed.stdout)]


def sample(passages: list[Passage], count: int) -> list[Passage]:
    """Return `count` passages evenly spread over all of them, always the same ones."""
    if count >= len(passages):
        return list(passages)
    return [passages[index * len(passages) // count] for index in range(count)]


def inspect_docstring(name: str, text: object) -> Passage | None:
    """Return the passage for a `__doc__`, or None if it is too short."""
    if not isinstance(text, str):
        return None
    cleaned = inspect.cleandoc(text).strip()
    return Passage(name, cleaned) if len(cleaned) >= SHORTEST else None


def read_library() -> list[Passage]:
    """Import the standard library in this process and read its docstrings.

    A text that several names share (an alias, a re-export) is kept once, under the first name in
    order: modules before their submodules, then alphabetically, and last the modules in
    `IMPLEMENTATION_MODULES`.
    """
    by_text: dict[str, Passage] = {}
    for name in sorted(
        _module_names(), key=lambda n: (n in IMPLEMENTATION_MODULES, n.count("."), n)
    ):
        module = _import(name)
        if module is None:
            continue
        for passage in _module_passages(module, name):
            by_text.setdefault(passage.text, passage)
    return list(by_text.values())


def _module_names() -> Iterator[str]:
    """Yield public modules and submodules; only packages are imported to find them."""
    for top in sorted(sys.stdlib_module_names - SKIPPED):
        if not top.startswith("_"):
            yield top
            yield from _submodules(top)


def _submodules(package: str) -> Iterator[str]:
    module = _import(package)
    path = getattr(module, "__path__", None)
    if path is None:
        # A module that is not a package may still have registered a submodule: `os.path`.
        yield from sorted(name for name in sys.modules if name.startswith(f"{package}."))
        return
    for info in pkgutil.iter_modules(path):
        if not info.name.startswith("_") and info.name not in {"tests", "test"}:
            yield f"{package}.{info.name}"
            if info.ispkg:
                yield from _submodules(f"{package}.{info.name}")


def _import(name: str) -> ModuleType | None:
    """Import a module; None where this platform's build does not have it."""
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
    """Return whether a member is defined in the module, not imported into it."""
    home = getattr(value, "__module__", None)
    # A module in C often names its private or public twin (`_csv`, `csv`).
    return isinstance(home, str) and home.lstrip("_") == module.__name__.lstrip("_")


def _member_passages(name: str, value: object) -> Iterator[Passage]:
    """Yield a function's docstring, or a class's and those of its public methods."""
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
    """Print the passages as JSON on standard output, and discard what the modules print."""
    sys.path.pop(0)  # this file's folder: its modules must not shadow the library's
    output = os.dup(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    warnings.simplefilter("ignore")
    passages = read_library()
    with os.fdopen(output, "w", encoding="utf-8") as stream:
        json.dump(passages, stream)


if __name__ == "__main__":
    _print_library()
