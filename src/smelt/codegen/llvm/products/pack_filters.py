"""Pack filters stored as OIHW: into panels by register transposes, or in pairs of channels.

Weights w[m,c,u,v] are one contiguous run for each m: all taps of a channel, then those of the next.
Tiles read panels in which m is contiguous:

    memory    w[m]     c0t0 c0t1 .. c0t8 c1t0 ..      as many runs as a vector has lanes
    scratch   t0       c0: m m m .., c1: m m m .., ..      then t1, and so on

Full vectors of neighbouring runs are read and transposed in registers.  A table holds the panel row
of each position of a run.  One panel at a time is packed, just before its tiles, so that it is
still in a near cache.  Runs are too short for hardware prefetchers, so those of the next panel are
prefetched before these tiles.

For dot-product instructions, a pair of channels is two runs in memory and one in scratch:

    memory   w[m,c,..]    a0 a1 a2 .. a8   w[m,c + 1,..]    b0 b1 b2 .. b8
    scratch               a0 b0 a1 b1 .. a8 b8

Each run is loaded as a vector; vectors are stored whole, and what one has past its run is
overwritten by the next pair.  A row's part of a block is too short for hardware prefetchers to
continue in the next row, so that is prefetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.access.prefetch import PACK_PREFETCH_ROWS
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, KPair
from smelt.codegen.llvm.loopir.pack_k_pairs import fixed_loads
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RUNS_PART
from smelt.codegen.llvm.print_loops import print_func
from smelt.codegen.llvm.products.fused_gemm_packing import conversions
from smelt.codegen.llvm.products.tile_loops import outline_function
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan, contiguous_filters
from smelt.codegen.llvm.schedule.conv_plan import LEFT_PITCH, ConvPlan
from smelt.loop.ir import Func
from smelt.loop.passes.hoist_offsets import hoist_offsets
from smelt.loop.passes.transpose_tile import transpose_tile
from smelt.loop.text import parse
from smelt.types.affine import coefficient
from smelt.types.dtype import i16
from smelt.types.expr import Index, axes_of, floordiv, sub, substitute

Value = ir.Value
PTR = ir.PointerType()
PACK_TYPE = ir.FunctionType(ir.VoidType(), [PTR] * 4 + [I64] * 3)
"""Type of the packing function: the arrays and numbers of `run_tile`."""


class TransposedFilterPacker:
    """Packs the weights of one product, panel by panel."""

    def __init__(self, env: Environment, nest: Nest, c: NhwcConvPlan) -> None:
        self.env, self.b, self.c = env, env.b, c
        access = contiguous_filters(c)
        assert access is not None
        self.dtype, self.base = env.frame.dtypes[access.buffer], env.frame.buffers[access.buffer]
        top = env.open(nest, Scope(env.top))
        zeros = dict.fromkeys((c.n, c.depth, *c.others), 0)
        self.origin = env.index(substitute(access.offset, zeros), top)
        self.run_stride = env.index(coefficient(access.offset, c.n) or 0, top)
        self.table = env.storage.at[c.item, RUNS_PART]
        steps = [coefficient(access.offset, a) for a in c.others]
        table = panel_rows(c.block, c.tile.columns, c.extents, steps)
        print_func(self.b, env.frame.target, table, [self.table], [])

    def pack(self, column: Value, vectors: int) -> None:
        """Pack the panel of the task's columns from one on, for the current channel block."""
        b, c, env, lanes = self.b, self.c, self.env, self.c.tile.lanes
        (first, last), (low, high) = env.ranges[c.n], env.ranges[c.depth]
        length = b.mul(b.sub(high, low), number(c.taps))
        n, after = b.add(first, column), b.add(first, b.add(column, number(vectors * lanes)))
        is_last = b.icmp_signed(">=", after, last)
        later = self._run(b.select(is_last, first, after), b.select(is_last, high, low))
        function = self._function()
        for v in range(vectors):
            begin, panel = self._run(n, low), env.storage.at[c.item, LEFT_PART]
            n = b.add(n, number(lanes))
            to = element_address(b, panel, number(v * lanes), c.unit)
            following = self._run(n, low) if v + 1 < vectors else later
            left = b.sub(last, b.sub(n, number(lanes)))
            b.call(function, [to, begin, self.table, following, self.run_stride, left, length])

    def _run(self, n: Value, k: Value) -> Value:
        """Return the address of a column's run, from a channel on."""
        b = self.b
        at = b.add(self.origin, b.add(b.mul(n, self.run_stride), b.mul(k, number(self.c.taps))))
        return element_address(b, self.base, at, self.dtype)

    def _function(self) -> ir.Function:
        """Return the function which packs a vector's runs, shared within a module."""
        c, s, lanes = self.c, self.env.s, self.c.tile.lanes
        types = [t.name for t in (self.dtype, *conversions(c.left), c.unit)]
        depths = s.local[c.depth], s.phase.axes[c.depth]
        short = any(
            not isinstance(n, int) or (n % c.block or c.block) * c.taps < lanes for n in depths
        )
        func = run_tile(lanes, *types, short=short)

        def fill(f: ir.Function) -> None:
            b = ir.IRBuilder(f.append_basic_block("entry"))
            print_func(b, self.env.frame.target, func, f.args[:4], f.args[4:])
            b.ret_void()

        name = f"squares.{'.'.join(types)}.{lanes}{'.short' * short}"
        return outline_function(self.b.module, name, PACK_TYPE, fill)


