"""Prepacked operands and constant subexpressions that a plan computes once, before its calls.

    budget = constant_budget(graph, plan, hints, None)          # bytes that may be kept
    prelude = PreludeBuilder(graph, constants, budget)
    kernels = prelude.pack_operands(plan, kernels, ..)          # read constants in packed panels
    prelude.held_value(cluster.name, param, node)               # the value behind a parameter
    prelude.parts                                               # computations of these values

Kept values take memory between calls, in addition to the constants themselves. The budget is the
memory that fusion saves in a call, so that a program never holds more than unfused execution would.
Candidates are kept in order of gain per byte. The memory of eager PyTorch comes from a trace, which
may differ from an untraced run (libraries check whether they are traced); prepacking therefore gets
only half of the budget there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import NamedTuple

from smelt import knobs
from smelt.codegen.build import panels
from smelt.errors import VerifyError
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.operand_cost import prepacked_ns
from smelt.fusion.plan import Plan
from smelt.fusion.predict import plan_peak_bytes, unfused_peak_bytes
from smelt.graph.ir import Graph, Node
from smelt.journal.facts import ConstantWeighed, Journal
from smelt.kernel.canonical import CanonicalKernel
from smelt.kernel.ir import Kernel
from smelt.kernel.packed_weights import Panel, packed_shape, read_panels
from smelt.machine.target import Target
from smelt.ops.create import Input
from smelt.passes.constant_subgraph import Split, pack_panels
from smelt.python.dataclass import dataclass
from smelt.runtime.executable import Value
from smelt.runtime.prelude import Allowance, Part, Step
from smelt.types.expr import Index
from smelt.types.tensor import shape_text


@dataclass(frozen=True, slots=True)
class _KeptValue:
    """A value to keep: an input of the remaining graph, plain or packed."""

    node: Node
    panel: Panel | None = None


@dataclass(slots=True)
class _Candidate:
    """A packed operand: its bytes, the time that it saves per call, and its readers."""

    nbytes: int
    saves_ns: float = 0.0
    readers: list[tuple[int, Panel]] = field(default_factory=list[tuple[int, Panel]])
    """The readers: cluster number, and the panel with the kernel's parameter."""


class ConstantBudget(NamedTuple):
    """Bytes of constants that a plan may keep: in all (`total_bytes`), and with prepacking
    (`with_packing_bytes`)."""

    total_bytes: int
    with_packing_bytes: int


def constant_budget(
    graph: Graph, plan: Plan, hints: Mapping[str, int], allowance: Allowance | None
) -> ConstantBudget:
    """Return the budget for kept constants of a plan of `graph`.

    What the plan holds less than unfused execution at these sizes (or than `allowance`), plus the
    bytes that the settings add.
    """
    limit, extra = knobs.CONSTANTS.get(), knobs.CONSTANTS_EXTRA.get()
    if extra is None:
        return ConstantBudget(limit, limit)
    unfused_bytes = unfused_peak_bytes(graph, hints) if allowance is None else allowance.nbytes
    saved = max(unfused_bytes - plan_peak_bytes(plan, hints), 0)
    if allowance is not None:
        saved = min(saved, allowance.constant_bytes)
    packed = saved if allowance is None else saved // 2
    return ConstantBudget(min(saved + extra, limit), min(packed + extra, limit))


def values_over_budget(constants: Split, room: int) -> tuple[Node, ...]:
    """Return the constant values that exceed the budget, those of least gain per byte."""
    ranked = sorted(
        zip(constants.hoisted, constants.work, strict=True),
        key=lambda pair: -pair[1] / max(_nbytes(pair[0]), 1),
    )
    refused: list[Node] = []
    for node, _ in ranked:
        if _nbytes(node) > room:
            refused.append(node)
        else:
            room -= _nbytes(node)
    return tuple(refused)


