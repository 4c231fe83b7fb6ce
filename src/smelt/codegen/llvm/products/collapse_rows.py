"""Collapse consecutive short rows into one contiguous loop.

Outputs whose rows were transposed are stored in scratch without gaps between rows, and so are most
arrays read or written with them.  A loop over rows of 7 would fill half a vector each; where every
access continues from one row to the next as it does within a row, the row axis stays at its first
position and the inner axis covers all rows:

    for y: for x in 0..w:  f(y*w + x)      is      for x in 0..h*w:  f(x)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.items import Apply, Cast, Const, Item, Load, accesses_of
from smelt.codegen.llvm.loops.full_unroll import is_fully_unrolled
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.types.affine import coefficient
from smelt.types.expr import Index, mul, product

COLLAPSIBLE_KINDS = (Const, Load, Apply, Cast)
"""Kinds of items in a collapsible body: none depends on where a row ends."""


def run_collapsed(env: Environment, nest: Nest, run: Callable[[], None]) -> None:
    """Emit a nest by `run`, over ranges in which contiguous rows are collapsed."""
    b, ranges, collapsed = env.b, env.ranges, dict(env.ranges)
    for outer in _collapsed_axes(env, nest):
        (first, last), (low, high) = ranges[outer], env.ranges[nest.vector or ""]
        length = b.mul(b.sub(high, low), b.sub(last, first))
        collapsed[nest.vector or ""] = low, b.add(low, length)
        collapsed[outer] = first, b.add(first, number(1))
    with env.within(ranges=collapsed):
        run()


def _collapsed_axes(env: Environment, nest: Nest) -> Iterator[str]:
    """Yield the axes which continue where the vector axis ends, innermost first."""
    transposed = [c for c in env.s.products.values() if c.transposes_sums]
    if not transposed or nest.product is not None or nest.packed or not _is_plain(env, nest):
        return
    inner_axis, axes = nest.vector or "", transposed[0].axes
    inner = [inner_axis]
    for outer in reversed(axes[1:-1] if axes[-1] == inner_axis else ()):
        row_size = product(env.s.phase.axes[a] for a in inner)
        if any(_is_part(env, a) for a in inner) or outer not in nest.order:
            return
        if not all(_continues(e, inner_axis, outer, row_size) for e in _offsets(env, nest)):
            return
        if any(not _is_dense(env, i, (outer, *inner)) for i in _scratch_items(env, nest)):
            return
        yield outer
        inner.insert(0, outer)


def _is_plain(env: Environment, nest: Nest) -> bool:
    has_more = (
        nest.reductions
        or nest.state_updates
        or nest.scalars
        or nest.transposed
        or nest.stages
        or nest.store_range
    )
    kinds = all(isinstance(i, COLLAPSIBLE_KINDS) for i in nest.items)
    tested = any(a.limits or a.positions for a in accesses_of(nest.items))
    masked = any(s.where is not None or s.access.positions for s in nest.stores)
    return (
        not (has_more or tested or masked or env.row_groups)
        and kinds
        and not is_fully_unrolled(env.s, nest)
    )


def _is_part(env: Environment, axis: str) -> bool:
    """Return whether a task may cover only a part of an axis."""
    s = env.s
    return axis in s.phase.grid and s.block.get(axis, 1) != s.phase.axes[axis]


def _offsets(env: Environment, nest: Nest) -> list[Index]:
    loads = [a.offset for a in accesses_of(nest.items)]
    return [*loads, *(s.access.offset for s in nest.stores)]


def _continues(e: Index, inner: str, outer: str, row_size: Index) -> bool:
    """Return whether an index moves along `outer` as it would over a complete row."""
    inner_step, outer_step = coefficient(e, inner), coefficient(e, outer)
    return (
        inner_step is not None
        and outer_step is not None
        and outer_step == mul(inner_step, row_size)
    )


def _scratch_items(env: Environment, nest: Nest) -> list[Item]:
    used = {a for i in nest.items for a in i.args} | {s.value for s in nest.stores}
    return [i for i in env.s.materialised if i in used | {*nest.saves}]


def _is_dense(env: Environment, item: Item, axes: tuple[str, ...]) -> bool:
    """Return whether a scratch array has these axes last and dense, or none of them."""
    item_axes = env.s.materialised[item]
    if not {*axes} & {*item_axes}:
        return True
    outer, *inner = axes
    has_full_extents = all(env.storage.extent(item, a) == env.s.phase.axes[a] for a in inner)
    return item_axes[-len(axes) :] == (outer, *inner) and has_full_extents
