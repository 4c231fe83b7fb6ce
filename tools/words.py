"""Check that names and docstrings use the field's words.

    python -m tools.words [PATH ..]     list violations with replacements; exit with 1 if any

Seven rules:

- Identifiers contain no word of `NAMES`; locals and parameters are none of `VAGUE`.
- Docstrings and comments contain no phrase of `PROSE`, and no English that reads as translated.
- The first line of a docstring has at most `MAX_WORDS` words and can be read alone: it does not
  begin by referring to something else (`OPENINGS`).
- Texts say `is not 1-D`, never `is no vector`.
- Docstrings of constants that are bounds say Minimum, Maximum or Threshold (`BOUND`).
- Code examples in docstrings name only what exists.
- Numeric constants of modules with one name have one value, in the compiler (`PROGRAMS` is not).

`ALLOWED` lists the exceptions.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "bench", "demo", "tests", "tools", "examples")

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
    "that which": "the noun that it stands for",
    "those of what": "the noun that they stand for",
    "those of which": "the noun that they stand for",
    "turned": "transposed",
    "upright": "NHWC",
    "written out": "unrolled",
}
"""Phrase of a docstring or a comment -> what to say instead."""

COMPARATIVES = "better|faster|larger|less|longer|more|other|slower|smaller|such|wider"
NO_NOUN = re.compile(
    rf"(?<!there )(?<!where )\b(is|are) no\b(?! ({COMPARATIVES})\b)", re.IGNORECASE
)
"""English that reads as translated: "is no vector", "are no numbers"."""
_ANY_PHRASE = re.compile(rf"\b({'|'.join(PROSE)})\b|{NO_NOUN.pattern}", re.IGNORECASE)

BOUND = re.compile(r"[^.:;]*\b(from|up to|above|below|beyond) which\b|(Least|Most|Fewest) (?!of )")
"""How docstrings of constants do not begin: they say Minimum, Maximum or Threshold."""

OPENINGS = ("The same ", "That which ", "Those of ", "Those that ", "What of ", "As ")
"""How a first line that cannot be read alone begins."""
EXAMPLE_NAMES = frozenset(["cube_plus_one", "threadpool_limits"])
"""Functions of examples and of other packages that docstrings call."""
MAX_WORDS = 15
MAX_WORDS_OF_TESTS = 17
"""Docstrings of tests say what holds, with its condition."""

ALLOWED: Mapping[str, frozenset[str]] = {
    "examples/images.py": frozenset(["found"]),
    "examples/norm.py": frozenset(["found"]),
    "src/smelt/autodiff/sums.py": frozenset(["known"]),
    "bench/first.py": frozenset(["own"]),
    "bench/products.py": frozenset(["turned"]),
    "src/smelt/cli/explain.py": frozenset(["given"]),
    "src/smelt/codegen/llvm/products/prefetch.py": frozenset(["own"]),
    "demo/page.py": frozenset(["asked"]),
    "src/smelt/frontends/array/memory.py": frozenset(["turned"]),
    "src/smelt/frontends/torch/segment.py": frozenset(["asked"]),
    "src/smelt/fusion/cascade/finite_masks.py": frozenset(["asked"]),
    "src/smelt/journal/facts.py": frozenset(["found"]),
    "src/smelt/knobs/__init__.py": frozenset(["given"]),
    "tools/pages.py": frozenset(["found"]),
    "tools/readme.py": frozenset(["found"]),
}
"""Path below the root -> words that it may use."""


PROGRAMS = "src/smelt/cli/"
"""Folder of separate programs, whose constants are their own."""
VERSIONS = frozenset(["FORMAT", "VERSION"])
"""Constants that each module has for its own data."""


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
    >>> print(*violations("src/a.py", "raise ValueError(f'{x} is no vector')"))
    src/a.py:1: 'is no': say is not a ..., is not 1-D
    """
    tree = ast.parse(source)
    nodes = [*ast.walk(tree)]
    most = MAX_WORDS_OF_TESTS if path.startswith("tests/") else MAX_WORDS
    every = [
        *(Violation(path, *v) for v in _identifiers(nodes)),
        *(Violation(path, *v) for v in _docstrings(nodes, most)),
        *(Violation(path, *v) for v in _comments(source)),
        *(Violation(path, *v) for v in _constants(tree)),
        *(Violation(path, *v) for v in (_messages(nodes) if path.startswith("src/") else ())),
    ]
    allowed = ALLOWED.get(path, frozenset())
    return sorted({v for v in every if v.word not in allowed}, key=lambda v: (v.line, v.word))


def _identifiers(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, str]]:
    for node in nodes:
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


def _docstrings(nodes: Iterable[ast.AST], most: int) -> Iterator[tuple[int, str, str]]:
    for node in nodes:
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
    if not _ANY_PHRASE.search(" ".join(source.split())):
        return  # to read tokens takes longer than all else
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _phrases(token.string, token.start[0])


