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

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.interleaved_loads import nest_load_groups
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import CACHE_LINE, RowPrefetch
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Access, Item, accesses_of
from smelt.codegen.llvm.loops.pipeline_store import PipelinedStoreRow
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest, Stage
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.expr import atoms

Value = ir.Value

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


# ---- emission ------------------------------------------------------------------------------------


STAGE_PART = 400
"""The part number of an item's strip in scratch memory."""


def run_stages(
    env: Environment,
    low: Value,
    high: Value,
    at: tuple[Scope, int],
    ahead: RowPrefetch,
    behind: PipelinedStoreRow,
) -> None:
    """Emit the main loop of a nest, from `low` to `high`, as its stages.

    The bounds are a multiple of the unrolled vector apart; `at` is the enclosing scope and its
    depth.
    """
    scope, depth = at
    b, nest = env.b, env.nest
    wide = env.s.lanes * nest.unroll
    accesses = (
        []
        if env.frame.shares
        else [
            a
            for a in dict.fromkeys(accesses_of(env.items))
            if nest.vector is not None and coefficient(a.offset, nest.vector) == 1
        ]
    )

    shares = _shares(env, accesses)

    def strip(start: Value) -> None:
        end = b.add(start, number(STRIP_ELEMENTS))
        end = b.select(b.icmp_signed("<", end, high), end, high)
        addresses = _strip_addresses(env, accesses, Scope(scope, {nest.order[depth]: start}), depth)
        for k, (stage, stage_shares) in enumerate(zip(nest.stages, shares, strict=True)):

            def prefetch_next(
                position: Value, k: int = k, stage_shares: Sequence[PrefetchShare] = stage_shares
            ) -> None:
                if not env.frame.shares:
                    _prefetch(env, stage_shares, addresses, b.sub(position, start))
                elif k == 0:
                    ahead.emit(b.sub(position, low))
                if k == 0:
                    behind.emit(Lanes(nest.order[depth], position, wide, None))

            env.loop(
                start, end, wide, _stage_body(env, stage, start, (scope, depth), prefetch_next)
            )

    env.loop(low, high, STRIP_ELEMENTS, strip)


def _stage_body(
    env: Environment,
    stage: Stage,
    start: Value,
    at: tuple[Scope, int],
    prefetch_next: Callable[[Value], None],
) -> Callable[[Value], None]:
    """Return the emitter of one unrolled vector of a stage.

    `prefetch_next` prefetches the stage's shares of the next strip.
    """
    b, nest, wide, (scope, depth) = env.b, env.nest, env.s.lanes * env.nest.unroll, at
    name = nest.order[depth]

    def address(item: Item, position: Value) -> Value:
        base = env.storage.at[item, STAGE_PART]
        return element_address(b, base, b.sub(position, start), item.dtype.compute)

    def inside(position: Value) -> None:
        inner = Scope(scope, {name: position}, lanes=Lanes(name, position, wide, None))
        m = env.machine(inner, True)
        for item in stage.reads:
            inner.define(
                item,
                env.reload(item, inner)
                if item in nest.saves
                else load_vector(m, address(item, position), item.dtype.compute, None),
            )
        last = stage is nest.stages[-1]
        accesses = accesses_of(stage.items) + ([s.access for s in nest.stores] if last else [])
        items, saves = list(stage.items), list(stage.saves)
        groups = nest_load_groups(env, items)
        with env.within(accesses=accesses, items=items, saves=saves, load_groups=groups):
            env.enter(inner, depth + 1)
            prefetch_next(position)
            if last:
                env.body(inner)
            else:
                env.save(inner)
            for item in stage.keeps:
                value = env.get(item, inner, True)
                store_vector(m, address(item, position), value, item.dtype.compute, None)

    return inside


class PrefetchShare(NamedTuple):
    """A stage's share of the prefetches of an access: one of `parts` parts of a strip."""

    access: Access
    part: int
    parts: int


def _shares(env: Environment, accesses: Sequence[Access]) -> list[list[PrefetchShare]]:
    """Divide the prefetches of the next strip among the stages, so that memory stays busy.

    No more stages share an access than it has cache lines in an unrolled vector: with many accesses
    each stage has some of them, and its loop stays as short as it was cut.
    """
    stage_count, wide = len(env.nest.stages), env.s.lanes * env.nest.unroll
    shares: list[list[PrefetchShare]] = [[] for _ in range(stage_count)]
    at = 0
    for access in accesses:
        lines = wide * env.frame.dtypes[access.buffer].itemsize // CACHE_LINE
        parts = min(stage_count, max(lines, 1))
        for part in range(parts):
            shares[(at + part) % stage_count].append(PrefetchShare(access, part, parts))
        at += parts
    return shares


def _strip_addresses(
    env: Environment, accesses: Sequence[Access], scope: Scope, depth: int
) -> dict[Access, Value]:
    """Return where a strip begins in each access.

    Computed once for all stages: in every loop, LLVM would spend more time on their induction
    variables than on all else.
    """
    with env.within(items=[], accesses=list(accesses)):
        env.enter(scope, depth + 1)
    return {
        a: element_address(
            env.b, env.frame.buffers[a.buffer], scope.offset(a), env.frame.dtypes[a.buffer]
        )
        for a in accesses
    }


def _prefetch(
    env: Environment, shares: Sequence[PrefetchShare], heads: Mapping[Access, Value], done: Value
) -> None:
    """Prefetch a stage's shares of the next strip; `done` elements of this one are processed."""
    b, wide = env.b, env.s.lanes * env.nest.unroll
    moved: dict[tuple[int, int], Value] = {}
    for access, part, parts in shares:
        size = env.frame.dtypes[access.buffer].itemsize
        if (size, parts) not in moved:
            moved[size, parts] = b.udiv(b.mul(done, number(size)), number(parts))
        first = STRIP_ELEMENTS * size * (parts + part) // parts
        for line in range(first, first + wide * size // parts, CACHE_LINE):
            at = b.add(moved[size, parts], number(line))
            prefetch(b, b.gep(heads[access], [at], source_etype=ir.IntType(8)))
