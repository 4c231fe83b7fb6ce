"""The best plan of a small graph under the model, found by trying all of them.

A plan is a row of kernels.  Each computes a set of units that hangs together, from values that
earlier kernels wrote, and writes some of them; a unit may be computed by several kernels.  (Only
a kernel outside of which a value has a reader writes it.)  What counts of the past is only which
values are written: the cheapest way to each such state is found by Dijkstra's algorithm, from
nothing written to all results written.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.fusion.formulas import MACHINE

from smelt.fusion.bitsets import Hints, bits
from smelt.fusion.cost import Model
from smelt.fusion.legal import FusionConstraints
from smelt.fusion.state import State
from smelt.fusion.units import Units
from smelt.graph.ir import Graph
from smelt.machine.target import Target


@dataclass(frozen=True)
class Kernel:
    members: int
    stored: int
    reads: int
    """Units outside that it reads."""
    burden: float


class Optimum:
    """The cheapest plan of a graph: `objective_ns` in nanoseconds, `kernels` in order."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], target: Target = MACHINE) -> None:
        self.units = Units(graph)
        self.state = State(
            self.units,
            Model(self.units, target, Hints(sizes)),
            FusionConstraints(self.units, (), ()),
        )
        self.numbers = [u.number for u in self.units.units]
        self.inputs = (1 << len(self.units.inputs)) - 1
        self.all = sum(1 << u for u in self.numbers)
        self.near = {u: self._near(u) for u in self.numbers}
        self.table = list(self._kernels())
        self.burden, self.kernels = self._search()

    # ---- kernels -------------------------------------------------------------------------------

    def _near(self, u: int) -> int:
        """Units that may stand beside one in a kernel: readers, operands, readers of the same."""
        units = self.units
        result = units.users[u] | units.operands[u]
        for v in bits(units.operands[u]):
            result |= units.users[v]
        return result & self.all & ~(1 << u)

    def _sets(self) -> Iterator[int]:
        """Every set of units that hangs together, once."""
        for u in self.numbers:
            later = self.all & ~((1 << (u + 1)) - 1)  # its least member is u
            yield from self._grown(1 << u, self.near[u] & later, later & ~self.near[u])

    def _grown(self, members: int, edge: int, beyond: int) -> Iterator[int]:
        """`members`, and all larger sets made with units of `edge` and what those lead to."""
        yield members
        while edge:
            low = edge & -edge
            edge ^= low
            new = self.near[low.bit_length() - 1] & beyond
            yield from self._grown(members | low, edge | new, beyond & ~new)

    def _kernels(self) -> Iterator[Kernel]:
        for members in self._sets():
            reads = self.state.reads(members) & ~self.inputs
            must = sum(1 << u for u in bits(members) if not self.units.users[u] & members)
            may = sum(
                1 << u
                for u in bits(members & ~must)
                if self.units.users[u] & ~members or self.units.outputs >> u & 1
            )
            for more in _subsets(may):
                result = self.state.evaluate(members, must | more)
                if result.cost is not None and result.refusal is None:
                    yield Kernel(members, must | more, reads, result.cost.objective_ns)

    # ---- search --------------------------------------------------------------------------------

    def _search(self) -> tuple[float, tuple[Kernel, ...]]:
        goal = self.units.outputs
        queue: list[tuple[float, int]] = [(0.0, 0)]
        least: dict[int, tuple[float, int, Kernel | None]] = {0: (0.0, 0, None)}
        while queue:
            spent, written = heapq.heappop(queue)
            if spent > least[written][0]:
                continue
            if not goal & ~written:
                return spent, tuple(_way(least, written))
            for k in self.table:
                after = written | k.stored
                if k.reads & ~written or after == written:
                    continue
                total = spent + k.burden
                if after not in least or total < least[after][0]:
                    least[after] = (total, written, k)
                    heapq.heappush(queue, (total, after))
        raise AssertionError("no plan")


def _subsets(mask: int) -> Iterator[int]:
    part = mask
    while True:
        yield part
        if not part:
            return
        part = (part - 1) & mask


def _way(least: Mapping[int, tuple[float, int, Kernel | None]], state: int) -> list[Kernel]:
    results: list[Kernel] = []
    while True:
        _, before, kernel = least[state]
        if kernel is None:
            return results[::-1]
        results.append(kernel)
        state = before
