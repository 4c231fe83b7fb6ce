"""Find pairs of contractions that no kernel can hold together, once per graph.

A contraction is computed once per result. If another one reads it at positions that combine its
axis with an axis reduced there (windows of a convolution, heads of attention), every region of both
has that axis in the position, whatever else it contains, and is refused. Such pairs are found here
from the edges, through all units that pass the position on, so that no region has to be built.

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

from smelt.fusion.bitsets import bits
from smelt.fusion.units import Edge, Unit, Units
from smelt.ops.windows import WINDOW_STEPS
from smelt.python.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.expr import Expr, Index, axes_of


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
        pending = [(v, dims, 0)] if dims else []
        seen = set(pending)
        while pending:
            v, dims, between = pending.pop()
            if self.products >> v & 1:
                yield v, between
            if v < len(self.units.inputs) or self.units.reductions >> v & 1:
                continue
            for edge in self.units.unit(v).edges:
                followed = sum(
                    1 << d
                    for d, t in enumerate(edge.terms)
                    if isinstance(t, int) and t >= 0 and dims >> t & 1
                )
                source = edge.producer, followed, between | 1 << v
                if followed and source not in seen:
                    seen.add(source)
                    pending.append(source)


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