class PreludeBuilder:
    """Collects what a plan's prelude computes: constant subexpressions and packed operands."""

    def __init__(self, graph: Graph, constants: Split, room: ConstantBudget) -> None:
        self.caller_inputs = graph.inputs
        """The inputs that the caller passes."""
        self._input_numbers = {x: k for k, x in enumerate(graph.inputs)}
        self._budget, self._packing_reserve = (
            room.total_bytes,
            room.total_bytes - room.with_packing_bytes,
        )
        added = constants.graph.inputs[len(graph.inputs) :]
        self._computed = dict(zip(added, constants.parts, strict=True))
        self._work = dict(zip(added, constants.work, strict=True))
        self._packed: dict[tuple[str, str | Node], _KeptValue] = {}
        """The packed value that a kernel reads, by (cluster, parameter), or a loop, by operand."""
        self._part_numbers: dict[_KeptValue, int] = {}
        self.parts: list[Part] = []
        """The computations of all values requested by `held_value`."""

    def pack_operands(
        self,
        plan: Plan,
        kernels: Sequence[Kernel | None],
        canonical_forms: Sequence[tuple[CanonicalKernel, Mapping[str, str]] | None],
        target: Target,
        hints: Sequence[Mapping[str, int]],
        journal: Journal,
    ) -> tuple[Kernel | None, ...]:
        """Return the kernels that read packed operands, for constants within the budget.

        `canonical_forms` holds the result of `canonical`, and `hints` the likely sizes, for each
        kernel. Steps of loops read what is packed before the loop.
        """
        owners = _owners(plan)
        for node, work in self._work.items():
            self._note(node, "computed", _nbytes(node), _work_ns(work, node, target), journal)
        result = list(kernels)
        self._budget = max(self._budget - self._packing_reserve, 0)
        candidates = self._candidates(plan, kernels, canonical_forms, target, hints)
        ranked = sorted(
            candidates, key=lambda w: -candidates[w].saves_ns / max(candidates[w].nbytes, 1)
        )
        for value in ranked:
            candidate, node = candidates[value], value.node
            readers = {owners[k] for k, _ in candidate.readers}
            only_reader = readers == {x.name for x in plan.clusters if node in x.inputs}
            freed_bytes = _nbytes(node) if node in self._computed and only_reader else 0
            self._budget += freed_bytes  # the unpacked value has no other reader
            if not self._note(node, "packed", candidate.nbytes, candidate.saves_ns, journal):
                self._budget -= freed_bytes
                continue
            for k, panel in candidate.readers:
                kernel = result[k]
                assert kernel is not None
                in_step = k >= len(plan.clusters)
                operand = node if in_step else panel.param
                self._packed[owners[k], operand] = value
                result[k] = read_panels(kernel, panel)
        return tuple(result)

    def _note(self, node: Node, what: str, nbytes: int, saves_ns: float, journal: Journal) -> bool:
        """Record the decision to keep a value; charge its bytes if they fit the budget."""
        assert isinstance(node.op, Input)
        fits = nbytes <= self._budget
        journal.record(ConstantWeighed(node.op.label, what, nbytes, saves_ns, fits, self._budget))
        if fits:
            self._budget -= nbytes
        return fits

    def _candidates(
        self,
        plan: Plan,
        kernels: Sequence[Kernel | None],
        canonical_forms: Sequence[tuple[CanonicalKernel, Mapping[str, str]] | None],
        target: Target,
        hints: Sequence[Mapping[str, int]],
    ) -> dict[_KeptValue, _Candidate]:
        """Return the constant operands for which products prefer packed panels."""
        candidates: dict[_KeptValue, _Candidate] = {}
        panels_of: dict[
            tuple[CanonicalKernel, frozenset[str]], tuple[tuple[Panel, Index], ...]
        ] = {}
        constants = _constant_operands(plan)
        for k, (cluster, kernel, canonical_form) in enumerate(
            zip(plan.all_clusters, kernels, canonical_forms, strict=True)
        ):
            if kernel is None or canonical_form is None:
                continue
            plain, names = canonical_form
            params = [p.name for p in plain.kernel.inputs]
            constant_params = {
                p: n for n, p in enumerate(params) if cluster.inputs[n] in constants[k]
            }
            key = plain, frozenset(constant_params)
            if key not in panels_of:
                panels_of[key] = panels(plain.kernel, target, key[1])
            sizes = Hints({a: hints[k][b] for a, b in names.items() if b in hints[k]})
            for panel, rows in panels_of[key]:
                n = constant_params[panel.param]
                value = _KeptValue(constants[k][cluster.inputs[n]], replace(panel, param=""))
                nbytes = prod(_shape(value)) * value.node.type.dtype.itemsize
                candidate = candidates.setdefault(value, _Candidate(nbytes))
                candidate.saves_ns += prepacked_ns(target, nbytes, at_hints(rows, sizes))
                candidate.readers.append((k, replace(panel, param=kernel.inputs[n].name)))
        return candidates

    def held_value(self, cluster: str, param: str, node: Node) -> Value | None:
        """Return the prelude's value for a kernel's parameter; None if it reads the input."""
        value = self._packed.get((cluster, param or node))
        if value is None:
            if node not in self._computed:
                return None
            value = _KeptValue(node)
        if value not in self._part_numbers:
            self._part_numbers[value] = len(self.parts)
            self.parts.append(self._part(value))
        return Value(node.type.dtype, _shape(value), "held", self._part_numbers[value])

    def _part(self, value: _KeptValue) -> Part:
        node, panel = value.node, value.panel
        assert isinstance(node.op, Input)
        computed = self._computed.get(node)
        steps = [] if computed is None else [Step(computed, {})]
        if panel is not None:
            packing = pack_panels(
                node.type, node.op.strides, panel.n_dim, panel.k_dim, panel.width, panel.group
            )
            sizes = {f"d{a}": n for a, n in enumerate(static_shape(node.type.shape))}
            steps.append(Step(packing, sizes))
        sources = tuple(self._input_numbers[x] for x in (computed.inputs if computed else (node,)))
        nbytes = prod(_shape(value)) * node.type.dtype.itemsize
        return Part(
            node.op.label, tuple(steps), sources, nbytes, computed is not None, panel is not None
        )


