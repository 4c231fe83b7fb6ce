"""Six classics of kernel fusion, each a file to read, run and watch.

    python -m demo.classics classics.html     one page with all of them
    python -m demo.classics.softmax           the report of one, as text
    demo.classics.lessons()                   their data

Each module has a function of its own name, `inputs()` to measure it with, and `VALUES`, small
arrays with which the page plays it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module

from smelt.explain.api import Report
from smelt.explain.page import Lesson, lessons_html
from smelt.frontends.array.explain import explain

__all__ = ["NAMES", "lessons", "page"]

NAMES = ("scale_relu_add", "log_relu", "softmax", "linear_gelu", "attention", "splade_head")
"""The modules, in the order in which they are taught."""


def lessons(progress: Callable[[str], None] | None = None) -> Iterator[Lesson]:
    """Yield the classics with their reports; each is compiled and measured."""
    for name in NAMES:
        if progress is not None:
            progress(name)
        module = import_module(f"{__name__}.{name}")
        function = getattr(module, name)
        report: Report = explain(function, **module.inputs())
        title, _, text = (module.__doc__ or "").strip().partition("\n")
        yield Lesson(
            title=title.rstrip("."),
            text=" ".join(text.split()),
            code=_shown(inspect.getsource(function)),
            data=report.to_data(page=True, values=module.VALUES),
        )


def _shown(source: str) -> str:
    """Return a function's source without annotations and its one line of documentation.

    >>> print(_shown('def f(x: Any) -> Any:\\n    \"\"\"Return x.\"\"\"\\n    return x'))
    def f(x):
        return x
    """
    lines = source.replace(": Any", "").replace(" -> Any", "").splitlines()
    return "\n".join(x for x in lines if not x.lstrip().startswith('"""'))


def page(progress: Callable[[str], None] | None = None) -> str:
    """Return one page that teaches the classics, as HTML."""
    return lessons_html(list(lessons(progress)), "Classics of kernel fusion")
