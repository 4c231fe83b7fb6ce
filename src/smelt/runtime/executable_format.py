"""Serialisable form of a compiled plan: steps, values and their order as plain data.

A `Recipe` refers to its kernels' code by key and stores library-call operators as graph text, so
it can be written to the cache and made into an `Executable` by a process that has not planned,
lowered or generated anything. Cold and warm starts take the same path: plan -> recipe ->
executable.

    recipe = Recipe.read(json.loads(text))      # KeyError, TypeError, ValueError: malformed
    recipe.executable(codes, look_up).run([x], (1000,))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from smelt.errors import SmeltError
from smelt.graph.ir import Graph
from smelt.journal.facts import CacheHit, CacheMiss, Journal
from smelt.kernel.artifact import (
    CompiledKernel,
    Variant,
    Variants,
    select_variant,
    size_or_number,
)
from smelt.kernel.chunks import Chunks
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.runtime.cache import Cache
from smelt.runtime.chunking import RowChunks
from smelt.runtime.code import LoadedKernel
from smelt.runtime.executable import CallStep, Executable, KernelStep, NativeFunction, Step, Value
from smelt.runtime.host_stream import HostCall
from smelt.runtime.loop import Loop, LoopShape
from smelt.runtime.plan_tables import PlanExecutable, Sizes
from smelt.runtime.prelude import Compiler, Part, Prelude
from smelt.runtime.reference import is_recoverable, reference_step, warn_fallback
from smelt.types.expr import Index
from smelt.types.json_data import from_data, to_data

Array = np.ndarray[Any, Any]
FORMAT = 9
"""Version of the stored form."""


class KernelUse(NamedTuple):
    """Kernel in a plan: `stem` identifies its code, `variant` the variant it was planned with.

    `names` maps names in the code to this plan's names (or numbers), `values` parameters to the
    plan's values.
    """

    name: str
    stem: bytes
    variant: Variant
    variants: Variants
    names: Mapping[str, str]
    values: Mapping[str, int]
    flat: str = ""
    """Digest of what it does to flat arrays: kernels with one digest may share their launches."""
    arrays: tuple[int, ...] = ()
    """Its values, in the order of its parameters."""
    columns: tuple[tuple[int, ...], ...] = ()
    """What the table of each such launch lists of a kernel; see `kernel.flat_reduction`."""


class CallUse(NamedTuple):
    """Operators that run by their references, as a graph on numbered values."""

    name: str
    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class ChunkedUse(NamedTuple):
    """Steps that run for one row chunk after another, as a nested recipe."""

    name: str
    rounds: Chunks
    body: Recipe
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def prepare(self, body: PlanExecutable[Any], sizes: Sizes) -> RowChunks:
        """Return the chunks at sizes; `body` is the executable of the recipe."""
        return RowChunks(self.rounds, body, sizes)


class LoopUse(NamedTuple):
    """Steps that run again and again on values they carry, as a nested recipe.

    `inputs` are the loop's operands in order, `outputs` the results numbered by `wanted`.
    """

    name: str
    shape: LoopShape
    wanted: tuple[int, ...]
    body: Recipe
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def prepare(self, body: PlanExecutable[Any], sizes: Sizes) -> Loop:
        """Return the loop at sizes; `body` is the executable of the recipe."""
        return Loop(self.shape, self.wanted, body, sizes)


Use = KernelUse | CallUse | ChunkedUse | LoopUse
LookUp = Callable[[KernelUse, Variant, bool], LoadedKernel]
"""Finds the code of a kernel variant; the flag selects code with non-temporal stores."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything of an `Executable` except addresses; fields match its constructor."""

    size_names: tuple[str, ...]
    values: tuple[Value, ...]
    steps: tuple[Use, ...]
    launches: tuple[tuple[int, ...], ...]
    """Groups of independent steps, by number."""
    arena: tuple[Index, ...]
    outputs: tuple[int, ...]
    stream_above: int
    """Threshold on bytes of results: code with non-temporal stores is faster above."""
    parts: tuple[Part, ...] = ()
    """Computations on constant inputs, done once: the held values, in order."""

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """Steps that are kernels, including those in chunked bodies."""
        uses: list[KernelUse] = []
        for s in self.steps:
            if isinstance(s, KernelUse):
                uses.append(s)
            elif isinstance(s, ChunkedUse | LoopUse):
                uses += s.body.kernels
        return tuple(uses)

    # ---- linking ---------------------------------------------------------------------------------

    def executable(
        self,
        codes: Sequence[LoadedKernel],
        look_up: LookUp,
        compiler: Compiler,
        graph: Graph | None = None,
        made_for: Target | None = None,
    ) -> Executable:
        """Build the executable.

        `codes` are the codes of `kernels`, in order; `look_up` finds other variants later;
        `compiler` compiles the prelude's parts. `graph` is the program, for sizes that no kernels
        can be made for. `made_for` is the target of the code, None for the host.
        """
        return self._executable(iter(codes), look_up, compiler, graph, made_for)

    def _executable(
        self,
        codes: Iterator[LoadedKernel],
        look_up: LookUp,
        compiler: Compiler,
        graph: Graph | None = None,
        made_for: Target | None = None,
        *,
        is_part: bool = False,
    ) -> Executable:
        steps: list[Step] = []
        for use in self.steps:
            if isinstance(use, KernelUse):
                steps.append(self._kernel_step(use, next(codes), look_up))
            elif isinstance(use, ChunkedUse | LoopUse):
                body = use.body._executable(codes, look_up, compiler, is_part=True)
                call = HostCall(body, use.prepare)
                steps.append(CallStep(use.name, call, use.inputs, use.outputs, call.prepare))
            else:
                steps.append(reference_step(use.name, use.graph, use.inputs, use.outputs))
        launches = [[steps[k] for k in group] for group in self.launches]
        prelude = Prelude(self.parts, compiler) if self.parts else None
        return Executable(
            self.size_names,
            self.values,
            launches,
            self.arena,
            self.outputs,
            prelude,
            graph,
            made_for,
            is_part=is_part,
        )

    def _kernel_step(self, use: KernelUse, code: LoadedKernel, look_up: LookUp) -> KernelStep:
        built, names = code.compiled, use.names
        partials = {name: k for k, (name, _) in enumerate(built.partials)}
        strides = {name: (use.values[names.get(p, p)], d) for name, p, d in built.strides}
        words: list[tuple[str, Any]] = [
            ("partial", partials[b]) if b in partials else ("value", use.values[names.get(b, b)])
            for b in built.buffers
        ]
        words += [
            ("stride", strides[s]) if s in strides else ("size", size_or_number(names.get(s, s)))
            for s in built.sizes
        ]

        failed = set[tuple[Variant, bool]]()

        def variant(sizes: Mapping[str, int], streaming: bool) -> KernelStep | None:
            variant = select_variant(use.variants, sizes)
            if variant == built.variant and not streaming:
                return None
            code = _find_variant(use, variant, streaming, look_up, failed)
            return self._kernel_step(use, code, look_up)

        return KernelStep(
            use.name,
            _functions(built, code),
            tuple(words),
            tuple(n for _, n in built.partials),
            code,
            variant,
            self.stream_above,
            names,
        )

    # ---- serialisation ---------------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        """Return everything as JSON data.

        Raises GraphTextError for an operator that has no text form.
        """
        data: dict[str, Any] = {"format": FORMAT, **to_data(self)}
        return data

    @staticmethod
    def from_data(facts: Mapping[str, Any]) -> Recipe:
        """Rebuild a recipe from `to_data`.

        Raises KeyError, TypeError or ValueError for malformed data.
        """
        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']}, not {FORMAT}")
        recipe: Recipe = from_data(Recipe, {k: x for k, x in facts.items() if k != "format"})
        return recipe

    @staticmethod
    def stored(
        cache: Cache, key: bytes, journal: Journal, reason: Callable[[], str] | None = None
    ) -> Recipe | None:
        """Return a stored recipe or None; record the hit or why it missed."""
        start = perf_counter()
        entry = cache.get(key)
        if entry is None:
            why = cache.miss_reason(key) if reason is None else reason()
            journal.record(CacheMiss(key.hex(), why))
            return None
        try:
            recipe = Recipe.from_data(entry.meta["recipe"])
        except (KeyError, TypeError, ValueError, SmeltError):  # an intact entry of another format
            journal.record(CacheMiss(key.hex(), "a plan of another form"))
            return None
        journal.record(CacheHit(key.hex(), "disk", perf_counter() - start))
        return recipe


def _find_variant(
    use: KernelUse,
    variant: Variant,
    streaming: bool,
    look_up: LookUp,
    failed: set[tuple[Variant, bool]],
) -> LoadedKernel:
    """Return the code of a variant, falling back to variants valid for more sizes.

    A variant in `failed` is not tried again; a new failure is warned of once.
    """
    *preferred, fallback = dict.fromkeys([(variant, streaming), (variant, False), ("", False)])
    failure: Exception | None = None
    for candidate in preferred:
        if candidate in failed:
            continue
        try:
            code = look_up(use, *candidate)
        except Exception as error:
            if not is_recoverable(error):
                raise
            failed.add(candidate)
            failure = failure or error
            continue
        break
    else:
        code = look_up(use, *fallback)
    if failure is not None:
        warn_fallback(f"a variant of kernel {use.name}", failure)
    return code


def _functions(built: CompiledKernel, code: LoadedKernel) -> tuple[NativeFunction, ...]:
    """Return the functions of a kernel."""
    return tuple(
        NativeFunction(code.loaded.address(f.symbol), f.tasks, f.scratch, f.cycles)
        for f in built.functions
    )
