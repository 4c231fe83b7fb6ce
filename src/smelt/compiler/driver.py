"""The compiler driver: graph to executable.

    compiled = compile(graph, hints={"n": 1000})
    compiled.run([x], (1000,))

Passes, planning, lowering, code generation and assembly of the executable run in this order; the
journal records what each stage did and why.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import llvmlite
import numpy as np

# not `from smelt import ..`, which asks the package's `__getattr__` for what is not imported yet
import smelt.fusion as fusion
import smelt.lower as lower
import smelt.passes as passes
from smelt import knobs
from smelt.backend import generator_of, register
from smelt.codegen.build import CpuBackend
from smelt.compiler.ahead import PreludeBuilder, constant_budget, values_over_budget
from smelt.errors import UnsupportedError
from smelt.fusion.cascade.proofs import PROOF_CACHE, VERSION
from smelt.fusion.plan import Cluster, Donate, Donated, Plan, cluster_sizes
from smelt.graph import build as build_graph
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop
from smelt.graph.walk import all_size_names, input_size_names
from smelt.journal import logs, progress
from smelt.journal.facts import CacheHit, Journal, KernelEmitted, KernelLowered
from smelt.kernel.abi import ABI_VERSION
from smelt.kernel.artifact import CompiledKernel, Variant, Variants, select_variant, size_or_number
from smelt.kernel.canonical import CanonicalKernel, canonical_kernel
from smelt.kernel.ir import Kernel
from smelt.kernel.size_constants import erase_numbers, parametrize, row_counts, transposed_sizes
from smelt.kernel.text_print import text as kernel_text
from smelt.kernel.verify import verify as verify_kernel
from smelt.machine.target import Target
from smelt.machine.tiling import Tiling
from smelt.ops.create import Input
from smelt.ops.library_product import provider
from smelt.passes.constant_subgraph import Split, split_constant_subgraph
from smelt.python.dataclass import dataclass
from smelt.python.imports import fork_safe_import
from smelt.runtime.cache import persist_claims
from smelt.runtime.code import LoadedKernel, add, find, generator_identity, key_of
from smelt.runtime.compile_scope import hide_live_objects, with_frame_room
from smelt.runtime.executable import Executable, Value
from smelt.runtime.executable_format import CallUse, ChunkedUse, KernelUse, LoopUse, Recipe
from smelt.runtime.host import host, machine_id
from smelt.runtime.library_figures import library_wish, usable_library
from smelt.runtime.loop import LoopShape
from smelt.runtime.prelude import Allowance, Compiler, Run
from smelt.tune.memory import Program, recall
from smelt.tune.race import HostRace, choose
from smelt.types.expr import add as add_index
from smelt.types.expr import substitute

__all__ = [
    "Compiled",
    "KernelIdentity",
    "assemble",
    "compile",
    "donated_inputs",
    "host",
    "identify",
    "input_size_names",
    "make_recipe",
]

Array = np.ndarray[Any, Any]
RenamedKernel: TypeAlias = tuple[CanonicalKernel, Mapping[str, str]]
"""A kernel in canonical form, and the original name of each of its names: the result of
`canonical_kernel`."""

persist_claims(PROOF_CACHE, VERSION)
register(CpuBackend())


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A compiled graph: every intermediate representation, and the executable."""

    graph: Graph
    plan: Plan
    kernels: tuple[Kernel | None, ...]
    """One per cluster of `plan.all_clusters`; None for a library call and for a chunked part."""
    target: Target
    journal: Journal
    executable: Executable
    recipe: Recipe
    """The executable as serialisable data."""
    identities: tuple[KernelIdentity | None, ...]
    size_names: tuple[str, ...]

    def __reduce__(self) -> Any:
        """Pickle what reports read; code is loaded memory, so that a copy cannot run."""
        parts = (getattr(self, f.name) for f in fields(self))
        return Compiled, tuple([None if p is self.executable else p for p in parts])

    def code(self, use: KernelUse, variant: Variant, streaming: bool) -> LoadedKernel:
        """Return the code of a variant of a kernel; compile it unless it is cached."""
        (named,) = (n for n in self.identities if n is not None and n.kernel.name == use.name)
        return code_of(named, self.target, self.journal, variant, streaming=streaming)

    def run(
        self,
        arrays: Sequence[Array],
        sizes: tuple[int, ...],
        out: Sequence[Array | None] | None = None,
        held: Run | None = None,
    ) -> list[Array]:
        """See `smelt.runtime.executable.Executable.run`."""
        return self.executable.run(arrays, sizes, out, held)

    def run_prelude(self, arrays: Sequence[Array]) -> Run | None:
        """Run the prelude on these inputs, to exclude it from timed calls of `run`."""
        prelude = self.executable.prelude
        return None if prelude is None else prelude.run_uncached(arrays)


