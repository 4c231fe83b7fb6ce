"""Unroll short rows of constant length completely.

A row of 24 is a vector of 16 and one of which 8 lanes are masked.  Each has a constant position and
mask then.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import lanes_before_end, opaque
from smelt.codegen.llvm.loopir.items import Item, cut_axes
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest, Schedule

Value = ir.Value
MAX_UNROLLED_VECTORS = 8
"""Maximum vectors of a row to unroll."""
MAX_UNROLLED_ITEMS = 64
"""Maximum values in all of them; with more, a loop is as fast and compiles sooner."""


def is_single_block(s: Schedule, axis: str) -> bool:
    """Return whether an axis is known to fit into a single block of a task."""
    extent, block = s.phase.axes[axis], s.block.get(axis)
    return extent == block or (
        isinstance(extent, int) and isinstance(block, int) and extent <= block
    )


def is_fully_unrolled(s: Schedule, nest: Nest, items: Sequence[Item] = ()) -> bool:
    """Return whether a nest's rows are unrolled completely.

    If it has no reductions, `items` are what the current version needs of it.
    """
    name = nest.vector
    extent = s.phase.axes[name] if name is not None else None
    if (
        name is None
        or not isinstance(extent, int)
        or not 0 < extent <= MAX_UNROLLED_VECTORS * s.lanes
    ):
        return False
    if nest.order[-1:] != (name,) or name in s.phase.window_positions:
        return False
    if name in s.block and not is_single_block(s, name):
        return False
    if name in s.phase.cut.keys() | cut_axes(s.phase.segments[nest.time]):
        return False
    if nest.packed or nest.single_use or nest.transposed or nest.store_range:
        return False
    if not nest.reductions and extent % (s.lanes * nest.unroll) == 0:  # a loop without remainder
        return False
    items = nest.items if nest.reductions or not items else items
    inner = sum(name in i.axes for i in items)
    return inner * -(-extent // s.lanes) <= MAX_UNROLLED_ITEMS


def tail_mask(env: Environment, high: Value, position: Value, count: int) -> Value | None:
    """Return the mask of lanes before the end of a row.

    None if all lanes are.
    """
    b, lanes = env.b, ir.VectorType(ir.IntType(1), count)
    left = b.sub(high, position)
    number = 0
    if isinstance(high, ir.Constant) and isinstance(position, ir.Constant):
        number = int(high.constant) - int(position.constant)
    if number >= count:
        return None
    if number > 1:
        return ir.Constant(lanes, [k < number for k in range(count)])
    if env.nest.stores and env.frame.target.facts.has_mask_registers:
        left = opaque(b, left)
    return lanes_before_end(b, left, count)
