"""Plans of a graph in a program file: recipe, machine code, and constants computed ahead.

A file has a plan for each instruction set, with all code variants of its kernels. Loading one
compiles nothing: a call with other sizes takes another variant from the file. What the plan
computes once of constants (packed weights, say) is stored as arrays, which are mapped.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt import knobs
from smelt.compiler.warm import CachedProgram, compile_part
from smelt.errors import CodegenError, ProgramMachineError, ProgramVersionError
from smelt.graph.ir import Graph
from smelt.journal.facts import Journal
from smelt.kernel.abi import ABI_VERSION
from smelt.kernel.artifact import CompiledKernel, Variant
from smelt.machine.processor import missing_features, system_triple
from smelt.machine.target import Target
from smelt.packages.installed import import_compiler, llvm_version
from smelt.python.imports import fork_safe_import
from smelt.runtime import native
from smelt.runtime.code import LoadedKernel, key_of, load
from smelt.runtime.executable_format import FORMAT as RECIPE_FORMAT
from smelt.runtime.executable_format import KernelUse, Recipe
from smelt.runtime.verify_recipe import verify_recipe, verify_sizes
from smelt.saved.file import ProgramFile, Writer
from smelt.tune.memory import Program

if TYPE_CHECKING:
    from smelt.compiler.driver import Compiled
    from smelt.explain.saved_report import SavedReport
    from smelt.fusion.plan import Donate

__all__ = [
    "StoredProgram",
    "load_plan",
    "load_runtime",
    "read_report",
    "write_plan",
    "write_runtime",
]

Array = np.ndarray[Any, Any]
MAX_REPORT_BYTES = 1 << 26


# ---- writing -------------------------------------------------------------------------------------


def compile_for(program: Program, donate: Donate, target: Target) -> Compiled:
    """Compile a program for a target, which may be another than this machine's."""
    driver: Any = import_compiler("smelt.compiler.driver")
    compiled: Compiled = driver.compile(
        program.graph,
        hints=program.hints,
        donate=donate,
        target=target,
        compiler=compile_part,
        allowance=program.allowance,
    )
    return compiled


def write_plan(
    writer: Writer,
    program: Program,
    donate: Donate,
    target: Target,
    constants: Mapping[int, Array],
    *,
    reports: bool,
) -> dict[str, Any]:
    """Compile a program and write its plan; `constants` are inputs of the graph by position.

    With `reports` the plan's report is written too.

    Raises GraphTextError for an operator that has no text form.
    """
    compiled = compile_for(program, donate, target)
    recipe = compiled.recipe
    prelude = compiled.executable.prelude
    inputs = [constants.get(k) for k in range(len(program.graph.inputs))]
    held: Sequence[Array] = [] if prelude is None else prelude.compute(inputs)  # type: ignore[arg-type]
    return {
        "isa": target.isa,
        "target": json.loads(target.to_json()),
        "abi": ABI_VERSION,
        "form": RECIPE_FORMAT,
        "settings": _settings(),
        "hints": dict(program.hints),
        "recipe": writer.add(json.dumps(recipe.to_data(), separators=(",", ":")).encode()),
        "code": _write_code(writer, compiled),
        "held": [writer.add_array(x) for x in held],
        "report": _write_report(writer, compiled, program.hints) if reports else None,
    }


def _write_report(writer: Writer, compiled: Compiled, sizes: Mapping[str, int]) -> int:
    """Write the report of a plan at the sizes that it was made for."""
    explain: Any = import_compiler("smelt.explain.api")
    report: SavedReport = explain.report(compiled, dict(sizes))
    data = _without_folders(json.loads(report.to_json(times=False)))
    data["target"]["measured"] = report.data.target.measured  # whether its speeds are: no time
    return writer.add(zlib.compress(json.dumps(data, separators=(",", ":")).encode()))


def _without_folders(value: Any) -> Any:
    """Return a report whose places in the user's program do not name this machine's folders."""
    if isinstance(value, list):
        return [_without_folders(x) for x in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"file", "line", "function", "text"}:
        return {**value, "file": PurePath(value["file"]).name}
    return {name: _without_folders(x) for name, x in value.items()}


def read_report(file: ProgramFile, plan: Mapping[str, Any]) -> SavedReport | None:
    """Return the report of a plan; None if the file has none. Raises ProgramFileError."""
    if plan.get("report") is None:
        return None
    with file.reading():
        text = zlib.decompressobj().decompress(file.read(plan["report"]), MAX_REPORT_BYTES)
        module: Any = fork_safe_import("smelt.explain.saved_report")
        report: SavedReport = module.SavedReport.from_json(text.decode())
    return report


def _write_code(writer: Writer, compiled: Compiled) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for use in compiled.recipe.kernels:
        # Stores past the caches pay where memory is the limit: in kernels without products, which
        # have one variant.
        streams = (False, True) if len(use.variants) <= 1 else (False,)
        variants = dict.fromkeys(("", use.variant, *(c.variant for c in use.variants)))
        for variant, streaming in ((v, s) for v in variants for s in streams):
            key = key_of(use.stem, variant, streaming).hex()
            if key not in written:
                built = compiled.code(use, variant, streaming).compiled
                written[key] = {"section": writer.add(built.code), "facts": built.to_data()}
    return written


