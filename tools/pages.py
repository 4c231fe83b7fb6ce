"""The generated parts of hand-written pages: what code and commands print, between two markers.

    python -m tools.pages [PAGE ..]            write the parts anew that say something else
    python -m tools.pages --check [PAGE ..]    say which parts are stale; exit with 1 if one is

A part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`. What changes from machine
to machine (times, rates, the machine's name) is left out of the comparison, so that a page is
stale only if the compiler says something else than the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from difflib import unified_diff
from pathlib import Path

from tools import decisions, readme, snippets, walk

from smelt.target import Target

ROOT = Path(__file__).parent.parent
Part = Callable[[], str]


def _outputs(page: str, *parts: str) -> dict[str, Part]:
    """Parts that are what the Python block before them prints."""

    def part(name: str) -> Part:
        path = ROOT / page
        return lambda: snippets.output_before(path.read_text(encoding="utf-8"), name, page)

    return {name: part(name) for name in parts}


PAGES: Mapping[str, Mapping[str, Part]] = {
    "ARCHITECTURE.md": walk.PARTS,
    "README.md": readme.PARTS,
    "docs/derivation.md": _outputs(
        "docs/derivation.md", "graph", "carried", "kernel", "causal", "one", "back", "refused"
    ),
    "docs/explain.md": _outputs("docs/explain.md", "page", "why"),
    "docs/fusion.md": decisions.PARTS,
}
"""Page -> the names of its parts and what writes them."""

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
"""What also varies without AVX-512, for which the pages are written: narrower vectors pack weights
that wide ones read in place.  Where there is AVX-512, the pages' own words are compared."""
_STEADY = [
    (re.compile(pattern, re.MULTILINE), other)
    for pattern, other in (*_VARIES, *(() if Target.host().isa == "avx512" else _NARROWER))
]


def parts_of(page: str) -> dict[str, str]:
    """The parts that stand in a page's text, by name."""
    return {found["name"]: found["text"] for found in _MARKED.finditer(page)}


def replaced(page: str, parts: Mapping[str, str]) -> str:
    """The page with new texts for its parts."""
    return _MARKED.sub(lambda m: m["open"] + parts[m["name"]] + m["close"], page)


def steady(text: str) -> str:
    """What is the same on every machine: times, rates and the machine's name are left out.

    >>> steady("takes  1.5 ms a call; compiled in 3.21 ms (cached)")
    'takes . a call; compiled in .'
    """
    for pattern, stand_in in _STEADY:
        text = pattern.sub(stand_in, text)
    return text


def stale(name: str, root: Path = ROOT) -> list[str]:
    """What differs between a page and what its parts should say; empty if nothing does."""
    found = parts_of((root / name).read_text(encoding="utf-8"))
    parts = PAGES[name]
    wrong = [f"{name}: no part {part!r}" for part in parts.keys() - found.keys()]
    wrong += [f"{name}: nothing writes the part {part!r}" for part in found.keys() - parts.keys()]
    for part in found.keys() & parts.keys():
        old, new = steady(found[part]).splitlines(), steady(parts[part]()).splitlines()
        if old != new:
            wrong += [f"{name}: {part} is stale", *unified_diff(old, new, "page", "now", "", "", 1)]
    return wrong


def write(name: str, root: Path = ROOT) -> None:
    """Write the parts of a page anew.  A part whose steady text is as it was stays as it was."""
    path = root / name
    page = path.read_text(encoding="utf-8")
    found = parts_of(page)
    made = {part: PAGES[name][part]() for part in found}
    kept = {p: found[p] if steady(found[p]) == steady(t) else t for p, t in made.items()}
    path.write_text(replaced(page, kept), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """The command; the exit code."""
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
