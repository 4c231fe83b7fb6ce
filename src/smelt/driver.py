"""The compiler on one page: a graph in, something that runs out.

    compiled = compile(graph, hints={"n": 1000})
    compiled.run([x], (1000,))

Each stage exports one verb; what they did and why is in the journal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any, Literal

import llvmlite
import numpy as np

from smelt import fusion, knobs, lower, passes
from smelt.codegen.build import Built, Form, build, form_for, forms, generator
from smelt.errors import UnsupportedError
from smelt.fusion.plan import Cluster, Plan
from smelt.graph.ir import Graph, Node
from smelt.journal import (
    CacheHit,
    CacheMiss,
    CacheStored,
    Journal,
    KernelEmitted,
    KernelLowered,
)  # fmt: skip
from smelt.kernel.abi import ABI_VERSION
from smelt.kernel.canonical import canonical
from smelt.kernel.ir import Kernel
from smelt.kernel.text_print import text as kernel_text
from smelt.kernel.verify import verify as verify_kernel
from smelt.ops.create import Input
from smelt.runtime import probe
from smelt.runtime.cache import Cache
from smelt.runtime.executable import CallStep, Executable, KernelStep, Native, Step, Value
from smelt.runtime.loader import Loaded, load
from smelt.target import Target
from smelt.types.expr import add as add_index
from smelt.types.expr import size, sizes_of

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
    size_names: tuple[str, ...]

    def run(
        self,
        arrays: Sequence[Array],
        sizes: tuple[int, ...],
        out: Sequence[Array | None] | None = None,
    ) -> list[Array]:
        """See `smelt.runtime.executable.Executable.run`."""
        return self.executable.run(arrays, sizes, out)


def compile(  # noqa: A001 - the field's word, as re.compile
    graph: Graph,
    *,
    hints: Mapping[str, int] | None = None,
    donate: tuple[int, ...] = (),
    journal: Journal | None = None,
    target: Target | None = None,
) -> Compiled:
    """Graph to executable.  `hints` are sizes of the first call, which cost estimates use; the
    result is right for all sizes that the graph's facts allow.  Inputs in `donate` are the caller's
    gift: results may take their memory."""
    journal = Journal() if journal is None else journal
    target = host() if target is None else target
    named = dict.fromkeys(size_names(graph), 64) | dict(hints or {})
    graph = passes.run(graph, journal, knobs.ROUNDING.get())
    given = tuple(graph.inputs[k] for k in donate)
    plan = fusion.plan(graph, target, journal, named, fuse=knobs.FUSE.get(), donated=given)
    kernels = tuple(_lowered(c, journal, named) for c in plan.clusters)
    built = [None if k is None
             else _built(k, target, journal, form=form_for(forms(k, target), named))
             for k in kernels]  # fmt: skip
    executable = assemble(plan, kernels, built, target, journal)
    return Compiled(graph, plan, kernels, target, journal, executable, size_names(graph))


@lru_cache(maxsize=8)
def _host(choice: Literal["auto", "avx512", "avx2", "portable"]) -> Target:
    if choice != "auto":
        return Target.for_isa(choice)
    found = probe.host_target()
    if found.measured or knobs.PROBE.get() == "off":
        return found
    if knobs.PROBE.get() == "now":
        found = probe.measure(found)
        probe.store(found)
    else:
        probe.start_background(done=lambda _: _host.cache_clear())
    return found


def host() -> Target:
    """This machine, or what the knob TARGET asks for.

    The cost model's figures are measured once and stored; until then, sane ones are assumed.
    """
    return _host(knobs.TARGET.get())


def size_names(graph: Graph) -> tuple[str, ...]:
    """The size symbols of a graph, in order of first appearance in the inputs' shapes."""
    dims = [d for x in graph.inputs for d in x.type.shape]
    return tuple(dict.fromkeys(name for d in dims for name in sizes_of(d)))


def _lowered(cluster: Cluster, journal: Journal, hints: Mapping[str, int]) -> Kernel | None:
    if is_call(cluster):
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


def is_call(cluster: Cluster) -> bool:
    """Whether a cluster is one call of a library."""
    return cluster.is_extern


# ---- machine code ------------------------------------------------------------------------------

_LOADED: dict[bytes, tuple[Built, Loaded]] = {}


def _key(kernel: Kernel, target: Target, streaming: bool, form: Form) -> bytes:
    """What decides a kernel's machine code: its text, the generator, LLVM and the processor."""
    parts = (
        kernel_text(kernel), generator(), str(ABI_VERSION), llvmlite.__version__,
        target.fingerprint(), knobs.fingerprint(), streaming, form,
    )  # fmt: skip
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()