@with_frame_room
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
    """Compile a graph to an executable.

    Args:
        hints: sizes of the first call, which cost estimates use; the result is right for all sizes
            that the graph's facts allow.
        donate: inputs whose memory results may reuse.
        compiler: compiles the parts of the prelude when they first run (default: this function).
        allowance: memory that the program may take, kept constants included (default: that of
            unfused execution).
    """
    logs.install()
    journal = Journal() if journal is None else journal
    target = host() if target is None else target
    program = Program(graph, hints or {}, allowance)
    parts = partial(_compile_part, target=target) if compiler is None else compiler
    with progress.compiling(graph.name), hide_live_objects():
        settings = recall(program, machine_id(target))
        if settings is None and knobs.TUNE.get() == "race":
            build = partial(_compile, program, (), Journal(), target, parts)
            settings = choose(HostRace(program, build, journal), machine_id(target))
        with knobs.config(settings or {}):
            return _compile(program, donate, journal, target, parts)


def _compile(
    program: Program, donate: Donate, journal: Journal, target: Target, compiler: Compiler
) -> Compiled:
    """Compile a graph under the settings in force."""
    graph, sizes = program.graph, program.sizes
    progress.stage("simplifying the graph")
    graph = passes.run(graph, journal, knobs.ROUNDING.get(), sizes, target.tiling)
    if Loop in graph.kinds() and knobs.FUSE.get() and knobs.ROUNDING.get() != "exact":
        graph = fusion.fuse_loop_neighbors(graph, sizes, target.tiling)
    progress.stage("planning what to fuse")
    plan, ahead = _plan_with_prelude(graph, program, donate, journal, target)
    hints = cluster_sizes(plan, sizes)
    lowered, canonical_forms = _lower_all(
        plan.all_clusters,
        [{**cluster_hints, **plan.sizes} for cluster_hints in hints],
        journal,
        target.tiling,
    )
    kernels = tuple(lowered)
    if ahead is not None:
        kernels = ahead.pack_operands(
            plan, lowered, canonical_forms, target.planning, hints, journal
        )
    identities = _identify_all(
        [
            None if k is None else form if form and k is before else canonical_kernel(k)
            for k, before, form in zip(kernels, lowered, canonical_forms, strict=True)
        ],
        kernels,
        target,
    )
    variants_by_key: dict[VariantKey, Variants] = {}
    varying = row_counts((n.type.shape for n in graph.nodes()), sizes)
    uses: list[tuple[Cluster, KernelIdentity, Variants, Variant]] = [
        (
            cluster,
            identity,
            variants := _variants_of(identity, target, cluster_hints, varying, variants_by_key),
            select_variant(variants, cluster_hints),
        )
        for cluster, identity, cluster_hints in zip(
            plan.all_clusters, identities, hints, strict=True
        )
        if identity is not None
    ]
    codes = _build_codes([(identity, variant) for _, identity, _, variant in uses], target, journal)
    built = {
        cluster: BuiltKernel(identity, variants, code)
        for (cluster, identity, variants, _), code in zip(uses, codes, strict=True)
    }
    recipe, executable = assemble(plan, built, target, journal, ahead, compiler, program.graph)
    return Compiled(
        graph,
        plan,
        kernels,
        target,
        journal,
        executable,
        recipe,
        tuple(identities),
        input_size_names(graph),
    )


