"""The front ends' entry point to the compiler: load a stored plan or compile.

A graph, the sizes it is planned for, the settings, this version of Smelt and this machine decide a
plan. The cache keeps the plan's recipe (`smelt.runtime.executable_format`) under a digest of all of
them; a process that finds it there, and its kernels' code, runs without importing planner,
lowering, code generation or LLVM.

What explains a plan is not stored but recomputed on demand: planning is deterministic, and only the
graph at hand has the user's lines.

    compiled = compile(graph, hints={"n": 1000})
    compiled.run([x], (1000,))                    # from the cache
    compiled.plan                                 # planned again, now
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import astuple, replace
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt import knobs
from smelt.errors import SmeltError
from smelt.graph.ir import Graph
from smelt.graph.source_names import source_names
from smelt.graph.text import text
from smelt.journal import logs
from smelt.journal.facts import CacheHit, CacheStored, Journal
from smelt.kernel.abi import ABI_VERSION
from smelt.kernel.artifact import Variant
from smelt.machine.target import Target
from smelt.packages.installed import has_algebra_system, import_compiler, llvm_version
from smelt.python.caches import cached_property
from smelt.runtime.cache import Cache
from smelt.runtime.code import LoadedKernel, find, key_of, package_identity
from smelt.runtime.compile_scope import with_frame_room
from smelt.runtime.executable import Executable, reference_executable
from smelt.runtime.executable_format import KernelUse, Recipe
from smelt.runtime.host import host, machine_id
from smelt.runtime.library_figures import library_identity
from smelt.runtime.prelude import Allowance, Runnable
from smelt.runtime.reference import is_recoverable, warn_fallback
from smelt.tune.memory import Program, Settings, recall

if TYPE_CHECKING:
    from smelt.compiler.driver import Compiled
    from smelt.fusion.plan import Donate, Plan
    from smelt.kernel.ir import Kernel

Array = np.ndarray[Any, Any]

_STAGES = ("passes", "fusion", "memory", "lower")
"""Topics of the log that a stored plan has no lines of."""
MAX_NEARBY_PLANS = 4
"""Maximum sizes per graph whose stored plans are remembered."""


@cache
def _driver() -> Any:
    """Import the compiler, which the first graph without a stored plan needs.

    Imported objects stay alive, so collecting them is wasted time, during the import and after it.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        return import_compiler("smelt.compiler.driver")
    finally:
        if not gc.get_freeze_count():  # else the user's frozen objects would be unfrozen
            gc.freeze()  # into the oldest generation, unseen
            gc.unfreeze()
        if collected:
            gc.enable()


@with_frame_room
def compile(  # noqa: A001 - the field's word, as re.compile
    graph: Graph,
    *,
    hints: Mapping[str, int],
    donate: Donate = (),
    program: Program | None = None,
    near: Callable[[CachedProgram], bool] | None = None,
) -> Compiled | CachedProgram:
    """Load or compile `graph`; see `smelt.compiler.driver.compile`.

    Args:
        program: the graph with its hints, if the caller has its text or its memory allowance.
        near: decides whether a stored plan for other sizes or memory may be used.
    """
    logs.install()
    journal = Journal()
    target = host()
    store = Cache.default() if knobs.CACHE.get() and not knobs.VERIFY.get() else None
    program = Program(graph, hints) if program is None else program

    def make() -> Compiled:
        compiler = _driver().compile
        compiled: Compiled = compiler(
            graph,
            hints=hints,
            donate=donate,
            journal=journal,
            target=target,
            compiler=compile_part,
            allowance=program.allowance,
        )
        return compiled

    if store is None:
        return make()
    settings = recall(program, machine_id(target))
    raced = make() if settings is None and knobs.TUNE.get() == "race" else None
    if raced is not None:
        settings = recall(program, machine_id(target))
    parts = _key_parts(program, settings or {}, donate, target)
    if parts is None:
        return raced or make()
    key = _digest("plan", parts)
    stored = _load(store, key, parts, journal) if raced is None else None
    if stored is not None:
        return _logged(CachedProgram(program, donate, target, *stored, journal))
    for nearby in _other_sizes(store, parts, program) if near and raced is None else ():
        stored = _load(store, _digest("plan", parts | _size_parts(nearby)), parts, journal)
        candidate = (
            None if stored is None else CachedProgram(nearby, donate, target, *stored, journal)
        )
        if candidate is not None and near is not None and near(candidate):
            return _logged(candidate)
    compiled = raced or make()
    _store(store, key, parts, compiled.recipe, journal)
    _driver().measure_library(compiled, program.hints)
    if near is not None:
        _remember_sizes(store, parts, program)
    return compiled


