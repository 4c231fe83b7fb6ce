"""The Plan: *together*. Clusters of operators, the buffers between them, and each decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TypeAlias

from smelt.blocks import Rounds
from smelt.dataclass import dataclass
from smelt.graph.ir import Graph, Node
from smelt.journal import Decision
from smelt.types.expr import Index
from smelt.types.tensor import Shape

Donate: TypeAlias = tuple[int | tuple[int, int], ...]
"""Inputs by place that a caller gives away: results may take their memory.  Of a pair, only the
result whose place is told second."""
Donated: TypeAlias = Mapping[Node, Node | None]
"""The same by nodes: inputs, and the only result that may take their memory, or None for any."""
NOTHING: Donated = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Operators that become one kernel (or one library call).

    `nodes` are in execution order, `inputs` are values from outside, `outputs` those of its values
    that are written because somebody outside needs them.  Values in neither stay virtual.
    `recomputed` are nodes that another cluster computes too.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    recomputed: tuple[Node, ...] = ()
    shapes: tuple[Shape, ...] = ()
    """For each output the shape under which the kernel walks and writes it: its own, or another
    with the same elements in the same row-major order.  Empty: every output's own."""
    stream: tuple[Node, int] | None = None
    """The axis that is visited block by block while its folds are carried along: a fold, and which
    of the axes that end in it."""
    body: Body | None = None
    """What is run in rounds over rows instead of one kernel.  The operands and results that its
    rounds cut are `inputs` and `outputs`, by place."""

    def shape(self, number: int) -> Shape:
        """The shape under which output `number` is walked."""
        return self.shapes[number] if self.shapes else self.outputs[number].type.shape

    @property
    def is_extern(self) -> bool:
        """One library call instead of a kernel."""
        return any(not n.op.fusible for n in self.nodes)


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """What a cluster runs for a block of rows after the other: a plan of its own, whose graph has
    the sizes of the whole and that of the rows of a block."""

    rounds: Rounds
    plan: Plan
    of: Mapping[Node, Node]
    """The operators of the cluster by those of the body that stand for them."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """Where a value between clusters lives: at `offset` bytes (an expression over sizes) of the
    arena or of a result that is not written yet (`within`), or in a buffer of its own (`offset`
    None) when it is a result of the graph."""

    node: Node
    nbytes: Index
    offset: Index | None
    first: int
    """Number of the cluster that writes it."""
    last: int
    """Number of the last cluster that reads it."""
    reuses: Node | None = None
    """The value whose memory it takes over in place: `first` is that one's last reader.  For a
    result of the graph, an input that the caller has given away."""
    within: Node | None = None
    """The result in whose memory it lives, until that one is written."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Clusters in execution order.  `launches` groups the numbers of clusters that do not depend on
    one another and start together."""

    graph: Graph
    clusters: tuple[Cluster, ...]
    launches: tuple[tuple[int, ...], ...]
    decisions: tuple[Decision, ...] = ()
    slots: tuple[Slot, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """The sizes that its kernels are for, where those are not the first call's."""

    @property
    def every(self) -> tuple[Cluster, ...]:
        """The clusters, then those that run in the rounds of one of them: all that may be kernels,
        those with a body left as they are."""
        within = (c for k in self.clusters if k.body is not None for c in k.body.plan.every)
        return (*self.clusters, *within)

    @property
    def checks(self) -> tuple[int, ...]:
        """The clusters, by number, that compute nothing but checks of the graph."""
        asked = {*self.graph.asked}
        return tuple(k for k, c in enumerate(self.clusters) if asked.issuperset(c.outputs))

    @property
    def in_rounds(self) -> tuple[tuple[int, Body], ...]:
        """The clusters that run in rounds, by number."""
        return tuple((k, c.body) for k, c in enumerate(self.clusters) if c.body is not None)
