"""List the test modules that a change of the working tree can affect: `make quick`.

    python -m tests.affected        prints paths for pytest

Changed are files that differ from the last commit, or those of the last commit where none does. A
module is affected if it imports a changed one, directly or not. Nearly all tests import Smelt, so
that nearly all are affected by most changes: the nearest by imports are taken, as many as take
`BUDGET_SECONDS` of processor time by the table of durations. Which ones depends on nothing else.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import durations, sampling

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "bench", "demo", "tests", "tools")
BUDGET_SECONDS = 200.0
"""Seconds of one processor for all tests: two take under three minutes with what starts them, on a
machine half as fast as the one of the table too."""
UNKNOWN_SECONDS = 1.0
"""Assumed of a test module without a line in the table."""
FAR = 99
"""Distance of modules that a change does not reach."""


@dataclass(frozen=True)
class Choice:
    """Paths for pytest, their seconds, and how many affected modules there are in all."""

    paths: tuple[str, ...]
    seconds: float
    affected: int


def changed_files() -> list[str]:
    """Return the paths that differ from the last commit; those of the last commit if none does."""
    work = [*_git("diff", "--name-only", "HEAD"), *_git("ls-files", "-o", "--exclude-standard")]
    return work or _git("diff", "--name-only", "HEAD~1", "HEAD")


def _git(*arguments: str) -> list[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def choose(
    changed: Sequence[str], sources: Mapping[str, str], seconds: Mapping[str, float]
) -> Choice:
    """Choose the nearest modules with tests, cheap ones first.

    `sources` maps paths of modules to their text, `seconds` paths to their processor time.
    """
    near = distances(changed, sources)
    tests = sorted(
        (distance, seconds.get(path, UNKNOWN_SECONDS), path)
        for path, distance in near.items()
        if distance < FAR and _has_tests(path, sources[path])
    )
    paths, total = [], 0.0
    for _, cost, path in tests:
        if total + cost <= BUDGET_SECONDS:
            paths.append(path)
            total += cost
    return Choice(tuple(paths), total, len(tests))


def _has_tests(path: str, source: str) -> bool:
    is_package = not path.startswith(("tests/", "tools/"))
    return Path(path).name.startswith("test_") or (is_package and ">>> " in source)


def distances(changed: Iterable[str], sources: Mapping[str, str]) -> dict[str, int]:
    """Return for each module how many imports away from a changed file it is, `FAR` if none.

    A test with the name of a changed module (`test_NAME.py`) is as near as the module. Tests that
    read a changed file which is no module name it, or stand beside it.
    """
    modules = {module_name(path): path for path in sources}
    importers: dict[str, set[str]] = {path: set() for path in sources}
    for path, source in sources.items():
        for name in imported(source, modules):
            importers[modules[name]].add(path)
    result = dict.fromkeys(sources, FAR)
    wave = {path for path in changed if path in sources}
    stems = {f"test_{Path(path).stem}.py" for path in wave}
    wave |= {path for path in sources if Path(path).name in stems}
    later = {path for file in changed for path in _readers(file, sources)} - wave
    distance = 0
    while wave or later:
        for path in wave:
            result[path] = distance
        wave = {user for path in wave for user in importers[path]} | later
        wave = {path for path in wave if result[path] == FAR}
        later, distance = set(), distance + 1
    return result


def _readers(file: str, sources: Mapping[str, str]) -> set[str]:
    """Return modules that may read a file without importing it."""
    folder, name = str(Path(file).parent), Path(file).name
    if name == "conftest.py":
        return {p for p in sources if p.startswith("tests/" if folder == "." else f"{folder}/")}
    if file in sources:
        return set()
    beside = "tests/docs" if name.endswith(".md") or folder.startswith("docs") else folder
    return {p for p, s in sources.items() if name in s or str(Path(p).parent) == beside}


def module_name(path: str) -> str:
    """Return the name that a file is imported by.

    >>> module_name("src/smelt/ops/__init__.py"), module_name("tests/pace.py")
    ('smelt.ops', 'tests.pace')
    """
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(source: str, modules: Mapping[str, str]) -> set[str]:
    """Return the modules that a source imports, by statement or by a name in a string."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=str(base), names=aliases):
                names.update(
                    full if (full := f"{base}.{alias.name}") in modules else base
                    for alias in aliases
                )
            case ast.Constant(value=str(text)) if text.startswith(("smelt.", "bench.", "demo.")):
                names.add(text)
            case _:
                pass
    return names & modules.keys()


def module_seconds() -> dict[str, float]:
    """Return the processor time of each file's tests as `make test` samples them."""
    result: dict[str, float] = {}
    for name, d in durations.read_table().items():
        path = name.partition("::")[0]
        spent = min(d.seconds * d.cases, max(d.seconds, sampling.BUDGET_SECONDS))
        result[path] = result.get(path, 0.0) + spent
    return result


def main() -> None:
    """Print the chosen paths, and to the other stream what is left out."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    sources = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in files}
    changed = changed_files()
    choice = choose(changed, sources, module_seconds())
    print(
        f"{len(changed)} changed files may affect {choice.affected} modules with tests; "
        f"the nearest {len(choice.paths)} run, {choice.seconds:.0f} s of processor time",
        file=sys.stderr,
    )
    print(*choice.paths, sep="\n")


if __name__ == "__main__":
    main()
