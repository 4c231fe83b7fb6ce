"""The compiler on one page: a graph in, something that runs out.

    compiled = compile(graph, hints={"n": 1000})
    compiled.run([x], (1000,))

Each stage exports one verb; what they did and why is in the journal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import llvmlite
import numpy as np

from smelt import fusion, knobs, lower, passes
from smelt.ahead import Ahead, beyond, room_of
from smelt.codegen.build import build, forms
from smelt.errors import UnsupportedError
from smelt.fusion.plan import Cluster, Plan
from smelt.fusion.rounds import InRounds, block, in_rounds
from smelt.graph import build as build_graph
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import size_names
from smelt.journal import Journal, KernelEmitted, KernelLowered
from smelt.kernel.abi import ABI_VERSION
from smelt.kernel.built import Form, Forms, form_for
from smelt.kernel.canonical import canonical
from smelt.kernel.ir import Kernel
from smelt.kernel.text_print import text as kernel_text
from smelt.kernel.verify import verify as verify_kernel
from smelt.ops.combine import COMBINES
from smelt.ops.create import Input
from smelt.passes.prelude import Split, split
from smelt.runtime.code import Code, add, find, key_of
from smelt.runtime.executable import CallStep, Executable, Value
from smelt.runtime.host import host
from smelt.runtime.prelude import Allowance, Compiler, Run
from smelt.runtime.recipe import CallUse, KernelUse, Recipe
from smelt.runtime.rounds import Cut, Made, Rounds
from smelt.runtime.sources import generator
from smelt.target import Target
from smelt.tune.memory import Program
from smelt.tune.race import choose
from smelt.types.expr import add as add_index

__all__ = ["Compiled", "Named", "assemble", "compile", "host", "identify", "size_names"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A compiled graph: every representation on the way, and the executable."""

    graph: Graph
    plan: Plan
    kernels: tuple[Kernel | None, ...]
    """One for each cluster; None for a library call."""
    target: Target
    journal: Journal
    executable: Executable
    recipe: Recipe
    """What the executable was made of, as data."""
    named: tuple[Named | None, ...]
    size_names: tuple[str, ...]
    round: Compiled | None = None
    """Where the graph runs in rounds over some rows: one of them."""
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    """The size by which a round names its rows, and how many they are at most."""

    def code(self, use: KernelUse, form: Form, streaming: bool) -> Code:
        """The code of a form of one of the kernels, made now unless it is known."""
        (named,) = (n for n in self.named if n is not None and n.kernel.name == use.name)
        return _code(named, self.target, self.journal, form, streaming=streaming)

    def run(
        self,
        arrays: Sequence[Array],
        sizes: tuple[int, ...],
        out: Sequence[Array | None] | None = None,
        held: Run | None = None,
    ) -> list[Array]:
        """See `smelt.runtime.executable.Executable.run`."""
        return self.executable.run(arrays, sizes, out, held)

    def held(self, arrays: Sequence[Array]) -> Run | None:
        """What the prelude computes of these inputs, for calls of `run` that are to be timed."""
        prelude = self.executable.prelude
        return None if prelude is None else prelude.once(arrays)


def compile(  # noqa: A001 - the field's word, as re.compile
    graph: Graph,
    *,
    hints: Mapping[str, int] | None = None,
    donate: tuple[int, ...] = (),
    journal: Journal | None = None,
    target: Target | None = None,
    compiler: Compiler | None = None,
    allowance: Allowance | None = None,
) -> Compiled:
    """Graph to executable.  `hints` are sizes of the first call, which cost estimates use; the
    result is right for all sizes that the graph's facts allow.  Inputs in `donate` are the caller's
    gift: results may take their memory.  `compiler` makes what runs the parts of the prelude, when
    they first run: this function, unless told otherwise.  `allowance` is the memory that
    the program may take, kept constants included; None: what its operators take one by one."""
    journal = Journal() if journal is None else journal
    target = host() if target is None else target
    program = Program(graph, hints or {}, allowance)
    parts = partial(_compile_part, target=target) if compiler is None else compiler
    settings = choose(
        program, lambda: _compile(program, (), Journal(), target, parts), target, journal
    )  # fmt: skip
    with knobs.config(settings):
        return _compile(program, donate, journal, target, parts)