def _settings() -> dict[str, Any]:
    """Return the settings in force that decide plans and code, but for defaults."""
    chosen = {k.name: k.get() for k in knobs.KNOBS.values() if k.changes != "nothing"}
    return {
        name: value
        for name, value in chosen.items()
        if value != knobs.KNOBS[name].default and isinstance(value, bool | int | str)
    }


def write_runtime(writer: Writer) -> dict[str, int]:
    """Write the run time's own objects for this kind of machine, by digest."""
    return {
        native.digest_of(text): writer.add(native.native_object(what, text))
        for what, text in _runtime_texts().items()
    }


def _runtime_texts() -> dict[str, str]:
    return {"thread pool": native.ir(), "repeated calls": native.native_source("call")}


# ---- loading -------------------------------------------------------------------------------------


def load_runtime(file: ProgramFile, objects: Mapping[str, Any]) -> None:
    """Use the run time's objects of a file; raise ProgramVersionError if they do not fit.

    Objects of another version are left out where LLVM is installed, which compiles them.
    """
    needed = [native.digest_of(text) for text in _runtime_texts().values()]
    if all(digest in objects for digest in needed):
        native.supply({digest: file.read(objects[digest]) for digest in needed})
    elif llvm_version() == "none":
        reason = "its run time is that of another version, and LLVM is not installed"
        raise ProgramVersionError(path=file.path.name, reason=reason)


def choose_plans(file: ProgramFile, plans: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the plans for the first instruction set in the file that this processor has.

    Raises ProgramMachineError if there is none, ProgramVersionError for another calling convention
    or form of plans.
    """
    reasons: dict[str, str] = {}
    for plan in plans:
        target = plan["target"]
        if target["isa"] in reasons:
            continue
        if reason := _why_not_here(str(target["triple"]), target["features"]):
            reasons[target["isa"]] = reason
            continue
        written, current = (plan["abi"], plan["form"]), (ABI_VERSION, RECIPE_FORMAT)
        if written != current:
            reason = f"its code and plans have the forms {written}, this version {current}"
            raise ProgramVersionError(path=file.path.name, reason=reason)
        return [p for p in plans if p["target"] == target]
    text = "; ".join(f"for {isa}, {reason}" for isa, reason in reasons.items())
    raise ProgramMachineError(path=file.path.name, sets=", ".join(reasons), reason=text)


def _why_not_here(triple: str, features: Sequence[str]) -> str:
    here = system_triple()
    architecture = triple.partition("-")[0]
    if here.partition("-")[0] != architecture:
        return f"this system is {here or 'another one'}, not {architecture}"
    missing = missing_features(map(str, features))
    return f"the processor lacks {', '.join(missing)}" if missing else ""


def load_plan(
    file: ProgramFile, facts: Mapping[str, Any], program: Program, donate: Donate
) -> StoredProgram:
    """Return a plan of a file, with its code linked and its constants mapped."""
    recipe = Recipe.from_data(json.loads(file.read(facts["recipe"])))
    graph = program.graph
    verify_recipe(recipe, len(graph.inputs), len(graph.outputs))
    codes = _FileCode(file, facts["code"])
    target = Target.from_json(json.dumps(facts["target"]))
    with knobs.config(dict(facts["settings"])):
        stored = StoredProgram(program, donate, target, recipe, codes)
    stored.report = partial(read_report, file, facts)
    stored.executable.verify = partial(_verify_sizes, file, recipe, graph)
    return stored


def _verify_sizes(
    file: ProgramFile, recipe: Recipe, graph: Graph, sizes: Mapping[str, int]
) -> None:
    """Raise ProgramFileError if a plan does not fit these sizes."""
    with file.reading():
        verify_sizes(recipe, graph, sizes)


class _FileCode:
    """Machine code of a file by key, linked when it is first asked for."""

    def __init__(self, file: ProgramFile, table: Mapping[str, Any]) -> None:
        self._file, self._table = file, table
        self._loaded: dict[str, LoadedKernel] = {}

    def find(self, use: KernelUse, variant: Variant, streaming: bool) -> LoadedKernel | None:
        """Return a variant's code; None if the file has none of it."""
        key = key_of(use.stem, variant, streaming).hex()
        row = self._table.get(key)
        if row is None:
            return self.find(use, variant, False) if streaming else None
        if key not in self._loaded:
            with self._file.reading():
                built = CompiledKernel.from_data(row["facts"], self._file.read(row["section"]))
            code = load(built.code, [f.symbol for f in built.functions])
            self._loaded[key] = LoadedKernel(built, code)
        return self._loaded[key]


class StoredProgram(CachedProgram):
    """A compiled graph of a program file.

    What explains it is compiled again, where LLVM is installed.
    """

    def __init__(
        self, program: Program, donate: Donate, target: Target, recipe: Recipe, codes: _FileCode
    ) -> None:
        self._codes = codes
        kernels = [self._find(use, use.variant) for use in recipe.kernels]
        super().__init__(program, donate, target, recipe, kernels, Journal(), runs_here=True)

        self.report: Callable[[], SavedReport | None] = lambda: None
        """Reads the report that was saved with the plan."""

    def _find(self, use: KernelUse, variant: Variant, streaming: bool = False) -> LoadedKernel:
        code = self._codes.find(use, variant, streaming)
        if code is None:
            raise CodegenError(f"the program file has no code of kernel {use.name}")
        return code

    def _look_up(self, use: KernelUse, variant: Variant, streaming: bool) -> LoadedKernel:
        return self._find(use, variant, streaming)
