"""Parts of a split axis whose rows are walked more than once are walked row by row, or some rows
at a time.

A part of a split fold is many rows.  Where what is folded needs several loops over a row (the mean
of log-sum-exps, say), loops over the whole part would read it from memory each time; one row after
the other stays in the first cache between its loops:

    stream r/all of p with s = 0                   stream r/1 of p with s.wide = 0
      v = f(x[r,c])     # folds over c      is       v = f(x[r,c])
      s' = s + sum(v over r)                         s.wide' = s.wide + f64(v)
    merge p: (s)                                   merge p: (s.wide)
                                                   s = f32(s.wide)

Rows so short that each lane of a vector takes one come in blocks from lowering, and stay in them:

    stream r/256 of p with s = 0                   stream r/256 of p with s.wide = 0
      s' = s + sum(v over r)                         s.wide' = s.wide + sum(v over r as f64)

What is carried from row to row is as precise as a fold's own accumulator: extremes, which are never
rounded, stay what they are.  Sums of doubles, which carry their rounding errors too, run along the
whole part.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.llvm.loopir.stream_to_reduce import block_fold
from smelt.kernel import ir as k
from smelt.kernel.walk import refs, splits, visit
from smelt.ops.combine import COMBINES
from smelt.types.dtype import DType, f64

WIDE = "{}.wide"
"""The name of a state that carries another one in double precision."""


def row_by_row(kernel: k.Kernel, lanes: str | None = None) -> k.Kernel:
    """The kernel with its one split stream taken row by row, where that spares reading again, or
    in its blocks where `lanes` run along it."""
    streams = [s for s in kernel.body if isinstance(s, k.Stream)]
    merges = [s for s in kernel.body if isinstance(s, k.Merge)]
    if len(splits(kernel)) != 1 or len(streams) != 1 or len(merges) != 1:
        return kernel
    stream = streams[0]
    (block, *more), updates = stream.blocks, [s for s in stream.body if isinstance(s, k.Update)]
    folds = {u.state: _fold(stream, u, block.axis) for u in updates}
    if more or block.stop or (block.size and lanes is None):
        return kernel
    if None in folds.values():
        return _whole(kernel, stream, merges[0])
    if block.size is None and not _again(stream, block.axis):
        return kernel
    size = block.size or 1
    steps = tuple(
        _step(s, folds[s.state], size) if isinstance(s, k.Update) else s for s in stream.body
    )
    wide = {name for name, fold in folds.items() if fold is not None and _rounds(fold)}
    return _wider(kernel, stream, merges[0], replace(block, size=size), wide, steps)


def _whole(kernel: k.Kernel, stream: k.Stream, merge: k.Merge) -> k.Kernel:
    """The kernel with all of a part taken at once.  Sums beside states that are no folds (places of
    extremes, say) are carried in double precision from part to part."""
    states = {s.name: s for s in stream.states}
    updates = [s for s in stream.body if isinstance(s, k.Update)]
    folds = {u.state: block_fold(states[u.state], u, stream) for u in updates}
    sums = {
        name: f
        for name, f in folds.items()
        if None in folds.values() and isinstance(f, k.Reduce) and _rounds(f) and f.dtype != f64
    }
    steps = tuple(
        _step(s, sums[s.state], 0) if isinstance(s, k.Update) and s.state in sums else s
        for s in stream.body
    )
    return _wider(kernel, stream, merge, replace(stream.blocks[0], size=None), set(sums), steps)


def _wider(
    kernel: k.Kernel,
    stream: k.Stream,
    merge: k.Merge,
    block: k.Block,
    wide: set[str],
    steps: tuple[k.Statement, ...],
) -> k.Kernel:
    """The kernel with other steps for its stream, which carries some states in double precision."""
    made = k.Stream(
        (block,), tuple(_state(s) if s.name in wide else s for s in stream.states), steps
    )
    merged = k.Merge(merge.part, tuple(WIDE.format(n) if n in wide else n for n in merge.states))
    narrowed = [
        k.Let(s.name, k.Cast(k.Ref(WIDE.format(s.name)), _dtype(s)))
        for s in stream.states
        if s.name in wide and s.name in merge.states
    ]
    body: list[k.Statement] = []
    for s in kernel.body:
        body += [made] if s is stream else [merged, *narrowed] if s is merge else [s]
    return replace(kernel, body=tuple(body))


def _dtype(state: k.State) -> DType:
    assert isinstance(state.init, k.Const)
    return state.dtype or state.init.dtype


def _rounds(fold: k.Reduce) -> bool:
    """Whether a fold is carried in double precision: each of its steps is rounded."""
    return fold.dtype.is_float and COMBINES[fold.combine].wide


def _state(state: k.State) -> k.State:
    """The state as it is carried in double precision."""
    init = state.init
    assert isinstance(init, k.Const)
    return replace(state, name=WIDE.format(state.name), init=k.Const(init.value, f64), dtype=f64)


def _step(update: k.Update, fold: k.Reduce | None, rows: int) -> k.Update:
    """What one row adds, or some rows together (0: all of a part)."""
    assert fold is not None
    wide = _rounds(fold)
    name = WIDE.format(update.state) if wide else update.state
    dtype = f64 if wide else fold.dtype
    value = k.Cast(fold.arg, dtype) if rows == 1 else replace(fold, dtype=dtype)
    return k.Update(name, k.Apply(COMBINES[fold.combine].scalar, (k.Ref(name), value)))


def _fold(stream: k.Stream, update: k.Update, axis: str) -> k.Reduce | None:
    """The fold of rows that an update is, if it is one that can be taken row by row."""
    state = next(s for s in stream.states if s.name == update.state)
    fold = block_fold(state, update, stream)
    if not isinstance(fold, k.Reduce) or fold.over != (axis,) or fold.dtype == f64:
        return None
    plain = isinstance(state.init, k.Const) and not COMBINES[fold.combine].positional
    return fold if plain else None


def _again(stream: k.Stream, axis: str) -> bool:
    """Whether some fold along a row waits for another one."""
    late: set[str] = set()
    for s in stream.body:
        if isinstance(s, k.Let):
            waits = bool(set(refs(s.value)) & late)
            inner = any(
                isinstance(v, k.Reduce | k.Dot) and set(v.over) - {axis} for v in visit(s.value)
            )
            if waits and inner:
                return True
            if waits or inner:
                late.add(s.name)
    return False
