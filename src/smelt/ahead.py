"""What a compiled plan does ahead of its calls: the parts of its prelude, and operands packed.

    room = room_of(graph, plan, hints, None)          # bytes that may be kept
    ahead = Ahead(graph, found, room)
    kernels = ahead.packed(clusters, kernels, ..)     # read constant operands in panels
    ahead.held(cluster.name, param, node)             # the value behind a parameter of a kernel
    ahead.parts                                       # what computes all that was asked for

What is kept takes memory between calls, beside the constants themselves.  Fusion saves memory in
every call; what it saves is what there is `room` for, so that a program never holds more than its
operators would one by one.  Candidates are taken by gain per byte.  What eager code holds is told
by a trace of it, which may not be what runs without a tracer: libraries ask whether they are
traced, and take other ways then.  Packing takes half of that room at most: all of it would be some
hundredths of a call faster, and hold more than eager code where the trace says too much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import NamedTuple

from smelt import knobs
from smelt.codegen.build import panels
from smelt.dataclass import dataclass
from smelt.errors import VerifyError
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.plan import Cluster, Plan
from smelt.fusion.unfused_memory import held_apart, held_by
from smelt.graph.ir import Graph, Node
from smelt.journal import ConstantWeighed, Journal
from smelt.kernel.canonical import Plain
from smelt.kernel.ir import Kernel
from smelt.kernel.packed_weights import Panel, panelled_shape, read_panels
from smelt.ops.create import Input
from smelt.passes.constant_subgraph import Split, panelled
from smelt.runtime.executable import Value
from smelt.runtime.prelude import Allowance, Part, Step
from smelt.target import Target
from smelt.types.expr import Index
from smelt.types.tensor import shape_text

TOGETHER = 128
"""Rows that share a packed block: for so many, a task packs it once."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A value to hold: an input of the rest, as it is or in panels."""

    node: Node
    panel: Panel | None = None


@dataclass(slots=True)
class _Candidate:
    """A packed operand: bytes that it takes, time that it saves a call, and who would read it."""

    nbytes: int
    saves_ns: float = 0.0
    readers: list[tuple[int, Panel]] = field(default_factory=list[tuple[int, Panel]])
    """Numbers of clusters, each with the parameter."""


class Room(NamedTuple):
    """Bytes of constants that a plan may keep, and how much may be kept when some are packed."""

    whole: int
    packed: int


def room_of(
    graph: Graph, plan: Plan, hints: Mapping[str, int], allowance: Allowance | None
) -> Room:
    """The room for constants of a plan of `graph`: what it holds less than the operators one by one
    at these sizes (or than `allowance`), and what the settings add."""
    limit, extra = knobs.CONSTANTS.get(), knobs.CONSTANTS_EXTRA.get()
    if extra is None or not any(_is_constant(x) for x in graph.inputs):
        return Room(limit, limit)
    whole = held_apart(graph, hints) if allowance is None else allowance.nbytes
    saved = max(whole - held_by(plan, hints), 0)
    if allowance is not None:
        saved = min(saved, allowance.kept)
    packed = saved if allowance is None else saved // 2
    return Room(min(saved + extra, limit), min(packed + extra, limit))


def beyond(found: Split, room: int) -> tuple[Node, ...]:
    """The values computed once for which there is no room, the greatest gain per byte kept."""
    ranked = sorted(
        zip(found.held, found.work, strict=True),
        key=lambda pair: -pair[1] / max(_nbytes(pair[0]), 1),
    )
    refused: list[Node] = []
    for node, _ in ranked:
        if _nbytes(node) > room:
            refused.append(node)
        else:
            room -= _nbytes(node)
    return tuple(refused)


