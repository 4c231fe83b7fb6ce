"""Choose how many vectors of a nest's rows go through its loop together.

An operator's result is available some cycles after it starts, and two or more may start in each
cycle: to keep the execution units busy, a loop needs about eight independent chains of operators.
An out-of-order core finds them in later iterations, but it looks only some hundred instructions
ahead; so several vectors go through the loop together, more of them for longer chains.

A short row of constant length has no loop: a row of 24 is a vector of 16 and one of which 8 lanes
are masked.  Each has a constant position and mask then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import lane_invariant, multiple_of
from smelt.codegen.llvm.instructions.reductions import (
    PAIRED_VECTORS,
    adds_pairs_first,
    make_accumulator,
)
from smelt.codegen.llvm.loopir.items import Apply, Item, Load, Reduction, accesses_of, cut_axes
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import replace
from smelt.types.expr import Index, coefficient

REGISTER_BUDGET = 24
"""Vector registers for the loads, stores and accumulators of an unrolled loop body."""
USUAL_UNROLL, MAX_UNROLL = 4, 8
"""Usual unroll factor in vectors, and the largest one, for bodies with one long chain."""
LONG_CHAIN_CYCLES = 20.0
"""Minimum cycles for one vector of a long chain of dependent operators."""


def choose_unroll(nest: Nest, lanes: int) -> int:
    """Return the unroll factor of a nest's main loop in vectors of `lanes`."""
    if nest.vector is None:
        return 1
    if any(adds_pairs(f, nest) for f in nest.reductions):
        return PAIRED_VECTORS  # the order of additions must not depend on what else is computed
    inner = [i for i in nest.items if nest.vector in i.axes]
    live = len([i for i in inner if isinstance(i, Load)]) + len(nest.stores)
    live += sum(_registers(f, lanes) for f in nest.reductions if not argreduce_with_value(nest, f))
    wide = MAX_UNROLL if critical_path(inner) > LONG_CHAIN_CYCLES else USUAL_UNROLL
    while wide > 1 and wide * live > REGISTER_BUDGET:
        wide //= 2
    return wide


def limit_unroll_to_runs(nest: Nest, lanes: int, block: Mapping[str, Index]) -> Nest:
    """Halve a nest's unroll factor until unrolled vectors stay within runs in memory.

    Its packing nests are treated alike.  i%s is contiguous only inside of a run of s positions, and
    a task's blocks may begin within one: blocks of 48 rows begin inside of such runs for 4 vectors
    of 8, and at the start of one for 2.
    """
    begins, unroll = multiple_of(block.get(nest.vector or "", 0)), nest.unroll
    while unroll > 1 and begins % (lanes * unroll) and _in_runs(nest, lanes):
        unroll //= 2
    packs = tuple(limit_unroll_to_runs(pack, lanes, block) for pack in nest.packs)
    return replace(nest, unroll=unroll, packs=packs)


def lanes_of_runs(block: Mapping[str, Index], axis: str, lanes: int) -> int:
    """Return `lanes` if all blocks of an axis begin at multiples of it.

    Else 0.
    """
    return lanes if axis in block and multiple_of(block[axis]) % lanes == 0 else 0


def _in_runs(nest: Nest, lanes: int) -> bool:
    """Return whether some array is accessed in runs that are shorter than the vector axis."""
    accesses = [*accesses_of(nest.items), *(s.access for s in nest.stores)]
    v = nest.vector or ""
    broken = (a.offset for a in accesses if coefficient(a.offset, v) is None)
    return any(coefficient(lane_invariant(e, v, lanes), v) is not None for e in broken)


def argreduce_with_value(nest: Nest, reduction: Reduction) -> Reduction | None:
    """Return the argmax or argmin whose value is the extreme `reduction`, if any."""
    for other in nest.reductions if nest.in_registers(reduction) else ():
        same = other.args[0] is reduction.args[0] and set(other.over) == set(reduction.over)
        if same and other.row.winner == reduction.row.name:
            return other
    return None


def _registers(reduction: Reduction, lanes: int) -> int:
    """Return the vector registers of a reduction's state and one step.

    A step of an argmax needs none: what wins is moved to the state under a mask.
    """
    row, source = reduction.row, reduction.args[0].dtype
    parts = make_accumulator(row, source, plain=reduction.plain).parts
    return (1 if reduction.row.positional else 2) * max(
        sum(d.bits for d in parts) * lanes // 512, 1
    )


def adds_pairs(reduction: Reduction, nest: Nest) -> bool:
    """Return whether vectors of a reduction are added in pairs before its state takes them."""
    return nest.pairs and nest.vector in reduction.over and adds_pairs_first(reduction)


def critical_path(items: list[Item]) -> float:
    """Return the cycles for one vector of the longest chain of dependent operators.

    0 if it is less than half of all the work, which other operators overlap then.
    """
    ends: dict[Item, float] = {}
    total = 0.0
    for i in items:
        cost = SCALARS[i.op].cost if isinstance(i, Apply) else 0.0
        total += cost
        ends[i] = cost + max((ends.get(a, 0.0) for a in i.args), default=0.0)
    longest = max(ends.values(), default=0.0)
    return longest if 2 * longest > total else 0.0


# ---- rows of a few vectors -----------------------------------------------------------------------

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
