"""Walk each part of a split reduction in blocks of one or few rows.

A part of a split reduction is many rows.  If what is reduced needs several passes over a row (the
mean of log-sum-exps, say), loops over the whole part would read it from memory for each; row by
row, it stays in L1 between the passes:

    stream r/all of p with s = 0                   stream r/1 of p with s.wide = 0
      v = f(x[r,c])     # reduces c         is       v = f(x[r,c])
      s' = s + sum(v over r)                         s.wide' = s.wide + f64(v)
    merge p: (s)                                   merge p: (s.wide)
                                                   s = f32(s.wide)

Rows so short that each lane of a vector takes one come in blocks from lowering, and stay in them:

    stream r/256 of p with s = 0                   stream r/256 of p with s.wide = 0
      s' = s + sum(v over r)                         s.wide' = s.wide + sum(v over r as f64)

What is carried from row to row is as precise as the accumulator of a single reduction; extremes,
which are never rounded, keep their type.  Compensated sums of doubles run along the whole part.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.kernel import ir as k
from smelt.kernel.block_reduction import block_reduction
from smelt.kernel.walk import refs, splits, visit
from smelt.ops.combine import COMBINES
from smelt.types.dtype import DType, f64

WIDE_STATE_NAME = "{}.wide"
"""Name of the state that carries another one in float64."""


def split_rowwise(kernel: k.Kernel, lanes: str | None = None) -> k.Kernel:
    """Walk the parts of a kernel's only split stream row by row.

    Only if that avoids reading rows again.  With `lanes` (the split axis, if vectors run along it)
    the stream keeps its blocks.
    """
    streams = [s for s in kernel.body if isinstance(s, k.Stream)]
    merges = [s for s in kernel.body if isinstance(s, k.Merge)]
    if len(splits(kernel)) != 1 or len(streams) != 1 or len(merges) != 1:
        return kernel
    stream = streams[0]
    (block, *more), updates = stream.blocks, [s for s in stream.body if isinstance(s, k.Update)]
    reductions = {u.state: _row_reduction(stream, u, block.axis) for u in updates}
    if more or block.stop or (block.size and lanes is None):
        return kernel
    if None in reductions.values():
        return _take_whole_parts(kernel, stream, merges[0])
    if block.size is None and not _has_dependent_reductions(stream, block.axis):
        return kernel
    size = block.size or 1
    steps = tuple(
        _row_update(s, reductions[s.state], size) if isinstance(s, k.Update) else s
        for s in stream.body
    )
    wide = {
        name
        for name, reduction in reductions.items()
        if reduction is not None and _needs_float64(reduction)
    }
    return _carry_wide(kernel, stream, merges[0], replace(block, size=size), wide, steps)


def _take_whole_parts(kernel: k.Kernel, stream: k.Stream, merge: k.Merge) -> k.Kernel:
    """Take all of a part at once.

    If some state is not a reduction (the position of an extreme, say), sums are carried in float64
    from part to part.
    """
    states = {s.name: s for s in stream.states}
    updates = [s for s in stream.body if isinstance(s, k.Update)]
    reductions = {u.state: block_reduction(states[u.state], u, stream) for u in updates}
    sums = {
        name: f
        for name, f in reductions.items()
        if None in reductions.values()
        and isinstance(f, k.Reduce)
        and _needs_float64(f)
        and f.dtype != f64
    }
    steps = tuple(
        _row_update(s, sums[s.state], 0) if isinstance(s, k.Update) and s.state in sums else s
        for s in stream.body
    )
    return _carry_wide(
        kernel, stream, merge, replace(stream.blocks[0], size=None), set(sums), steps
    )


def _carry_wide(
    kernel: k.Kernel,
    stream: k.Stream,
    merge: k.Merge,
    block: k.Block,
    wide: set[str],
    steps: tuple[k.Statement, ...],
) -> k.Kernel:
    """Carry some states of the stream in float64, with a cast after the merge."""
    wide_stream = k.Stream(
        (block,), tuple(_wide_state(s) if s.name in wide else s for s in stream.states), steps
    )
    merged = k.Merge(
        merge.part, tuple(WIDE_STATE_NAME.format(n) if n in wide else n for n in merge.states)
    )
    narrowed = [
        k.Let(s.name, k.Cast(k.Ref(WIDE_STATE_NAME.format(s.name)), _dtype(s)))
        for s in stream.states
        if s.name in wide and s.name in merge.states
    ]
    body: list[k.Statement] = []
    for s in kernel.body:
        body += [wide_stream] if s is stream else [merged, *narrowed] if s is merge else [s]
    return replace(kernel, body=tuple(body))


def _dtype(state: k.State) -> DType:
    assert isinstance(state.init, k.Const)
    return state.dtype or state.init.dtype


def _needs_float64(reduction: k.Reduce) -> bool:
    """Return whether a reduction is carried in float64, since each of its steps rounds."""
    return reduction.dtype.is_float and COMBINES[reduction.combine].wide


def _wide_state(state: k.State) -> k.State:
    """Return the state that carries another one in float64."""
    init = state.init
    assert isinstance(init, k.Const)
    return replace(
        state, name=WIDE_STATE_NAME.format(state.name), init=k.Const(init.value, f64), dtype=f64
    )


def _row_update(update: k.Update, reduction: k.Reduce | None, rows: int) -> k.Update:
    """Return the update of a state by `rows` rows (0: all of a part)."""
    assert reduction is not None
    wide = _needs_float64(reduction)
    name = WIDE_STATE_NAME.format(update.state) if wide else update.state
    dtype = f64 if wide else reduction.dtype
    value = k.Cast(reduction.arg, dtype) if rows == 1 else replace(reduction, dtype=dtype)
    return k.Update(name, k.Apply(COMBINES[reduction.combine].scalar, (k.Ref(name), value)))


def _row_reduction(stream: k.Stream, update: k.Update, axis: str) -> k.Reduce | None:
    """Return an update's reduction of rows, or None if it cannot be split by rows."""
    state = next(s for s in stream.states if s.name == update.state)
    reduction = block_reduction(state, update, stream)
    if not isinstance(reduction, k.Reduce) or reduction.over != (axis,) or reduction.dtype == f64:
        return None
    plain = isinstance(state.init, k.Const) and not COMBINES[reduction.combine].positional
    return reduction if plain else None


def _has_dependent_reductions(stream: k.Stream, axis: str) -> bool:
    """Return whether some reduction along a row depends on another one."""
    dependent: set[str] = set()
    for s in stream.body:
        if isinstance(s, k.Let):
            waits = bool(set(refs(s.value)) & dependent)
            inner = any(
                isinstance(v, k.Reduce | k.Dot) and set(v.over) - {axis} for v in visit(s.value)
            )
            if waits and inner:
                return True
            if waits or inner:
                dependent.add(s.name)
    return False