def _constants(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield docstrings of constants that paraphrase a bound."""
    for statement, text in pairwise(tree.body):
        match statement, text:
            case ast.Assign(targets=[target]), ast.Expr(value=ast.Constant(value=str(doc))):
                names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
                match = BOUND.match(" ".join(doc.split()))
                if match and all(name.isupper() for name in names):
                    yield text.lineno, match[0], "Minimum ..., Maximum ... or Threshold on ..."
            case _:
                pass


def _messages(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str, str]]:
    """Yield what is wrong in strings that are values, not docstrings."""
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if id(node) not in statements:
                for match in NO_NOUN.finditer(text):
                    yield node.lineno, match[0], "is not a ..., is not 1-D"
            case _:
                pass


def _phrases(text: str, line: int) -> Iterator[tuple[int, str, str]]:
    plain = re.sub(r"`[^`]*`", "", " ".join(text.split()))
    if not _ANY_PHRASE.search(plain):
        return
    for phrase, instead in PROSE.items():
        if re.search(rf"\b{phrase}\b", plain, re.IGNORECASE):
            yield line, phrase, instead
    for match in NO_NOUN.finditer(plain):
        yield line, match[0], "is not a ..., is not 1-D"


def duplicate_constants(sources: Mapping[str, str]) -> list[Violation]:
    """Return constants of the compiler whose name has another value elsewhere.

    >>> print(*duplicate_constants({"src/a.py": "ROWS = 1\\n", "src/b.py": "ROWS = 2\\n"}))
    src/b.py:1: 'ROWS': say a name of its own: it is 1 in src/a.py
    """
    first: dict[str, tuple[str, float]] = {}
    result: list[Violation] = []
    for path, source in sources.items():
        if not path.startswith("src/") or path.startswith(PROGRAMS):
            continue
        for line, name, value in _numeric_constants(ast.parse(source)):
            other, known_value = first.setdefault(name, (path, value))
            if known_value != value and name not in VERSIONS:
                instead = f"a name of its own: it is {known_value} in {other}"
                result.append(Violation(path, line, name, instead))
    return result


def _numeric_constants(tree: ast.Module) -> Iterator[tuple[int, str, float]]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            try:
                value = eval(compile(ast.Expression(node.value), "", "eval"), {"__builtins__": {}})  # noqa: S307
            except Exception:  # noqa: BLE001, S112 - not a constant expression
                continue
            if isinstance(value, int | float):
                yield from (
                    (node.lineno, t.id, value)
                    for t in targets
                    if isinstance(t, ast.Name) and t.id.isupper() and not t.id.startswith("_")
                )


def unknown_names(sources: Mapping[str, str]) -> list[Violation]:
    """Return functions that code in docstrings calls and that exist nowhere.

    >>> code = "'Do.\\\\n\\\\nSo:\\\\n\\\\n    lay_out(x)    arrange x'"
    >>> print(*unknown_names({"src/a.py": code}))
    src/a.py:1: 'lay_out': say a name that exists
    """
    names = {name for source in sources.values() for name in _names(source)} | EXAMPLE_NAMES
    return [
        Violation(path, getattr(node, "lineno", 1), called, "a name that exists")
        for path, source in sources.items()
        if path.startswith("src/")
        for node in _definitions(ast.parse(source))
        for line in (ast.get_docstring(node) or "").splitlines()
        if line.startswith("    ") and ">>>" not in line and "..." not in line
        for called in re.findall(r"(?<![\w$@%.])([a-zA-Z]\w*_\w+)(?=\()", line)
        if called not in names
    ]


def _definitions(
    node: ast.Module | ast.stmt,
) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    """Yield a module or statement, if it may have a docstring, and the definitions within."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        yield node
    for part in ("body", "orelse", "finalbody"):
        for statement in getattr(node, part, ()):
            yield from _definitions(statement)


def _names(source: str) -> Iterator[str]:
    """Yield the names that a module's code defines, reads or passes."""
    codes = [compile(source, "", "exec", dont_inherit=True)]
    while codes:
        code = codes.pop()
        yield code.co_name
        for name in (*code.co_names, *code.co_varnames, *code.co_cellvars):
            yield from name.split(".")
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]


def modules(paths: list[str]) -> Iterator[Path]:
    """Yield the Python files of paths, of the whole project if there are none."""
    for path in [Path(p) for p in paths] or [ROOT / folder for folder in FOLDERS]:
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main(arguments: list[str]) -> int:
    """Print the violations of files; return the exit code."""
    paths = [path.resolve() for path in modules(arguments)]
    sources = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths}
    sources.pop("tools/words.py", None)
    every = [v for name, source in sources.items() for v in violations(name, source)]
    if not arguments:  # these compare all modules
        every += [*duplicate_constants(sources), *unknown_names(sources)]
    for violation in every:
        print(violation)
    return 1 if every else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
