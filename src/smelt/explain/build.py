"""Build the data of a report from a compiled graph.

    data = build(compiled, {"n": 1000})

Nothing is decided here: graph, plan, kernels and journal are read, and symbolic sizes are
evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, Literal, TypeVar

from smelt.backend import Gpu, Machine
from smelt.errors import REASONS
from smelt.explain.compiled import Compiled
from smelt.explain.data import (
    FORMAT,
    VERSION,
    BufferData,
    CompileData,
    ConstantData,
    DecisionData,
    EdgeData,
    KernelData,
    LibraryData,
    MemoryData,
    NodeData,
    NodeKind,
    OrderData,
    PassData,
    RateData,
    ReportData,
    Scalar,
    TargetData,
    TimeData,
    TotalData,
)
from smelt.explain.entries import Entry, entries
from smelt.explain.kernels import kernel_data
from smelt.explain.measure import Times
from smelt.explain.names import Labels, find_unique, place_of
from smelt.explain.unfused import UnfusedTraffic, unfused_traffic
from smelt.fusion.bitsets import Hints
from smelt.fusion.compose import total_kept_bytes
from smelt.fusion.plan import Plan, Slot
from smelt.fusion.text import text as plan_text
from smelt.graph.ir import Node
from smelt.graph.text import operator_text
from smelt.graph.text import text as graph_text
from smelt.journal.facts import (
    LIBRARY_REASONS,
    CacheHit,
    CacheMiss,
    ConstantWeighed,
    Decision,
    Fact,
    Journal,
    KernelEmitted,
    KernelLowered,
    LibraryProduct,
    OrderChosen,
    PassRan,
    Planned,
)
from smelt.ops.create import Constant, Input
from smelt.ops.spec import dims_at
from smelt.packages.version import __version__
from smelt.runtime.code import LoadedKernel
from smelt.runtime.executable import CallStep, Executable, KernelStep
from smelt.runtime.host_stream import HostCall
from smelt.runtime.plan_tables import place_values
from smelt.types.expr import evaluate
from smelt.types.tensor import TensorType, shape_text

Sizes = Mapping[str, int]
T = TypeVar("T", PassData, ConstantData, OrderData, LibraryData)


def build(compiled: Compiled, sizes: Sizes, times: Times | None = None) -> ReportData:
    """Return the report of a compiled graph at given sizes, with measured times if any."""
    graph, plan, journal = compiled.graph, compiled.plan, compiled.journal
    labels = Labels(plan.graph)
    listed = entries(compiled, sizes)
    entries_of = _entries_of_nodes(listed)
    kernels = _kernels(compiled, listed, sizes, labels, times)
    nodes = _nodes(compiled, entries_of, sizes, labels)
    return ReportData(
        format=FORMAT,
        version=VERSION,
        smelt=__version__,
        name=graph.name,
        text=graph_text(plan.graph),
        plan=plan_text(plan),
        sizes=dict(sizes),
        target=_target(compiled.target),
        total=_total(compiled, kernels, nodes, times),
        memory=_memory(compiled, sizes, kernels),
        passes=tuple(_of_fact(PassData, f) for f in journal.of(PassRan)),
        nodes=nodes,
        edges=_edges(listed, entries_of, sizes, labels),
        inputs=tuple(labels.number[n] for n in plan.graph.inputs),
        outputs=tuple(labels.number[n] for n in plan.graph.results),
        kernels=kernels,
        launches=plan.launches,
        buffers=_buffers(plan, sizes, labels),
        decisions=tuple(
            _decision(k, fact, nodes) for k, fact in enumerate(decisions_of(plan, journal))
        ),
        constants=tuple(
            _of_fact(ConstantData, f, nbytes=f.bytes, room=f.room_bytes)
            for f in journal.of(ConstantWeighed)
        ),
        orders=tuple(_of_fact(OrderData, f) for f in journal.of(OrderChosen)),
        libraries=tuple(
            _of_fact(LibraryData, f, reason=LIBRARY_REASONS[f.reason])
            for f in journal.of(LibraryProduct)
        ),
        checks=tuple(labels.number[n] for n in plan.graph.check_outputs),
    )


def _of_fact(kind: type[T], fact: Fact, **others: Any) -> T:
    """Return data with the fields of a fact under their own names, and with others."""
    names = (f.name for f in fields(kind) if f.name not in others)
    return kind(**{name: getattr(fact, name) for name in names}, **others)


def decisions_of(plan: Plan, journal: Journal) -> Sequence[Decision]:
    """Return the plan's decisions, or those of the journal if the plan has none."""
    return plan.decisions or tuple(journal.of(Decision))


