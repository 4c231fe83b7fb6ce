"""Check that names and docstrings use the field's words.

    python -m tools.words [PATH ..]     list violations with replacements; exit with 1 if any

Three rules:

- Identifiers contain no word of `NAMES`; locals and parameters are none of `VAGUE`.
- Docstrings and comments contain no phrase of `PROSE`.
- The first line of a docstring has at most `MOST_WORDS` words and can be read alone: it does not
  begin by referring to something else (`OPENINGS`).

`ALLOWED` lists the exceptions.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "tools", "examples")

NAMES: Mapping[str, str] = {
    "abreast": "unrolled, interleaved",
    "asked": "prefetched, requested, queried",
    "laid": "stored, placed",
    "lying": "in_place, contiguous",
    "peek": "window",
    "swath": "row_block",
    "swaths": "row_blocks",
    "told": "passed, recorded, implied",
    "turned": "transposed",
    "upright": "nhwc",
}
"""Part of an identifier -> what to say instead."""

VAGUE: Mapping[str, str] = {
    "found": "what it is: match, result, candidates, ...",
    "given": "arguments, inputs, ...",
    "known": "cached, proven, ...",
    "made": "what it is: kernel, node, ...",
    "own": "whose: own_axes, ...",
    "told": "what it says: sizes, facts, ...",
}
"""Names of locals and parameters that carry no information."""

PROSE: Mapping[str, str] = {
    "abreast": "interleaved, unrolled by",
    "asked ahead": "prefetched",
    "asks ahead": "prefetches",
    "lies along": "is contiguous along",
    "running fold": "scan",
    "swath": "row block",
    "turned": "transposed",
    "upright": "NHWC",
    "written out": "unrolled",
}
"""Phrase of a docstring or a comment -> what to say instead."""

OPENINGS = ("The same ", "That which ", "Those of ", "Those that ", "What of ", "As ")
"""How a first line that cannot be read alone begins."""
MOST_WORDS = 15
MOST_WORDS_OF_TESTS = 17
"""Docstrings of tests say what holds, with its condition."""

ALLOWED: Mapping[str, frozenset[str]] = {
    "examples/images.py": frozenset(["found"]),
    "examples/norm.py": frozenset(["found"]),
    "src/smelt/autodiff/sums.py": frozenset(["known"]),
    "src/smelt/bench/first.py": frozenset(["own"]),
    "src/smelt/bench/products.py": frozenset(["turned"]),
    "src/smelt/cli/explain.py": frozenset(["given"]),
    "src/smelt/codegen/llvm/panels.py": frozenset(["upright"]),
    "src/smelt/codegen/llvm/products/prefetch.py": frozenset(["own"]),
    "src/smelt/demo/page.py": frozenset(["asked"]),
    "src/smelt/frontends/array/layouts.py": frozenset(["turned"]),
    "src/smelt/frontends/array/program_cache.py": frozenset(["made"]),
    "src/smelt/frontends/torch/segment.py": frozenset(["asked"]),
    "src/smelt/fusion/cascade/finite_masks.py": frozenset(["asked"]),
    "src/smelt/journal.py": frozenset(["found"]),
    "src/smelt/knobs/__init__.py": frozenset(["given"]),
    "tools/pages.py": frozenset(["found"]),
    "tools/readme.py": frozenset(["found"]),
}
"""Path below the root -> words that it may use."""


@dataclass(frozen=True)
class Violation:
    """A word at a line of a file, and what to say instead."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: say {self.instead}"


def violations(path: str, source: str) -> list[Violation]:
    """Return the violations of a module, in the order of its lines.

    >>> print(*violations("a.py", "turned_rows = 1\\n"))
    a.py:1: 'turned_rows': say transposed
    >>> print(*violations("a.py", "def f(x):\\n    'The same of x.'\\n"))
    a.py:1: 'The same ': say what it is: this line is read alone
    """
    tree = ast.parse(source)
    most = MOST_WORDS_OF_TESTS if path.startswith("tests/") else MOST_WORDS
    every = [
        *(Violation(path, *v) for v in _identifiers(tree)),
        *(Violation(path, *v) for v in _docstrings(tree, most)),
        *(Violation(path, *v) for v in _comments(source)),
    ]
    allowed = ALLOWED.get(path, frozenset())
    return sorted({v for v in every if v.word not in allowed}, key=lambda v: (v.line, v.word))


def _identifiers(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                if name in VAGUE:
                    yield node.lineno, name, VAGUE[name]
            case ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        for part in re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower()):
            if part in NAMES and name not in VAGUE:
                yield node.lineno, name, NAMES[part]


def _docstrings(tree: ast.Module, most: int) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        line = getattr(node, "lineno", 1)
        paragraph = " ".join(text.split("\n\n")[0].split())
        sentence = re.split(r"(?<=[.:]) ", paragraph)[0]
        for opening in OPENINGS:
            if sentence.startswith(opening):
                yield line, opening, "what it is: this line is read alone"
        if (count := len(sentence.split())) > most:
            yield line, f"{count} words", f"at most {most} in the first sentence"
        yield from _phrases(text, line)


def _comments(source: str) -> Iterator[tuple[int, str, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _phrases(token.string, token.start[0])


def _phrases(text: str, line: int) -> Iterator[tuple[int, str, str]]:
    plain = re.sub(r"`[^`]*`", "", " ".join(text.split()))
    for phrase, instead in PROSE.items():
        if re.search(rf"\b{phrase}\b", plain, re.IGNORECASE):
            yield line, phrase, instead


def modules(paths: list[str]) -> Iterator[Path]:
    """Yield the Python files of paths, of the whole project if there are none."""
    for path in [Path(p) for p in paths] or [ROOT / folder for folder in FOLDERS]:
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main(arguments: list[str]) -> int:
    """Print the violations of files; return the exit code."""
    count = 0
    for path in modules(arguments):
        name = path.resolve().relative_to(ROOT).as_posix()
        if name == "tools/words.py":
            continue
        for violation in violations(name, path.read_text(encoding="utf-8")):
            print(violation)
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