def _plan_with_prelude(
    graph: Graph, program: Program, donate: Donate, journal: Journal, target: Target
) -> tuple[Plan, PreludeBuilder | None]:
    """Plan the graph without its constant subexpressions, and return the prelude for those.

    There is none for a program without constants. The budget for kept constants is known only from
    the plan. If the constants exceed it, those of least gain stay in the graph, which is planned
    again.
    """
    sizes = program.sizes
    has_constants = any(getattr(x.op, "constant", False) for x in graph.inputs)
    is_split = has_constants and knobs.CONSTANTS.get()
    refused: tuple[Node, ...] = ()
    while True:
        constants = split_constant_subgraph(graph, refused) if is_split else Split(graph, ())
        constants, plan, plan_journal = _plan_products(
            graph, constants, sizes, donate, journal, target
        )
        ahead = None
        if has_constants:
            room = constant_budget(graph, plan, sizes, program.allowance)
            if over_budget := values_over_budget(constants, room.total_bytes):
                refused += over_budget
                continue
            ahead = PreludeBuilder(graph, constants, room)
        if plan_journal is not journal:
            journal.facts += plan_journal.facts
        return plan, ahead


def _plan_products(
    graph: Graph,
    constants: Split,
    sizes: Mapping[str, int],
    donate: Donate,
    journal: Journal,
    target: Target,
) -> tuple[Split, Plan, Journal]:
    """Plan a graph, and once more if a library computes some products.

    Returns the rest as it was planned, the plan, and its facts, which are in `journal` already if
    that is what is returned.
    """

    def planned(rest: Graph, facts: Journal) -> Plan:
        donated = donated_inputs(rest, graph, donate)
        return fusion.plan(rest, target, facts, sizes, fuse=knobs.FUSE.get(), donated=donated)

    wish, library = library_wish(), usable_library(target)
    undecided = wish == "never" or (wish == "auto" and not library.ratios)
    facts = journal if undecided and not constants.parts else Journal(full=journal.full)
    rest = constants.graph
    plan = planned(rest, facts)
    decisions = fusion.choose_products(rest, plan, target, sizes, wish, library)
    changed = fusion.use_library(rest, decisions, library.provider)
    if changed is not rest:
        new_facts = Journal(full=journal.full)
        other = planned(changed, new_facts)
        if fusion.calls_in_chunks(other):
            decisions = fusion.stay_own(decisions)
        else:
            constants, plan, facts = replace(constants, graph=changed), other, new_facts
    for decision in decisions.values():
        facts.record(decision)
    return constants, plan, facts


def measure_library(compiled: Compiled, sizes: Mapping[str, int]) -> None:
    """Measure in the background what a library would gain for the products of a program."""
    is_automatic = library_wish() == "auto" and knobs.PROBE.get() == "auto"
    if not is_automatic or knobs.TARGET.get() != "auto":
        return
    library, target = provider(), compiled.target
    if names := fusion.product_classes(compiled.plan, sizes, library):
        speed: Any = fork_safe_import("smelt.tune.library_speed")
        speed.start_background(partial(compile, target=target), target, library, names)


def donated_inputs(planned: Graph, graph: Graph, donate: Donate) -> Donated:
    """Return the donated inputs of `graph`, each with the planned result for it."""
    pairs = (d if isinstance(d, tuple) else (d, None) for d in donate)
    return {graph.inputs[k]: None if j is None else planned.outputs[j] for k, j in pairs}


def _compile_part(graph: Graph, sizes: Mapping[str, int], target: Target) -> Compiled:
    """Compile a part of a prelude, which has no prelude itself."""
    with knobs.config(constants=0):
        return compile(graph, hints=sizes, target=target)