# ---- the graph ---------------------------------------------------------------------------------


def _nbytes(tensor: TensorType, sizes: Sizes) -> int:
    return int(evaluate(tensor.nbytes, sizes))


def _entries_of_nodes(listed: Sequence[Entry]) -> dict[Node, tuple[int, ...]]:
    """Return the entries that compute each node; for a chunked part, those of a chunk."""
    result: dict[Node, tuple[int, ...]] = {}
    in_chunks = {n for entry in listed if entry.within is not None for n in entry.cluster.nodes}
    for entry in listed:
        for node in entry.cluster.nodes:
            if entry.cluster.body is None or node not in in_chunks:
                result[node] = (*result.get(node, ()), entry.number)
    return result


def _library_nodes(compiled: Compiled) -> set[Node]:
    """Return the nodes that library calls compute."""
    pairs = zip(compiled.plan.all_clusters, compiled.kernels, strict=True)
    return {
        n
        for cluster, kernel in pairs
        if kernel is None and cluster.inner_plan is None
        for n in cluster.nodes
    }


def _kind(node: Node, called: set[Node], checks: bool) -> NodeKind:
    if isinstance(node.op, Input):
        return "input"
    if isinstance(node.op, Constant):
        return "constant"
    if node.op.is_source:
        return "source"
    if node.op.is_view:
        return "view"
    if checks:
        return "check"
    return "call" if node in called or not node.op.fusible else "operator"


def _nodes(
    compiled: Compiled, entries_of: Mapping[Node, tuple[int, ...]], sizes: Sizes, labels: Labels
) -> tuple[NodeData, ...]:
    plan, called = compiled.plan, _library_nodes(compiled)
    outputs, checks = set(plan.graph.results), {*plan.checks}
    rows: list[NodeData] = []
    for number, node in enumerate(labels.nodes):
        name, attributes = (
            operator_text(node) if not _is_input_or_constant(node) else (node.op.name, "")
        )
        rows.append(
            NodeData(
                id=number,
                name=labels.name[node],
                label=labels.label[node],
                op=name,
                attributes=attributes.strip(),
                kind=_kind(node, called, checks.issuperset(entries_of.get(node, (-1,)))),
                dtype=node.type.dtype.name,
                shape=shape_text(node.type.shape),
                dims=dims_at(node.type.shape, sizes),
                nbytes=_nbytes(node.type, sizes),
                inputs=tuple(labels.number[x] for x in node.inputs),
                output=node in outputs,
                kernels=entries_of.get(node, ()),
                place=place_of(node.origin),
                words=labels.words[node],
            )
        )
    return tuple(rows)


def _is_input_or_constant(node: Node) -> bool:
    return isinstance(node.op, Input | Constant)


def _edges(
    listed: Sequence[Entry],
    entries_of: Mapping[Node, tuple[int, ...]],
    sizes: Sizes,
    labels: Labels,
) -> tuple[EdgeData, ...]:
    """Return each use of a value; virtual if all its reading kernels compute it."""
    clusters = [e.cluster for e in listed]
    rows: list[EdgeData] = []
    for node in labels.nodes:
        for x in dict.fromkeys(node.inputs):
            inside = all(x not in clusters[k].inputs for k in entries_of.get(node, ()))
            virtual = inside and not isinstance(x.op, Input)
            rows.append(
                EdgeData(
                    producer=labels.number[x],
                    reader=labels.number[node],
                    kind="virtual" if virtual else "memory",
                    nbytes=_nbytes(x.type, sizes),
                )
            )
    return tuple(rows)


