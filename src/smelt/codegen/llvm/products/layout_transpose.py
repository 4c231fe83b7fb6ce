"""Convert images between NCHW and NHWC while packing, and sums back when storing.

Vectors of an NCHW image run along its rows.  Those of as many channels as a vector has lanes form a
tile which is transposed in registers: its columns are pixels with contiguous channels, as packed.
Sums are NHWC too, and are transposed back tile by tile, without regard to image rows.

    pack_nchw(packer, c, nest)         a block of an image, whatever it is computed from
    store_nchw(packer, c, rows)        sums of an implicit GEMM
    pack_pixel_rows(packer, c, rows)   an image in memory; its padding is cleared before
    store_channel_rows(packer, c)      sums of a depthwise convolution
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_interleaved, store_vector
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.input_tile import WindowAxis
from smelt.codegen.llvm.loopir.strided_input import StridedRows
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import RIGHT_PART, SUMS_PART
from smelt.codegen.llvm.print_loops import print_func
from smelt.codegen.llvm.products.direct_store import (
    rows_are_contiguous,
    transposed_layout,
)
from smelt.codegen.llvm.products.operand_rows import load_rows, row_scopes, vector_loop
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.scratch.transpose import transpose
from smelt.loop.ir import Func
from smelt.loop.passes.hoist_offsets import hoist_offsets
from smelt.loop.passes.transpose_tile import transpose_tile
from smelt.loop.text import parse
from smelt.types.expr import Index, product

Value = ir.Value


def pack_nchw(packer: Packer, c: NhwcConvPlan, nest: Nest) -> None:
    """Pack a block of an NCHW image, row by row.

    What a tile has past the end of its row is overwritten by the next one; there is room behind the
    last.
    """
    env, lanes, (*outer, depth, last) = packer.env, c.tile.lanes, nest.order
    packer.count_from({a: env.ranges[a][0] for a in nest.order})
    piece = _Piece(packer, c, nest)

    def loops(scope: Scope, done: int) -> None:
        def inside(at: Value) -> None:
            inner = Scope(scope, {outer[done]: at})
            env.enter(inner, done + 1)
            loops(inner, done + 1)

        def channels(k: Value) -> None:
            span = env.ranges[last]
            vector_loop(env, span, lanes, lambda at, mask: piece.put(scope, k, at, mask))

        if done < len(outer):
            env.loop(*env.ranges[outer[done]], 1, inside)
        else:
            env.loop(*env.ranges[depth], c.few_channels or lanes, channels)

    loops(env.open(nest, Scope(env.top)), 0)


class _Piece:
    """Packs a vector of pixels of an image row."""

    def __init__(self, packer: Packer, c: NhwcConvPlan, nest: Nest) -> None:
        self.packer, self.nest, self.c = packer, nest, c
        self.env, self.b, self.lanes = packer.env, packer.b, c.tile.lanes
        self.depth, self.last = nest.order[-2:]
        self.m = LLVMMachine(self.b, self.lanes, self.env.frame.target)

    def put(self, scope: Scope, k: Value, at: Value, mask: Value | None) -> None:
        """Pack channels from k on of a vector of pixels."""
        env, packer, order, few = self.env, self.packer, self.nest.order, self.c.few_channels
        end = self.b.sub(env.ranges[self.depth][1], number(1))
        count, depth = few or self.lanes, len(order) - 1
        scopes = row_scopes(env, scope, self.depth, k, count, end, depth)
        lanes = Lanes(self.last, at, self.lanes, mask)
        rows = load_rows(env, self.c.right, scopes, lanes, depth + 1)
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
        element_address(b, env.frame.buffers[rows.buffer], start, dtype),
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
