"""Pack operands of convolutions and products into scratch, by loop nests.

These may compute or transpose what they pack.  The address of a packed element is linear in the
axes of the nest; `packer.pack(nest)` emits it as loops that store to `packer.packed_array(nest)`.

*Segments.*  Where a select by position has a constant condition over a segment of a packed axis,
that segment is packed by loops of its own: nothing is selected, and no other part is read.  Each
element has its own packed position, so segments may begin anywhere, however short they are.  For
`dot(select(k < n, a[m,k], b[m, k - n]), w[k,j] over k)`:

    k           0 ... n ........... 2n
    a alone     [a a a]
    b alone           [b b b b][b b b]

Panels and transposed tiles are stored in full, aligned vectors.  There the vectors in which a
condition flips are packed by loops which select, specialised to the conditions both sides share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.input_tile import WindowAxis
from smelt.codegen.llvm.loopir.items import (
    Item,
    accesses_of,
)
from smelt.codegen.llvm.loops.partition_selects import MAX_CUTS, live_items, partition_axis_at_most
from smelt.codegen.llvm.nests.environment import Environment, PackedArray, Scope
from smelt.codegen.llvm.nests.nest import Nest, Piece
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RIGHT_PART
from smelt.codegen.llvm.products.microkernel import strip_mine_transpose_tiles
from smelt.codegen.llvm.schedule.task_tiling import transpose_side
from smelt.kernel.bounds import Facts, nonnegative
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, axes_of, coefficient, sub

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


class Packer:
    """Packs the operands of one product in the task that `env` is emitting."""

    def __init__(self, env: Environment, item: Item) -> None:
        self.env, self.b, self.item = env, env.b, item
        self.element = item.args[0].dtype
        """Element type of packed operands in scratch."""
        self.image = self.element
        """Element type of the packed right operand."""
        self.starts: dict[str, Value] = {}
        self.packed_left_strides: dict[str, Value] = {}
        """Strides of the packed left operand, in elements."""
        self.packed_right_strides: dict[str, Value] = {}
        """Strides of the packed right operand, in elements."""
        self.in_parts = False
        """Whether the operand being packed is packed segment by segment."""

    def dense_strides(self, order: tuple[str, ...], extents: Iterable[Index]) -> dict[str, Value]:
        """Return the strides of a dense array with axes `order`, in elements."""
        b, strides = self.b, dict[str, Value]()
        step: Value = number(1)
        for a, n in zip(order[::-1], [self.env.frame.index(n) for n in extents][::-1], strict=True):
            strides[a], step = step, b.mul(step, n)
        return strides

    def window_offset(
        self, columns: Sequence[WindowAxis], over: Sequence[str], at: Sequence[int]
    ) -> Value:
        """Return the right operand's offset from an output, `at` positions along `over`."""
        b, total = self.b, number(0)
        slid = {c.tap: c for c in columns if c.tap}
        for a, k in zip(over, at, strict=True):
            steps = [(a, k)]
            if a in slid:
                steps = [(slid[a].position_axis, slid[a].quotient(k))]
                steps += (
                    [(slid[a].remainder_axis, slid[a].remainder(k))]
                    if slid[a].remainder_axis
                    else []
                )
            for name, count in steps:
                total = b.add(total, b.mul(self.packed_right_strides[name], number(count)))
        return total

    def widened(self, columns: Sequence[WindowAxis]) -> dict[str, tuple[Value, Value]]:
        """Return the ranges of input positions: those of the task's outputs plus the halo."""
        ranges = {c: self.env.ranges[c.axis] for c in columns}
        return {
            c.position_axis: (low, self.b.add(high, number(c.halo)))
            for c, (low, high) in ranges.items()
        }

    def is_multiple(self, axis: str, step: int) -> bool:
        """Return whether every task has a known multiple of `step` positions along an axis."""
        sizes = self.env.s.local[axis], self.env.s.phase.axes[axis]
        return all(isinstance(n, int) and n % step == 0 for n in sizes)

    def count_from(self, starts: dict[str, Value]) -> None:
        """Count packed positions from `starts`."""
        self.starts = starts

    def pack(
        self, nest: Nest, scope: Scope | None = None, starts: dict[str, Value] | None = None
    ) -> None:
        """Emit the nest which packs an operand.

        Concatenations are packed segment by segment, transposed operands tile by tile.  Packed
        positions are counted from `starts`, by default the beginning of the axes' ranges.
        """
        self.starts = starts or {a: self.env.ranges[a][0] for a in nest.order}
        inner = scope or Scope(self.env.top)
        plain = self.partitionable_axes(nest)
        axes = [
            a for a in segment_axes(self.env, nest, self.vector_alignment(nest)) if a.name in plain
        ]
        self.in_parts = bool(axes)
        for_each_segment(self.env, axes, lambda: self._pack(nest, inner))

    def partitionable_axes(self, nest: Nest) -> Collection[str]:
        """Return the axes of a nest which may be partitioned into segments."""
        return ()

    def stores_whole(self, nest: Nest) -> bool:
        """Return whether vectors are stored whole, over the beginning of the next row."""
        return False

    def vector_alignment(self, nest: Nest) -> int:
        """Return the multiple at which vectors of a packing nest must begin."""
        return 1

    def _pack(self, nest: Nest, scope: Scope) -> None:
        run = partial(self.env.run, nest, scope)
        if nest.transposed and not self.packs_squares(nest):
            strip_mine_transpose_tiles(self.env, nest.order[::-1], run)
        else:
            run()

    def packs_squares(self, nest: Nest) -> bool:
        """Return whether an array is packed in transposed squares, past the axes' ends."""
        return False

    def is_transposed(self, nest: Nest) -> bool:
        """Return whether a nest does nothing but transpose an array."""
        env = self.env
        items = live_items(nest, env.known_conditions) if env.known_conditions else nest.items
        return len(items) == 1 and items[0] in nest.transposed

    def packed_array(self, nest: Nest) -> PackedArray:
        """Return where loops pack an operand."""
        return self.rows_of(nest)

    def rows_of(self, nest: Nest) -> PackedArray:
        """Return an array with an operand's rows, each axis with its step."""
        is_right = nest.packed == "right"
        return PackedArray(
            self.at(RIGHT_PART if is_right else LEFT_PART, number(0)),
            self.image if is_right else self.element,
            self.starts,
            self.packed_right_strides if is_right else self.packed_left_strides,
            stores_whole=self.stores_whole(nest),
            squares=self.packs_squares(nest),
        )

    def panels_of(self, nest: Nest, width: int, depth: Value, column: Value) -> PackedArray:
        """Return an array in panels of `width` columns, with `depth` rows each.

        The nest begins at a packed column, that of a panel.
        """
        rows, (k,) = self.rows_of(nest), (a for a in nest.order if a != nest.vector)
        before = self.b.mul(column, depth)
        return replace(
            rows,
            address=element_address(self.b, rows.address, before, rows.dtype),
            steps={k: number(width)},
            width=width,
            panel=self.b.mul(depth, number(width)),
        )

    def offset(self, nest: Nest, scope: Scope) -> Value:
        """Return the packed position of the vector at a scope, in elements."""
        b, total = self.b, number(0)
        steps = self.packed_right_strides if nest.packed == "right" else self.packed_left_strides
        for a in nest.order:
            total = b.add(total, b.mul(b.sub(scope.axis(a), self.starts[a]), steps[a]))
        return total

    def at(self, part: int, offset: Value) -> Value:
        """Return the address of an element in a part of the product's scratch memory."""
        dtype = {0: self.item.dtype, RIGHT_PART: self.image}.get(part, self.element)
        return element_address(self.b, self.env.storage.at[self.item, part], offset, dtype)


def panel_offset(b: ir.IRBuilder, width: int, depth: Value, k: Value, column: Value) -> Value:
    """Return where an element is in panels of `width` columns, with `depth` rows each."""
    inside = b.and_(column, number(width - 1))
    panel = b.mul(b.sub(column, inside), depth)
    return b.add(b.add(panel, b.mul(k, number(width))), inside)
