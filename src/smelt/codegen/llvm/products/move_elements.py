"""Move elements by loop texts: clear, copy, transpose between layouts, and pack filters.

*Images* are converted between NCHW and NHWC while packing, and sums back when storing.  Vectors of
an NCHW image run along its rows.  Those of as many channels as a vector has lanes form a tile which
is transposed in registers: its columns are pixels with contiguous channels, as packed.  Sums are
NHWC too, and are transposed back tile by tile, without regard to image rows.

*Filters* w[m,c,u,v] (OIHW) are one contiguous run for each m: all taps of a channel, then those of
the next.  Tiles read panels in which m is contiguous:

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
from itertools import chain
from math import prod

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_interleaved, store_vector
from smelt.codegen.llvm.access.prefetch import PACK_PREFETCH_ROWS
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.transpose import transpose
from smelt.codegen.llvm.loopir.input_tile import WindowAxis
from smelt.codegen.llvm.loopir.items import Access, KPair, fixed_loads
from smelt.codegen.llvm.loopir.strided_input import StridedRows
from smelt.codegen.llvm.nest_loops import NestBody
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import (
    LEFT_PART,
    RIGHT_PART,
    RUNS_PART,
    SUMS_PART,
    ProductPlan,
)
from smelt.codegen.llvm.print_loops import print_func
from smelt.codegen.llvm.products.direct_store import (
    rows_are_contiguous,
    transposed_layout,
)
from smelt.codegen.llvm.products.microkernel import outline_function
from smelt.codegen.llvm.products.pack_rows import vector_loop
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan, contiguous_filters
from smelt.codegen.llvm.schedule.conv_plan import LEFT_PITCH, ConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.schedule.operands import conversions
from smelt.loop.ir import Func
from smelt.loop.passes.hoist_offsets import hoist_offsets
from smelt.loop.passes.transpose_tile import transpose_tile
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.text import parse
from smelt.types.dtype import DType, i16
from smelt.types.expr import Index, axes_of, coefficient, floordiv, product, sub, substitute

Value = ir.Value


def clear_elements(env: Environment, to: Value, count: Value, lanes: int, dtype: DType) -> None:
    """Store zeros in full vectors, the last one past the end."""
    print_func(env.b, env.frame.target, clear(lanes, dtype), [to], [count])


def clear_panel_tail(
    env: Environment, c: ProductPlan, panels: Value, columns: Value, units: Value, lines: Value
) -> None:
    """Clear the lanes past the last column, in the last of some panels.

    Each is as wide as a tile and has room for `units` positions, of which `lines` are cleared.
    """
    func = panel_tail(c.tile.lanes, c.tile.columns, c.item.dtype)
    print_func(env.b, env.frame.target, func, [panels], [columns, units, lines])


def copy_elements(
    env: Environment, to: Value, source: Value, count: Value, lanes: int, *types: DType
) -> None:
    """Copy elements by vectors, converted from type to type on the way."""
    print_func(env.b, env.frame.target, copy(lanes, *types), [to, source], [count])


@cache
def clear(lanes: int, dtype: DType) -> Func:
    """Return the loop that stores zeros."""
    (func,) = parse(f"""tile clear(p: out {dtype.name}[]; n)
  each i in 0 .. n by {lanes}
    p[i : {lanes}] = {dtype.compute.name}(0)""").funcs
    return func


@cache
def panel_tail(lanes: int, width: int, dtype: DType) -> Func:
    """Return the loops that clear the lanes past the last column of panels."""
    (func,) = parse(f"""tile tail(p: out {dtype.name}[]; columns, units, lines)
  last = columns % {width}
  if last != 0
    each k in 0 .. lines
      each i in last//{lanes}*{lanes} .. {width} by {lanes}
        p[(columns - last)*units + k*{width} + i : {lanes}] = {dtype.compute.name}(0)""").funcs
    return hoist_offsets(func)


@cache
def copy(lanes: int, stored: DType, *types: DType) -> Func:
    """Return the loops that copy elements; the last type is that of the copy."""
    *inner, last = (t.name for t in types)
    value = "x[i]"
    for dtype in inner:
        value = f"{dtype}({value})"
    (func,) = parse(f"""tile copy(p: out {last}[], x: {stored.name}[]; n)
  each i in 0 .. n
    p[i] = {value}""").funcs
    return vectorize(func, "i", lanes, "mask")


def pack_nchw(packer: Packer, c: NhwcConvPlan, nest: Nest) -> None:
    """Pack a block of an NCHW image, row by row.

    What a tile has past the end of its row is overwritten by the next one; there is room behind the
    last.
    """
    env, lanes, (*outer, depth, last) = packer.env, c.tile.lanes, nest.order
    packer.count_from({a: env.ranges[a][0] for a in nest.order})
    piece = _Piece(packer, c, nest)

    def loops(scope: Scope, axes: Sequence[str]) -> None:
        def inside(at: Value) -> None:
            loops(Scope(scope, {axes[0]: at}), axes[1:])

        def channels(k: Value) -> None:
            span = env.ranges[last]
            vector_loop(env, span, lanes, lambda at, mask: piece.put(scope, k, at, mask))

        if axes:
            env.loop(*env.ranges[axes[0]], 1, inside)
        else:
            env.loop(*env.ranges[depth], c.few_channels or lanes, channels)

    loops(Scope(env.top), outer)


class _Piece:
    """Packs a vector of pixels of an image row."""

    def __init__(self, packer: Packer, c: NhwcConvPlan, nest: Nest) -> None:
        self.packer, self.nest, self.c = packer, nest, c
        self.env, self.b, self.lanes = packer.env, packer.b, c.tile.lanes
        self.depth, self.last = nest.order[-2:]
        self.m = LLVMMachine(self.b, self.lanes, self.env.frame.target)
        self.body = NestBody(self.env, nest, self.lanes)

    def put(self, scope: Scope, k: Value, at: Value, mask: Value | None) -> None:
        """Pack channels from k on of a vector of pixels."""
        env, packer, order, few = self.env, self.packer, self.nest.order, self.c.few_channels
        end = env.ranges[self.depth][1]
        outer = (scope.axis(a) for a in order[:-2])
        pixel_rows = self.body.rows(*outer, k, count=few or self.lanes, end=end)
        rows = [self.body.packed(row, at, mask) for row in pixel_rows]
        if few:
            to = self.b.mul(self.b.sub(at, packer.starts[self.last]), number(few))
            for a in order[:-2]:
                position = self.b.sub(scope.axis(a), packer.starts[a])
                to = self.b.add(to, self.b.mul(position, packer.packed_right_strides[a]))
            first, nbytes = packer.at(RIGHT_PART, to), env.frame.target.vector_bytes
            store_interleaved(self.m, first, rows, self.c.unit, None, nbytes)
            return
        for i, pixel in enumerate(transpose(self.b, rows)):
            place = Scope(scope, {self.depth: k, self.last: self.b.add(at, number(i))})
            to = packer.at(RIGHT_PART, packer.offset(self.nest, place))
            store_vector(self.m, to, pixel, self.c.unit, None)


def store_nchw(packer: Packer, c: NhwcConvPlan, rows: Sequence[Value]) -> None:
    """Store the sums of a block, transposed from NHWC to NCHW."""
    b, env, lanes = packer.b, packer.env, c.tile.lanes
    base, strides = transposed_layout(env, c)
    spans = {a: b.sub(*env.ranges[a][::-1]) for a in (c.n, *(k.axis for k in c.columns))}
    axes = [(spans[k.axis], row, strides[k.axis]) for k, row in zip(c.columns, rows, strict=True)]
    length, pixel, _ = axes.pop()
    if rows_are_contiguous(env, c):
        count, row, _ = axes.pop()
        length = b.udiv(b.mul(count, row), pixel)
    full = packer.is_multiple(c.n, lanes)
    func = channel_planes(lanes, c.item.dtype.name, len(axes), full=full)
    numbers = [spans[c.n], strides[c.n], pixel, length, *chain.from_iterable(axes)]
    arrays = [base, packer.at(SUMS_PART, number(0))]
    print_func(b, env.frame.target, func, arrays, numbers)


def store_channel_rows(packer: Packer, c: DepthwisePlan) -> None:
    """Store the sums of a depthwise convolution, transposed from NHWC to NCHW."""
    env, b, lanes = packer.env, packer.b, c.tile.lanes
    outer, *inner = (k.axis for k in c.columns[:-1])
    plane = env.frame.index(product(env.s.local[a] for a in (outer, *inner)))
    length = b.mul(
        b.sub(*env.ranges[outer][::-1]), env.frame.index(product(env.s.local[a] for a in inner))
    )
    func = channel_planes(lanes, c.item.dtype.name, 0, full=True)
    arrays = [packer.at(part, number(0)) for part in (0, SUMS_PART)]
    print_func(b, env.frame.target, func, arrays, [number(lanes), plane, number(lanes), length])


@cache
def channel_planes(lanes: int, dtype: str, outer: int, *, full: bool) -> Func:
    """Return the loops that store rows of pixels as planes of channels, with `outer` axes.

    With `full`, channels are whole vectors.  Otherwise what is past the last one has masks without
    lanes; these are slow where memory is not mapped, so they stand at the last channel.
    """
    loops, indent, source, to = "", "    ", "s[c + j", "y[i"
    for d in range(outer):
        loops += f"{indent}each i{d} in 0 .. n{d}\n"
        indent += "  "
        source += f" + i{d}*row{d}"
        to += f" + i{d}*step{d}"

    def tile(at: str, left: str) -> str:
        ends = [left] if left else []
        channel = f"c + j{at}"
        if not full:
            ends.append(f"(channels - ({channel}))*{lanes}")
            channel = f"min({channel}, channels - 1)"
        end = ends[0] if len(ends) == 1 else f"min({', '.join(ends)})"
        mask = f" | i{at} < {end}" if ends else ""
        moved = to.replace("[i", f"[{at} + i{at}"), source.replace("+ j", f"+ j{at}")
        return f"""each i{at} in 0 .. {lanes}
{indent}    each j{at} in 0 .. {lanes}
{indent}      {moved[0]} + ({channel})*plane{mask}] = {moved[1]} + ({at} + i{at})*pixel]"""

    axes = "".join(f", n{d}, row{d}, step{d}" for d in range(outer))
    (func,) = parse(f"""
