"""The front ends' way to the compiler: a plan that an earlier process stored, or a new one.

A graph, the sizes it is planned for, the settings, this version of Smelt and this machine decide a
plan.  Under a digest of all of them the cache keeps the plan's recipe
(`smelt.runtime.executable_format`); a process that finds it there, and its kernels' code, runs
without having imported planner, lowering, code generation or LLVM.

What explains a plan is not stored but made again when somebody asks: planning is deterministic, and
only the graph at hand knows the user's lines.

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
from functools import cache, cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

import llvmlite
import numpy as np

from smelt import knobs
from smelt.errors import SmeltError
from smelt.graph.ir import Graph
from smelt.graph.text import text
from smelt.imports import imported
from smelt.journal import CacheHit, CacheMiss, CacheStored, Journal
from smelt.kernel.abi import ABI_VERSION
from smelt.kernel.artifact import Form
from smelt.ops.symbolic import has_system
from smelt.runtime.cache import Cache
from smelt.runtime.code import Code, find, key_of
from smelt.runtime.code_identity import sources
from smelt.runtime.executable import Executable, of_references
from smelt.runtime.executable_format import KernelUse, Recipe
from smelt.runtime.frames import roomy
from smelt.runtime.host import host
from smelt.runtime.prelude import Allowance, Runnable
from smelt.runtime.reference import is_spared, tell_spared
from smelt.target import Target
from smelt.tune.memory import Program, Settings, recall

if TYPE_CHECKING:
    from smelt.driver import Compiled
    from smelt.fusion.plan import Donate, Plan
    from smelt.kernel.ir import Kernel

__all__ = ["Found", "compile"]

Array = np.ndarray[Any, Any]

MOST_NEAR = 4
"""Plans of one graph that are remembered by what they were made for."""


@cache
def _driver() -> Any:
    """The compiler, imported by the first graph that has no plan yet.

    What an import makes stays; looking through it for garbage would take a tenth of the time.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        return imported("smelt.driver")
    finally:
        if collected:
            gc.enable()


@roomy
def compile(  # noqa: A001 - the field's word, as re.compile
    graph: Graph,
    *,
    hints: Mapping[str, int],
    donate: Donate = (),
    program: Program | None = None,
    near: Callable[[Found], bool] | None = None,
) -> Compiled | Found:
    """What runs `graph`, as `smelt.driver.compile` gives it; `program` is the graph with its hints,
    from a caller who has had it printed already, or knows the memory that it may take.  `near` says
    of a stored plan that was made for other sizes or memory whether it will do."""
    journal = Journal()
    target = host()
    store = Cache.default() if knobs.CACHE.get() and not knobs.VERIFY.get() else None
    program = Program(graph, hints) if program is None else program
    if store is None:
        return _driver().compile(
            graph,
            hints=hints,
            donate=donate,
            target=target,
            compiler=compile_part,
            allowance=program.allowance,
        )

    def make() -> Compiled:
        compiler = _driver().compile
        made: Compiled = compiler(
            graph,
            hints=hints,
            donate=donate,
            journal=journal,
            target=target,
            compiler=compile_part,
            allowance=program.allowance,
        )
        return made

    settings = recall(program, target)
    raced = make() if settings is None and knobs.TUNE.get() == "race" else None
    if raced is not None:
        settings = recall(program, target)
    parts = _parts(program, settings or {}, donate, target)
    if parts is None:
        return raced or make()
    key = _digest("plan", parts)
    stored = _stored(store, key, parts, journal) if raced is None else None
    if stored is not None:
        return Found(program, donate, target, *stored, journal)
    for other in _others(store, parts, program) if near and raced is None else ():
        stored = _stored(store, _digest("plan", parts | _asked(other)), parts, journal)
        found = None if stored is None else Found(other, donate, target, *stored, journal)
        if found is not None and near is not None and near(found):
            return found
    made = raced or make()
    _store(store, key, parts, made.recipe, journal)
    if near is not None:
        _note(store, parts, program)
    return made


def compile_part(graph: Graph, sizes: Mapping[str, int]) -> Runnable:
    """What runs a part of a prelude, which has no prelude of its own."""
    with knobs.config(constants=0):
        try:
            return compile(graph, hints=sizes)
        except Exception as error:
            if not is_spared(error):
                raise
            tell_spared("what is computed once of constants", error)
        return of_references(graph)


# ---- what decides a plan -------------------------------------------------------------------------


def _parts(
    program: Program, settings: Settings, donate: Donate, target: Target
) -> dict[str, str] | None:
    """Everything that decides a plan, by name; None for a graph that has no text.  `settings` are
    those that a race has found."""
    with knobs.config(dict(settings), tune="off"):  # how they were found does not matter
        # Lines of the user's program decide only where a setting names one.
        named = knobs.MUST_FUSE.get() or knobs.NEVER_FUSE.get() or knobs.REQUIRE_FUSED.get()
        told = f"{knobs.fingerprint()} strict={knobs.STRICT.get()}"
    try:
        graph = replace(program.graph, name="program")
        spelled = text(graph, origins=True) if named else program.text
    except SmeltError:
        return None
    return {
        "program": spelled,
        **_asked(program),
        "donated": repr(donate),
        "settings": told,
        "version": f"{sources()} abi {ABI_VERSION}",
        "libraries": f"llvmlite {llvmlite.__version__} numpy {np.__version__}"
        f"{' proofs' * has_system()}",
        "processor": target.fingerprint(),
        "figures of this machine": target.to_json(),
    }


