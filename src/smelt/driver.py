"""The compiler on one page: a graph in, something that runs out.

    compiled = compile(graph, hints={"n": 1000})
    compiled.run([x], (1000,))

Each stage exports one verb; what they did and why is in the journal.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import llvmlite
import numpy as np

from smelt import fusion, knobs, lower, passes
from smelt.ahead import Ahead, beyond, room_of
from smelt.codegen.build import build, build_all, forms
from smelt.dataclass import dataclass
from smelt.errors import UnsupportedError
from smelt.fusion.cascade.proofs import SHELF, VERSION
from smelt.fusion.plan import Cluster, Donate, Donated, Plan
from smelt.graph import build as build_graph
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import size_names, sizes
from smelt.journal import CacheHit, Journal, KernelEmitted, KernelLowered
from smelt.kernel.abi import ABI_VERSION
from smelt.kernel.artifact import Built, Form, Forms, form_for, meant
from smelt.kernel.canonical import Plain, canonical
from smelt.kernel.ir import Kernel
from smelt.kernel.parametrize_constants import but_for_numbers, freed
from smelt.kernel.specialize_small_sizes import lengths, turned_sizes
from smelt.kernel.text_print import text as kernel_text
from smelt.kernel.verify import verify as verify_kernel
from smelt.ops.create import Input
from smelt.passes.constant_subgraph import Split, split
from smelt.runtime.code import Code, add, find, key_of
from smelt.runtime.code_identity import generator
from smelt.runtime.executable import Executable, Value
from smelt.runtime.executable_format import CallUse, KernelUse, Recipe, RoundsUse
from smelt.runtime.frames import roomy
from smelt.runtime.garbage import set_aside
from smelt.runtime.host import host
from smelt.runtime.prelude import Allowance, Compiler, Run
from smelt.runtime.proofs import shelve
from smelt.target import Target
from smelt.tune.memory import Program
from smelt.tune.race import choose
from smelt.types.expr import add as add_index
from smelt.types.expr import substitute

__all__ = ["Compiled", "Named", "assemble", "compile", "host", "identify", "size_names"]

Array = np.ndarray[Any, Any]
Bare: TypeAlias = tuple[Plain, Mapping[str, str]]
"""A kernel without its names, and what they are: what `canonical` says."""

shelve(SHELF, VERSION)


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A compiled graph: every representation on the way, and the executable."""

    graph: Graph
    plan: Plan
    kernels: tuple[Kernel | None, ...]
    """One for each of `plan.every`; None for a library call and for what runs in rounds."""
    target: Target
    journal: Journal
    executable: Executable
    recipe: Recipe
    """What the executable was made of, as data."""
    named: tuple[Named | None, ...]
    size_names: tuple[str, ...]

    def code(self, use: KernelUse, form: Form, streaming: bool) -> Code:
        """The code of a form of one of the kernels, made now unless it is known."""
        (named,) = (n for n in self.named if n is not None and n.kernel.name == use.name)
        return code_of(named, self.target, self.journal, form, streaming=streaming)

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