def _compile(
    program: Program, donate: tuple[int, ...], journal: Journal, target: Target,
    compiler: Compiler, *, part: bool = False,
) -> Compiled:  # fmt: skip
    """Graph to executable under the settings in force; a `part` of another is not cut again."""
    graph, named = program.graph, program.sizes
    graph = passes.run(graph, journal, knobs.ROUNDING.get())
    plan, ahead = _planned(graph, program, donate, journal, target)
    cut = knobs.FUSE.get() and not part and not ahead.computes
    if cut and (parts := in_rounds(plan, named, target.l3_bytes)) is not None:
        return _in_rounds(parts, program, journal, target, compiler)
    lowered = [_lowered(c, journal, named) for c in plan.clusters]
    kernels = ahead.packed(plan.clusters, lowered, target, named, journal)
    given_names = [None if k is None else identify(k, target) for k in kernels]
    known = [() if k is None else forms(k, target) for k in kernels]
    codes = [None if k is None else _code(k, target, journal, form_for(f, named))
             for k, f in zip(given_names, known, strict=True)]  # fmt: skip
    recipe, executable = assemble(
        plan, given_names, known, codes, target, journal, ahead, compiler
    )  # fmt: skip
    return Compiled(
        graph, plan, kernels, target, journal, executable, recipe, tuple(given_names),
        size_names(graph),
    )  # fmt: skip


def _planned(
    graph: Graph, program: Program, donate: tuple[int, ...], journal: Journal, target: Target
) -> tuple[Plan, Ahead]:
    """The plan, without what is computed once.  How much of that may be kept is only known from the
    plan: where it is too much, the rest is planned again without the least gains."""
    given, named = tuple(graph.inputs[k] for k in donate), program.sizes
    refused: tuple[Node, ...] = ()
    while True:
        found = split(graph, refused) if knobs.CONSTANTS.get() else Split(graph, ())
        told = Journal() if found.parts else journal
        plan = fusion.plan(
            found.graph, target, told, named, fuse=knobs.FUSE.get(), donated=given
        )  # fmt: skip
        room = room_of(graph, plan, named, program.allowance)
        more = beyond(found, room)
        if not more:
            if told is not journal:
                journal.facts += told.facts
            return plan, Ahead(graph, found, room)
        refused += more


def _compile_part(graph: Graph, sizes: Mapping[str, int], target: Target) -> Compiled:
    """A part of a prelude, which has no prelude of its own."""
    with knobs.config(constants=0):
        return compile(graph, hints=sizes, target=target)


