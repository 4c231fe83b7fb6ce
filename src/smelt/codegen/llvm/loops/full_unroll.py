"""Short rows without loops: a row of 24 is a vector of 16 and one of which 8 lanes are masked.

Where a row's length is a number and few vectors hold it, each has its place and its mask as
constants, and a fold has as many lanes in its last vector as in its first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import iota, opaque, splat
from smelt.codegen.llvm.instructions.reductions import PAIRED
from smelt.codegen.llvm.loopir.items import Item, cut_axes
from smelt.codegen.llvm.loops.unroll_factor import adds_pairs

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest, Schedule

Value = ir.Value
VECTORS = 8
"""Vectors of a row up to which each is written out."""
MOST_ITEMS = 64
"""Values in all of them at most, beyond which a loop is as fast, and compiled sooner."""


def is_whole(s: Schedule, axis: str) -> bool:
    """Whether a task takes all of an axis of known length, though it could take a block."""
    extent, block = s.phase.axes[axis], s.block.get(axis)
    return isinstance(extent, int) and isinstance(block, int) and extent <= block


def is_straight(s: Schedule, nest: Nest, items: Sequence[Item] = ()) -> bool:
    """Whether a nest's rows are written out as their vectors; those of one without folds where
    `items` alone are needed."""
    name = nest.vector
    extent = s.phase.axes[name] if name is not None else None
    if name is None or not isinstance(extent, int) or not 0 < extent <= VECTORS * s.lanes:
        return False
    if nest.order[-1:] != (name,) or name in s.phase.places:
        return False
    if name in s.block and not is_whole(s, name):
        return False
    if name in s.phase.cut.keys() | cut_axes(s.phase.segments[nest.time]):
        return False
    if nest.packed or nest.once or nest.turned or nest.within:
        return False
    if not nest.folds and extent % (s.lanes * nest.wide) == 0:  # a loop without a rest
        return False
    items = nest.items if nest.folds or not items else items
    inner = sum(name in i.axes for i in items)
    return inner * -(-extent // s.lanes) <= MOST_ITEMS


def vectors_of(lanes: int, nest: Nest, extent: int) -> list[tuple[int, int]]:
    """Where the vectors of a row begin, and how many lanes each has: the last one of a row that is
    not folded as few as hold the rest, so that some need no mask.  Four vectors that a sum adds as
    pairs are one, as they are in a loop."""
    together = lanes * PAIRED
    paired = nest.pairs and nest.wide % PAIRED == 0 and bool(nest.folds)
    paired = paired and all(adds_pairs(f, nest) for f in nest.folds)  # others fold single vectors
    whole = extent - extent % together if paired else 0
    found = [(first, together) for first in range(0, whole, together)]
    found += [(first, lanes) for first in range(whole, extent, lanes)]
    if whole == extent:
        return found
    first, rest = found[-1][0], extent - found[-1][0]
    if not nest.folds:
        found[-1] = first, min(1 << (rest - 1).bit_length(), lanes)
    return found


def rest_mask(home: NestEmitter, high: Value, position: Value, count: int) -> Value | None:
    """The lanes from a position on that lie before the end of a row: None where all do."""
    b, lanes = home.b, ir.VectorType(ir.IntType(1), count)
    left = b.sub(high, position)
    number = 0
    if isinstance(high, ir.Constant) and isinstance(position, ir.Constant):
        number = int(high.constant) - int(position.constant)
    if number >= count:
        return None
    if number > 1:
        return ir.Constant(lanes, [k < number for k in range(count)])
    if home.nest.stores and home.home.target.isa == "avx512":
        left = opaque(b, left)
    return b.icmp_signed("<", iota(count), splat(b, left, count))


__all__ = ["is_straight", "is_whole", "rest_mask", "vectors_of"]
