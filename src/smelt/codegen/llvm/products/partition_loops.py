"""Operands of products that are joined of parts are packed part by part.

    dot(select(k < n, a[m,k], b[m, k - n]), w[k,j] over k)

Where a selection by position has one answer for a stretch of a packed axis, all of that stretch is
packed by loops of its own: nothing is selected, and no other part is read.  Packing writes each
element to a place of its own, so stretches may begin anywhere, however few positions they have:

    k           0 ... n ........... 2n
    a alone     [a a a]
    b alone           [b b b b][b b b]

What is packed in panels or turned squares is stored in whole vectors that must not begin anywhere.
There the vectors in which a condition flips are packed by loops that select, but know all answers
that both sides have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.items import accesses_of
from smelt.codegen.llvm.loops.partition_selects import MOST_CUTS, Piece, found_pieces
from smelt.codegen.llvm.schedule.task_tiling import turned_side
from smelt.dataclass import dataclass
from smelt.kernel.bounds import Facts, nonnegative
from smelt.types.affine import coefficient
from smelt.types.expr import Expr, axes_of, sub

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest

Value = ir.Value

MOST_PARTS = 31
"""Borders at which loops that begin anywhere are cut: each part has little code of its own."""
MOST_ITEMS = 400
"""Values of a body beyond which it takes long to find what each of its parts needs."""


@dataclass(frozen=True, slots=True)
class Stretched:
    """An axis that is packed in stretches; `unit`: what vectors of it begin at multiples of."""

    name: str
    pieces: Sequence[Piece]
    unit: int


def stretched(home: NestEmitter, nest: Nest, unit: int) -> list[Stretched]:
    """The axes of a packing nest that are worth cutting, outer to inner.  Vectors of what is packed
    have to begin at multiples of `unit`, a power of 2."""
    lanes = home.s.lanes
    whole = turned_side(lanes) if nest.turned else max(unit, lanes * nest.wide)
    if home.bands or home.taken or any(i.kind in ("scan", "branch", "peek") for i in nest.items):
        return []
    if not any(i.kind == "load" for i in nest.items) or len(nest.items) > MOST_ITEMS:
        return []
    given: Facts = ()
    found: list[Stretched] = []
    for name in nest.order:
        if name in home.s.phase.places:
            continue
        free = not nest.turned and (name != nest.vector or (unit == 1 and _is_even(nest, name)))
        most = MOST_PARTS if free else MOST_CUTS
        cut = found_pieces(nest, name, home.s.phase.axes[name], given, most)
        if cut and not any(axes_of(p.last) for p in cut if p.last is not None):
            found.append(Stretched(name, cut, 1 if free else whole))
    return found


def _is_even(nest: Nest, name: str) -> bool:
    """Whether all that depends on an axis goes on along it by one step, wherever vectors begin."""
    indices = [a.offset for a in accesses_of(nest.items)]
    indices += [e for a in accesses_of(nest.items) for pair in a.limits for e in pair]
    indices += [
        i.payload for i in nest.items if i.kind == "index" and isinstance(i.payload, (int, Expr))
    ]
    return all(coefficient(e, name) is not None for e in indices)


def in_stretches(home: NestEmitter, axes: Sequence[Stretched], run: Callable[[], None]) -> None:
    """Emits `run`, the loops of a packing nest, for each stretch of some of its axes."""
    if not axes:
        run()
        return
    b, axis = home.b, axes[0]
    low, high = home.ranges[axis.name]
    begin = low

    def part(end: Value, piece: Piece | None) -> None:
        """One stretch up to `end`, or what lies between two of them."""
        taken, assumed = home.taken, home.assumed
        home.ranges[axis.name] = begin, end
        with b.if_then(b.icmp_signed("<", begin, end)):
            if piece is not None:
                home.taken, home.assumed = taken | piece.taken, assumed | piece.limits
            in_stretches(home, axes[1:], run)
        home.taken, home.assumed = taken, assumed
        home.ranges[axis.name] = low, high

    def within(at: Value) -> Value:
        """A position, not before where the last stretch ended nor behind the end."""
        at = b.select(b.icmp_signed("<", at, high), at, high)
        return b.select(b.icmp_signed("<", at, begin), begin, at)

    for piece, after in zip(axis.pieces, [*axis.pieces[1:], None], strict=True):
        if piece.last is None or after is None:
            part(high, piece)
            continue
        cut = b.sub(home.home.index(piece.last), low)
        end = within(b.add(low, b.and_(cut, number(-axis.unit))))
        part(end, piece)
        begin = end
        if axis.unit > 1:
            end = within(b.add(low, b.and_(b.add(cut, number(axis.unit - 1)), number(-axis.unit))))
            part(end, _either(piece, after, axis.unit))
            begin = end


def _either(one: Piece, other: Piece, unit: int) -> Piece | None:
    """What is known in the vectors in which a piece ends and the next one begins; None where that
    may be shorter than what vectors begin at multiples of, so that they reach behind it."""
    assert one.last is not None
    if other.last is not None and not nonnegative(sub(sub(other.last, one.last), unit - 1)):
        return None
    both = {c: a for c, a in one.taken.items() if other.taken.get(c) is a}
    return Piece(None, (), both, one.limits & other.limits)


__all__ = ["Stretched", "in_stretches", "stretched"]
