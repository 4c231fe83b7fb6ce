"""Access the first lanes of a vector on machines without masked memory.

LLVM would test every lane of a mask and access each by itself.  The binary digits of their number
say which runs of 8, 4, 2 and 1 elements to access: one test for each digit.  A full vector takes
one test and one access.

    three of four floats:  two at 0, one at 2
"""

from __future__ import annotations

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import constant_lanes, lane_numbers

Value = ir.Value
_I8 = ir.IntType(8)
_WORD = 8
"""Bytes of the longest integer; longer runs of elements are vectors of such integers."""


def prefix_of(m: LLVMMachine, mask: Value | None) -> ir.PrefixMask | None:
    """Return a mask of the first lanes, if no instruction takes masks."""
    if mask is None or m.target.facts.masked_memory != "none":
        return None
    lanes = mask.type.count
    if (constants := constant_lanes(mask)) is not None:
        first = sum(constants)
        is_prefix = constants == [k < first for k in range(lanes)]
        mask = ir.PrefixMask(mask, number(first)) if is_prefix else mask
    return mask if isinstance(mask, ir.PrefixMask) and lanes & (lanes - 1) == 0 else None


def load_first(
    b: ir.IRBuilder, address: Value, kind: ir.VectorType, size: int, mask: ir.PrefixMask
) -> Value:
    """Load the lanes of a mask, of elements of `size` bytes; the others are zero."""
    with b.if_else(b.icmp_signed(">=", mask.lanes, number(kind.count))) as (full, part):
        with full:
            whole = b.load(address, align=size, typ=kind)
            full_block = b.block
        with part:
            runs: Value = ir.Constant(_run_type(size), None)
            run, lanes = 1, _nonnegative(b, mask.lanes)
            while run < kind.count:
                runs = _load_run(b, address, runs, size, run, lanes)
                run *= 2
            runs = b.bitcast(runs, kind)
            part_block = b.block
    return _phi(b, (whole, full_block), (runs, part_block))


def store_first(
    b: ir.IRBuilder, address: Value, vector: Value, size: int, mask: ir.PrefixMask
) -> None:
    """Store the lanes of a mask, of elements of `size` bytes."""
    count = vector.type.count
    with b.if_else(b.icmp_signed(">=", mask.lanes, number(count))) as (full, part):
        with full:
            b.store(vector, address, align=size)
        with part:
            left = b.bitcast(vector, _run_type(count * size))
            run, lanes = count // 2, _nonnegative(b, mask.lanes)
            while run:
                left = _store_run(b, address, left, size, run, lanes)
                run //= 2


def _nonnegative(b: ir.IRBuilder, count: Value) -> Value:
    """Return a number of lanes, 0 for a negative one, whose digits would say otherwise."""
    return b.select(b.icmp_signed(">", count, number(0)), count, number(0))


def _load_run(
    b: ir.IRBuilder, address: Value, runs: Value, size: int, run: int, count: Value
) -> Value:
    """Return this run, if there is one, followed by the shorter `runs`."""
    without = _join_halves(b, runs, ir.Constant(runs.type, None))
    before = b.block
    with b.if_then(_has_run(b, count, run)):
        first = b.load(_run_address(b, address, size, run, count), align=size, typ=runs.type)
        both = _join_halves(b, first, runs)
        inside = b.block
    return _phi(b, (without, before), (both, inside))


def _store_run(
    b: ir.IRBuilder, address: Value, left: Value, size: int, run: int, count: Value
) -> Value:
    """Store the run that begins `left`, if there is one; return the rest."""
    first, rest = _halves(b, left, run * size)
    before = b.block
    with b.if_then(_has_run(b, count, run)):
        b.store(first, _run_address(b, address, size, run, count), align=size)
        inside = b.block
    return _phi(b, (first, before), (rest, inside))


def _has_run(b: ir.IRBuilder, count: Value, run: int) -> Value:
    return b.icmp_signed("!=", b.and_(count, number(run)), number(0))


def _run_address(b: ir.IRBuilder, address: Value, size: int, run: int, count: Value) -> Value:
    offset = b.mul(b.and_(count, number(-2 * run)), number(size))
    return b.gep(address, [offset], source_etype=_I8)


def _run_type(nbytes: int) -> ir.Type:
    if nbytes <= _WORD:
        return ir.IntType(8 * nbytes)
    return ir.VectorType(I64, nbytes // _WORD)


def _join_halves(b: ir.IRBuilder, low: Value, high: Value) -> Value:
    """Return the bytes of two equal halves, `low` first in memory."""
    kind = low.type
    if isinstance(kind, ir.VectorType):
        return b.shuffle_vector(low, high, lane_numbers([*range(2 * kind.count)]))
    if kind is I64:
        empty = ir.Constant(ir.VectorType(I64, 2), ir.Undefined)
        pair = b.insert_element(empty, low, ir.IntType(32)(0))
        return b.insert_element(pair, high, ir.IntType(32)(1))
    wide = ir.IntType(2 * kind.width)
    return b.or_(b.zext(low, wide), b.shl(b.zext(high, wide), wide(kind.width)))


def _halves(b: ir.IRBuilder, x: Value, nbytes: int) -> tuple[Value, Value]:
    kind, half = x.type, _run_type(nbytes)
    if isinstance(half, ir.VectorType):
        parts = (range(half.count), range(half.count, 2 * half.count))
        low, high = (b.shuffle_vector(x, x, lane_numbers([*part])) for part in parts)
        return low, high
    if isinstance(kind, ir.VectorType):
        low, high = (b.extract_element(x, ir.IntType(32)(k)) for k in (0, 1))
        return low, high
    return b.trunc(x, half), b.trunc(b.lshr(x, kind(8 * nbytes)), half)


def _phi(b: ir.IRBuilder, *incoming: tuple[Value, ir.Block]) -> Value:
    phi = b.phi(incoming[0][0].type)
    for value, block in incoming:
        phi.add_incoming(value, block)
    return phi