def _built(
    kernel: Kernel, target: Target, journal: Journal, *, streaming: bool = False, form: Form = ""
) -> tuple[Built, Loaded]:
    """A kernel's code; kernels that differ in names alone share it."""
    plain, names = canonical(kernel)
    key = _key(plain, target, streaming, form)
    known = _LOADED.get(key)
    if known is not None:
        journal.record(CacheHit(key.hex(), "memory"))
        return known[0].renamed(names), known[1]
    start = perf_counter()
    cache = Cache.default() if knobs.CACHE.get() else None
    entry = None if cache is None else cache.get(key)
    if entry is not None:
        made = Built.read(entry.meta, entry.code)
        journal.record(CacheHit(key.hex(), "disk", perf_counter() - start))
    else:
        journal.record(CacheMiss(key.hex(), "no entry"))
        made = build(plain, target, knobs.OPT_LEVEL.get(), streaming=streaming, form=form)
        emitted = KernelEmitted(
            kernel.name, kernel_text(kernel), made.ir_size, perf_counter() - start, target.name,
            len(made.code),
        )  # fmt: skip
        journal.record(emitted)
        if cache is not None:
            cache.put(key, made.facts(), made.code)
            journal.record(CacheStored(key.hex(), len(made.code)))
    found = (made, load(made.code, [f.symbol for f in made.functions]))
    made, loaded = _LOADED.setdefault(key, found)
    return made.renamed(names), loaded


# ---- assembly ----------------------------------------------------------------------------------


def assemble(
    plan: Plan, kernels: Sequence[Kernel | None],
    built: Sequence[tuple[Built, Loaded] | None], target: Target, journal: Journal,
) -> Executable:  # fmt: skip
    """The plan's steps over numbered values."""
    numbers: dict[Node, int] = {}
    values: list[Value] = []

    def add(node: Node, value: Value) -> None:
        if node not in numbers:
            numbers[node] = len(values)
            values.append(value)

    for k, node in enumerate(plan.graph.inputs):
        add(node, Value(node.type.dtype, node.type.shape, "input", k))
    results = [n for n in dict.fromkeys(plan.graph.outputs) if not isinstance(n.op, Input)]
    over = {s.node: numbers[s.reuses] for s in plan.slots
            if s.offset is None and s.reuses is not None}  # fmt: skip
    for k, node in enumerate(results):
        add(node, Value(node.type.dtype, node.type.shape, "output", k, over=over.get(node, -1)))
    for slot in plan.slots:
        if slot.offset is not None:
            add(
                slot.node,
                Value(slot.node.type.dtype, slot.node.type.shape, "arena", -1, slot.offset),
            )
    steps: list[Step] = [
        _call_step(cluster, numbers) if kernel is None or code is None
        else _kernel_step(cluster, kernel, code, numbers, target, journal)
        for cluster, kernel, code in zip(plan.clusters, kernels, built, strict=True)
    ]  # fmt: skip
    launches = [[steps[k] for k in group] for group in plan.launches]
    outputs = [numbers[n] for n in plan.graph.outputs]
    ends = tuple(add_index(s.offset, s.nbytes) for s in plan.slots if s.offset is not None)
    return Executable(size_names(plan.graph), values, launches, ends, outputs)


def _kernel_step(
    cluster: Cluster, kernel: Kernel, code: tuple[Built, Loaded], numbers: dict[Node, int],
    target: Target, journal: Journal,
) -> KernelStep:  # fmt: skip
    made, loaded = code
    params = (*kernel.inputs, *kernel.outputs)
    nodes = (*cluster.inputs, *cluster.outputs)
    value_of = {p.name: numbers[n] for p, n in zip(params, nodes, strict=True)}
    partials = {name: k for k, (name, _) in enumerate(made.partials)}
    strides = {name: (value_of[p], d) for name, p, d in made.strides}
    words: list[tuple[str, Any]] = [
        ("partial", partials[b]) if b in partials else ("value", value_of[b]) for b in made.buffers
    ]
    words += [("stride", strides[s]) if s in strides else ("size", size(s)) for s in made.sizes]

    known = forms(kernel, target)

    def variant(sizes: Mapping[str, int], streaming: bool) -> KernelStep | None:
        form = form_for(known, sizes)
        if form == made.form and not streaming:
            return None
        code = _built(kernel, target, journal, streaming=streaming, form=form)
        return _kernel_step(cluster, kernel, code, numbers, target, journal)

    return KernelStep(
        cluster.name, _entries(made, loaded), tuple(words), tuple(n for _, n in made.partials),
        loaded, variant, target.l3_bytes * 3 // 4,
    )  # fmt: skip


def _entries(made: Built, loaded: Loaded) -> tuple[Native, ...]:
    """The functions of a kernel."""
    return tuple(
        Native(loaded.address(f.symbol), f.tasks, f.scratch, f.cycles) for f in made.functions
    )


def _call_step(cluster: Cluster, numbers: dict[Node, int]) -> CallStep:
    """The operators of a cluster by their references, the last one into its place."""

    def call(sizes: Mapping[str, int], inputs: list[Array], outputs: list[Array]) -> None:
        known: dict[Node, Array] = dict(zip(cluster.inputs, inputs, strict=True))
        with np.errstate(all="ignore"):  # as in compiled code: no warnings of arithmetic
            for node in cluster.nodes:
                known[node] = node.op.reference(sizes, *(known[x] for x in node.inputs))
        for node, place in zip(cluster.outputs, outputs, strict=True):
            place[...] = known[node]

    if knobs.STRICT.get() and cluster.is_extern:
        raise UnsupportedError(f"{cluster.nodes[-1].op.name} runs outside the compiler")
    return CallStep(cluster.name, call, tuple(numbers[n] for n in cluster.inputs),
                    tuple(numbers[n] for n in cluster.outputs))  # fmt: skip
