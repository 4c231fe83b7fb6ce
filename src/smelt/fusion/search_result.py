"""The result of a search: kernels without an order, and the decisions taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from smelt.fusion.plan import Cluster
from smelt.graph.ir import Node
from smelt.journal.facts import Decision
from smelt.python.dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class UnplacedCluster:
    """A cluster without a place in the execution order yet."""

    cluster: Cluster
    first: Node
    """Its first operator."""
    bytes_moved: int
    """Bytes that it reads and writes."""
    reuses: Mapping[Node, Sequence[Node]]
    """For each of its results, the inputs that it may overwrite."""

    def relocate(self, place: Callable[[Node], Node], order: Mapping[Node, int]) -> UnplacedCluster:
        """Return the same cluster of other nodes, sorted by their order.

        `place` maps each node to its counterpart.
        """
        c, key = self.cluster, order.__getitem__
        nodes = tuple(sorted(map(place, c.nodes), key=key))
        inputs = tuple(sorted(map(place, c.inputs), key=key))
        outputs = tuple(map(place, c.outputs))
        stream = None if c.stream is None else (place(c.stream[0]), c.stream[1])
        recomputed = tuple(map(place, c.recomputed))
        return UnplacedCluster(
            Cluster(c.name, nodes, inputs, outputs, recomputed, c.shapes, stream),
            place(self.first),
            self.bytes_moved,
            {place(n): tuple(map(place, old)) for n, old in self.reuses.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """Kernels for a whole graph."""

    parts: Sequence[UnplacedCluster]
    decisions: Sequence[Decision]
    unfused_bytes: Mapping[Node, int]
    """Bytes that each operator reads and writes if it is a kernel of its own."""
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sizes that the kernels are chosen for, if other than those of the first call."""