@cache
def run_tile(lanes: int, stored: str, *types: str, short: bool = True) -> Func:
    """Return the loops that pack as many runs as a vector has lanes.

    The first type is that of the filter, the last one that of the panel.  Runs past the last row
    repeat it; `next` has those which are prefetched meanwhile.  The last square of a run overlaps
    the one before.  With `short`, runs may have less than a vector.
    """
    value = "w[min({r}, rows - 1)*stride + {at}{k}{mask}]"
    *conversions, packed = types
    for dtype in conversions:
        value = f"{dtype}({value})"

    def square(r: str, k: str, at: str, mask: str) -> str:
        loaded = value.format(r=r, k=k, at=at, mask=mask)
        return f"""each {r} in 0 .. {lanes}
        prefetch next[{r}*stride + {at}0] level 2
        each {k} in 0 .. {lanes}
          to_{k} = table[{at}{k}]
          p[to_{k} + {r}] = {loaded}"""

    other = f"  else\n      {square('s', 'j', '', ' | j < length')}" if short else ""
    (func,) = parse(f"""
tile runs(p: out {packed}[], w: {stored}[], table: i64[], next: {stored}[]; stride, rows, length)
  if length >= {lanes}
    for i in 0 .. length by {lanes}
      at = min(i, length - {lanes})
      {square("r", "k", "at + ", "")}
{other}""").funcs
    func = transpose_tile(func, "r", "k")
    return hoist_offsets(transpose_tile(func, "s", "j") if short else func)


def panel_rows(
    block: int, columns: int, extents: Sequence[int], steps: Sequence[Index | None]
) -> Func:
    """Return the loops that store where each position of a run begins in a panel.

    A run has all taps of a channel, then of the next one; a panel has all channels of a tap.
    """
    loops, indent, source, tap = "", "    ", f"c*{prod(extents)}", ""
    for d, (extent, step) in enumerate(zip(extents, steps, strict=True)):
        # An axis without stride has extent 1.
        loops += f"{indent}each a{d} in 0 .. {extent}\n"
        indent += "  "
        source += f" + a{d}*{step if isinstance(step, int) else 0}"
        tap = f"({tap}*{extent} + a{d})" if tap else f"a{d}"
    (func,) = parse(f"""tile rows(table: out i64[])
  each c in 0 .. {block}
{loops}{indent}table[{source}] = c*{columns} + {tap or 0}*{block * columns}""").funcs
    return func


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