tile planes(y: out {dtype}[], s: {dtype}[]; channels, plane, pixel, length{axes})
  whole = length//{lanes}*{lanes}
  each c in 0 .. channels by {lanes}
{loops}{indent}each a in 0 .. whole by {lanes}
{indent}  {tile("a", "")}
{indent}each z in whole .. length by {lanes}
{indent}  {tile("z", "length - z")}""").funcs
    for at in ("a", "z"):
        func = transpose_tile(func, f"i{at}", f"j{at}")
    return hoist_offsets(func)


def pack_pixel_rows(packer: Packer, c: DepthwisePlan, rows: StridedRows) -> None:
    """Pack the rows of an NCHW image which a depthwise convolution reads."""
    env, b, strides = packer.env, packer.b, packer.packed_right_strides
    low, high = env.ranges[c.lane]
    stride = env.frame.index(rows.lane_stride)
    start = b.add(env.index(rows.start, env.top), b.mul(low, stride))
    dtype, axes = env.frame.dtypes[rows.buffer], c.columns[:-1]
    numbers = [b.sub(high, low), stride, env.frame.index(product(c.packed(env.s.local)))]
    for a, bounds, step in zip(axes, rows.bounds, rows.steps, strict=False):
        numbers += [*_span(packer, a, bounds), b.mul(env.ranges[a.axis][0], number(a.step))]
        numbers += [env.frame.index(step), strides[a.position_axis]]
        numbers.append(strides[a.remainder_axis] if a.step > 1 else number(0))
    steps = tuple(a.step for a in axes)
    arrays = [
        packer.at(RIGHT_PART, number(0)),
        env.address(rows.buffer, start),
    ]
    func = pixel_rows(c.tile.lanes, c.item.dtype.name, dtype.name, steps)
    print_func(b, env.frame.target, func, arrays, numbers)


def _span(
    packer: Packer, c: WindowAxis, bounds: Sequence[tuple[int, Index]]
) -> tuple[Value, Value]:
    """Return the range of input positions along an axis which are inside the image."""
    b, (low, high) = packer.b, packer.env.ranges[c.axis]
    first = b.mul(low, number(c.step))
    reach = (c.taps - 1) * c.dilation + 1 - c.step
    end = b.add(b.mul(high, number(c.step)), number(reach))
    for before, extent in bounds:
        begin = number(-before)
        first = b.maximum(first, begin)
        image_end = b.sub(packer.env.frame.index(extent), number(before))
        end = b.minimum(image_end, end)
    return first, end


@cache
def pixel_rows(lanes: int, packed: str, stored: str, steps: tuple[int, ...]) -> Func:
    """Return the loops that transpose rows of pixels, for a vector of channels.

    Lanes past the last channel repeat it.  Rows come in the order of their packed positions, so
    what is stored past the end of one is overwritten by the next; not so with strides, which split
    pixels by phase: there it goes to a spare element.
    """
    *outer, row = range(len(steps))

    def offset(d: int, at: str) -> str:
        position = f"({at} - base{d})"
        if steps[d] == 1:
            return f"{position}*packed{d}"
        return f"{position}//{steps[d]}*packed{d} + {position}%{steps[d]}*phase{d}"

    loops, indent, source, before = "", "  ", "", "0"
    for d in outer:
        loops += f"{indent}for i{d} in first{d} .. end{d}\n"
        indent += "  "
        source += f"i{d}*step{d} + "
        before += f" + {offset(d, f'i{d}')}"
    to = f"before + {offset(row, 'at + k')}"
    if any(s > 1 for s in steps):
        to = f"min({to} + max(at + k + 1 - end{row}, 0)*spare, spare)"
    names = "first", "end", "base", "step", "packed", "phase"
    axes = ", ".join(f"{name}{d}" for d in range(len(steps)) for name in names)
    (func,) = parse(f"""
