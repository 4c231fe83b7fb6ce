"""Distribute long loop bodies over several loops, strip by strip (loop fission).

An out-of-order core looks a few hundred instructions ahead.  A longer body has one or two vectors
in flight, and a single vector is a chain of dependent operations.  Distributed over stages, each a
short loop over a strip that L1 holds, many vectors are in flight again; a value that crosses stages
is stored and reloaded, which costs a cycle.  The operations on each element and their order stay
the same, and so do all results.

    for strip:                           t = exp(sin(x)) / (1 + erf(x))
        for vector in strip:  s1[..] = exp(sin(x[..]))
        for vector in strip:  t[..] = s1[..] / (1 + erf(x[..]))

Sums in float64 get a stage of their own after anything long: their conversions, which few execution
ports do, would extend every chain.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, accesses_of
from smelt.codegen.llvm.nests.nest import Nest, Stage
from smelt.ops.scalar import SCALARS
from smelt.types.expr import atoms

STRIP_ELEMENTS = 512
"""Elements of a strip: with what crosses stages, a part of L1."""
STAGE_UNROLL = 4
"""Unroll factor of a stage's loop, in vectors."""
LONG_BODY_CYCLES = 10.0
"""Maximum cycles for one vector of a body that keeps the core busy; beyond, the time grows
quadratically."""
MIN_SUM_CYCLES = 5.0
"""Minimum cycles for one vector of a body whose converted sums get a stage of their own."""
SPILL_CYCLES = 1.0
"""Cycles for one vector of each value that crosses stages."""
STAGE_CYCLES = 0.5
"""Cycles for one vector of a stage's own loop."""
MAX_STAGED_TIME_RATIO = 0.9
"""Maximum relative time that makes stages worth their code."""
ONE, SHORT = 5.0, 0.5
"""Maximum cycles of one instruction (a division), and what its operator counts then.

However long it takes, it occupies one entry of the reorder buffer.
"""


def distribute(nest: Nest) -> tuple[Stage, ...]:
    """Distribute a nest's innermost loop over stages (loop distribution).

    Returns none if the loop is short, or not a plain map.
    """
    operators = _vector_operators(nest)
    length = sum(map(_cost, operators))
    sums_apart = length > MIN_SUM_CYCLES and any(_converts(f, nest) for f in nest.reductions)
    usual = (ssa.Const, ssa.IndexValue, ssa.Load, ssa.Apply, ssa.Cast)
    carried = (isinstance(i, ssa.StateRead) and nest.vector not in i.axes for i in nest.items)
    plain = all(isinstance(i, usual) or c for i, c in zip(nest.items, carried, strict=True))
    if (
        not (sums_apart or length > LONG_BODY_CYCLES)
        or not plain
        or nest.transposed
        or nest.packed
        or nest.state_updates
    ):
        return ()
    accesses = [*accesses_of(nest.items), *(s.access for s in nest.stores)]
    if any(a.kind == "value" for access in accesses for a in atoms(access.offset)):
        return ()
    roots = {a for f in nest.reductions for a in f.args} | set(nest.saves)
    roots |= {i for s in nest.stores for i in (s.value, s.where) if i is not None}
    cuts = (
        _cheapest_cuts(operators, _live_values(operators, roots))
        if length > LONG_BODY_CYCLES
        else []
    )
    cuts += [len(operators)] if sums_apart else []
    return _split(nest, operators, roots, cuts) if cuts else ()


def _vector_operators(nest: Nest) -> list[Item]:
    return [i for i in nest.items if isinstance(i, (ssa.Apply, ssa.Cast)) and nest.vector in i.axes]


def _converts(reduction: ssa.Reduction, nest: Nest) -> bool:
    """Return whether a reduction along the vectors is in float64, and its elements are not."""
    along = nest.vector in reduction.over and nest.in_registers(reduction)
    element = reduction.args[0].dtype
    return along and reduction.row.wide and element.is_float and element.bits < 64


def _cost(item: Item) -> float:
    cost = SCALARS[item.op].cost if isinstance(item, ssa.Operation) else SHORT
    return cost if cost > ONE else SHORT


def _live_values(work: Sequence[Item], roots: set[Item]) -> list[int]:
    """Return how many values are live at each cut position."""
    position_of = {item: k for k, item in enumerate(work)}
    last_use = dict(position_of)
    for k, item in enumerate(work):
        for a in item.args:
            if a in position_of:
                last_use[a] = k
    last_use |= {item: len(work) for item in work if item in roots}
    alive = [0] * (len(work) + 1)
    for item, k in position_of.items():
        for cut in range(k + 1, last_use[item] + 1):
            alive[cut] += 1
    return alive


def _cheapest_cuts(work: Sequence[Item], alive: Sequence[int]) -> list[int]:
    """Return the cut positions with least total time: a shortest path over positions."""
    positions = [0, *(k + 1 for k, i in enumerate(work[:-1]) if _cost(i) > ONE), len(work)]
    cost_before = [0.0]
    for item in work:
        cost_before.append(cost_before[-1] + _cost(item))
    best: list[tuple[float, int]] = [(0.0, 0)]
    for n, end in enumerate(positions[1:], 1):

        def total(k: int, end: int = end) -> float:
            length = cost_before[end] - cost_before[positions[k]]
            crossing = SPILL_CYCLES * alive[positions[k]] if k else 0.0
            return (
                best[k][0]
                + max(length, length * length / LONG_BODY_CYCLES)
                + STAGE_CYCLES
                + crossing
            )

        best.append(min((total(k), k) for k in range(n)))
    undivided = cost_before[-1] * cost_before[-1] / LONG_BODY_CYCLES + STAGE_CYCLES
    if best[-1][0] > MAX_STAGED_TIME_RATIO * undivided:
        return []
    cuts: list[int] = []
    k = best[-1][1]
    while k:
        cuts.append(positions[k])
        k = best[k][1]
    return cuts[::-1]


def _split(
    nest: Nest, work: Sequence[Item], roots: set[Item], cuts: Sequence[int]
) -> tuple[Stage, ...]:
    """Build the stages; loads and constants are repeated wherever they are needed."""
    stage_of = {item: sum(k >= cut for cut in cuts) for k, item in enumerate(work)}
    final = len(cuts)
    items_of: list[set[Item]] = [set() for _ in range(final + 1)]
    reads_of: list[set[Item]] = [set() for _ in range(final + 1)]

    def need(item: Item, at: int) -> None:
        if stage_of.get(item, at) != at:
            reads_of[at].add(item)
        elif item not in items_of[at]:
            items_of[at].add(item)
            for a in item.args:
                need(a, at)

    for item in roots:
        need(item, final)
    for item in nest.items:
        if item not in stage_of and not isinstance(item, ssa.Load):
            items_of[final].add(item)
    for at in range(final, 0, -1):
        for item in [i for i in nest.items if i in reads_of[at]]:
            need(item, stage_of[item])
    crossing = set[Item]().union(*reads_of) - set(nest.saves)
    return tuple(
        Stage(
            tuple(i for i in nest.items if i in items_of[at]),
            tuple(i for i in nest.items if i in reads_of[at]),
            tuple(i for i in nest.items if i in crossing and stage_of[i] == at),
            tuple(i for i in nest.saves if stage_of.get(i, final) == at),
        )
        for at in range(final + 1)
    )
