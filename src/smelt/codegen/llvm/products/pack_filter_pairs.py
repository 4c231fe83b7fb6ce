"""Pack filter weights in channel pairs, for dot-product instructions tap by tap.

Weights w[m,c,u,v] of a pair of channels are two runs in memory and one in scratch:

    memory   w[m,c,..]    a0 a1 a2 .. a8   w[m,c + 1,..]    b0 b1 b2 .. b8
    scratch               a0 b0 a1 b1 .. a8 b8

Each run is loaded as a vector; vectors are stored whole, and what one has past its run is
overwritten by the next pair.  A row's part of a block is too short for hardware prefetchers to
continue in the next row, so that is prefetched.
"""

from __future__ import annotations

from functools import cache

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.access.prefetch import PACK_PREFETCH_ROWS
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, KPair
from smelt.codegen.llvm.loopir.pack_k_pairs import fixed_loads
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART
from smelt.codegen.llvm.print_loops import print_func
from smelt.codegen.llvm.schedule.conv_plan import LEFT_PITCH, ConvPlan
from smelt.loop.ir import Func
from smelt.loop.passes.hoist_offsets import hoist_offsets
from smelt.loop.text import parse
from smelt.types.affine import coefficient
from smelt.types.dtype import i16
from smelt.types.expr import axes_of, floordiv, sub, substitute

Value = ir.Value


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
    (first, last), (low, high) = env.ranges[c.m], env.ranges[c.depth]
    stride = env.index(coefficient(access.offset, c.m) or 0, top)
    origin = env.index(substitute(access.offset, dict.fromkeys((c.m, c.depth, c.flat), 0)), top)
    origin = b.add(origin, b.add(b.mul(low, number(2 * c.taps)), b.mul(first, stride)))
    complete = high
    for _, extent in loads[1].limits:
        pairs = env.index(floordiv(extent, 2), top)
        complete = b.minimum(pairs, high)
    arrays = [
        env.storage.at[c.item, LEFT_PART],
        element_address(b, env.frame.buffers[access.buffer], origin, i16),
    ]
    numbers = [b.sub(last, first), stride, *(b.sub(end, low) for end in (complete, high))]
    func = pair_rows(c.tile.lanes, c.taps, odd=bool(loads[1].limits))
    print_func(b, env.frame.target, func, arrays, numbers)


@cache
def pair_rows(lanes: int, taps: int, *, odd: bool) -> Func:
    """Return the loops that interleave the bits of channels, row by row.

    A last channel without partner, if there may be an `odd` one, is interleaved with zeros.
    """

    def pair(k: str, second: str) -> str:
        stores = ""
        for j in range(0, taps, lanes):
            mask = f" : {lanes} | prefix({taps - j}, {lanes})]"
            rows = [f"w[m*stride + {k}*{2 * taps} + {j}{mask}", second.format(taps + j, mask)]
            to = f"p[m*{2 * LEFT_PITCH} + {k}*{2 * taps} + {2 * j} : {2 * lanes}]"
            stores += f"\n      {to} = shuffle(interleave, {', '.join(rows)})"
        return stores

    last = pair("j", f"splat(i16(0), {lanes})")
    (func,) = parse(f"""
tile pairs(p: out i16[], w: i16[]; rows, stride, complete, all)
  for m in 0 .. rows
    for k in 0 .. complete
      prefetch w[(m + {PACK_PREFETCH_ROWS})*stride + k*{2 * taps}] level 2\
{pair("k", f"w[m*stride + k*{2 * taps} + {{}}{{}}")}
{f"    for j in complete .. all{last}" if odd else ""}""").funcs
    return hoist_offsets(func)


__all__ = ["pack_filter_pairs", "pair_loads", "pair_rows"]
