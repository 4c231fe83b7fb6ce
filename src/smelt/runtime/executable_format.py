"""A plan as plain data: what runs, on which values, in which order.  The cache's form of a plan.

A `Recipe` names its kernels' code by key and the operators that run as calls of a library by their
graph's text, so it can be written to a file and made into an `Executable` by a process that has
planned, lowered and generated nothing.  Cold and warm starts go the same way: plan -> recipe ->
executable.

    recipe = Recipe.read(json.loads(text))      # KeyError, TypeError, ValueError: none of ours
    recipe.executable(codes, look_up).run([x], (1000,))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from smelt.blocks import Cut, Rounds
from smelt.dataclass import dataclass
from smelt.graph.ir import Graph
from smelt.graph.text import parse as parse_graph
from smelt.graph.text import text as graph_text
from smelt.kernel.artifact import Built, Form, Forms, form_for, meant
from smelt.runtime.chunking import Turns
from smelt.runtime.code import Code
from smelt.runtime.executable import CallStep, Executable, KernelStep, Native, Step, Value
from smelt.runtime.prelude import Compiler, Part, Prelude
from smelt.runtime.reference import by_reference, is_spared, tell_spared
from smelt.target import Target
from smelt.types.dtype import DTYPES
from smelt.types.expr import Index, text
from smelt.types.parse_expr import parse_sizes

__all__ = ["CallUse", "KernelUse", "Recipe", "RoundsUse"]

Array = np.ndarray[Any, Any]
FORMAT = 4
"""Of the stored form."""
_DTYPES = {d.name: d for d in DTYPES}


class KernelUse(NamedTuple):
    """A kernel in a plan: `stem` tells its code, `form` the one for the sizes it was planned with.

    `names` are this plan's names (or numbers) for those of the code, `values` the plan's values by
    parameter.
    """

    name: str
    stem: bytes
    form: Form
    forms: Forms
    names: Mapping[str, str]
    values: Mapping[str, int]


class CallUse(NamedTuple):
    """Operators that run by their references, as a graph of their own, on numbered values."""

    name: str
    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class RoundsUse(NamedTuple):
    """Steps that run for a block of rows after the other, as a recipe of their own."""

    name: str
    rounds: Rounds
    body: Recipe
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


LookUp = Callable[[KernelUse, Form, bool], Code]
"""Finds the code for a form of a kernel; the flag asks for one that stores past the caches."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything of an `Executable` but addresses; the fields are those of its constructor."""

    size_names: tuple[str, ...]
    values: tuple[Value, ...]
    steps: tuple[KernelUse | CallUse | RoundsUse, ...]
    launches: tuple[tuple[int, ...], ...]
    """Groups of independent steps, by number."""
    arena: tuple[Index, ...]
    outputs: tuple[int, ...]
    stream_above: int
    """Bytes of a result above which code that stores past the caches pays."""
    parts: tuple[Part, ...] = ()
    """What is computed once from constant inputs: the held values, in order."""

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """The steps that are kernels, those of rounds included."""
        found: list[KernelUse] = []
        for s in self.steps:
            if isinstance(s, KernelUse):
                found.append(s)
            elif isinstance(s, RoundsUse):
                found += s.body.kernels
        return tuple(found)

    # ---- running ---------------------------------------------------------------------------------

    def executable(
        self,
        codes: Sequence[Code],
        look_up: LookUp,
        compiler: Compiler,
        graph: Graph | None = None,
        made_for: Target | None = None,
    ) -> Executable:
        """What runs: `codes` are those of `kernels`, in order, `look_up` finds other forms later,
        `compiler` makes what runs the parts of the prelude; `graph` is the program, for sizes that
        nothing can be made for; `made_for` is the target of the code, None for the host."""
        return self._executable(iter(codes), look_up, compiler, graph, made_for)

    def _executable(
        self,
        codes: Iterator[Code],
        look_up: LookUp,
        compiler: Compiler,
        graph: Graph | None = None,
        made_for: Target | None = None,
    ) -> Executable:
        steps: list[Step] = []
        for use in self.steps:
            if isinstance(use, KernelUse):
                steps.append(self._kernel_step(use, next(codes), look_up))
            elif isinstance(use, RoundsUse):
                turns = Turns(use.rounds, use.body._executable(codes, look_up, compiler))
                steps.append(CallStep(use.name, turns, use.inputs, use.outputs, turns.prepare))
            else:
                steps.append(by_reference(use.name, use.graph, use.inputs, use.outputs))
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

    def _kernel_step(self, use: KernelUse, code: Code, look_up: LookUp) -> KernelStep:
        made, names = code.built, use.names
        partials = {name: k for k, (name, _) in enumerate(made.partials)}
        strides = {name: (use.values[names.get(p, p)], d) for name, p, d in made.strides}
        words: list[tuple[str, Any]] = [
            ("partial", partials[b]) if b in partials else ("value", use.values[names.get(b, b)])
            for b in made.buffers
        ]
        words += [
            ("stride", strides[s]) if s in strides else ("size", meant(names.get(s, s)))
            for s in made.sizes
        ]

        failed = set[tuple[Form, bool]]()

        def variant(sizes: Mapping[str, int], streaming: bool) -> KernelStep | None:
            form = form_for(use.forms, sizes)
            if form == made.form and not streaming:
                return None
            code = _usable(use, form, streaming, look_up, failed)
            return self._kernel_step(use, code, look_up)

        return KernelStep(
            use.name,
            _entries(made, code),
            tuple(words),
            tuple(n for _, n in made.partials),
            code,
            variant,
            self.stream_above,
            names,
        )

    # ---- text ------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Everything as JSON data.  Raises GraphTextError for an operator that has no text."""
        return {
            "format": FORMAT,
            "sizes": self.size_names,
            "values": [
                (v.dtype.name, _texts(v.shape), v.place, v.number, text(v.offset), v.over)
                for v in self.values
            ],
            "steps": [_use_facts(s) for s in self.steps],
            "launches": self.launches,
            "arena": _texts(self.arena),
            "outputs": self.outputs,
            "stream_above": self.stream_above,
            "parts": [part.facts() for part in self.parts],
        }

    @staticmethod
    def read(facts: Mapping[str, Any]) -> Recipe:
        """The inverse of `facts`.  Raises KeyError, TypeError or ValueError if it is not that."""
        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']}, not {FORMAT}")
        return Recipe(
            tuple(facts["sizes"]),
            tuple(
                Value(_DTYPES[dtype], _indices(shape), place, number, parse_sizes(offset), over)
                for dtype, shape, place, number, offset, over in facts["values"]
            ),
            tuple(_read_use(s) for s in facts["steps"]),
            tuple(tuple(group) for group in facts["launches"]),
            _indices(facts["arena"]),
            tuple(facts["outputs"]),
            int(facts["stream_above"]),
            tuple(Part.read(part) for part in facts["parts"]),
        )


