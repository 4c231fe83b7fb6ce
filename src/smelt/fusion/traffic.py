"""Count the bytes that a plan moves through main memory, and those without fusion.

The count includes each array that a kernel reads or writes once: rereads come from a cache. Of an
array read through a slice, only the part that is read counts. Views are free; a view that is a
result is a copy.

Chunks read the rows that they cut once. What every chunk reads, and the results that they
accumulate into, count once as well if everything that a chunk touches fits the last-level cache;
otherwise the next chunk transfers them again. Intermediate values of a chunk stay in a cache, for
which the number of rows is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.bitsets import Hints, at_hints, bits
from smelt.fusion.plan import Body, Cluster, Plan
from smelt.fusion.region import Region, build_region, region_of
from smelt.fusion.units import Units
from smelt.kernel.chunks import WHOLE
from smelt.types.expr import add


def traffic(
    plan: Plan, hints: Mapping[str, int], cache_bytes: int = 0
) -> tuple[tuple[int, int], ...]:
    """Return the bytes moved by each cluster, and by its operators one by one.

    `hints` are the sizes of a call, `cache_bytes` is the size of the last-level cache. An operator
    that several clusters compute counts, by itself, in the first of them, so that the sums compare
    two full programs.
    """
    counter = _Counter(Units(plan.graph), Hints(hints))
    bytes_by_cluster: list[tuple[int, int]] = []
    counted = 0
    for cluster in plan.clusters:
        units = counter.units
        members = sum(1 << units.number[n] for n in cluster.nodes if units.is_unit(n))
        unfused = 0
        for u in bits(members & ~counted):
            unfused += counter.moved(build_region(units, 1 << u, 1 << u))
        moved = (
            counter.moved(region_of(units, cluster))
            if cluster.body is None
            else sum(n for side in chunked_traffic(cluster, hints, cache_bytes) for n in side)
        )
        bytes_by_cluster.append((moved, unfused))
        counted |= members
    return tuple(bytes_by_cluster)


def chunked_traffic(
    cluster: Cluster, hints: Mapping[str, int], cache_bytes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes of each operand and result that a cluster's chunks move.

    `cache_bytes` is the size of the last-level cache.
    """
    assert cluster.body is not None
    chunks, defaults = cluster.body.chunks, Hints(hints)
    is_cached = _chunk_bytes(cluster.body, defaults) <= cache_bytes
    times = 1 if is_cached else sum(1 for _ in chunks.ranges(defaults))
    read, written = [0] * len(cluster.inputs), [0] * len(cluster.outputs)
    for index in range(len(read)):
        is_shared = any(c.axis == WHOLE for c in chunks.reads if c.place == index)
        nbytes = at_hints(cluster.inputs[index].type.nbytes, defaults)
        read[index] = nbytes * (times if is_shared else 1)
    for c in chunks.makes:
        nbytes = at_hints(cluster.outputs[c.place].type.nbytes, defaults)
        written[c.place] = nbytes * (2 * times if c.axis == WHOLE and not is_cached else 1)
    return tuple(read), tuple(written)


def _chunk_bytes(body: Body, hints: Hints) -> int:
    """Return the bytes of everything that a chunk reads, writes or keeps between its kernels."""
    sizes = Hints({**hints, body.chunks.rows: body.chunks.block})
    graph = body.plan.graph
    arrays = {
        *graph.inputs,
        *(n for n, c in zip(graph.outputs, body.chunks.makes) if not c.combine),
    }
    kept = [add(s.offset, s.nbytes) for s in body.plan.slots if s.offset is not None]
    return sum(at_hints(n.type.nbytes, sizes) for n in arrays) + max(
        (at_hints(end, sizes) for end in kept), default=0
    )


class _Counter:
    def __init__(self, units: Units, hints: Hints) -> None:
        self.units = units
        self.elements = [at_hints(node.type.elements, hints) for node in units.values]
        self.extents = [at_hints(e, hints) for e in units.extents]

    def nbytes(self, v: int, elements: int) -> int:
        return elements * self.units.values[v].type.dtype.itemsize

    def moved(self, region: Region) -> int:
        """Return the bytes that one kernel or library call reads and writes."""
        bytes_moved = sum(self.nbytes(u, self.elements[u]) for u in bits(region.stored))
        if region.members & self.units.calls:
            unit = self.units.unit(region.members.bit_length() - 1)
            return bytes_moved + sum(
                self.nbytes(e.producer, self.elements[e.producer]) for e in unit.edges
            )
        read = region.elements_read(self.elements, self.extents)
        return bytes_moved + sum(self.nbytes(v, n) for v, n in read)
