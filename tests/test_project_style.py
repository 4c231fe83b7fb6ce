"""Check the rules of the project's style that no linter knows, on every source file.

An exemption is listed with its reason, and fails as soon as it is not needed any more.
"""

from __future__ import annotations

import ast
import gc
import pkgutil
import re
import subprocess
import sys
import tokenize
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

import smelt
from smelt import cli

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "smelt"
STAGES = ("passes", "fusion", "lower", "codegen")

MAX_LINES = 800
MAX_FUNCTION_LINES = 80
MAX_COLUMNS = 100
MAX_UNFORMATTED = 60

# path -> why.  Empty is the aim.
LONG_FILES: dict[str, str] = {}
# path::function -> why.
LONG_FUNCTIONS: dict[str, str] = {}
# Statement of code generation that sets another object's field -> why.  Empty is the aim.
FOREIGN_WRITES = {"triton.knobs.cache.dir": "Triton's settings are fields of its own objects"}
# path -> the operators a stage may name, to build with, never to decide by; and why.
NAMED_OPERATORS: dict[str, tuple[set[str], str]] = {
    "src/smelt/codegen/llvm/ir/builder.py": (
        {"and", "or"},
        "LLVM's instructions are called so",
    ),
    "src/smelt/passes/gather_to_reduce.py": (
        {"eq", "select", "max"},
        "a fold that picks one element is built from them",
    ),
    "src/smelt/fusion/cascade/term.py": (
        {
            "add",
            "sub",
            "mul",
            "div",
            "neg",
            "eq",
            "gt",
            "ge",
            "min",
            "max",
            "not",
            "and",
            "or",
            "select",
        },
        "what carries a sum to a new gauge, and what a stream visits, is built from them",
    ),
    "src/smelt/lower/stream.py": (
        {"min", "max"},
        "the first and last position that is of use are folded with them",
    ),
    "src/smelt/lower/define.py": (
        {"ge", "lt", "and", "select"},
        "a guard 0 <= e < n around a padded or sliced element is built from them",
    ),
    "src/smelt/lower/scatter.py": (
        {"ge", "le", "and"},
        "which places lie in a block's part of the rows is built from them",
    ),
}
# Inputs and literals are a graph's structure, not operators to tell apart.
STRUCTURE = {"Input", "Constant"}
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc", "base", "stuff", "tools"}


