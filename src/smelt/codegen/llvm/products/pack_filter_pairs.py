"""Pack filter weights in channel pairs, for dot-product instructions tap by tap.

Weights w[m,c,u,v] of a pair of channels are two runs in memory and one in scratch:

    memory   w[m,c,..]    a0 a1 a2 .. a8   w[m,c + 1,..]    b0 b1 b2 .. b8
    scratch               a0 b0 a1 b1 .. a8 b8

Each run is loaded as a vector; vectors are stored whole, and what one has past its run is
overwritten by the next pair.  A row's part of a block is too short for hardware prefetchers to
continue in the next row, so that is prefetched.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import PACK_PREFETCH_ROWS
from smelt.codegen.llvm.instructions.dot_product import pack_pairs
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, KPair
from smelt.codegen.llvm.loopir.pack_k_pairs import fixed_loads
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART
from smelt.codegen.llvm.schedule.conv_plan import LEFT_PITCH, ConvPlan
from smelt.types.affine import coefficient
from smelt.types.dtype import DType, i32
from smelt.types.expr import axes_of, floordiv, sub, substitute

Value = ir.Value
BIT = ir.IntType(1)


def pair_loads(c: ConvPlan) -> tuple[Access, Access] | None:
    """Return the loads of the left operand's pairs, if both are contiguous runs of taps."""
    if not c.packs_by_tap or not isinstance(c.left, KPair) or len(c.left.args) != 2:
        return None
    loads = fixed_loads(c.left.args)
    if loads is None:
        return None
    first_load, second_load = loads
    plain = not first_load.limits and sub(second_load.offset, first_load.offset) == c.taps
    plain &= len(second_load.limits) <= 1  # its bound: the last channel may have no partner
    steps = [coefficient(first_load.offset, a) for a in (c.m, c.depth, c.flat)]
    lies = steps[0] is not None and not axes_of(steps[0]) and steps[1:] == [2 * c.taps, 1]
    return (first_load, second_load) if plain and lies else None


def pack_filter_pairs(
    env: Environment, nest: Nest, c: ConvPlan, loads: tuple[Access, Access]
) -> None:
    """Pack one block of such a filter, row by row."""
    b, access, top = env.b, loads[0], env.open(nest, Scope(env.top))
    dtype, base = env.frame.dtypes[access.buffer], env.frame.buffers[access.buffer]
    first, last = env.ranges[c.m]
    low, high = env.ranges[c.depth]
    row_stride = env.index(coefficient(access.offset, c.m) or 0, top)
    prefetch_distance = b.mul(row_stride, number(PACK_PREFETCH_ROWS))
    zeros = dict.fromkeys((c.m, c.depth, c.flat), 0)
    origin = env.index(substitute(access.offset, zeros), top)
    origin = b.add(origin, b.mul(low, number(2 * c.taps)))
    pairs_end = high
    for _, extent in loads[1].limits:
        pairs = env.index(floordiv(extent, 2), top)
        pairs_end = b.select(b.icmp_signed("<", pairs, high), pairs, high)

    def row(m: Value) -> None:
        start = element_address(b, base, b.add(origin, b.mul(m, row_stride)), dtype)
        to = b.mul(b.sub(m, first), number(LEFT_PITCH))
        to = element_address(b, env.storage.at[c.item, LEFT_PART], to, i32)

        def pair(k: Value, is_single: bool) -> None:
            k = b.sub(k, low)
            at = element_address(b, start, b.mul(k, number(2 * c.taps)), dtype)
            prefetch(b, element_address(b, at, prefetch_distance, dtype))
            place = element_address(b, to, b.mul(k, number(c.taps)), i32)
            _pack_pair(env, c, at, [0] if is_single else [0, c.taps], place, dtype)

        env.loop(low, pairs_end, 1, lambda k: pair(k, False))
        if pairs_end is not high:
            env.loop(pairs_end, high, 1, lambda k: pair(k, True))

    env.loop(first, last, 1, row)


def _pack_pair(
    env: Environment, c: ConvPlan, at: Value, runs: Sequence[int], to: Value, dtype: DType
) -> None:
    """Pack all taps of a pair, or of a last channel without partner.

    `runs` are the offsets of its channels from `at`.
    """
    b, lanes = env.b, c.tile.lanes
    m = LLVMMachine(b, lanes, env.frame.target)
    for j in range(0, c.taps, lanes):
        mask = ir.Constant(ir.VectorType(BIT, lanes), [j + i < c.taps for i in range(lanes)])
        places = (element_address(b, at, number(j + run), dtype) for run in runs)
        vectors = [load_vector(m, place, dtype, mask) for place in places]
        vectors += [m.const(c.item.dtype, 0)] * (2 - len(vectors))
        store_vector(m, element_address(b, to, number(j), i32), pack_pairs(m, vectors), i32, None)


__all__ = ["pack_filter_pairs", "pair_loads"]