def _lower_all(
    clusters: Sequence[Cluster],
    hints: Sequence[Mapping[str, int]],
    journal: Journal,
    tiling: Tiling,
) -> tuple[list[Kernel | None], list[RenamedKernel | None]]:
    """Lower each cluster; return kernels and canonical forms.

    Isomorphic clusters are lowered once.
    """
    finished = progress.stage("writing kernels", len(clusters))
    lowered_by_key: dict[Hashable, tuple[Cluster, Kernel, RenamedKernel]] = {}
    lowered: list[Kernel | None] = []
    canonical_forms: list[RenamedKernel | None] = []
    for cluster, cluster_hints in zip(clusters, hints, strict=True):
        if cluster.is_extern or cluster.inner_plan is not None:
            lowered.append(None)
            canonical_forms.append(None)
            continue
        is_only = len(clusters) == 1
        key = None if is_only else (lower.cluster_signature(cluster), *cluster_hints.items())
        kernel, canonical_form = _lower_one(
            cluster, journal, cluster_hints, tiling, lowered_by_key.get(key)
        )
        lowered_by_key.setdefault(key, (cluster, kernel, canonical_form))
        lowered.append(kernel)
        canonical_forms.append(canonical_form)
        finished()
    return lowered, canonical_forms


def _lower_one(
    cluster: Cluster,
    journal: Journal,
    hints: Mapping[str, int],
    tiling: Tiling,
    like: tuple[Cluster, Kernel, RenamedKernel] | None,
) -> tuple[Kernel, RenamedKernel]:
    """Lower a cluster, or rename the kernel of an isomorphic one (`like`)."""
    start = perf_counter()
    renamed = None if like is None else lower.reuse_kernel(like[1], like[0], cluster)
    if like is None or renamed is None:
        kernel = lower.run(cluster, knobs.ROUNDING.get(), hints, tiling)
        canonical_form = canonical_kernel(kernel)
    else:
        kernel, new = renamed
        plain, names = like[2]
        canonical_form = plain, {short: new.get(name, name) for short, name in names.items()}
    if knobs.VERIFY.get():
        verify_kernel(kernel)
    operators = tuple(n.op.name for n in cluster.nodes)
    again = tuple(n.op.name for n in cluster.recomputed)
    text = kernel_text(kernel) if journal.full else ""
    journal.record(KernelLowered(cluster.name, text, operators, again, perf_counter() - start))
    return kernel, canonical_form


# ---- machine code ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KernelIdentity:
    """A kernel as canonical form and names; kernels that differ in names share code."""

    kernel: Kernel
    plain: CanonicalKernel
    names: Mapping[str, str]
    """The original name of each name in the canonical kernel."""
    stem: bytes
    """Digest of everything that decides the machine code: canonical text, generator version, LLVM,
    instruction set, cores and caches."""


def identify(
    kernel: Kernel, target: Target, canonical_form: RenamedKernel | None = None
) -> KernelIdentity:
    """Return a kernel's canonical form and the digest under which its code is cached.

    `canonical_form` is the result of `canonical_kernel`, where it is available.
    """
    plain, names = canonical_form or canonical_kernel(kernel)
    parts = (
        plain.text,
        generator_identity(),
        str(ABI_VERSION),
        llvmlite.__version__,
        target.fingerprint(),
        f"{target.gemm_tasks} {target.l1_bytes} {target.l2_bytes}",
        knobs.code_fingerprint(),
    )
    stem = hashlib.sha256("\0".join(parts).encode()).digest()
    return KernelIdentity(kernel, plain, names, stem)


