"""Partition packing nests of concatenated operands at the select boundaries.

    dot(select(k < n, a[m,k], b[m, k - n]), w[k,j] over k)

Where a select by position has a constant condition over a segment of a packed axis, that segment is
packed by loops of its own: nothing is selected, and no other part is read.  Each element has its
own packed position, so segments may begin anywhere, however short they are:

    k           0 ... n ........... 2n
    a alone     [a a a]
    b alone           [b b b b][b b b]

Panels and transposed tiles are stored in full, aligned vectors.  There the vectors in which a
condition flips are packed by loops which select, specialised to the conditions both sides share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import accesses_of
from smelt.codegen.llvm.loops.partition_selects import MAX_CUTS, partition_axis_at_most
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.pieces import Piece
from smelt.codegen.llvm.schedule.task_tiling import transpose_side
from smelt.kernel.bounds import Facts, nonnegative
from smelt.python.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.expr import axes_of, sub

Value = ir.Value

MAX_LOOP_PARTS = 31
"""Maximum number of cuts of loops which may begin anywhere; each segment adds code."""
MAX_ITEMS = 400
"""Maximum size of a body: finding what each segment needs takes long beyond."""


@dataclass(frozen=True, slots=True)
class SegmentedAxis:
    """An axis which is packed in segments; vectors begin at multiples of `unit`."""

    name: str
    pieces: Sequence[Piece]
    unit: int


def segment_axes(env: Environment, nest: Nest, unit: int) -> list[SegmentedAxis]:
    """Return the axes of a packing nest which are worth partitioning, outermost first.

    Packed vectors must begin at multiples of `unit`, a power of two.
    """
    lanes = env.s.lanes
    alignment = transpose_side(lanes) if nest.transposed else max(unit, lanes * nest.unroll)
    if (
        env.row_groups
        or env.known_conditions
        or any(isinstance(i, (ssa.UniformSelect, ssa.Scan, ssa.WindowRead)) for i in nest.items)
    ):
        return []
    if not any(isinstance(i, ssa.Load) for i in nest.items) or len(nest.items) > MAX_ITEMS:
        return []
    facts: Facts = ()
    segmented: list[SegmentedAxis] = []
    for name in nest.order:
        if name in env.s.phase.window_positions:
            continue
        is_unaligned = not nest.transposed and (
            name != nest.vector or (unit == 1 and _is_even(nest, name))
        )
        max_cuts = MAX_LOOP_PARTS if is_unaligned else MAX_CUTS
        cut = partition_axis_at_most(nest, name, env.s.phase.axes[name], facts, max_cuts)
        if cut and not any(axes_of(p.last) for p in cut if p.last is not None):
            segmented.append(SegmentedAxis(name, cut, 1 if is_unaligned else alignment))
    return segmented


def _is_even(nest: Nest, name: str) -> bool:
    """Return whether everything is affine along an axis, wherever vectors begin."""
    indices = [a.offset for a in accesses_of(nest.items)]
    indices += [e for a in accesses_of(nest.items) for pair in a.limits for e in pair]
    indices += [i.index for i in nest.items if isinstance(i, ssa.IndexValue)]
    return all(coefficient(e, name) is not None for e in indices)


def for_each_segment(
    env: Environment, axes: Sequence[SegmentedAxis], run: Callable[[], None]
) -> None:
    """Emit `run`, the loops of a packing nest, for each segment of some axes."""
    if not axes:
        run()
        return
    b, axis = env.b, axes[0]
    low, high = env.ranges[axis.name]
    begin = low

    def part(end: Value, piece: Piece | None) -> None:
        """Emit one segment up to `end`, or what is between two segments."""
        taken, limits = env.known_conditions, env.proven_limits
        if piece is not None:
            taken, limits = {**taken, **piece.taken}, limits | piece.limits
        with (
            b.if_then(b.icmp_signed("<", begin, end)),
            env.narrowed({axis.name: (begin, end)}),
            env.within(known_conditions=taken, proven_limits=limits),
        ):
            for_each_segment(env, axes[1:], run)

    def within(at: Value) -> Value:
        """Clamp a position between the end of the last segment and that of the range."""
        at = b.minimum(at, high)
        return b.maximum(at, begin)

    for piece, after in zip(axis.pieces, [*axis.pieces[1:], None], strict=True):
        if piece.last is None or after is None:
            part(high, piece)
            continue
        cut = b.sub(env.frame.index(piece.last), low)
        end = within(b.add(low, b.and_(cut, number(-axis.unit))))
        part(end, piece)
        begin = end
        if axis.unit > 1:
            end = within(b.add(low, b.and_(b.add(cut, number(axis.unit - 1)), number(-axis.unit))))
            part(end, _common_facts(piece, after, axis.unit))
            begin = end


def _common_facts(first: Piece, second: Piece, unit: int) -> Piece | None:
    """Return the facts which hold in vectors where one piece ends and the next begins.

    None where the next piece may be shorter than a vector, so that vectors reach past it.
    """
    assert first.last is not None
    if second.last is not None and not nonnegative(sub(sub(second.last, first.last), unit - 1)):
        return None
    both = {c: a for c, a in first.taken.items() if second.taken.get(c) is a}
    return Piece(None, (), both, first.limits & second.limits)