class Ahead:
    """The prelude of one plan in the making."""

    def __init__(self, graph: Graph, found: Split, room: Room) -> None:
        self.given = graph.inputs
        """The inputs that the caller passes."""
        self._places = {x: k for k, x in enumerate(graph.inputs)}
        self.computes = bool(found.parts)
        """Whether values are computed once, apart from being packed."""
        self._room, self._beyond = room.whole, room.whole - room.packed
        added = found.graph.inputs[len(graph.inputs) :]
        self._computed = dict(zip(added, found.parts, strict=True))
        self._work = dict(zip(added, found.work, strict=True))
        self._packed: dict[tuple[str, str], _Wanted] = {}
        """What a kernel reads in place of a parameter."""
        self._numbers: dict[_Wanted, int] = {}
        self.parts: list[Part] = []
        """What is computed once: the parts of all values that were asked for."""

    def packed(
        self,
        clusters: Sequence[Cluster],
        kernels: Sequence[Kernel | None],
        bare: Sequence[tuple[Plain, Mapping[str, str]] | None],
        target: Target,
        hints: Mapping[str, int],
        journal: Journal,
    ) -> tuple[Kernel | None, ...]:
        """The kernels on packed operands, for those constants that there is room for; `bare` is
        what `canonical` says of each."""
        for node, work in self._work.items():
            self._note(node, "computed", _nbytes(node), _work_ns(work, node, target), journal)
        made = list(kernels)
        self._room = max(self._room - self._beyond, 0)
        found = self._candidates(clusters, kernels, bare, target, hints)
        ranked = sorted(found, key=lambda w: -found[w].saves_ns / max(found[w].nbytes, 1))
        for wanted in ranked:
            c, node = found[wanted], wanted.node
            alone = len(c.readers) == sum(node in x.inputs for x in clusters)
            replaced = _nbytes(node) if node in self._computed and alone else 0
            self._room += replaced  # nobody reads it as it was computed
            if not self._note(node, "packed", c.nbytes, c.saves_ns, journal):
                self._room -= replaced
                continue
            for k, panel in c.readers:
                kernel = made[k]
                assert kernel is not None
                self._packed[clusters[k].name, panel.param] = wanted
                made[k] = read_panels(kernel, panel)
        return tuple(made)

    def _note(self, node: Node, what: str, nbytes: int, saves_ns: float, journal: Journal) -> bool:
        """Takes room for a value, if there is as much; says so."""
        assert isinstance(node.op, Input)
        kept = nbytes <= self._room
        journal.record(ConstantWeighed(node.op.label, what, nbytes, saves_ns, kept, self._room))
        if kept:
            self._room -= nbytes
        return kept

    def _candidates(
        self,
        clusters: Sequence[Cluster],
        kernels: Sequence[Kernel | None],
        bare: Sequence[tuple[Plain, Mapping[str, str]] | None],
        target: Target,
        hints: Mapping[str, int],
    ) -> dict[_Wanted, _Candidate]:
        """The operands that products would rather read packed."""
        found: dict[_Wanted, _Candidate] = {}
        known: dict[tuple[Plain, frozenset[str]], tuple[tuple[Panel, Index], ...]] = {}
        for k, (cluster, kernel, own) in enumerate(zip(clusters, kernels, bare, strict=True)):
            if kernel is None or own is None:
                continue
            plain, names = own
            short = [p.name for p in plain.kernel.inputs]
            places = {p: n for n, p in enumerate(short) if _is_constant(cluster.inputs[n])}
            key = plain, frozenset(places)
            if key not in known:
                known[key] = panels(plain.kernel, target, key[1])
            sizes = Hints({a: hints[b] for a, b in names.items() if b in hints})
            for panel, rows in known[key]:
                n = places[panel.param]
                wanted = _Wanted(cluster.inputs[n], replace(panel, param=""))
                nbytes = prod(_shape(wanted)) * wanted.node.type.dtype.itemsize
                c = found.setdefault(wanted, _Candidate(nbytes))
                times = -(-at_hints(rows, sizes) // TOGETHER)
                c.saves_ns += times * target.transfer_ns(nbytes, nbytes, "l3", 1)
                c.readers.append((k, replace(panel, param=kernel.inputs[n].name)))
        return found

    def held(self, cluster: str, param: str, node: Node) -> Value | None:
        """The value that a kernel reads for a parameter, where the prelude makes it."""
        wanted = self._packed.get((cluster, param))
        if wanted is None:
            if node not in self._computed:
                return None
            wanted = _Wanted(node)
        if wanted not in self._numbers:
            self._numbers[wanted] = len(self.parts)
            self.parts.append(self._part(wanted))
        return Value(node.type.dtype, _shape(wanted), "held", self._numbers[wanted])

    def _part(self, wanted: _Wanted) -> Part:
        node, panel = wanted.node, wanted.panel
        assert isinstance(node.op, Input)
        computed = self._computed.get(node)
        steps = [] if computed is None else [Step(computed, {})]
        if panel is not None:
            made = panelled(
                node.type, node.op.strides, panel.across, panel.along, panel.width, panel.group
            )
            sizes = {f"d{a}": n for a, n in enumerate(fixed(node.type.shape))}
            steps.append(Step(made, sizes))
        sources = tuple(self._places[x] for x in (computed.inputs if computed else (node,)))
        nbytes = prod(_shape(wanted)) * node.type.dtype.itemsize
        return Part(
            node.op.label, tuple(steps), sources, nbytes, computed is not None, panel is not None
        )


def _is_constant(node: Node) -> bool:
    return isinstance(node.op, Input) and node.op.constant


def _work_ns(elements: int, node: Node, target: Target) -> float:
    """Time to read and write so many elements of a value's type in a call."""
    return target.transfer_ns(elements * node.type.dtype.itemsize, 0, "l3", 1)


def _nbytes(node: Node) -> int:
    return prod(fixed(node.type.shape)) * node.type.dtype.itemsize


def _shape(wanted: _Wanted) -> tuple[int, ...]:
    """The shape of a held value."""
    shape, panel = fixed(wanted.node.type.shape), wanted.panel
    return shape if panel is None else fixed(panelled_shape(shape, panel))


def fixed(shape: Sequence[Index]) -> tuple[int, ...]:
    """A shape as numbers.  Raises VerifyError where a call tells it."""
    found = tuple(d for d in shape if isinstance(d, int))
    if len(found) != len(shape):
        raise VerifyError(f"a constant has the shape {shape_text(tuple(shape))}")
    return found


__all__ = ["Ahead", "Room", "beyond", "room_of"]