# ---- kernels -----------------------------------------------------------------------------------


def _kernels(
    compiled: Compiled, listed: Sequence[Entry], sizes: Sizes, labels: Labels, times: Times | None
) -> tuple[KernelData, ...]:
    plan = compiled.plan
    separate = unfused_traffic(plan, compiled.target, sizes)
    separate += [UnfusedTraffic()] * (len(listed) - len(separate))
    notes = _compile_data(compiled)
    measured, checks = _measured(plan, times), plan.checks
    return tuple(
        kernel_data(
            e,
            compiled.target,
            labels,
            separate[e.number],
            notes[e.number],
            measured.get(e.number),
            check=e.number in checks,
        )
        for e in listed
    )


def _measured(plan: Plan, times: Times | None) -> dict[int, TimeData]:
    """Return measured times by cluster; steps run in the order of the launches."""
    order = [k for group in plan.launches for k in group]
    return dict(zip(order, times.steps, strict=True)) if times is not None else {}


def _compile_data(compiled: Compiled) -> list[CompileData]:
    """Return how each kernel was compiled.

    All kernels are lowered first, then looked up or generated in the same order, which is how
    journal facts are matched with kernels.
    """
    facts = compiled.journal.facts
    lowered = {f.name: f.seconds for f in facts if isinstance(f, KernelLowered)}
    start = max((k for k, f in enumerate(facts) if isinstance(f, KernelLowered)), default=-1)
    events = [(k, f) for k, f in enumerate(facts) if k > start and isinstance(f, _LOOKUPS)]
    lookups = iter(events)
    codes = {} if compiled.executable is None else codes_of(compiled.executable)
    rows: list[CompileData] = []
    for cluster, kernel in zip(compiled.plan.all_clusters, compiled.kernels, strict=True):
        place, fact = (None, None) if kernel is None else next(lookups, (None, None))
        emitted = _emitted(facts, place)
        rows.append(
            CompileData(
                cache=_cache_state(fact),
                reason=fact.reason if isinstance(fact, CacheMiss) else "",
                lower_seconds=lowered.get(cluster.name),
                emit_seconds=emitted.seconds if emitted is not None else None,
                load_seconds=fact.seconds if isinstance(fact, CacheHit) else None,
                ir_size=codes[cluster.name].compiled.ir_size if cluster.name in codes else None,
                code_bytes=codes[cluster.name].nbytes if cluster.name in codes else 0,
            )
        )
    return rows


_LOOKUPS = (CacheHit, CacheMiss)


def _emitted(facts: Sequence[Fact], place: int | None) -> KernelEmitted | None:
    """Return the fact of code generation that follows a cache miss."""
    if place is None or not isinstance(facts[place], CacheMiss):
        return None
    following = islice(facts, place + 1, None)
    return next((f for f in following if isinstance(f, KernelEmitted)), None)


def _cache_state(fact: Fact | None) -> Any:
    if isinstance(fact, CacheHit):
        return "hit-memory" if fact.place == "memory" else "hit-disk"
    return "none" if fact is None else "miss"


def codes_of(executable: Executable) -> dict[str, LoadedKernel]:
    """Return the machine code of each step, by name, including steps inside chunked parts."""
    return {
        name: s.loaded
        for name, s in steps_of(executable).items()
        if isinstance(s.loaded, LoadedKernel)
    }


def steps_of(executable: Executable) -> dict[str, KernelStep]:
    """Return the steps that run kernels, by name, including steps inside chunked parts."""
    steps: dict[str, KernelStep] = {}
    for s in (s for group in executable.launches for s in group):
        if isinstance(s, KernelStep):
            steps[s.name] = s
        elif isinstance(s, CallStep) and isinstance(s.call, HostCall):
            steps |= steps_of(s.call.body)
    return steps


# ---- totals ------------------------------------------------------------------------------------


