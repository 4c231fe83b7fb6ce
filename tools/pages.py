"""Regenerate parts of hand-written pages: output of code and commands, between two markers.

    python -m tools.pages [PAGE ..]            rewrite the parts that have changed
    python -m tools.pages --check [PAGE ..]    list stale parts; exit with 1 if there are any

A part is between `<!-- generated: NAME -->` and `<!-- end: NAME -->`. What differs between machines
(times, rates, the machine's name) is ignored in the comparison, so that a page is stale only if the
compiler's output has changed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from difflib import unified_diff
from pathlib import Path

from tools import (
    array_api,
    decisions,
    gpu_page,
    libraries,
    numpy_programs,
    numpy_table,
    readme,
    snippets,
    trust,
    versions,
    walk,
)

from smelt.machine.target import Target

ROOT = Path(__file__).parent.parent
Part = Callable[[], str]


def _outputs(page: str, *parts: str) -> dict[str, Part]:
    """Return parts that are the output of the Python block before them."""

    def part(name: str) -> Part:
        path = ROOT / page
        return lambda: snippets.output_before(path.read_text(encoding="utf-8"), name, page)

    return {name: part(name) for name in parts}


PAGES: Mapping[str, Mapping[str, Part]] = {
    "ARCHITECTURE.md": walk.PARTS,
    "README.md": {**readme.PARTS, **numpy_programs.SUMMARY},
    "docs/array_api.md": array_api.PARTS,
    "docs/derivation.md": _outputs(
        "docs/derivation.md", "graph", "carried", "kernel", "causal", "one", "back", "refused"
    ),
    "docs/explain.md": _outputs("docs/explain.md", "page", "why"),
    "docs/fusion.md": decisions.PARTS,
    "docs/gpu.md": gpu_page.PARTS,
    "docs/libraries.md": libraries.PARTS,
    "docs/numpy.md": numpy_table.PARTS,
    "docs/numpy_programs.md": numpy_programs.PARTS,
    "docs/torch.md": versions.PARTS,
    "docs/trust.md": trust.PARTS,
}
"""Page -> the names of its parts and the functions that generate them."""

_MARKED = re.compile(
    r"(?P<open><!-- generated: (?P<name>[\w-]+) -->\n)"
    r"(?P<text>.*?)"
    r"(?P<close><!-- end: (?P=name) -->)",
    re.DOTALL,
)
_VARIES = (
    (r"code (?:known already|from the cache)", "compiled in ."),
    (r"compiled in [^;,\n]*", "compiled in ."),
    (r", \d+ % of the time", ""),
    (r"[\d.]+ G(?:B|FLOP|OP)/s \(\d+ % of roof\)", "."),
    (r"~?\d[\d.,]* (?:ns|us|µs|ms|s)\b", "."),
    (r"   (?:(?!   )[^\n])*, \d+ cores?, \w+$", " ."),
    (r"\n\nSpeeds of this machine are assumed;[^\n]*", ""),
    (r"[ \t]+", " "),
)
_NARROWER = ((r"no intermediates in memory|[\d.]+ [kMG]?B of intermediates", "intermediates"),)
"""Further differences without AVX-512, for which the pages are written: narrower vectors pack
weights that wide ones read in place. With AVX-512 the exact words are compared."""
_STEADY = [
    (re.compile(pattern, re.MULTILINE), other)
    for pattern, other in (*_VARIES, *(() if Target.host().isa == "avx512" else _NARROWER))
]


def parts_of(page: str) -> dict[str, str]:
    """Return the parts in a page's text, by name."""
    return {found["name"]: found["text"] for found in _MARKED.finditer(page)}


def replace_parts(page: str, parts: Mapping[str, str]) -> str:
    """Return the page with new texts for its parts."""
    return _MARKED.sub(lambda m: m["open"] + parts[m["name"]] + m["close"], page)


def normalise(text: str) -> str:
    """Remove what differs between machines: times, rates and the machine's name.

    >>> normalise("takes  1.5 ms a call; compiled in 3.21 ms (cached)")
    'takes . a call; compiled in .'
    """
    for pattern, stand_in in _STEADY:
        text = pattern.sub(stand_in, text)
    return text


def stale(name: str, root: Path = ROOT) -> list[str]:
    """Return the differences between a page and its regenerated parts; empty if there are none."""
    current = parts_of((root / name).read_text(encoding="utf-8"))
    parts = PAGES[name]
    wrong = [f"{name}: no part {part!r}" for part in parts.keys() - current.keys()]
    wrong += [f"{name}: nothing writes the part {part!r}" for part in current.keys() - parts.keys()]
    for part in current.keys() & parts.keys():
        old, new = normalise(current[part]).splitlines(), normalise(parts[part]()).splitlines()
        if old != new:
            wrong += [f"{name}: {part} is stale", *unified_diff(old, new, "page", "now", "", "", 1)]
    return wrong


def write(name: str, root: Path = ROOT) -> None:
    """Rewrite the parts of a page; parts that differ in measured numbers only stay."""
    path = root / name
    page = path.read_text(encoding="utf-8")
    current = parts_of(page)
    generated = {part: PAGES[name][part]() for part in current}
    updated = {
        p: current[p] if normalise(current[p]) == normalise(t) else t for p, t in generated.items()
    }
    path.write_text(replace_parts(page, updated), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    check = "--check" in arguments
    names = [name for name in arguments if name != "--check"] or list(PAGES)
    if unknown := set(names) - set(PAGES):
        print(f"no such page: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if check:
        wrong = [line for name in names for line in stale(name)]
        print("\n".join(wrong) or "every part is as the compiler says")
        return 1 if wrong else 0
    for name in names:
        write(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