tile pixels(p: out {packed}[], x: {stored}[]; channels, stride, spare, {axes})
{loops}{indent}before = {before}
{indent}for at in first{row} .. end{row} by {lanes}
{indent}  each r in 0 .. {lanes}
{indent}    each k in 0 .. {lanes}
{indent}      p[{to} + r] = x[{source}at + k + min(r, channels - 1)*stride | k < end{row} - at]
""").funcs
    return hoist_offsets(transpose_tile(func, "r", "k"))


PTR = ir.PointerType()
PACK_TYPE = ir.FunctionType(ir.VoidType(), [PTR] * 4 + [I64] * 3)
"""Type of the packing function: the arrays and numbers of `run_tile`."""


class TransposedFilterPacker:
    """Packs the weights of one product, panel by panel."""

    def __init__(self, env: Environment, c: NhwcConvPlan) -> None:
        self.env, self.b, self.c = env, env.b, c
        access = contiguous_filters(c)
        assert access is not None
        self.dtype, self.base = env.frame.dtypes[access.buffer], env.frame.buffers[access.buffer]
        zeros = dict.fromkeys((c.n, c.depth, *c.others), 0)
        self.origin = env.index(substitute(access.offset, zeros), env.top)
        self.run_stride = env.index(coefficient(access.offset, c.n) or 0, env.top)
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
    repeat it; `next` has those which are prefetched meanwhile.  The last tile of a run overlaps
    the one before.  With `short`, runs may have less than a vector.
    """
    value = "w[min({r}, rows - 1)*stride + {at}{k}{mask}]"
    *conversions, packed = types
    for dtype in conversions:
        value = f"{dtype}({value})"

    def tile(r: str, k: str, at: str, mask: str) -> str:
        loaded = value.format(r=r, k=k, at=at, mask=mask)
        return f"""each {r} in 0 .. {lanes}
        prefetch next[{r}*stride + {at}0] level 2
        each {k} in 0 .. {lanes}
          to_{k} = table[{at}{k}]
          p[to_{k} + {r}] = {loaded}"""

    other = f"  else\n      {tile('s', 'j', '', ' | j < length')}" if short else ""
    (func,) = parse(f"""
tile runs(p: out {packed}[], w: {stored}[], table: i64[], next: {stored}[]; stride, rows, length)
  if length >= {lanes}
    for i in 0 .. length by {lanes}
      at = min(i, length - {lanes})
      {tile("r", "k", "at + ", "")}
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
    row, pair, tap = (coefficient(first_load.offset, a) for a in (c.m, c.depth, c.flat))
    runs = row is not None and not axes_of(row) and (pair, tap) == (2 * c.taps, 1)
    return (first_load, second_load) if plain and runs else None


def pack_filter_pairs(env: Environment, c: ConvPlan, loads: tuple[Access, Access]) -> None:
    """Pack one block of such a filter, row by row."""
    b, access, top = env.b, loads[0], env.top
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
