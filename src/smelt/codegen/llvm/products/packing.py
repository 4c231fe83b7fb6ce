"""Pack operands of convolutions and tall-skinny products into scratch.

Both operands are packed by ordinary loop nests, which may compute or transpose what they pack.  The
address of a packed element is linear in the axes of the nest:

    packer.pack(nest)    emits the nest; its body hands every vector to `put`
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_vector
from smelt.codegen.llvm.instructions.indexing import number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.input_tile import WindowAxis
from smelt.codegen.llvm.loopir.items import Item, Load
from smelt.codegen.llvm.loops.versioning import live_items
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RIGHT_PART
from smelt.codegen.llvm.products.partition_loops import for_each_segment, segment_axes
from smelt.codegen.llvm.products.tile_loops import strip_mine_transpose_tiles
from smelt.codegen.llvm.scratch.transpose import emit_transposed
from smelt.types.expr import Index

Value = ir.Value


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
        self.row_vectors = 0
        """Vectors per row, where rows are stored in full vectors without masks.

        What a vector has past the end of its row is overwritten by the next row.
        """

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
        return self.row_vectors > 0

    def vector_alignment(self, nest: Nest) -> int:
        """Return the multiple at which vectors of a packing nest must begin."""
        return 1

    def _pack(self, nest: Nest, scope: Scope) -> None:
        if nest.transposed:
            strip_mine_transpose_tiles(self.env, nest.order, lambda: self.env.run(nest, scope))
        else:
            self.env.run(nest, scope)

    def _pack_squares(self, nest: Nest, scope: Scope, axes: tuple[str, ...]) -> None:
        """Pack squares of a single array as they are transposed, other operands by tiles.

        Squares are stored whole, past the ends of the axes' ranges.
        """
        env = self.env
        items = live_items(nest, env.known_conditions) if env.known_conditions else nest.items
        if len(items) != 1 or not isinstance(load := items[0], Load) or load not in nest.transposed:
            strip_mine_transpose_tiles(env, axes, lambda: env.run(nest, scope))
            return
        u, v = nest.order[-2:]

        def put(row: Value, first: Value, column: Value) -> None:
            lanes = Lanes(v, first, env.s.lanes, None)
            self.put(nest, column, Scope(scope, {u: row, v: first}, lanes=lanes))

        emit_transposed(env, load, env.open(nest, scope), put)

    def put(self, nest: Nest, value: Value, scope: Scope) -> None:
        """Store one vector of a packed operand; called from the body of the packing nest."""
        b, env, part = self.b, self.env, RIGHT_PART if nest.packed == "right" else LEFT_PART
        lanes = scope.lanes.count if scope.lanes is not None else None
        value = splat(b, value, lanes) if lanes else value
        store_vector(
            LLVMMachine(b, lanes, env.frame.target),
            self.at(part, self.offset(nest, scope)),
            value,
            self.element if part == LEFT_PART else self.image,
            scope.lanes.mask if scope.lanes and not self.stores_whole(nest) else None,
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