def _owners(plan: Plan) -> list[str]:
    """Return the names of the clusters that `plan.all_clusters` are, or are in."""
    inner = ((c.name, c.inner_plan) for c in plan.clusters)
    within = [name for name, step in inner if step is not None for _ in step.all_clusters]
    return [*(c.name for c in plan.clusters), *within]


def _constant_operands(plan: Plan) -> list[Mapping[Node, Node]]:
    """Return the constants that each cluster of `plan.all_clusters` may read in another layout.

    For what a cluster reads, the constant of the graph: itself, or the operand of the loop whose
    step the cluster is a part of, if no other cluster of the step reads it.
    """
    result: list[Mapping[Node, Node]] = [
        {x: x for x in c.inputs if _is_constant(x)} for c in plan.clusters
    ]
    for c in plan.clusters:
        if c.inner_plan is None:
            continue
        operands = dict[Node, Node]()
        step, loop = c.inner_plan, c.loop
        if loop is not None:
            around, first = c.outputs[0].inputs, loop.op.carries + loop.op.slices
            for x, inner in zip(around[first:], step.graph.inputs[first:], strict=True):
                readers = sum(inner in k.inputs for k in step.clusters)
                is_plain = inner not in step.graph.outputs and around.count(x) == 1
                if _is_constant(x) and readers == 1 and is_plain:
                    operands[inner] = x
        result += [operands] * len(step.clusters)
        result += [{}] * (len(step.all_clusters) - len(step.clusters))
    return result


def _is_constant(node: Node) -> bool:
    return isinstance(node.op, Input) and node.op.constant


def _work_ns(elements: int, node: Node, target: Target) -> float:
    """Return the time per call to transfer so many elements of a value's type."""
    return target.transfer_ns(elements * node.type.dtype.itemsize, 0, "l3", 1)


def _nbytes(node: Node) -> int:
    return prod(static_shape(node.type.shape)) * node.type.dtype.itemsize


def _shape(value: _KeptValue) -> tuple[int, ...]:
    shape, panel = static_shape(value.node.type.shape), value.panel
    return shape if panel is None else static_shape(packed_shape(shape, panel))


def static_shape(shape: Sequence[Index]) -> tuple[int, ...]:
    """Return a static shape as integers; raise VerifyError if it has symbolic sizes."""
    dims = tuple(d for d in shape if isinstance(d, int))
    if len(dims) != len(shape):
        raise VerifyError(f"a constant has the shape {shape_text(tuple(shape))}")
    return dims