def _in_rounds(
    parts: InRounds, program: Program, journal: Journal, target: Target, compiler: Compiler
) -> Compiled:
    """A graph whose large values are made for a few rows at a time; explained by the rounds."""
    named, inputs = program.sizes, parts.before.inputs
    rows = block(parts, named, target.l3_bytes * 3 // 4)
    before, after = (_compile(Program(g, named), (), Journal(), target, compiler, part=True)
                     for g in (parts.before, parts.after))  # fmt: skip
    given = tuple(range(len(parts.reads), len(parts.body.inputs)))
    hints = {**named, parts.rows: rows}
    body = _compile(Program(parts.body, hints), given, journal, target, compiler, part=True)
    every = (*inputs, *parts.before.outputs, *(m.node for m in parts.makes), *parts.behind)
    number = {n: k for k, n in enumerate(every)}
    first = {row.scalar: row.identity for row in COMBINES.values() if not row.positional}
    results = tuple(n for n in dict.fromkeys(parts.outputs) if not isinstance(n.op, Input))
    rounds = Rounds(
        before, body, after, tuple(Cut(number.get(p.node, -1), p.axis) for p in parts.reads),
        tuple(Made(Cut(number[p.node], p.axis), p.node.type.shape, p.node.type.dtype.numpy,
                   first[p.combine](p.node.type.dtype) if p.combine else None)
              for p in parts.makes),
        tuple(number[x] for x in parts.handed), tuple(number[n] for n in results),
        parts.extent, parts.rows, rows,
    )  # fmt: skip
    values = [Value(x.type.dtype, x.type.shape, "input", k) for k, x in enumerate(inputs)]
    values += [Value(x.type.dtype, x.type.shape, "output", k) for k, x in enumerate(results)]
    places = {x: k for k, x in enumerate((*inputs, *results))}
    step = CallStep("rounds", rounds.call, tuple(range(len(inputs))),
                    tuple(places[n] for n in results))  # fmt: skip
    outputs = [places[n] for n in parts.outputs]
    names = size_names(parts.before)
    return replace(
        body, executable=Executable(names, values, [[step]], (), outputs), size_names=names,
        recipe=replace(body.recipe, rounds=True), round=body, rows={parts.rows: rows},
    )  # fmt: skip


def _lowered(cluster: Cluster, journal: Journal, hints: Mapping[str, int]) -> Kernel | None:
    if cluster.is_extern:
        return None
    start = perf_counter()
    kernel = lower.run(cluster, knobs.ROUNDING.get(), hints)
    if knobs.VERIFY.get():
        verify_kernel(kernel)
    operators = tuple(n.op.name for n in cluster.nodes)
    again = tuple(n.op.name for n in cluster.recomputed)
    journal.record(KernelLowered(cluster.name, kernel_text(kernel), operators, again,
                                 perf_counter() - start))  # fmt: skip
    return kernel


# ---- machine code ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Named:
    """A kernel apart from its names: kernels that differ in these alone share their code."""

    kernel: Kernel
    plain: Kernel
    names: Mapping[str, str]
    """What the plain kernel's names are in this one."""
    stem: bytes
    """What decides its machine code: its text, the generator, LLVM and the processor."""


def identify(kernel: Kernel, target: Target) -> Named:
    """A kernel's text without its names, and the digest that its code is found by."""
    plain, names = canonical(kernel)
    parts = (
        kernel_text(plain), generator(), str(ABI_VERSION), llvmlite.__version__,
        target.fingerprint(), knobs.code_fingerprint(),
    )  # fmt: skip
    stem = hashlib.sha256("\0".join(parts).encode()).digest()
    return Named(kernel, plain, names, stem)


def _code(
    named: Named, target: Target, journal: Journal, form: Form, *, streaming: bool = False
) -> Code:
    """One form of a kernel's code, generated unless it is known."""
    key = key_of(named.stem, form, streaming)
    found = find(key, journal)
    if found is not None:
        return found
    start = perf_counter()
    made = build(named.plain, target, knobs.OPT_LEVEL.get(), streaming=streaming, form=form)
    emitted = KernelEmitted(
        named.kernel.name, kernel_text(named.kernel), made.ir_size, perf_counter() - start,
        target.name, len(made.code),
    )  # fmt: skip
    journal.record(emitted)
    return add(key, made, journal)


# ---- assembly ----------------------------------------------------------------------------------


def assemble(
    plan: Plan, kernels: Sequence[Named | None], known: Sequence[Forms],
    codes: Sequence[Code | None], target: Target, journal: Journal, ahead: Ahead,
    compiler: Compiler,
) -> tuple[Recipe, Executable]:  # fmt: skip
    """The plan's steps over numbered values; `known` are the forms of each kernel."""
    numbers, values = _values(plan, ahead)
    held: dict[Value, int] = {}

    def reads(cluster: Cluster, named: Named | None) -> list[int]:
        """The numbers of the values that a cluster reads, in order."""
        found: list[int] = []
        for k, node in enumerate(cluster.inputs):
            param = "" if named is None else named.kernel.inputs[k].name
            value = ahead.held(cluster.name, param, node)
            if value is not None and value not in held:
                held[value] = len(values)
                values.append(value)
            found.append(numbers[node] if value is None else held[value])
        return found

    steps: list[KernelUse | CallUse] = [
        _call(cluster, reads(cluster, None), numbers) if named is None or code is None
        else _use(cluster, named, forms, code.built.form, reads(cluster, named), numbers)
        for cluster, named, forms, code in zip(plan.clusters, kernels, known, codes, strict=True)
    ]  # fmt: skip
    recipe = Recipe(
        size_names(plan.graph), tuple(values), tuple(steps), plan.launches,
        tuple(add_index(s.offset, s.nbytes) for s in plan.slots
              if s.offset is not None and s.within is None),
        tuple(numbers[n] for n in plan.graph.outputs), target.l3_bytes * 3 // 4,
        tuple(ahead.parts),
    )  # fmt: skip
    by_name = {n.kernel.name: n for n in kernels if n is not None}

    def look_up(use: KernelUse, form: Form, streaming: bool) -> Code:
        return _code(by_name[use.name], target, journal, form, streaming=streaming)

    return recipe, recipe.executable(codes, look_up, compiler)


def _values(plan: Plan, ahead: Ahead) -> tuple[dict[Node, int], list[Value]]:
    """Where everything lives that the caller passes or that kernels write, and its number."""
    numbers: dict[Node, int] = {}
    values: list[Value] = []

    def add(node: Node, value: Value) -> None:
        if node not in numbers:
            numbers[node] = len(values)
            values.append(value)

    for k, node in enumerate(ahead.given):
        add(node, Value(node.type.dtype, node.type.shape, "input", k))
    results = [n for n in dict.fromkeys(plan.graph.outputs) if not isinstance(n.op, Input)]
    over = {s.node: numbers[s.reuses] for s in plan.slots
            if s.offset is None and s.reuses is not None}  # fmt: skip
    for k, node in enumerate(results):
        add(node, Value(node.type.dtype, node.type.shape, "output", k, over=over.get(node, -1)))
    for slot in plan.slots:
        if slot.offset is not None:
            kind, host = slot.node.type, slot.within
            place, number = ("arena", -1) if host is None else ("within", results.index(host))
            add(slot.node, Value(kind.dtype, kind.shape, place, number, slot.offset))
    return numbers, values


def _use(
    cluster: Cluster, named: Named, forms: Forms, form: Form, reads: Sequence[int],
    numbers: Mapping[Node, int],
) -> KernelUse:  # fmt: skip
    params = (*named.kernel.inputs, *named.kernel.outputs)
    places = (*reads, *(numbers[n] for n in cluster.outputs))
    values = {p.name: n for p, n in zip(params, places, strict=True)}
    return KernelUse(named.kernel.name, named.stem, form, forms, named.names, values)


def _call(cluster: Cluster, reads: Sequence[int], numbers: Mapping[Node, int]) -> CallUse:
    """The operators of a cluster as a graph of their own."""
    if knobs.STRICT.get():
        raise UnsupportedError(f"{cluster.nodes[-1].op.name} runs outside the compiler")
    made: dict[Node, Node] = {
        node: build_graph.input(f"x{k}", node.type) for k, node in enumerate(cluster.inputs)
    }
    inputs = tuple(made.values())
    for node in cluster.nodes:
        made[node] = Node(node.op, tuple(made[x] for x in node.inputs), node.type, node.origin)
    graph = Graph(cluster.name, inputs, tuple(made[n] for n in cluster.outputs))
    return CallUse(
        cluster.name, graph, tuple(reads),
        tuple(numbers[n] for n in cluster.outputs),
    )  # fmt: skip