def compile_part(graph: Graph, sizes: Mapping[str, int]) -> Runnable:
    """Compile a part of a prelude, which has no prelude itself; fall back to NumPy."""
    with knobs.config(constants=0):
        try:
            return compile(graph, hints=sizes)
        except Exception as error:
            if not is_recoverable(error):
                raise
            warn_fallback("what is computed once of constants", error)
        return reference_executable(graph)


# ---- cache keys ----------------------------------------------------------------------------------


def _key_parts(
    program: Program, settings: Settings, donate: Donate, target: Target
) -> dict[str, str] | None:
    """Return everything that decides a plan; None for a graph without a text form.

    `settings` are the result of a race.
    """
    with knobs.config(dict(settings), tune="off"):  # a raced plan equals one with these settings
        # Lines and names of the user's program decide only where a setting names one.
        names_lines = knobs.MUST_FUSE.get() or knobs.NEVER_FUSE.get() or knobs.REQUIRE_FUSED.get()
        settings_text = f"{knobs.fingerprint()} strict={knobs.STRICT.get()}"
    try:
        graph = replace(program.graph, name="program")
        graph_text = text(graph, origins=True) if names_lines else program.text
        names = source_names(program.graph).values() if names_lines else ()
    except SmeltError:
        return None
    proofs = " proofs" * has_algebra_system()
    return {
        "program": graph_text,
        "names of values": " ".join(names),
        **_size_parts(program),
        "donated": repr(donate),
        "settings": settings_text,
        "version": f"{package_identity()} abi {ABI_VERSION}",
        "libraries": f"llvmlite {llvm_version()} numpy {np.__version__}{proofs}",
        "processor": target.fingerprint(),
        "figures of this machine": target.planning.to_json(),
        "library of products": library_identity(target),
    }


def _size_parts(program: Program) -> dict[str, str]:
    """Return the parts of the key that do not affect correctness: sizes and memory."""
    sizes = program.hints
    return {
        "sizes": " ".join(f"{n}={sizes[n]}" for n in sorted(sizes)),
        "memory allowed": repr(program.allowance),
    }


def _digest(what: str, parts: Mapping[str, str]) -> bytes:
    return hashlib.sha256(json.dumps(["smelt", what, parts]).encode()).digest()


def _last_key(parts: Mapping[str, str]) -> bytes:
    """Return the key of a program's most recent plan."""
    return _digest("last", {"program": parts["program"]})


def _miss_reason(store: Cache, key: bytes, parts: Mapping[str, str]) -> str:
    """Return why there is no plan: a damaged entry or a changed part."""
    why = store.miss_reason(key)
    last = store.get(_last_key(parts))
    if why != "no entry" or last is None:
        return why
    old = last.meta.get("parts", {})
    changed = [
        name for name in parts if name != "program" and _short_digest(parts[name]) != old.get(name)
    ]
    return f"changed: {', '.join(changed)}" if changed else why


def _short_digest(part: str) -> str:
    return hashlib.sha256(part.encode()).hexdigest()[:16]


# ---- storing and finding -------------------------------------------------------------------------


def _store(
    store: Cache, key: bytes, parts: Mapping[str, str], recipe: Recipe, journal: Journal
) -> None:
    start = perf_counter()
    try:
        facts = recipe.to_data()
    except SmeltError:  # a library call that cannot be written down
        return
    store.put(key, {"what": "plan", "recipe": facts}, b"")
    last = {name: _short_digest(part) for name, part in parts.items() if name != "program"}
    store.put(_last_key(parts), {"what": "last plan", "parts": last}, b"")
    journal.record(CacheStored(key.hex(), 0, perf_counter() - start))


def _load(
    store: Cache, key: bytes, parts: Mapping[str, str], journal: Journal
) -> tuple[Recipe, list[LoadedKernel]] | None:
    """Return the stored plan with its kernels' code, or None; record the reason."""
    recipe = Recipe.stored(store, key, journal, lambda: _miss_reason(store, key, parts))
    codes: list[LoadedKernel] = []
    for use in recipe.kernels if recipe is not None else ():
        code = find(key_of(use.stem, use.variant, streaming=False), journal)
        if code is None:
            return None
        codes.append(code)
    return None if recipe is None else (recipe, codes)


