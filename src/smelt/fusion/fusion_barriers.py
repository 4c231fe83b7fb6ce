"""Products that no kernel holds together, found once for each graph.

A product is computed once for each result.  Where another one reads it at places put together with
an axis that ends there, such as the windows of a convolution or the heads of attention, every
region of both says so (`region`), whatever else is in it: the place has that axis for good.  Here
such pairs are found from the edges, along all that only hands the place on, so that no region has
to be looked at.

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

from collections.abc import Iterator

from smelt.dataclass import dataclass
from smelt.fusion.bitsets import bits
from smelt.fusion.units import Edge, Unit, Units
from smelt.types.affine import coefficient
from smelt.types.expr import Expr, Index, axes_of
from smelt.windows import WINDOW_STEPS


@dataclass(frozen=True, slots=True)
class Barrier:
    """What stands between a product and one that reads it."""

    reader: int
    between: int
    """Units that hand the place on: where one of them is stored, so is the product."""
    looks: int
    """Folds behind the reader that may look at the product through windows, as a mask."""


class Barriers:
    """The pairs of products of one graph that no kernel holds."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.products = sum(1 << u.number for u in units.units if u.trace.dots)
        self.known: dict[int, list[Barrier]] = {}
        self.read = 0
        """The products that are read in such a way."""
        for r in bits(self.products):
            self._find(units.unit(r))

    def product(self, members: int) -> int:
        """A product of a set of units that cannot be in one kernel with another one; -1 if there
        is none."""
        for u in reversed(bits(members & self.read)):
            for barrier in self.known[u]:
                needed = barrier.between | 1 << barrier.reader
                if needed & members == needed and not barrier.looks & members:
                    return u
        return -1

    def _find(self, reader: Unit) -> None:
        """Notes the products that one product reads at such places."""
        sums = self.units.folds & ~self.products
        behind = sums >> reader.number << reader.number
        for edge in reader.edges:
            dims, looks = 0, behind
            for d in () if edge.simple else range(len(edge.terms)):
                fixed = _is_fixed(reader, edge, d, self.units)
                dims |= fixed << d
                if fixed and not _may_be_window(reader, edge.terms[d]):
                    looks = 0
            for u, between in self._reached(edge.producer, dims):
                self.known.setdefault(u, []).append(Barrier(reader.number, between, looks))
                self.read |= 1 << u

    def _reached(self, v: int, dims: int) -> Iterator[tuple[int, int]]:
        """The products that are read where some dimensions of a value are, and what is between."""
        pending = [(v, dims, 0)] if dims else []
        seen = set(pending)
        while pending:
            v, dims, between = pending.pop()
            if self.products >> v & 1:
                yield v, between
            if v < len(self.units.inputs) or self.units.folds >> v & 1:
                continue
            for edge in self.units.unit(v).edges:
                kept = sum(
                    1 << d
                    for d, t in enumerate(edge.terms)
                    if isinstance(t, int) and t >= 0 and dims >> t & 1
                )
                found = edge.producer, kept, between | 1 << v
                if kept and found not in seen:
                    seen.add(found)
                    pending.append(found)


def _is_fixed(reader: Unit, edge: Edge, d: int, units: Units) -> bool:
    """Whether one dimension of what is read is an expression with an axis that ends in the reader,
    wherever that one is computed: no other axis can take it away, nor leave it alone."""
    term = edge.terms[d]
    if not isinstance(term, Expr):
        return False
    names = axes_of(term)
    ended = [name for name in names if int(name[1:]) >= reader.rank]
    if ended and len(ended) == len(names):
        return True
    extent = units.values[edge.producer].type.shape[d]
    return any(
        coefficient(term, name) not in (None, 0)
        and units.extents[reader.axes[int(name[1:])]] != extent
        for name in ended
    )


def _may_be_window(reader: Unit, term: Index | int) -> bool:
    """Whether reductions after the reader may read windows (`window_recompute.windows_of`)."""
    others = [name for name in axes_of(term) if int(name[1:]) < reader.rank]
    steps = [coefficient(term, name) for name in others]
    return bool(others) and all(isinstance(s, int) and 0 < s <= WINDOW_STEPS for s in steps)
