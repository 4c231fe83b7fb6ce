"""Decide whether a set of units may be one kernel, with a reason of `smelt.errors.REASONS`.

`region` finds what makes a kernel wrong: reductions read where they are not computed, unrelated
axes. `state` finds kernels that would wait for themselves. This module adds what would make
a kernel unusable: rows that exceed fast memory, too many arrays, too much code, library calls, and
what the user forbids.

A contraction is computed once per result. If another one reads it at positions that combine its
axis with an axis reduced there (windows of a convolution, heads of attention), every region of both
has that axis in the position, whatever else it contains, and is refused. Such pairs (`Barriers`)
are found once per graph from the edges, through all units that pass the position on, so that no
region has to be built.

>>> from smelt.graph.text import parse
>>> units = Units(
...     parse('''graph f(x: f32[n,99], v: f32[99,128], w: f32[64,2]) {
...   v0 = contract(x, v) {spec="i,k; k,j -> i,j"}
...   v1 = exp(v0)
...   v2 = reshape(v1) {shape=(n, 2, 64)}
...   v3 = contract(v2, w) {spec="i,h,k; k,h -> i,h"}
...   return v3
... }''')
... )
>>> barriers = Barriers(units)
>>> barriers.product(0b111000), barriers.product(0b011000)
(3, -1)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from smelt import knobs
from smelt.fusion.bitsets import bits
from smelt.fusion.cost_model import Cost, CostModel
from smelt.fusion.region import MAX_READS, Region
from smelt.fusion.units import Edge, Unit, Units
from smelt.graph.source_names import called_names, source_names
from smelt.graph.text import name_values
from smelt.graph.walk import reachable
from smelt.knobs.values import Pairs
from smelt.ops.windows import WINDOW_STEPS
from smelt.python.dataclass import dataclass
from smelt.types.expr import Expr, Index, axes_of, coefficient


@dataclass(frozen=True, slots=True)
class Barrier:
    """A contraction that reads another one at such positions, and the units between them."""

    reader: int
    between: int
    """Units that pass the position on: where one of them is stored, so is the contraction."""
    window_readers: int
    """Reductions after the reader that may read the contraction through windows, as a mask."""


class Barriers:
    """The pairs of contractions of one graph that no kernel can hold."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.products = sum(1 << u.number for u in units.units if u.trace.dots)
        self.known: dict[int, list[Barrier]] = {}
        self.read = 0
        """The contractions that are read in such a way."""
        for r in bits(self.products):
            self._find(units.unit(r))

    def product(self, members: int) -> int:
        """Return a contraction that cannot share a kernel with another of the set, or -1."""
        for u in reversed(bits(members & self.read)):
            for barrier in self.known[u]:
                both = barrier.between | 1 << barrier.reader
                if both & members == both and not barrier.window_readers & members:
                    return u
        return -1

    def _find(self, reader: Unit) -> None:
        """Record the contractions that one contraction reads at such positions."""
        reductions = self.units.reductions & ~self.products
        later_reductions = reductions >> reader.number << reader.number
        for edge in reader.edges:
            dims, window_readers = 0, later_reductions
            for d in () if edge.simple else range(len(edge.terms)):
                is_fixed = _is_fixed(reader, edge, d, self.units)
                dims |= is_fixed << d
                if is_fixed and not _may_be_window(reader, edge.terms[d]):
                    window_readers = 0
            for u, between in self._reached(edge.producer, dims):
                self.known.setdefault(u, []).append(Barrier(reader.number, between, window_readers))
                self.read |= 1 << u

    def _reached(self, v: int, dims: int) -> Iterator[tuple[int, int]]:
        """Iterate over contractions read along some dimensions of a value.

        Yields each with the units between.
        """

        def sources(read: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
            v, dims, between = read
            if v < len(self.units.inputs) or self.units.reductions >> v & 1:
                return
            for edge in self.units.unit(v).edges:
                followed = sum(
                    1 << d
                    for d, t in enumerate(edge.terms)
                    if isinstance(t, int) and t >= 0 and dims >> t & 1
                )
                if followed:
                    yield edge.producer, followed, between | 1 << v

        for u, _, between in reachable([(v, dims, 0)] if dims else [], sources):
            if self.products >> u & 1:
                yield u, between


def _is_fixed(reader: Unit, edge: Edge, d: int, units: Units) -> bool:
    """Return whether one dimension of a read always contains an axis that the reader reduces.

    That is so if the term is an expression that no other axis can cancel or reduce to that axis
    alone.
    """
    term = edge.terms[d]
    if not isinstance(term, Expr):
        return False
    names = axes_of(term)
    reduced = [name for name in names if int(name[1:]) >= reader.rank]
    if reduced and len(reduced) == len(names):
        return True
    extent = units.values[edge.producer].type.shape[d]
    return any(
        coefficient(term, name) not in (None, 0)
        and units.extents[reader.axes[int(name[1:])]] != extent
        for name in reduced
    )


def _may_be_window(reader: Unit, term: Index | int) -> bool:
    """Return whether reductions after the reader may read windows.

    See `window_recompute.windows_of`.
    """
    result_axes = [name for name in axes_of(term) if int(name[1:]) < reader.rank]
    steps = [coefficient(term, name) for name in result_axes]
    return bool(result_axes) and all(isinstance(s, int) and 0 < s <= WINDOW_STEPS for s in steps)


CROSSING = "reduction-crossing"
FAST_MEMORY = "fast-memory"
MAX_OPERANDS = 64
"""Maximum arrays that a kernel may read and write."""
MAX_CODE_SIZE = 1200
"""Maximum scalar operations of a kernel, expensive ones counted by their cost."""
FAST_SHARE = 0.5
"""Share of the second-level cache that values kept between passes may fill."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why not: its name, and the fields of its sentence."""

    reason: str
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


class FusionConstraints:
    """The pairs of `must_fuse`, `never_fuse` and `require_fused`, and exact rounding."""

    def __init__(self, units: Units, must: Pairs, never: Pairs, required: Pairs = ()) -> None:
        self.units = units
        self.names: dict[str, int] | None = None
        self.required = [(self._named(a), self._named(b)) for a, b in required]
        """Pairs without which a plan is refused."""
        self.must = [(self._named(a), self._named(b)) for a, b in must] + self.required
        self.never = [(self._named(a), self._named(b)) for a, b in never]
        self.exact = knobs.ROUNDING.get() == "exact"

    def _named(self, name: str) -> int:
        """Return the units that a name means.

        It may be what the program calls (`matmul`, `@`), an operator's name (with or without the
        part before its dot), either with a number as reports show it, a value's name in the graph's
        text or the program's source, `file:line`, or `*` (all).
        """
        if name == "*":
            return sum(1 << unit.number for unit in self.units.units)
        if self.names is None:
            self.names = {}
            values = name_values(self.units.graph)
            of_source = source_names(self.units.graph)
            called = called_names(self.units.graph.nodes())
            for unit in self.units.units:
                node = unit.node
                op, value = node.op.name, values[node]
                names = [op, value, op.rpartition(".")[2], *called[node]]
                names += [f"{name}#{value[1:]}" for name in (op, called[node][0])]
                if node in of_source:
                    names.append(of_source[node])
                if node.origin is not None:
                    location = str(node.origin)
                    names += [location, location.rpartition("/")[2]]
                for word in dict.fromkeys(names):
                    self.names[word] = self.names.get(word, 0) | 1 << unit.number
        return self.names.get(name, 0)

    def forbid(self, members: int) -> bool:
        """Return whether a set holds both of a pair that must be separate."""
        return any(_holds_both(members, a, b) for a, b in self.never)

    def demand(self, first: int, second: int) -> bool:
        """Return whether two sets hold one each of a pair that must be together."""
        return any((first & a and second & b) or (first & b and second & a) for a, b in self.must)


def _holds_both(members: int, a: int, b: int) -> bool:
    first, second = members & a, members & b
    return bool(first and second and (first | second).bit_count() > 1)


def refuse_sets(
    units: Units, members: int, size: float, wishes: FusionConstraints, barriers: Barriers
) -> Refusal | None:
    """Return the refusal that needs no look at axes; `size` counts scalar operations."""
    if members & units.calls and members.bit_count() > 1:
        number = (members & units.calls).bit_length() - 1
        return Refusal("extern-barrier", {"op": units.values[number].op.name})
    scatters = members & units.scatters
    if scatters and members != scatters:
        last = scatters.bit_length() - 1
        if units.users[last] & members or members & units.reductions & ~(1 << last):
            return Refusal("scatter-root", {"op": units.values[last].op.name})
    ordered = members & units.ordered if wishes.exact else 0
    if ordered and members != ordered & -ordered:
        return Refusal("sum-order", {"op": units.values[ordered.bit_length() - 1].op.name})
    if wishes.never and wishes.forbid(members):
        return Refusal("never-fuse")
    if size > MAX_CODE_SIZE:
        return Refusal("code-size", {"size": int(size), "limit": MAX_CODE_SIZE})
    product = barriers.product(members)
    return None if product < 0 else refuse_fault(units, CROSSING, product)


def refuse_fault(units: Units, reason: str, number: int) -> Refusal:
    """Return the refusal for a fault of a region.

    A contraction is an array to its author: its reader does not wait for its sums, but reads it in
    another order.
    """
    if reason == CROSSING and units.unit(number).trace.dots:
        reason = "read-elsewhere"
    op = units.values[number].op.name
    details = {
        "axis": _ended(units, number),
        "op": op,
        "size": f"over {MAX_READS}",
        "limit": MAX_READS,
    }
    return Refusal(reason, details)


def refuse_region(units: Units, region: Region) -> Refusal | None:
    """Return the refusal because of axes or operands."""
    if region.fault is not None:
        return refuse_fault(units, region.fault, region.fault_unit)
    count = len(region.loads) + region.stored.bit_count()
    if count > MAX_OPERANDS:
        return Refusal("too-many-operands", {"operands": count, "limit": MAX_OPERANDS})
    return None


def refuse_cost(model: CostModel, cost: Cost) -> Refusal | None:
    """Return the refusal because the schedule needs more than there is."""
    capacity = int(model.machine.fast_bytes * FAST_SHARE)
    if cost.kept_bytes > capacity:
        return Refusal(FAST_MEMORY, {"bytes": cost.kept_bytes, "capacity": capacity})
    return None


def _ended(units: Units, number: int) -> str:
    """Return the extents that a reduction reduces, for a sentence."""
    unit = units.unit(number)
    if unit.scan_axis >= 0:
        return str(units.extents[unit.axes[unit.scan_axis]])
    return "*".join(str(units.extents[e]) for e in unit.reduced_extents)
