"""Serialisable form of a compiled plan: steps, values and their order as plain data.

A `Recipe` refers to its kernels' code by key and stores library-call operators as graph text, so
it can be written to the cache and made into an `Executable` by a process that has not planned,
lowered or generated anything. Cold and warm starts take the same path: plan -> recipe ->
executable.

    recipe = Recipe.read(json.loads(text))      # KeyError, TypeError, ValueError: malformed
    recipe.executable(codes, look_up).run([x], (1000,))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from smelt.graph.ir import Graph
from smelt.graph.text import parse as parse_graph
from smelt.graph.text import text as graph_text
from smelt.kernel.artifact import (
    Candidate,
    CompiledKernel,
    Variant,
    Variants,
    select_variant,
    size_or_number,
)
from smelt.kernel.chunks import Chunks, ChunkSlice
from smelt.kernel.product_cost import ProductCost
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.runtime.chunking import ChunkedCall
from smelt.runtime.code import LoadedKernel
from smelt.runtime.executable import CallStep, Executable, KernelStep, NativeFunction, Step, Value
from smelt.runtime.host_loop import LoopCall
from smelt.runtime.loop import LoopShape
from smelt.runtime.prelude import Compiler, Part, Prelude
from smelt.runtime.reference import is_recoverable, reference_step, warn_fallback
from smelt.types.dtype import DTYPES
from smelt.types.expr import Index, text
from smelt.types.parse_expr import parse_sizes

Array = np.ndarray[Any, Any]
FORMAT = 8
"""Version of the stored form."""
_DTYPES = {d.name: d for d in DTYPES}


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
    ) -> Executable:
        steps: list[Step] = []
        for use in self.steps:
            if isinstance(use, KernelUse):
                steps.append(self._kernel_step(use, next(codes), look_up))
            elif isinstance(use, ChunkedUse):
                chunked = ChunkedCall(use.rounds, use.body._executable(codes, look_up, compiler))
                steps.append(CallStep(use.name, chunked, use.inputs, use.outputs, chunked.prepare))
            elif isinstance(use, LoopUse):
                call = LoopCall(
                    use.shape, use.wanted, use.body._executable(codes, look_up, compiler)
                )
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
            form = select_variant(use.variants, sizes)
            if form == built.variant and not streaming:
                return None
            code = _find_variant(use, form, streaming, look_up, failed)
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
        return {
            "format": FORMAT,
            "sizes": self.size_names,
            "values": [
                (v.dtype.name, _texts(v.shape), v.place, v.number, text(v.offset), v.overwrites)
                for v in self.values
            ],
            "steps": [_use_to_data(s) for s in self.steps],
            "launches": self.launches,
            "arena": _texts(self.arena),
            "outputs": self.outputs,
            "stream_above": self.stream_above,
            "parts": [part.to_data() for part in self.parts],
        }

    @staticmethod
    def from_data(facts: Mapping[str, Any]) -> Recipe:
        """Rebuild a recipe from `to_data`.

        Raises KeyError, TypeError or ValueError for malformed data.
        """
        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']}, not {FORMAT}")
        return Recipe(
            tuple(facts["sizes"]),
            tuple(
                Value(_DTYPES[dtype], _indices(shape), place, number, parse_sizes(offset), over)
                for dtype, shape, place, number, offset, over in facts["values"]
            ),
            tuple(_use_from_data(s) for s in facts["steps"]),
            tuple(tuple(group) for group in facts["launches"]),
            _indices(facts["arena"]),
            tuple(facts["outputs"]),
            int(facts["stream_above"]),
            tuple(Part.from_data(part) for part in facts["parts"]),
        )


def _find_variant(
    use: KernelUse,
    form: Variant,
    streaming: bool,
    look_up: LookUp,
    failed: set[tuple[Variant, bool]],
) -> LoadedKernel:
    """Return the code of a variant, falling back to variants valid for more sizes.

    A variant in `failed` is not tried again; a new failure is warned of once.
    """
    *preferred, fallback = dict.fromkeys([(form, streaming), (form, False), ("", False)])
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
        warn_fallback(f"a form of kernel {use.name}", failure)
    return code


def _functions(built: CompiledKernel, code: LoadedKernel) -> tuple[NativeFunction, ...]:
    """Return the functions of a kernel."""
    return tuple(
        NativeFunction(code.loaded.address(f.symbol), f.tasks, f.scratch, f.cycles)
        for f in built.functions
    )


def _texts(indices: Iterable[Index]) -> list[str]:
    return [text(e) for e in indices]


def _indices(texts: Iterable[str]) -> tuple[Index, ...]:
    return tuple(parse_sizes(e) for e in texts)


def _use_to_data(use: Use) -> dict[str, Any]:
    if isinstance(use, LoopUse):
        s = use.shape
        return {
            "loop": use.name,
            "shape": [s.carries, s.slices, _texts(s.length), s.reverse, s.results, s.runs_once],
            "names": s.names,
            "sizes": _texts(s.sizes),
            "wanted": use.wanted,
            "body": use.body.to_data(),
            "inputs": use.inputs,
            "outputs": use.outputs,
        }
    if isinstance(use, ChunkedUse):
        r = use.rounds
        return {
            "rounds": use.name,
            "reads": r.reads,
            "makes": r.makes,
            "extent": text(r.extent),
            "rows": r.rows,
            "block": r.block,
            "multiples": r.multiples,
            "body": use.body.to_data(),
            "inputs": use.inputs,
            "outputs": use.outputs,
        }
    if isinstance(use, CallUse):
        return {
            "call": use.name,
            "graph": graph_text(use.graph),
            "inputs": use.inputs,
            "outputs": use.outputs,
        }
    return {
        "kernel": use.name,
        "stem": use.stem.hex(),
        "form": use.variant,
        "forms": [
            (c.variant, [(text(n), limit) for n, limit in c.limits], [x.to_data() for x in c.costs])
            for c in use.variants
        ],
        "names": dict(use.names),
        "values": dict(use.values),
        "flat": use.flat,
        "arrays": use.arrays,
        "columns": use.columns,
    }


def _loop_from_data(facts: Mapping[str, Any]) -> LoopUse:
    carries, slices, length, reverse, results, runs_once = facts["shape"]
    shape = LoopShape(
        int(carries),
        int(slices),
        _indices(length),
        bool(reverse),
        int(results),
        tuple(facts["names"]),
        _indices(facts["sizes"]),
        bool(runs_once),
    )
    return LoopUse(
        facts["loop"],
        shape,
        tuple(facts["wanted"]),
        Recipe.from_data(facts["body"]),
        tuple(facts["inputs"]),
        tuple(facts["outputs"]),
    )


def _use_from_data(facts: Mapping[str, Any]) -> Use:
    if "loop" in facts:
        return _loop_from_data(facts)
    if "rounds" in facts:
        reads, makes = (
            tuple(ChunkSlice(int(p), int(a), str(c)) for p, a, c in facts[side])
            for side in ("reads", "makes")
        )
        small, large = map(int, facts["multiples"])
        rounds = Chunks(
            reads,
            makes,
            parse_sizes(facts["extent"]),
            facts["rows"],
            int(facts["block"]),
            (small, large),
        )
        return ChunkedUse(
            facts["rounds"],
            rounds,
            Recipe.from_data(facts["body"]),
            tuple(facts["inputs"]),
            tuple(facts["outputs"]),
        )
    if "call" in facts:
        return CallUse(
            facts["call"],
            parse_graph(facts["graph"]),
            tuple(facts["inputs"]),
            tuple(facts["outputs"]),
        )
    forms = tuple(
        Candidate(
            form,
            tuple((parse_sizes(n), int(limit)) for n, limit in limits),
            tuple(map(ProductCost.from_data, costs)),
        )
        for form, limits, costs in facts["forms"]
    )
    return KernelUse(
        facts["kernel"],
        bytes.fromhex(facts["stem"]),
        facts["form"],
        forms,
        facts["names"],
        facts["values"],
        facts["flat"],
        tuple(facts["arrays"]),
        tuple(map(tuple, facts["columns"])),
    )