def _total(
    compiled: Compiled,
    kernels: Sequence[KernelData],
    nodes: Sequence[NodeData],
    times: Times | None,
) -> TotalData:
    counted = [k for k in kernels if k.within is None]
    outer = [k for k in counted if k.kind != "check"]
    predicted = [k.predicted_ns for k in counted]
    seconds = [
        s
        for k in kernels
        for s in (k.compile.lower_seconds, k.compile.emit_seconds, k.compile.load_seconds)
        if s is not None
    ]
    seconds += [f.seconds for f in compiled.journal.of(PassRan)]
    seconds += [f.seconds for f in compiled.journal.of(Planned)]
    return TotalData(
        operators=sum(n.kind in ("operator", "call") for n in nodes),
        kernels=sum(k.kind == "kernel" for k in kernels),
        calls=sum(k.kind == "call" for k in kernels),
        bytes=sum(k.bytes for k in outer),
        bytes_unfused=sum(k.bytes_unfused for k in outer),
        exact=all(k.exact for k in outer),
        transfers=sum(k.transfers for k in outer),
        transfers_unfused=sum(k.transfers_unfused for k in outer),
        flops=sum(k.flops for k in outer),
        transcendentals=sum(k.transcendentals for k in outer),
        floor_ns=sum(k.floor_ns for k in counted),
        predicted_ns=_sum(predicted),
        measured=times.call if times is not None else None,
        compile_seconds=sum(seconds) if seconds else None,
    )


def _sum(numbers: Sequence[float | None]) -> float | None:
    numbers_known = [n for n in numbers if n is not None]
    return sum(numbers_known) if len(numbers_known) == len(numbers) else None


def _target(machine: Machine) -> TargetData:
    return TargetData(
        name=machine.name,
        isa=machine.architecture,
        vector_bytes=machine.vector_bytes,
        cores=machine.threads,
        measured=machine.measured,
        rates=tuple(
            RateData(
                level=level,
                nbytes=machine.level_bytes(level),
                read=machine.bandwidth(level, "read"),
                write=machine.bandwidth(level, "write"),
                copy=machine.bandwidth(level, "copy"),
            )
            for level in machine.levels
        ),
        gflops=machine.peak_gflops,
        dispatch_ns=machine.dispatch_ns,
        launch_ns=machine.launch_ns,
    )


def _buffers(plan: Plan, sizes: Sizes, labels: Labels) -> tuple[BufferData, ...]:
    end = max(len(plan.clusters) - 1, 0)
    last = {x: k for k, c in enumerate(plan.clusters) for x in c.inputs}
    rows = [
        BufferData(
            node=labels.number[n],
            place="input",
            nbytes=_nbytes(n.type, sizes),
            offset=None,
            first=0,
            last=last.get(n, 0),
            reuses=None,
        )
        for n in plan.graph.inputs
    ]
    for slot in plan.slots:
        arena = slot.offset is not None
        rows.append(
            BufferData(
                node=labels.number[slot.node],
                place=_place(slot),
                nbytes=int(evaluate(slot.nbytes, sizes)),
                offset=int(evaluate(slot.offset, sizes)) if slot.offset is not None else None,
                first=slot.first,
                last=slot.last if arena else end,
                reuses=labels.number[slot.reuses] if slot.reuses is not None else None,
                within=labels.number[slot.within] if slot.within is not None else None,
            )
        )
    return tuple(rows)


def _place(slot: Slot) -> Literal["output", "arena", "within"]:
    if slot.offset is None:
        return "output"
    return "arena" if slot.within is None else "within"