def _identify_all(
    canonical_forms: Sequence[RenamedKernel | None],
    kernels: Sequence[Kernel | None],
    target: Target,
) -> list[KernelIdentity | None]:
    """Return the identities of kernels, merging kernels that differ only in constant offsets.

    Kernels that differ in such numbers alone, as the steps of an unrolled loop do, share one kernel
    with the numbers as size parameters.
    """
    merged_kernels: dict[CanonicalKernel, dict[CanonicalKernel, None]] = {}
    merged: dict[int, RenamedKernel] = {}
    skeleton = {f[0]: erase_numbers(f[0].text) for f in canonical_forms if f is not None}
    skeleton_count = Counter(skeleton.values())
    for at, (kernel, form) in enumerate(zip(kernels, canonical_forms, strict=True)):
        if kernel is None or form is None or skeleton_count[skeleton[form[0]]] < 2:
            continue
        general, numbers = parametrize(kernel)
        if numbers:
            plain, names = canonical_kernel(general)
            merged[at] = plain, {short: str(numbers.get(n, n)) for short, n in names.items()}
            merged_kernels.setdefault(plain, {})[form[0]] = None

    def shared_form(at: int) -> RenamedKernel | None:
        is_shared = at in merged and len(merged_kernels[merged[at][0]]) > 1
        return merged[at] if is_shared else canonical_forms[at]

    return [
        None if k is None else identify(k, target, shared_form(at)) for at, k in enumerate(kernels)
    ]


VariantKey = tuple[CanonicalKernel, tuple[tuple[str, int], ...]]


def _variants_of(
    named: KernelIdentity,
    target: Target,
    sizes: Mapping[str, int],
    varying: set[str],
    variants_by_key: dict[VariantKey, Variants],
) -> Variants:
    """Return a kernel's code variants with their guards, for the sizes of the first call.

    Sizes in `varying` are not specialised on, unless a transpose needs them. Kernels with the same
    canonical form share the result, which is kept in `variants_by_key`.
    """
    plain = named.plain
    at = {short: n for short, name in named.names.items() if (n := sizes.get(name)) is not None}
    general = {short for short in at if named.names[short] in varying}
    general -= transposed_sizes(plain.kernel, at) if general else set()
    at = {short: n for short, n in at.items() if short not in general}
    key = plain, tuple(at.items())
    if key not in variants_by_key:
        variants_by_key[key] = generator_of(target).schedule(plain.kernel, target, at)
    size_names = {short: size_or_number(name) for short, name in named.names.items()}
    return tuple(
        c.map_indices(lambda n: substitute(n, size_names, "size")) for c in variants_by_key[key]
    )


def code_of(
    named: KernelIdentity,
    target: Target,
    journal: Journal,
    variant: Variant,
    *,
    streaming: bool = False,
) -> LoadedKernel:
    """Return the code of a kernel variant; generate it unless it is cached."""
    key = key_of(named.stem, variant, streaming)
    cached = find(key, journal)
    if cached is not None:
        return cached
    start = perf_counter()
    built = generator_of(target).compile_variant(
        named.plain.kernel, target, variant, streaming=streaming
    )
    return _cache_code(key, named, built, perf_counter() - start, target, journal)


def _build_codes(
    uses: Sequence[tuple[KernelIdentity, Variant]], target: Target, journal: Journal
) -> list[LoadedKernel]:
    """Return the code of kernel variants; generate missing ones together, each once.

    The journal records them one by one.
    """
    keys = [key_of(named.stem, variant, streaming=False) for named, variant in uses]
    journals = {key: Journal(full=journal.full) for key in keys}
    cached = {key: find(key, journals[key]) for key in journals}
    new = {key: variant for key, variant in zip(keys, uses, strict=True) if cached[key] is None}
    requests = [(named.plain.kernel, variant) for named, variant in new.values()]
    outputs = generator_of(target).compile(requests, target)
    built = dict(zip(new, outputs, strict=True))
    codes: dict[bytes, LoadedKernel] = {}
    for key, (named, _) in zip(keys, uses, strict=True):
        if key in codes:
            journal.record(CacheHit(key.hex(), "memory"))
            continue
        journal.facts += journals[key].facts
        codes[key] = cached[key] or _cache_code(key, named, *built[key], target, journal)
    return [codes[key] for key in keys]


