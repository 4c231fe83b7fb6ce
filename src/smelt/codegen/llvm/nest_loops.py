"""Print a nest of a function from its loops, where other nests are emitted otherwise.

The loops read what the function has: ranges and positions of axes are numbers, arrays in scratch
memory are parameters, and a value that was computed before is an array of one element.

    tile nest(x: f32[], e: f32[], v: f32[1], y: out f32[]; n, from, to, at)
      each j in from .. to
        y[at*n + j] = x[at*n + j] * e[j - from] * v[0]
"""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.prefetch import next_block, share_start
from smelt.codegen.llvm.instructions.reductions import adds_pairs_first
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import accesses_of
from smelt.codegen.llvm.loops.full_unroll import is_fully_unrolled
from smelt.codegen.llvm.loops.versioning import version_condition
from smelt.codegen.llvm.lower_nest import (
    identifier,
)
from smelt.codegen.llvm.nest_body import NestLowering
from smelt.codegen.llvm.nests.environment import (
    Environment,
    LateStore,
    RowShare,
)
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.print_loops import LoopPrinter
from smelt.codegen.llvm.vector_loops import Share, in_vectors, why_not_nest, without_vectors
from smelt.loop import ir as loop
from smelt.loop.passes.align_stores import store_past
from smelt.loop.passes.collapse import join_rows
from smelt.loop.passes.fuse_if import fuse_if
from smelt.loop.passes.version import version
from smelt.types.dtype import bool_

Value = ir.Value


def run_as_loops(env: Environment, nest: Nest, scope: Scope) -> bool:
    """Emit a nest from its loops, inside those of `scope`; return whether it has any."""
    if why_not_nest(env.s, nest, env.storage):
        return False
    packed = env.products.packed_array(nest) if env.products and nest.packed else None
    if nest.packed and (packed is None or packed.width % (env.s.lanes * nest.unroll)):
        return False
    printer = LoopPrinter(env.b, env.frame.target, env.frame.entry.found, env.frame.done)
    lowering = NestLowering(env, nest, scope, printer, packed=packed)
    func = lowering.func()
    asks = [*env.frame.shares.get(nest, ())]
    late, cuts = env.late_store, lowering.cuts
    if late is not None and late.host is nest:
        func, cuts = _with_late_stores(func, lowering, late), [cut + 1 for cut in cuts]
        asks += env.frame.shares.get(env.s.nests[-1], ())
    steps = {identifier(a.buffer): next_block(env.s, nest, a) for a in accesses_of(nest.items)}
    blocks = {name: lowering.index(step) for name, step in steps.items() if step is not None}
    groups = (x.groups.group for x in env.row_groups if nest in x.groups.nests)
    group = next(groups, 0)
    transposed = any(c.transposes_sums for c in env.s.products.values())
    transposed &= not (nest.reductions or cuts or is_fully_unrolled(env.s, nest, nest.items))
    printer.block(lowering.states_func().body)
    sums = [r for r in nest.reductions if r in lowering.arrays and adds_pairs_first(r)]
    pairs = {lowering.arrays[r][0][0] for r in sums if nest.pairs}

    def vectors(func: loop.Func) -> loop.Func:
        for var in lowering.lanes if func.body else ():  # there may be no elements
            if transposed:
                func, var = join_rows(func, var)  # of sums that were stored without gaps
            shares = [_share(lowering, x) for x in asks]
            func = in_vectors(
                func,
                env.s,
                nest,
                var,
                shares,
                cuts,
                blocks,
                pairs,
                storage=env.storage,
                vector_bytes=env.frame.target.vector_bytes,
                streaming=env.frame.streaming,
                packed=packed,
                group=group,
            )
        return func if lowering.lanes else without_vectors(func, env.s, nest)

    ended = (r for r in nest.reductions if r not in env.s.materialised)
    results = {item: lowering.values[item] for item in (*nest.scalars, *ended)}
    choice = None if env.known_conditions else version_condition(nest)
    if choice is None:
        func = vectors(func)
    else:
        names = {item: lowering.fresh("r") for item in results}
        ends = {names[item]: value for item, value in results.items()}
        func = version(func, lowering.values[choice], vectors, ends)
        results = {item: loop.Ref(name) for item, name in names.items()}
    printer.bind_skews(func)
    printer.block(func.body)
    for item, value in results.items():
        env.top.define(item, printer.value(value).value)
    return True


def _with_late_stores(func: loop.Func, host: NestLowering, late: LateStore) -> loop.Func:
    """Store the rows of the previous task inside of the loops over this one's."""
    lowering = NestLowering(late.late, late.late.s.nests[-1], late.late.top, host.printer, host)
    condition = lowering.scalar("pending", late.pending, bool_)
    stores = lowering.func()
    params = dict.fromkeys((*func.params, *stores.params))
    numbers = dict.fromkeys((*func.numbers, *stores.numbers))
    func = replace(func, params=tuple(params), numbers=tuple(numbers))
    arrays = {identifier(x.access.buffer) for x in lowering.nest.stores}
    return fuse_if(func, store_past(stores.body, arrays), condition, *host.cuts[:1])


def _share(lowering: NestLowering, x: RowShare) -> Share:
    """Return the part of a next row that the nest prefetches."""
    first, before = share_start(lowering.s, lowering.nest, x)
    name = identifier(x.access.buffer)
    return Share(name, lowering.index(first), x.share, lowering.index(before))