def _memory(compiled: Compiled, sizes: Sizes, kernels: Sequence[KernelData]) -> MemoryData:
    """Return the bytes of a call: those of the executable, or those that the plan needs.

    A GPU's intermediates include copies of arguments with strides, which its programs do not read.
    """
    if compiled.executable is not None:
        return memory_of(compiled.executable, sizes, kernels)
    plan = compiled.plan
    inputs, outputs = set(plan.graph.inputs), dict.fromkeys(plan.graph.results)
    strided = [n for n in inputs if isinstance(n.op, Input) and n.op.strides is not None]
    copied = strided if isinstance(compiled.target, Gpu) else ()
    return MemoryData(
        argument=sum(_nbytes(n.type, sizes) for n in plan.graph.inputs),
        output=sum(_nbytes(n.type, sizes) for n in outputs),
        alias=sum(_nbytes(n.type, sizes) for n in outputs if n in inputs),
        temp=total_kept_bytes(plan, Hints(sizes)) + sum(_nbytes(n.type, sizes) for n in copied),
        code=0,
        computed=0,
        packed=0,
    )


def memory_of(executable: Executable, sizes: Sizes, kernels: Sequence[KernelData]) -> MemoryData:
    """Return the bytes of a call: inputs, results, aliases, intermediates, code, constants."""

    def nbytes(number: int) -> int:
        value = executable.values[number]
        return _nbytes(TensorType(value.dtype, value.shape), sizes)

    inputs = [n for n, v in enumerate(executable.values) if v.place == "input"]
    parts = executable.prelude.parts if executable.prelude is not None else ()
    outputs = list(dict.fromkeys(executable.outputs))
    return MemoryData(
        argument=sum(nbytes(n) for n in inputs),
        output=sum(nbytes(n) for n in outputs),
        alias=sum(
            nbytes(n)
            for n in outputs
            if executable.values[n].place == "input" or executable.values[n].overwrites >= 0
        ),
        temp=_temp(executable, sizes),
        code=sum(k.compile.code_bytes for k in kernels),
        computed=sum(p.nbytes for p in parts if not p.packed),
        packed=sum(p.nbytes for p in parts if p.packed),
    )


def _temp(executable: Executable, sizes: Sizes) -> int:
    """Return the bytes of intermediates: arena, partial results, and the largest part's."""
    own_bytes = place_values(executable.values, executable.launches, executable.arena, sizes).nbytes
    part_bytes = (
        s.call.prepare(sizes)
        for group in executable.launches
        for s in group
        if isinstance(s, CallStep) and isinstance(s.call, HostCall)
    )
    return own_bytes + max(part_bytes, default=0)


# ---- decisions ---------------------------------------------------------------------------------


def _decision(number: int, fact: Decision, nodes: Sequence[NodeData]) -> DecisionData:
    row = REASONS.get(fact.reason)
    a_place, b_place = place_of(fact.a_origin), place_of(fact.origin)
    a, b = find_unique(nodes, fact.a, a_place), find_unique(nodes, fact.b, b_place)
    return DecisionData(
        id=number,
        a=fact.a,
        b=fact.b,
        a_label=nodes[a].label if a is not None else fact.a,
        b_label=nodes[b].label if b is not None else fact.b,
        a_node=a,
        b_node=b,
        verdict=fact.verdict,
        code=row.code if row is not None else "",
        reason=fact.reason,
        sentence=row.explain(**_sentence_fields(fact, nodes)) if row is not None else fact.reason,
        override=row.override if row is not None else "",
        saves_bytes=int(fact.saves_bytes),
        saves_ns=float(fact.saves_ns),
        costs_bytes=int(fact.costs_bytes),
        costs_ns=float(fact.costs_ns),
        fused_ns=fact.fused_ns,
        split_ns=fact.split_ns,
        a_place=a_place or (nodes[a].place if a is not None else None),
        b_place=b_place or (nodes[b].place if b is not None else None),
        terms={str(k): float(v) for k, v in fact.details.get("terms", {}).items()},
        details={str(k): _scalar(v) for k, v in fact.details.items() if k != "terms"},
    )


def _sentence_fields(fact: Decision, nodes: Sequence[NodeData]) -> dict[str, Any]:
    """Return the fields of the reason's sentence, with values named by their labels."""
    label_of = {n.name: n.label for n in nodes}
    return {k: label_of.get(v, v) if isinstance(v, str) else v for k, v in fact.details.items()}


def _scalar(value: Any) -> Scalar:
    if hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
