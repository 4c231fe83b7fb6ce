"""List and read the hand-written pages.

>>> commands("```console\\n$ make demo   # a job\\n```\\nor `smelt why F010`\\n")
['make demo', 'smelt why F010']
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
INCLUDED = "```{include}"
PAGES = [
    *sorted(p.name for p in ROOT.glob("*.md")),
    *sorted(
        f"docs/{p.name}"
        for p in (ROOT / "docs").glob("*.md")
        if not p.read_text(encoding="utf-8").startswith(INCLUDED)
    ),
]
"""Paths below the root; a page that only includes another one is left out."""

_CONSOLE = re.compile(r"^```(?:console|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_COMMAND = re.compile(
    r"^(?:\$ )?((?:(?:smelt|make) +[a-z]|\S*python3? -m (?:bench|demo)\b).*?)(?:  .*| +#.*)?$"
)


def read(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    """A page's text without its code blocks."""
    return _FENCED.sub("", page)


def commands(page: str) -> list[str]:
    """Calls of `smelt`, `make`, `bench` and `demo` on a page: lines of blocks, or inline."""
    lines = [line for block in _CONSOLE.findall(page) for line in block.splitlines()]
    lines += [" ".join(code.split()) for code in _CODE.findall(prose(page))]
    return [result[1].strip() for line in lines if (result := _COMMAND.match(line))]