def _remember_sizes(store: Cache, parts: Mapping[str, str], program: Program) -> None:
    """Record a plan's sizes and memory under the key shared by all sizes."""
    now = [dict(program.hints), program.allowance and astuple(program.allowance)]
    before = [
        [dict(p.hints), p.allowance and astuple(p.allowance)]
        for p in _other_sizes(store, parts, program)
    ]
    made_for = [now, *(p for p in before if p != now)][:MAX_NEARBY_PLANS]
    store.put(_family_key(parts), {"what": "sizes of plans", "made for": made_for}, b"")


def _other_sizes(store: Cache, parts: Mapping[str, str], program: Program) -> list[Program]:
    """Return the program with the sizes and memory of stored plans, the latest first."""
    entry = store.get(_family_key(parts))
    programs: list[Program] = []
    try:
        for hints, memory in entry.meta["made for"] if entry is not None else ():
            if hints.keys() == program.hints.keys():
                allowance = None if memory is None else Allowance(*memory)
                programs.append(Program(program.graph, hints, allowance))
    except (KeyError, TypeError, ValueError, AttributeError):  # an entry of another format
        return []
    return programs


def _family_key(parts: Mapping[str, str]) -> bytes:
    """Return the key shared by all plans that differ in sizes and memory only."""
    return _digest("family", {**parts, "sizes": "", "memory allowed": ""})


def _logged(stored: CachedProgram) -> CachedProgram:
    """Compile a stored plan again if anybody wants to read how it is made."""
    if any(map(logs.is_shown, _STAGES)):
        _ = stored.journal
    return stored


class CachedProgram:
    """A compiled graph that was stored, with the interface of `driver.Compiled`.

    `graph`, `plan`, `kernels` and `journal` are recomputed when they are accessed.
    """

    def __init__(
        self,
        program: Program,
        donate: Donate,
        target: Target,
        recipe: Recipe,
        codes: Sequence[LoadedKernel],
        lookups: Journal,
        *,
        runs_here: bool = False,
    ) -> None:
        """Load an executable; `codes` are the recipe's kernels, `lookups` records the cache hits.

        `runs_here`: the caller knows that this processor has the instructions of the code.
        """
        self.target = target
        self.recipe = recipe
        self.executable: Executable = recipe.executable(
            codes, self._look_up, compile_part, program.graph, None if runs_here else target
        )
        self.size_names = recipe.size_names
        self.run = self.executable.run
        self.program = program
        """The program that the plan was made for."""
        self._donate = donate
        self._context = copy_context()  # the settings it was compiled under
        self._hits = {f.key: f for f in lookups.of(CacheHit)}

    def __reduce__(self) -> Any:
        return self._recompiled.__reduce__()

    def _look_up(self, use: KernelUse, variant: Variant, streaming: bool) -> LoadedKernel:
        """Return another variant of a kernel's code; compile it if it is not cached."""
        code = find(key_of(use.stem, variant, streaming), Journal())
        return self._recompiled.code(use, variant, streaming) if code is None else code

    @cached_property
    def _recompiled(self) -> Compiled:
        """Compile the graph again, for its intermediate representations."""
        program, donate = self.program, self._donate
        journal = Journal()
        compiled: Compiled = self._context.copy().run(
            _driver().compile,
            program.graph,
            hints=program.hints,
            donate=donate,
            journal=journal,
            target=self.target,
            allowance=program.allowance,
        )
        journal.facts[:] = [
            self._hits.get(f.key, f) if isinstance(f, CacheHit) else f for f in journal.facts
        ]
        return compiled

    @property
    def graph(self) -> Graph:
        """The graph after the passes."""
        return self._recompiled.graph

    @property
    def plan(self) -> Plan:
        """The plan, with every decision."""
        return self._recompiled.plan

    @property
    def kernels(self) -> tuple[Kernel | None, ...]:
        """The kernel of each cluster; None for a library call."""
        return self._recompiled.kernels

    @property
    def journal(self) -> Journal:
        """The record of what every stage did and why."""
        return self._recompiled.journal