def _usable(
    use: KernelUse, form: Form, streaming: bool, look_up: LookUp, failed: set[tuple[Form, bool]]
) -> Code:
    """The code of a form; where it cannot be made, that of one which is right for more sizes.  What
    has `failed` is tried, and told of, once."""
    *better, last = dict.fromkeys([(form, streaming), (form, False), ("", False)])
    failure: Exception | None = None
    for each in better:
        if each in failed:
            continue
        try:
            found = look_up(use, *each)
        except Exception as error:
            if not is_spared(error):
                raise
            failed.add(each)
            failure = failure or error
            continue
        break
    else:
        found = look_up(use, *last)
    if failure is not None:
        tell_spared(f"a form of kernel {use.name}", failure)
    return found


def _entries(made: Built, code: Code) -> tuple[Native, ...]:
    """The functions of a kernel."""
    return tuple(
        Native(code.loaded.address(f.symbol), f.tasks, f.scratch, f.cycles) for f in made.functions
    )


def _texts(indices: Iterable[Index]) -> list[str]:
    return [text(e) for e in indices]


def _indices(texts: Iterable[str]) -> tuple[Index, ...]:
    return tuple(parse_sizes(e) for e in texts)


def _use_facts(use: KernelUse | CallUse | RoundsUse) -> dict[str, Any]:
    if isinstance(use, RoundsUse):
        r = use.rounds
        return {
            "rounds": use.name,
            "reads": r.reads,
            "makes": r.makes,
            "extent": text(r.extent),
            "rows": r.rows,
            "block": r.block,
            "body": use.body.facts(),
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
        "form": use.form,
        "forms": [(form, [(text(n), most) for n, most in limits]) for form, limits in use.forms],
        "names": dict(use.names),
        "values": dict(use.values),
    }


def _read_use(facts: Mapping[str, Any]) -> KernelUse | CallUse | RoundsUse:
    if "rounds" in facts:
        reads, makes = (
            tuple(Cut(int(p), int(a), str(c)) for p, a, c in facts[side])
            for side in ("reads", "makes")
        )
        rounds = Rounds(
            reads, makes, parse_sizes(facts["extent"]), facts["rows"], int(facts["block"])
        )
        return RoundsUse(
            facts["rounds"],
            rounds,
            Recipe.read(facts["body"]),
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
        (form, tuple((parse_sizes(n), int(most)) for n, most in limits))
        for form, limits in facts["forms"]
    )
    return KernelUse(
        facts["kernel"],
        bytes.fromhex(facts["stem"]),
        facts["form"],
        forms,
        facts["names"],
        facts["values"],
    )
