"""The library whose products a program may call, as the settings and this machine allow.

>>> with knobs.config(library_products="always", rounding="exact"):
...     library_wish()
'never'
"""

from __future__ import annotations

from smelt import knobs
from smelt.machine.target import Target
from smelt.ops.library_product import CLEAR_GAIN, Library, Wish, provider
from smelt.runtime import library_figures
from smelt.runtime.threads import default_threads


def library_wish() -> Wish:
    """Return the setting in force: a library rounds otherwise, and is not our code."""
    if knobs.ROUNDING.get() == "exact" or knobs.STRICT.get() or not knobs.FUSE.get():
        return "never"
    return knobs.LIBRARY_PRODUCTS.get()


def usable_library(target: Target) -> Library:
    """Return the library in use, with its figures for the threads of a call.

    A library of more threads than a call may take is not called: it would take the others' cores.
    """
    library = provider()
    allowed = knobs.THREADS.get() or default_threads()
    figures = library_figures.ratios(library_figures.load(target), library.name, allowed)
    if not figures and library_wish() in ("auto", "never"):
        return Library(library)  # nothing is called: a library's threads are not asked for
    threads = library.get_threads()
    return Library(
        library,
        figures if threads in (None, allowed) else {},
        threads is None or threads <= allowed,
    )


def library_identity(target: Target) -> str:
    """Return what a plan depends on besides the setting; empty if it calls no library."""
    wish = library_wish()
    if wish == "never":
        return ""
    library = usable_library(target)
    if wish == "auto" and not library.ratios:
        return ""
    faster = sorted(name for name, ratio in library.ratios.items() if ratio < CLEAR_GAIN)
    if wish == "auto" and not faster:
        return ""
    return f"{library.provider.name} {library.may_run} {', '.join(faster)}"
