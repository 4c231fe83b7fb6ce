"""Unroll and jam the row loop of column reductions.

The accumulators of columns are in scratch, and a row's step reads what the previous row's step
wrote some cycles ago: store-to-load latency.  So a state is read once, takes a step for each of
some rows, in their order, and is written once:

    for n in steps of 8:
      for c in vectors:  s = S[c];  s = s + x[n,c] + x[n+1,c] + .. + x[n+7,c];  S[c] = s
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.prefetch import prefetch_distances
from smelt.codegen.llvm.instructions.indexing import lanes_before_end, number
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Operation, Scan, StateRead
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.ops.scalar import SCALARS

Value = ir.Value

JAM_ROWS = 8
"""Rows taken together for a single reduction: their code is unrolled."""
MAX_JAM_CYCLES = 8.0
"""Maximum cycles for one vector of an element whose latency matters."""


def can_jam(nest: Nest) -> bool:
    """Return whether a nest only reduces rows into states in scratch, by cheap operators."""
    has_other_roots = (
        nest.saves or nest.stores or nest.state_updates or nest.scalars or nest.transposed
    )
    if has_other_roots or nest.stages or nest.packed or not nest.reductions or len(nest.order) < 2:
        return False
    if nest.vector != nest.order[-1] or any(nest.in_registers(f) for f in nest.reductions):
        return False
    row = nest.order[-2]
    plain = all(not isinstance(i, (Scan, StateRead)) for i in nest.items)
    if not plain or any(row in f.axes or nest.vector not in f.axes for f in nest.reductions):
        return False
    work = (SCALARS[i.op].cost for i in nest.items if isinstance(i, Operation))
    return sum(work) <= MAX_JAM_CYCLES


def run_jammed(env: Environment, scope: Scope, depth: int, one: Callable[[Value], None]) -> bool:
    """Emit the loop at `depth` over rows, some together, then the remainder by `one`.

    Returns whether the nest allows it.
    """
    if depth != len(env.nest.order) - 2 or not can_jam(env.nest):
        return False
    b, name = env.b, env.nest.order[depth]
    low, high = env.ranges[name]
    count = 1 << max(JAM_ROWS // len(env.nest.reductions), 2).bit_length() - 1
    middle = b.add(low, b.and_(b.sub(high, low), number(-count)))

    def jammed(position: Value) -> None:
        rows = [Scope(scope, {name: b.add(position, number(k))}) for k in range(count)]
        for row in rows:
            env.enter(row, depth + 1)
        with env.within(together=count), env.within(far=prefetch_distances(env)):
            _vector_loops(env, rows, depth + 1)

    env.loop(low, middle, count, jammed)
    env.loop(middle, high, 1, one)
    return True


def _vector_loops(env: Environment, rows: list[Scope], depth: int) -> None:
    """Emit the loops over vectors of some rows: full ones, then a masked one."""
    b, name, lanes = env.b, env.nest.order[depth], env.s.lanes
    low, high = env.ranges[name]
    middle = b.add(low, b.and_(b.sub(high, low), number(-lanes)))

    def at(masked: bool) -> Callable[[Value], None]:
        def inside(position: Value) -> None:
            mask = None
            if masked:
                mask = lanes_before_end(b, b.sub(high, position), lanes)
            scopes = [
                Scope(row, {name: position}, lanes=Lanes(name, position, lanes, mask))
                for row in rows
            ]
            for scope in scopes:
                env.enter(scope, depth + 1)
            for reduction in env.nest.reductions:
                env.reductions.step_rows(reduction, scopes)

        return inside

    env.loop(low, middle, lanes, at(False))
    env.loop(middle, high, lanes, at(True))