def _asked(program: Program) -> dict[str, str]:
    """What a plan is chosen for: it would be right for other sizes and memory too."""
    sizes = program.hints
    return {
        "sizes": " ".join(f"{n}={sizes[n]}" for n in sorted(sizes)),
        "memory allowed": repr(program.allowance),
    }


def _digest(what: str, parts: Mapping[str, str]) -> bytes:
    return hashlib.sha256(json.dumps(["smelt", what, parts]).encode()).digest()


def _last(parts: Mapping[str, str]) -> bytes:
    """The key under which is kept what a program was planned for last."""
    return _digest("last", {"program": parts["program"]})


def _why(store: Cache, key: bytes, parts: Mapping[str, str]) -> str:
    """Why there is no plan: what was wrong with the entry, or what differs from the last time."""
    why = store.why(key)
    last = store.get(_last(parts))
    if why != "no entry" or last is None:
        return why
    old = last.meta.get("parts", {})
    changed = [name for name in parts if name != "program" and _short(parts[name]) != old.get(name)]
    return f"changed: {', '.join(changed)}" if changed else why


def _short(part: str) -> str:
    return hashlib.sha256(part.encode()).hexdigest()[:16]


# ---- storing and finding -------------------------------------------------------------------------


def _store(
    store: Cache, key: bytes, parts: Mapping[str, str], recipe: Recipe, journal: Journal
) -> None:
    start = perf_counter()
    try:
        facts = recipe.facts()
    except SmeltError:  # a library call that cannot be written down
        return
    store.put(key, {"what": "plan", "recipe": facts}, b"")
    last = {name: _short(part) for name, part in parts.items() if name != "program"}
    store.put(_last(parts), {"what": "last plan", "parts": last}, b"")
    journal.record(CacheStored(key.hex(), 0, perf_counter() - start))


def _stored(
    store: Cache, key: bytes, parts: Mapping[str, str], journal: Journal
) -> tuple[Recipe, list[Code]] | None:
    """The stored plan with the code of its kernels; None, and why, if anything is missing."""
    start = perf_counter()
    entry = store.get(key)
    if entry is None:
        journal.record(CacheMiss(key.hex(), _why(store, key, parts)))
        return None
    try:
        recipe = Recipe.read(entry.meta["recipe"])
    except (KeyError, TypeError, ValueError, SmeltError):  # whole, but nothing of ours
        journal.record(CacheMiss(key.hex(), "a plan of another form"))
        return None
    journal.record(CacheHit(key.hex(), "disk", perf_counter() - start))
    codes: list[Code] = []
    for use in recipe.kernels:
        code = find(key_of(use.stem, use.form, streaming=False), journal)
        if code is None:
            return None
        codes.append(code)
    return recipe, codes


def _note(store: Cache, parts: Mapping[str, str], program: Program) -> None:
    """Keep what a plan was made for, where others will look that may do with it."""
    now = [dict(program.hints), program.allowance and astuple(program.allowance)]
    before = [
        [dict(p.hints), p.allowance and astuple(p.allowance)]
        for p in _others(store, parts, program)
    ]
    made_for = [now, *(p for p in before if p != now)][:MOST_NEAR]
    store.put(_family(parts), {"what": "sizes of plans", "made for": made_for}, b"")


def _others(store: Cache, parts: Mapping[str, str], program: Program) -> list[Program]:
    """The program with what stored plans were made for, the latest first."""
    entry = store.get(_family(parts))
    found: list[Program] = []
    try:
        for hints, memory in entry.meta["made for"] if entry is not None else ():
            if hints.keys() == program.hints.keys():
                allowance = None if memory is None else Allowance(*memory)
                found.append(Program(program.graph, hints, allowance))
    except (KeyError, TypeError, ValueError, AttributeError):  # whole, but nothing of ours
        return []
    return found


def _family(parts: Mapping[str, str]) -> bytes:
    """The key of all plans that differ by what they were made for alone."""
    return _digest("family", {**parts, "sizes": "", "memory allowed": ""})


class Found:
    """A compiled graph whose plan came from the cache; it has what `driver.Compiled` has.

    `graph`, `plan`, `kernels` and `journal` are made when they are asked for.
    """

    def __init__(
        self,
        program: Program,
        donate: Donate,
        target: Target,
        recipe: Recipe,
        codes: Sequence[Code],
        found: Journal,
    ) -> None:
        """`codes` are the code of the recipe's kernels, `found` says where everything came from."""
        self.target = target
        self.recipe = recipe
        self.executable: Executable = recipe.executable(
            codes, self._look_up, compile_part, program.graph, target
        )
        self.size_names = recipe.size_names
        self.run = self.executable.run
        self.program = program
        """What its plan was made for."""
        self._donate = donate
        self._context = copy_context()  # the settings it was compiled under
        self._hits = {f.key: f for f in found.of(CacheHit)}

    def _look_up(self, use: KernelUse, form: Form, streaming: bool) -> Code:
        """Another form of a kernel's code; where nobody has made it yet, the compiler does."""
        known = find(key_of(use.stem, form, streaming), Journal())
        return self._whole.code(use, form, streaming) if known is None else known

    @cached_property
    def _whole(self) -> Compiled:
        """The same, with all that its plan was made of."""
        program, donate = self.program, self._donate
        journal = Journal()
        made: Compiled = self._context.copy().run(
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
        return made

    @property
    def graph(self) -> Graph:
        """The graph after the passes."""
        return self._whole.graph

    @property
    def plan(self) -> Plan:
        """The plan, with every decision."""
        return self._whole.plan

    @property
    def kernels(self) -> tuple[Kernel | None, ...]:
        """One for each cluster; None for a library call."""
        return self._whole.kernels

    @property
    def journal(self) -> Journal:
        """What every stage did and why."""
        return self._whole.journal