def _cache_code(
    key: bytes,
    named: KernelIdentity,
    artifact: CompiledKernel,
    seconds: float,
    target: Target,
    journal: Journal,
) -> LoadedKernel:
    """Cache freshly generated code and record it."""
    text = kernel_text(named.kernel) if journal.full else ""
    emitted = KernelEmitted(
        named.kernel.name, text, artifact.ir_size, seconds, target.name, len(artifact.code)
    )
    journal.record(emitted)
    return add(key, artifact, journal)


# ---- assembly ----------------------------------------------------------------------------------


class BuiltKernel(NamedTuple):
    """A kernel's code variant for the first call, and all of its variants."""

    named: KernelIdentity
    variants: Variants
    code: LoadedKernel


def assemble(
    plan: Plan,
    kernels: Mapping[Cluster, BuiltKernel],
    target: Target,
    journal: Journal,
    ahead: PreludeBuilder | None,
    compiler: Compiler,
    graph: Graph | None = None,
) -> tuple[Recipe, Executable]:
    """Assemble the plan's steps over numbered values into a recipe and an executable.

    `kernels` holds the compiled clusters. `graph` is the program, if it may run in NumPy for
    sizes that nothing can be compiled for.
    """

    def use(cluster: Cluster, reads: Sequence[int], numbers: Mapping[Node, int]) -> KernelUse:
        return _use(cluster, kernels[cluster], reads, numbers)

    lowered = {cluster: built.named.kernel for cluster, built in kernels.items()}
    recipe = make_recipe(plan, lowered, use, target.l3_bytes * 3 // 4, ahead)
    by_name = {m.named.kernel.name: m for m in kernels.values()}

    def look_up(use: KernelUse, variant: Variant, streaming: bool) -> LoadedKernel:
        return code_of(by_name[use.name].named, target, journal, variant, streaming=streaming)

    codes = [by_name[use.name].code for use in recipe.kernels]
    return recipe, recipe.executable(codes, look_up, compiler, graph, target)


def _loop(
    cluster: Cluster,
    body: Recipe,
    read: Sequence[int],
    numbers: Mapping[Node, int],
    values: Sequence[Value],
) -> LoopUse:
    """Return the use of a loop whose steps are a plan of their own.

    What is computed once of constants is read as it is stored, which may be in panels.
    """
    assert cluster.loop is not None
    op, places = cluster.loop.op, dict(zip(cluster.inputs, read, strict=True))
    operands = tuple(places[x] for x in cluster.outputs[0].inputs)
    constant = {
        k: values[n].shape
        for k, n in enumerate(operands)
        if k >= op.carries + op.slices and values[n].place == "held"
    }
    step_values = (
        v._replace(shape=constant.get(v.number, v.shape)) if v.place == "input" else v
        for v in body.values
    )
    body = replace(body, values=tuple(step_values))
    shape = LoopShape(
        op.carries, op.slices, op.length, op.reverse, op.results, op.names, op.sizes, op.runs_once
    )
    return LoopUse(
        cluster.name,
        shape,
        cluster.loop.wanted,
        body,
        operands,
        tuple(numbers[n] for n in cluster.outputs),
    )


UseMaker: TypeAlias = Callable[[Cluster, Sequence[int], Mapping[Node, int]], KernelUse]
"""Makes the use of a cluster's kernel from the values it reads and the number of each value."""


def make_recipe(
    plan: Plan,
    kernels: Mapping[Cluster, Kernel],
    make_use: UseMaker,
    stream_above: int = 0,
    ahead: PreludeBuilder | None = None,
) -> Recipe:
    """Return a plan as serialisable data.

    `kernels` are those of its clusters and of the plans within. `ahead` is the prelude; None: there
    is none, or it is a part of another plan.
    """
    inputs = plan.graph.inputs if ahead is None else ahead.caller_inputs
    numbers, values = _number_values(plan, inputs)
    held: dict[Value, int] = {}

    def reads(cluster: Cluster) -> list[int]:
        """Return the numbers of the values that a cluster reads, in order."""
        numbers_read: list[int] = []
        for k, node in enumerate(cluster.inputs):
            param = kernels[cluster].inputs[k].name if cluster in kernels else ""
            value = None if ahead is None else ahead.held_value(cluster.name, param, node)
            if value is not None and value not in held:
                held[value] = len(values)
                values.append(value)
            numbers_read.append(numbers[node] if value is None else held[value])
        return numbers_read

    def step(cluster: Cluster) -> KernelUse | CallUse | ChunkedUse | LoopUse:
        if cluster in kernels:
            return make_use(cluster, reads(cluster), numbers)
        if cluster.loop is not None and cluster.loop.plan is not None:
            body = make_recipe(cluster.loop.plan, kernels, make_use, stream_above)
            return _loop(cluster, body, reads(cluster), numbers, values)
        if cluster.body is None:
            return _call(cluster, reads(cluster), numbers)
        body = make_recipe(cluster.body.plan, kernels, make_use, stream_above)
        return ChunkedUse(
            cluster.name,
            cluster.body.chunks,
            body,
            tuple(reads(cluster)),
            tuple(numbers[n] for n in cluster.outputs),
        )

    steps = tuple(map(step, plan.clusters))
    names = dict.fromkeys(input_size_names(plan.graph))
    if ahead is None:  # a chunk's sizes are passed by the outer plan, not matched from shapes
        names |= dict.fromkeys(all_size_names(plan.graph))
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
        stream_above,
        () if ahead is None else tuple(ahead.parts),
    )