def under(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


OURS = under(PACKAGE, ROOT / "bench", ROOT / "demo")
BUILT = ROOT / "docs" / "_build", ROOT / "docs" / "gallery"
"""Folders with copies of the examples, which the build of the documentation writes."""
ALL = [
    path
    for path in (*OURS, *under(*(ROOT / name for name in ("tests", "examples", "docs", "tools"))))
    if not any(path.is_relative_to(folder) for folder in BUILT)
]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def trees() -> dict[Path, ast.Module]:
    """Parse every file without garbage collections, which would walk all the trees again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.disable()
        try:
            return {path: ast.parse(path.read_text(encoding="utf-8"), str(path)) for path in ALL}
        finally:
            gc.enable()


def tree_of(path: Path) -> ast.Module:
    return trees()[path]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def docstrings(tree: ast.Module) -> set[int]:
    """Identities of the constants that are docstrings or stand alone as a comment."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def report(wrong: list[str]) -> None:
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.fixture(scope="module", autouse=True)
def _trees_are_dropped() -> Iterator[None]:
    yield
    trees.cache_clear()


# --- size ---------------------------------------------------------------------------------------


def test_files_are_short():
    sizes = {name_of(path): len(path.read_text().splitlines()) for path in ALL}
    report([f"{p}: {n} lines" for p, n in sizes.items() if n > MAX_LINES and p not in LONG_FILES])
    report([f"{p} is exempt for nothing" for p in LONG_FILES if sizes.get(p, 0) <= MAX_LINES])


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, the docstring not counted."""
    total = (node.end_lineno or 0) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        total -= (first.end_lineno or 0) - first.lineno + 1
    return total


def test_functions_are_short():
    sizes = {
        f"{name_of(path)}::{node.name}": length(node)
        for path in ALL
        for node in functions(tree_of(path))
    }
    most = MAX_FUNCTION_LINES
    report([f"{f}: {n} lines" for f, n in sizes.items() if n > most and f not in LONG_FUNCTIONS])
    report([f"{f} is exempt for nothing" for f in LONG_FUNCTIONS if sizes.get(f, 0) <= most])


def test_the_formatter_has_its_way():
    """Few statements are laid out by hand: tables and matrices whose columns carry the meaning."""
    pragma = "# fmt" + ": skip"
    by_hand = {name_of(path): path.read_text().count(pragma) for path in ALL}
    assert sum(by_hand.values()) <= MAX_UNFORMATTED, {p: n for p, n in by_hand.items() if n}


PRAGMA = re.compile(r" *# (?:noqa|type: ignore|pyright: ignore|fmt: skip).*$")


def test_a_release_has_at_most_forty_lines():
    """A changelog is read: related changes share a line."""
    releases = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    assert len(releases) >= 2
    for release in releases:
        title, *lines = release.splitlines()
        assert sum(line.startswith("- ") for line in lines) <= 40, title


def test_lines_are_narrow():
    """What a line says to a linter does not count, as the linter itself has it."""
    report(
        [
            f"{name_of(path)}:{number}: {len(line)} columns"
            for path in ALL
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if len(PRAGMA.sub("", line)) > MAX_COLUMNS
        ]
    )


# --- names and docs -----------------------------------------------------------------------------


def test_modules_say_what_they_are():
    report([f"{name_of(path)} is a vague name" for path in OURS if path.stem in VAGUE])
    report(
        [f"{name_of(path)}: no docstring" for path in OURS if not ast.get_docstring(tree_of(path))]
    )


def test_no_operator_is_named_in_the_stages():
    """Columns of the rows decide: a stage that asks for a name would need a change for each row."""
    rows = operator_names()
    vocabulary = machine_words()
    named: dict[str, set[str]] = {}
    wrong: list[str] = []
    for path in under(*(PACKAGE / stage for stage in STAGES)):
        allowed = NAMED_OPERATORS.get(name_of(path), (set(), ""))[0]
        words = rows - vocabulary if "codegen" in path.parts else rows
        skip = docstrings(tree_of(path)) | kinds_of_index_terms(tree_of(path))
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Constant) and id(node) not in skip and node.value in words:
                named.setdefault(name_of(path), set()).add(node.value)
                if node.value not in allowed:
                    wrong.append(f"{name_of(path)}:{node.lineno} names {node.value!r}")
    report(wrong)
    report(
        [
            f"{path} is exempt for {', '.join(words - named.get(path, set()))} in vain"
            for path, (words, _) in NAMED_OPERATORS.items()
            if words - named.get(path, set())
        ]
    )


def test_no_kind_of_operator_is_imported_below_the_passes():
    """From the plan on, `define` and the columns say everything about an operator."""
    classes = operator_classes() - STRUCTURE
    report(
        [
            f"{name_of(path)}:{node.lineno} imports {', '.join(result)}"
            for path in under(*(PACKAGE / stage for stage in STAGES[1:]))
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("smelt.ops")
            if (result := sorted({alias.name for alias in node.names} & classes))
        ]
    )


def kinds_of_index_terms(tree: ast.Module) -> set[int]:
    """Identities of the constants in `atom.kind == "min"`: index terms have words of their own."""
    return {
        id(constant)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Attribute)
        and node.left.attr == "kind"
        for constant in ast.walk(node)
    }


def load_rows() -> None:
    for module in pkgutil.iter_modules(import_module("smelt.ops").__path__, "smelt.ops."):
        import_module(module.name)


def operator_names() -> frozenset[str]:
    """The names of all scalar operators, combines and extern rows."""
    load_rows()
    from smelt.ops.combine import COMBINES
    from smelt.ops.extern import EXTERNS
    from smelt.ops.scalar import SCALARS

    names = frozenset([*SCALARS, *COMBINES, *EXTERNS])
    assert {"exp", "sum"} <= names
    return names


def machine_words() -> frozenset[str]:
    """What instructions are called: the words of the interface between rows and code generators."""
    from smelt.ops.machine import Machine, Predicate

    return frozenset([*get_args(Predicate), *vars(Machine)])


def operator_classes() -> set[str]:
    load_rows()
    from smelt.ops.spec import TensorOp

    pending, actual = [TensorOp], set[str]()
    while pending:
        for kind in pending.pop().__subclasses__():
            if kind.__module__.startswith("smelt.ops."):
                pending.append(kind)
                actual.add(kind.__name__)
    assert {"Reduce", "Map"} <= actual
    return actual


def test_no_code_depends_on_the_class_of_a_plan():
    """Plans answer for themselves (`schedule/product_plan.py`)."""
    wrong: list[str] = []
    for path in sorted((PACKAGE / "codegen" / "llvm").rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Call(func=ast.Name("isinstance"), args=[_, kind]):
                    names = [n.id for n in ast.walk(kind) if isinstance(n, ast.Name)]
                    plans = [n for n in names if n.endswith("Plan") or n == "Contraction"]
                    wrong += [f"{name_of(path)}:{node.lineno} asks for {n}" for n in plans]
                case _:
                    pass
    report(wrong)


# --- imports and the environment ----------------------------------------------------------------


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or "."]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_no_late_imports_of_our_own():
    """The usual way round a cycle of imports; there are none to go round."""
    wrong = [
        f"{name_of(path)}:{inner.lineno} imports {name} inside {function.name}"
        for path in OURS
        for function in functions(tree_of(path))
        for inner in ast.walk(function)
        for name in imported(inner)
        if name.split(".")[0] in ("smelt", "")
    ]
    report(wrong)


def test_type_only_imports_go_down_too():
    """A cycle of annotations is a cycle; the linter of layers sees it only because of this."""
    text = (ROOT / "pyproject.toml").read_text()
    assert "exclude_type_checking_imports" not in text


ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv"}


def test_only_knobs_reads_the_environment():
    report(
        [
            f"{name_of(path)}:{node.lineno} reads the environment"
            for path in OURS
            if path.parent.name != "knobs"
            for node in ast.walk(tree_of(path))
            if (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT)
            or (
                isinstance(node, ast.ImportFrom)
                and node.module == "os"
                and ENVIRONMENT & {alias.name for alias in node.names}
            )
        ]
    )


UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def test_nothing_unpickles():
    """Files of the cache and models are data: a pickle is a program."""
    report(
        [
            f"{name_of(path)}:{node.lineno} imports {name}"
            for path in OURS
            for node in ast.walk(tree_of(path))
            for name in imported(node)
            if name.split(".")[0] in UNSAFE
        ]
    )


def test_imports_leave_optional_packages_alone():
    """`import smelt` must not pull the command's packages or a peer, nor start a thread."""
    program = (
        "import sys, threading, smelt\n"
        "heavy = {'click', 'rich', 'torch', 'jax', 'sympy', 'networkx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


# --- import cycles ------------------------------------------------------------------------------

LARGEST_CYCLE = 2
"""Modules that may import each other, for annotations too."""


def test_modules_of_the_cpu_back_end_form_no_ring():
    """Two modules may know each other; more than that, and none can be read alone."""
    cycles = _cycles("smelt.codegen.llvm")
    report([", ".join(sorted(cycle)) for cycle in cycles if len(cycle) > LARGEST_CYCLE])


def _cycles(package: str) -> set[frozenset[str]]:
    """Return the sets of modules of a package that import each other, directly or not."""
    folder = PACKAGE.parent.joinpath(*package.split("."))
    names = {
        ".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts) for p in folder.rglob("*.py")
    }
    imports = {name: _imported_modules(name, names) for name in names}
    reached = {name: _reached(name, imports) for name in names}
    return {
        frozenset(other for other in seen if name in reached[other])
        for name, seen in reached.items()
        if name in seen
    }


def _imported_modules(name: str, names: set[str]) -> set[str]:
    tree = tree_of(PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py"))
    pairs = [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    ]
    return {x for module, part in pairs for x in (module, f"{module}.{part}") if x in names}


def _reached(name: str, imports: dict[str, set[str]]) -> set[str]:
    seen, pending = set[str](), [name]
    while pending:
        new = imports[pending.pop()] - seen
        seen |= new
        pending += new
    return seen


# --- writes to other objects --------------------------------------------------------------------


def test_code_generation_writes_to_no_other_object():
    """Fields are set by their object's own methods; code generation hands on new values."""
    report(
        [
            f"{path.relative_to(PACKAGE)}:{node.lineno}"
            for path in sorted((PACKAGE / "codegen").rglob("*.py"))
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.stmt)
            and _foreign_writes(node)
            and ast.unparse(node).split(" = ")[0] not in FOREIGN_WRITES
        ]
    )


def _foreign_writes(node: ast.AST) -> int:
    """Return how many fields (or elements of fields) of other objects a statement sets."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            pending = list(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            pending = [target]
        case ast.With(items=items):
            pending = [i.optional_vars for i in items if i.optional_vars is not None]
        case _:
            return 0
    count = 0
    while pending:
        match pending.pop():
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                pending += parts
            case ast.Starred(value=part) | ast.Subscript(value=ast.Attribute() as part):
                pending.append(part)
            case ast.Attribute(value=owner):
                count += not (isinstance(owner, ast.Name) and owner.id in ("self", "cls"))
            case _:
                pass
    return count


# --- comments -----------------------------------------------------------------------------------

LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def test_no_leftovers():
    wrong: list[str] = []
    for path in OURS:
        with path.open("rb") as file:
            wrong += [
                f"{name_of(path)}:{token.start[0]} {token.string}"
                for token in tokenize.tokenize(file.readline)
                if token.type == tokenize.COMMENT and LEFTOVER.search(token.string)
            ]
    report(wrong)


@pytest.mark.parametrize("package", [smelt, cli], ids=lambda module: module.__name__)
def test_package_is_typed_and_found(package):
    assert (PACKAGE / "py.typed").exists()
    assert Path(package.__file__).is_relative_to(PACKAGE)