@roomy
def compile(  # noqa: A001 - the field's word, as re.compile
    graph: Graph,
    *,
    hints: Mapping[str, int] | None = None,
    donate: Donate = (),
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
    with set_aside():
        settings = choose(
            program, lambda: _compile(program, (), Journal(), target, parts), target, journal
        )
        with knobs.config(settings):
            return _compile(program, donate, journal, target, parts)


def _compile(
    program: Program, donate: Donate, journal: Journal, target: Target, compiler: Compiler
) -> Compiled:
    """Graph to executable under the settings in force."""
    graph, named = program.graph, program.sizes
    graph = passes.run(graph, journal, knobs.ROUNDING.get(), named)
    plan, ahead = _planned(graph, program, donate, journal, target)
    hints = _hints(plan, named)
    lowered, bare = _kernels(plan.every, [{**at, **plan.sizes} for at in hints], journal)
    count = len(plan.clusters)
    kernels = (
        *ahead.packed(plan.clusters, lowered[:count], bare[:count], target, named, journal),
        *lowered[count:],
    )
    given_names = _named(
        [
            None if k is None else b if b and k is before else canonical(k)
            for k, before, b in zip(kernels, lowered, bare, strict=True)
        ],
        kernels,
        target,
    )
    told: dict[Told, Forms] = {}
    open_ends = lengths((n.type.shape for n in graph.nodes()), named)
    uses: list[tuple[Cluster, Named, Forms, Form]] = [
        (cluster, of, known := _forms(of, target, at, open_ends, told), form_for(known, at))
        for cluster, of, at in zip(plan.every, given_names, hints, strict=True)
        if of is not None
    ]
    codes = _codes([(of, form) for _, of, _, form in uses], target, journal)
    made = {
        cluster: Made(of, known, code)
        for (cluster, of, known, _), code in zip(uses, codes, strict=True)
    }
    recipe, executable = assemble(plan, made, target, journal, ahead, compiler, program.graph)
    return Compiled(
        graph,
        plan,
        kernels,
        target,
        journal,
        executable,
        recipe,
        tuple(given_names),
        size_names(graph),
    )


def _hints(plan: Plan, named: Mapping[str, int]) -> list[Mapping[str, int]]:
    """For each of `plan.every` the sizes it is compiled for: those of a round know its rows."""
    found: list[Mapping[str, int]] = [named] * len(plan.clusters)
    for _, body in plan.in_rounds:
        found += _hints(body.plan, {**named, body.rounds.rows: body.rounds.block})
    return found


def _planned(
    graph: Graph, program: Program, donate: Donate, journal: Journal, target: Target
) -> tuple[Plan, Ahead]:
    """The plan, without what is computed once.  How much of that may be kept is only known from the
    plan: where it is too much, the rest is planned again without the least gains."""
    named = program.sizes
    refused: tuple[Node, ...] = ()
    while True:
        found = split(graph, refused) if knobs.CONSTANTS.get() else Split(graph, ())
        told = Journal(full=journal.full) if found.parts else journal
        plan = fusion.plan(
            found.graph,
            target,
            told,
            named,
            fuse=knobs.FUSE.get(),
            donated=_donated(found.graph, graph, donate),
        )
        room = room_of(graph, plan, named, program.allowance)
        more = beyond(found, room.whole)
        if not more:
            if told is not journal:
                journal.facts += told.facts
            return plan, Ahead(graph, found, room)
        refused += more


def _donated(planned: Graph, graph: Graph, donate: Donate) -> Donated:
    """What of `graph` is given away, and for which results of the graph that is `planned`."""
    pairs = (d if isinstance(d, tuple) else (d, None) for d in donate)
    return {graph.inputs[k]: None if j is None else planned.outputs[j] for k, j in pairs}


def _compile_part(graph: Graph, sizes: Mapping[str, int], target: Target) -> Compiled:
    """A part of a prelude, which has no prelude of its own."""
    with knobs.config(constants=0):
        return compile(graph, hints=sizes, target=target)


def _kernels(
    clusters: Sequence[Cluster], hints: Sequence[Mapping[str, int]], journal: Journal
) -> tuple[list[Kernel | None], list[Bare | None]]:
    """The kernel of each cluster, and what `canonical` says of it: found once for those that are
    alike."""
    known: dict[Hashable, tuple[Cluster, Kernel, Bare]] = {}
    lowered: list[Kernel | None] = []
    bare: list[Bare | None] = []
    for cluster, at in zip(clusters, hints, strict=True):
        if cluster.is_extern or cluster.body is not None:
            lowered.append(None)
            bare.append(None)
            continue
        key = lower.spelled(cluster), tuple(at.items())
        kernel, told = _lowered(cluster, journal, at, known.get(key))
        known.setdefault(key, (cluster, kernel, told))
        lowered.append(kernel)
        bare.append(told)
    return lowered, bare


def _lowered(
    cluster: Cluster,
    journal: Journal,
    hints: Mapping[str, int],
    like: tuple[Cluster, Kernel, Bare] | None,
) -> tuple[Kernel, Bare]:
    """The kernel of a cluster, from that of one that is `like` it if there is one."""
    start = perf_counter()
    found = None if like is None else lower.again(like[1], like[0], cluster)
    if like is None or found is None:
        kernel = lower.run(cluster, knobs.ROUNDING.get(), hints)
        bare = canonical(kernel)
    else:
        kernel, new = found
        plain, names = like[2]
        bare = plain, {short: new.get(name, name) for short, name in names.items()}
    if knobs.VERIFY.get():
        verify_kernel(kernel)
    operators = tuple(n.op.name for n in cluster.nodes)
    again = tuple(n.op.name for n in cluster.recomputed)
    text = kernel_text(kernel) if journal.full else ""
    journal.record(KernelLowered(cluster.name, text, operators, again, perf_counter() - start))
    return kernel, bare


# ---- machine code ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Named:
    """A kernel apart from its names: kernels that differ in these alone share their code."""

    kernel: Kernel
    plain: Plain
    names: Mapping[str, str]
    """What the plain kernel's names are in this one."""
    stem: bytes
    """What decides its machine code: its text, the generator, LLVM, the processor, its cores and
    caches."""


def identify(kernel: Kernel, target: Target, bare: Bare | None = None) -> Named:
    """A kernel's text without its names, and the digest that its code is found by; `bare` is what
    `canonical` says of it, where that is known."""
    plain, names = bare or canonical(kernel)
    parts = (
        plain.text,
        generator(),
        str(ABI_VERSION),
        llvmlite.__version__,
        target.fingerprint(),
        f"{target.tasks} {target.l1_bytes} {target.l2_bytes}",
        knobs.code_fingerprint(),
    )
    stem = hashlib.sha256("\0".join(parts).encode()).digest()
    return Named(kernel, plain, names, stem)


def _named(
    bare: Sequence[Bare | None],
    kernels: Sequence[Kernel | None],
    target: Target,
) -> list[Named | None]:
    """Kernels apart from their names, `bare` being what `canonical` says of them.  Those that
    differ in numbers of places alone, as steps of a loop do, get them as sizes of the call."""
    alike: dict[Plain, dict[Plain, None]] = {}
    found: dict[int, Bare] = {}
    apart = {b[0]: but_for_numbers(b[0].text) for b in bare if b is not None}
    times = Counter(apart.values())
    steps = {
        at: f
        for at, (k, b) in enumerate(zip(kernels, bare, strict=True))
        if k is not None and b is not None and times[apart[b[0]]] > 1 and (f := freed(k))[1]
    }
    for at, (made, numbers) in steps.items():
        plain, names = canonical(made)
        found[at] = plain, {short: str(numbers.get(n, n)) for short, n in names.items()}
        if (b := bare[at]) is not None:
            alike.setdefault(plain, {})[b[0]] = None
    return [
        None
        if k is None
        else identify(k, target, found[at] if at in found and len(alike[found[at][0]]) > 1 else b)
        for at, (k, b) in enumerate(zip(kernels, bare, strict=True))
    ]


Told = tuple[Plain, tuple[tuple[str, int], ...]]


def _forms(
    named: Named,
    target: Target,
    sizes: Mapping[str, int],
    open_ends: set[str],
    told: dict[Told, Forms],
) -> Forms:
    """The forms of a kernel called with such sizes, of which some are lengths, found once for those
    that differ in names alone."""
    plain = named.plain
    at = {short: n for short, name in named.names.items() if (n := sizes.get(name)) is not None}
    closed = {short for short in at if named.names[short] in open_ends}
    closed -= turned_sizes(plain.kernel, at) if closed else set()
    at = {short: n for short, n in at.items() if short not in closed}
    key = plain, tuple(at.items())
    if key not in told:
        told[key] = forms(plain.kernel, target, at)
    own = {short: meant(name) for short, name in named.names.items()}
    return tuple(
        (form, tuple((substitute(n, own, "size"), most) for n, most in limits))
        for form, limits in told[key]
    )


def code_of(
    named: Named, target: Target, journal: Journal, form: Form, *, streaming: bool = False
) -> Code:
    """One form of a kernel's code, generated unless it is known."""
    key = key_of(named.stem, form, streaming)
    found = find(key, journal)
    if found is not None:
        return found
    start = perf_counter()
    made = build(named.plain.kernel, target, knobs.OPT_LEVEL.get(), streaming=streaming, form=form)
    return _added(key, named, made, perf_counter() - start, target, journal)


def _codes(wanted: Sequence[tuple[Named, Form]], target: Target, journal: Journal) -> list[Code]:
    """Code of kernels in forms; what is not known is generated together, each once.  The journal
    tells them one by one."""
    keys = [key_of(named.stem, form, streaming=False) for named, form in wanted]
    told = {key: Journal(full=journal.full) for key in keys}
    known = {key: find(key, told[key]) for key in told}
    new = {key: use for key, use in zip(keys, wanted, strict=True) if known[key] is None}
    made = build_all([(n.plain.kernel, f) for n, f in new.values()], target, knobs.OPT_LEVEL.get())
    built = dict(zip(new, made, strict=True))
    codes: dict[bytes, Code] = {}
    for key, (named, _) in zip(keys, wanted, strict=True):
        if key in codes:
            journal.record(CacheHit(key.hex(), "memory"))
            continue
        journal.facts += told[key].facts
        codes[key] = known[key] or _added(key, named, *built[key], target, journal)
    return [codes[key] for key in keys]


def _added(
    key: bytes, named: Named, made: Built, seconds: float, target: Target, journal: Journal
) -> Code:
    """The code of a kernel that was generated just now."""
    text = kernel_text(named.kernel) if journal.full else ""
    emitted = KernelEmitted(
        named.kernel.name, text, made.ir_size, seconds, target.name, len(made.code)
    )
    journal.record(emitted)
    return add(key, made, journal)


# ---- assembly ----------------------------------------------------------------------------------


class Made(NamedTuple):
    """The code of a kernel, in the form that its first call needs, and the forms that there are."""

    named: Named
    forms: Forms
    code: Code


def assemble(
    plan: Plan,
    made: Mapping[Cluster, Made],
    target: Target,
    journal: Journal,
    ahead: Ahead,
    compiler: Compiler,
    graph: Graph | None = None,
) -> tuple[Recipe, Executable]:
    """The plan's steps over numbered values; `made` are the clusters that are kernels, `graph` is
    the program, if it may run in NumPy where nothing can be made for the sizes of a call."""
    recipe = _recipe(plan, made, target, ahead)
    by_name = {m.named.kernel.name: m for m in made.values()}

    def look_up(use: KernelUse, form: Form, streaming: bool) -> Code:
        return code_of(by_name[use.name].named, target, journal, form, streaming=streaming)

    codes = [by_name[use.name].code for use in recipe.kernels]
    return recipe, recipe.executable(codes, look_up, compiler, graph, target)


def _recipe(
    plan: Plan, made: Mapping[Cluster, Made], target: Target, ahead: Ahead | None
) -> Recipe:
    """A plan as data; `ahead` is what is computed once, None for a part of another plan."""
    given = plan.graph.inputs if ahead is None else ahead.given
    numbers, values = _values(plan, given)
    held: dict[Value, int] = {}

    def reads(cluster: Cluster) -> list[int]:
        """The numbers of the values that a cluster reads, in order."""
        found: list[int] = []
        for k, node in enumerate(cluster.inputs):
            param = made[cluster].named.kernel.inputs[k].name if cluster in made else ""
            value = None if ahead is None else ahead.held(cluster.name, param, node)
            if value is not None and value not in held:
                held[value] = len(values)
                values.append(value)
            found.append(numbers[node] if value is None else held[value])
        return found

    def step(cluster: Cluster) -> KernelUse | CallUse | RoundsUse:
        if cluster in made:
            return _use(cluster, made[cluster], reads(cluster), numbers)
        if cluster.body is None:
            return _call(cluster, reads(cluster), numbers)
        body = _recipe(cluster.body.plan, made, target, None)
        return RoundsUse(
            cluster.name,
            cluster.body.rounds,
            body,
            tuple(reads(cluster)),
            tuple(numbers[n] for n in cluster.outputs),
        )

    steps = tuple(map(step, plan.clusters))
    names = dict.fromkeys(size_names(plan.graph))
    if ahead is None:  # whose sizes are told, not matched
        names |= dict.fromkeys(sizes(plan.graph))
    return Recipe(
        tuple(names),
        tuple(values),
        steps,
        plan.launches,
        tuple(
            add_index(s.offset, s.nbytes)
            for s in plan.slots
            if s.offset is not None and s.within is None
        ),
        tuple(numbers[n] for n in plan.graph.outputs),
        target.l3_bytes * 3 // 4,
        () if ahead is None else tuple(ahead.parts),
    )


def _values(plan: Plan, given: Sequence[Node]) -> tuple[dict[Node, int], list[Value]]:
    """Where everything lives that the caller passes or that kernels write, and its number."""
    numbers: dict[Node, int] = {}
    values: list[Value] = []

    def add(node: Node, value: Value) -> None:
        if node not in numbers:
            numbers[node] = len(values)
            values.append(value)

    for k, node in enumerate(given):
        add(node, Value(node.type.dtype, node.type.shape, "input", k))
    results = [n for n in dict.fromkeys(plan.graph.outputs) if not isinstance(n.op, Input)]
    over = {
        s.node: numbers[s.reuses] for s in plan.slots if s.offset is None and s.reuses is not None
    }
    for k, node in enumerate(results):
        add(node, Value(node.type.dtype, node.type.shape, "output", k, over=over.get(node, -1)))
    for slot in plan.slots:
        if slot.offset is not None:
            kind, host = slot.node.type, slot.within
            place, number = ("arena", -1) if host is None else ("within", results.index(host))
            add(slot.node, Value(kind.dtype, kind.shape, place, number, slot.offset))
    return numbers, values


def _use(
    cluster: Cluster, made: Made, reads: Sequence[int], numbers: Mapping[Node, int]
) -> KernelUse:
    named = made.named
    params = (*named.kernel.inputs, *named.kernel.outputs)
    places = (*reads, *(numbers[n] for n in cluster.outputs))
    values = {p.name: n for p, n in zip(params, places, strict=True)}
    return KernelUse(
        named.kernel.name, named.stem, made.code.built.form, made.forms, named.names, values
    )


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
        cluster.name,
        graph,
        tuple(reads),
        tuple(numbers[n] for n in cluster.outputs),
    )