def _number_values(plan: Plan, inputs: Sequence[Node]) -> tuple[dict[Node, int], list[Value]]:
    """Number the values that the caller passes or that kernels write, with their storage."""
    numbers: dict[Node, int] = {}
    values: list[Value] = []

    def add(node: Node, value: Value) -> None:
        if node not in numbers:
            numbers[node] = len(values)
            values.append(value)

    for k, node in enumerate(inputs):
        add(node, Value(node.type.dtype, node.type.shape, "input", k))
    results = [n for n in dict.fromkeys(plan.graph.outputs) if not isinstance(n.op, Input)]
    over = {
        s.node: numbers[s.reuses] for s in plan.slots if s.offset is None and s.reuses is not None
    }
    for k, node in enumerate(results):
        add(
            node,
            Value(node.type.dtype, node.type.shape, "output", k, overwrites=over.get(node, -1)),
        )
    for slot in plan.slots:
        if slot.offset is not None:
            kind, host = slot.node.type, slot.within
            place, number = ("arena", -1) if host is None else ("within", results.index(host))
            add(slot.node, Value(kind.dtype, kind.shape, place, number, slot.offset))
    return numbers, values


def _use(
    cluster: Cluster, built: BuiltKernel, reads: Sequence[int], numbers: Mapping[Node, int]
) -> KernelUse:
    named = built.named
    params = (*named.kernel.inputs, *named.kernel.outputs)
    places = (*reads, *(numbers[n] for n in cluster.outputs))
    values = {p.name: n for p, n in zip(params, places, strict=True)}
    return KernelUse(
        named.kernel.name,
        named.stem,
        built.code.compiled.variant,
        built.variants,
        named.names,
        values,
    )


def _call(cluster: Cluster, reads: Sequence[int], numbers: Mapping[Node, int]) -> CallUse:
    """Return the step for a library call, with the cluster's operators as a graph."""
    if knobs.STRICT.get():
        raise UnsupportedError(f"{cluster.nodes[-1].op.name} runs outside the compiler")
    copies: dict[Node, Node] = {
        node: build_graph.input(f"x{k}", node.type) for k, node in enumerate(cluster.inputs)
    }
    inputs = tuple(copies.values())
    for node in cluster.nodes:
        copies[node] = Node(node.op, tuple(copies[x] for x in node.inputs), node.type, node.origin)
    graph = Graph(cluster.name, inputs, tuple(copies[n] for n in cluster.outputs))
    return CallUse(
        cluster.name,
        graph,
        tuple(reads),
        tuple(numbers[n] for n in cluster.outputs),
    )
