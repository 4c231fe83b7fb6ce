"""What a search has found: kernels in no order yet, and what was said on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from smelt.dataclass import dataclass
from smelt.fusion.plan import Cluster
from smelt.graph.ir import Node
from smelt.journal import Decision


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A cluster that has no place among the others yet."""

    cluster: Cluster
    first: Node
    """Its first operator."""
    moved: int
    """Bytes that it reads and writes."""
    reuses: Mapping[Node, Sequence[Node]]
    """For each of its results the inputs that it may be written over."""

    def at(self, place: Callable[[Node], Node], order: Mapping[Node, int]) -> Part:
        """The same of other nodes, which have an order."""
        c, key = self.cluster, order.__getitem__
        nodes = tuple(sorted(map(place, c.nodes), key=key))
        inputs = tuple(sorted(map(place, c.inputs), key=key))
        outputs = tuple(map(place, c.outputs))
        stream = None if c.stream is None else (place(c.stream[0]), c.stream[1])
        again = tuple(map(place, c.recomputed))
        return Part(
            Cluster(c.name, nodes, inputs, outputs, again, c.shapes, stream),
            place(self.first),
            self.moved,
            {place(n): tuple(map(place, old)) for n, old in self.reuses.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Kernels for all of a graph."""

    parts: Sequence[Part]
    decisions: Sequence[Decision]
    alone: Mapping[Node, int]
    """For each operator, bytes that it reads and writes by itself."""
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """The sizes that the kernels are for, where those are not the first call's."""
