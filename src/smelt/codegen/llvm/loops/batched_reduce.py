"""Finish the horizontal reductions of several rows at once.

A row's reduction ends in the lanes of a vector.  Reduced row by row, 16 lanes take four steps, each
with fewer useful lanes than the one before, which for short rows is most of the work.  So the
vectors of some rows are stored, and halves of two rows at a time become one vector, until each lane
has a row's result:

    a0 a1 a2 a3        a0 a1 b0 b1
    b0 b1 b2 b3   ->   a2 a3 b2 b3   ->   a02 a13 b02 b13        a02 b02 c02 d02
                                          c02 c13 d02 d13   ->   a13 b13 c13 d13   ->   a b c d

A row's lanes are combined in the same order as for a single row
(`smelt.codegen.llvm.instructions.reductions.reduce_lanes`), so its result does not depend on the
other rows.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.reduce_rows import reduce_rows
from smelt.codegen.llvm.instructions.reductions import State, reduce_lanes
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Reduction
from smelt.codegen.llvm.loops.unroll_factor import argreduce_with_value
from smelt.codegen.llvm.nests.environment import Environment, RowBatch
from smelt.types.dtype import bool_

Value = ir.Value
I32 = ir.IntType(32)


def batchable_rows(env: Environment, depth: int) -> dict[Reduction, int]:
    """Return the reductions of a nest to end in batches, with the rows of each.

    `depth` is the loop over rows; as many rows form a batch as a register has lanes.  Empty if some
    reduction ends elsewhere, or there may be too few rows.
    """
    nest, axis = env.nest, env.nest.order[depth]
    rows_of: dict[Reduction, int] = {}
    for reduction in nest.reductions:
        if argreduce_with_value(nest, reduction) is not None:
            continue
        if not nest.in_registers(reduction) or nest.vector not in reduction.over:
            return {}
        outer = [a for a in nest.order if a in reduction.axes]
        parts = env.storage.accumulator_of(reduction).parts
        rows = min(env.s.lanes, env.frame.target.vector_bytes // max(d.itemsize for d in parts))
        if (
            outer[-1:] != [axis]
            or env.s.materialised.get(reduction) != (axis,)
            or bool_ in parts
            or rows < 2
        ):
            return {}
        row_count = env.storage.extent(reduction, axis)
        if not isinstance(row_count, int) or row_count < rows:
            return {}
        rows_of[reduction] = rows
    return rows_of


def run_batched(
    env: Environment, axis: str, reductions: dict[Reduction, int], inside: Callable[[Value], None]
) -> None:
    """Emit the loop over rows in batches; `inside` emits one row."""
    b, (low, high), count = env.b, env.ranges[axis], max(reductions.values())
    addresses = {f: _allocate(env, f, rows, count) for f, rows in reductions.items()}

    def run_batch(first: Value) -> None:
        end = b.add(first, number(count))
        end = b.select(b.icmp_signed("<", end, high), end, high)
        with env.within(row_batch=RowBatch(axis, first, addresses, reductions)):
            env.loop(first, end, 1, inside)
        for reduction, rows in reductions.items():
            for k in range(0, count, rows):
                _finish_batch(env, reduction, rows, addresses[reduction], (first, k))

    env.loop(low, high, count, run_batch)


def hold_row(
    env: Environment, batch: RowBatch, reduction: Reduction, state: State, lanes: int, scope: Scope
) -> None:
    """Store the vectors of a batch's current row."""
    b, acc, scalar = env.b, env.storage.accumulator_of(reduction), env.machine(scope, False)
    row = b.sub(scope.axis(batch.axis), batch.first)
    state = reduce_lanes(acc, scalar, state, lanes, batch.lanes[reduction])
    for address, value in zip(batch.held[reduction], state, strict=True):
        b.store(value, b.gep(address, [row], source_etype=value.type))


def _allocate(env: Environment, reduction: Reduction, rows: int, count: int) -> list[Value]:
    m = LLVMMachine(env.b, rows, env.frame.target)
    with env.b.goto_entry_block():
        return [
            env.b.alloca(m.register_type(d), size=I32(count))
            for d in env.storage.accumulator_of(reduction).parts
        ]


def _finish_batch(
    env: Environment, reduction: Reduction, rows: int, addresses: list[Value], at: tuple[Value, int]
) -> None:
    """Reduce and store the results of as many rows as there are lanes.

    From the k-th stored row of the batch on.  Lanes past the last row go to memory that nothing
    reads.
    """
    b, acc, (first, k) = env.b, env.storage.accumulator_of(reduction), at
    m = LLVMMachine(b, rows, env.frame.target)
    kinds = [m.register_type(d) for d in acc.parts]
    states = [
        [
            b.load(b.gep(p, [I64(k + r)], source_etype=kind), typ=kind)
            for p, kind in zip(addresses, kinds, strict=True)
        ]
        for r in range(rows)
    ]
    total = reduce_rows(m, states, max(d.itemsize for d in acc.parts), acc.join)
    results = {reduction: acc.finish(m, total)} | dict.fromkeys(
        env.reductions.values_of_argreduce(reduction), total[0]
    )
    for item, value in results.items():
        memory = item.dtype.compute
        offset = b.add(b.sub(first, env.start(item, env.s.materialised[item][0])), number(k))
        address = element_address(b, env.storage.at[item, 0], offset, memory)
        store_vector(m, address, value, memory, None)
