"""Kernel -> Program: a flat graph of values with flat memory offsets, the form that is scheduled.

`flat.py` makes the items; here it is decided what runs: a stream that only folds is a fold over the
whole axis, other streams are regions of a phase, and streams over the parts of a split axis become
two phases: one that leaves the states of each part in a buffer, one that merges them in order.
Neighbouring axes that every access walks as one are collapsed into one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from smelt.codegen.llvm.loopir.clone import prune
from smelt.codegen.llvm.loopir.collapse_axes import collapse
from smelt.codegen.llvm.loopir.collapse_spatial import over_lines
from smelt.codegen.llvm.loopir.compute_at import peeking
from smelt.codegen.llvm.loopir.items import (
    Access,
    Buffer,
    Carried,
    Item,
    Phase,
    Program,
    StoreItem,
    Visit,
)
from smelt.codegen.llvm.loopir.lower import PhaseBuilder
from smelt.codegen.llvm.loopir.row_blocking import in_swaths
from smelt.codegen.llvm.loopir.rowwise_split import row_by_row
from smelt.codegen.llvm.loopir.split_axis import refine
from smelt.codegen.llvm.loopir.split_grouped_reduction import in_turn
from smelt.codegen.llvm.loopir.stream_to_reduce import as_folds, block_fold
from smelt.codegen.llvm.schedule.unroll_small_reductions import written_out
from smelt.errors import UnsupportedError
from smelt.kernel import ir as k
from smelt.kernel.merge import MergeRule, merge_rules
from smelt.kernel.walk import splits, statements, substitute_index, values_of, visit
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS, Combine
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, f64
from smelt.types.expr import Index, add, axis, floordiv, maximum, mul, product


def program(kernel: k.Kernel) -> Program:
    """The scheduled form's input.  Raises UnsupportedError for what this back end cannot run."""
    if any(isinstance(entry, k.Each) for entry in kernel.grid):
        raise UnsupportedError(
            f"the CPU back end has no lowering for the families of {kernel.name}"
        )
    kernel = replace(kernel, body=as_folds(kernel.body))
    buffers = [Buffer(p.name, p.dtype, False, _nbytes(p)) for p in kernel.inputs]
    buffers += [Buffer(p.name, p.dtype, True, _nbytes(p)) for p in kernel.outputs]
    strides = [
        (p.name, d)
        for p in kernel.inputs
        if p.strides is not None
        for d, s in enumerate(p.strides)
        if s is None
    ]
    out = Program(kernel.name, buffers, strides, [], [])
    own = {b.name for b in buffers}
    for piece in in_turn(kernel):
        held = [
            Buffer(p.name, p.dtype, True, _nbytes(p)) for p in piece.outputs if p.name not in own
        ]
        out.partials += held
        out.buffers += held
        _add_phases(piece, out)
    out.phases = [
        prune(in_swaths(written_out(over_lines(peeking(collapse(refine(p))))))) for p in out.phases
    ]
    return out


def _add_phases(kernel: k.Kernel, out: Program) -> None:
    """The phases of a kernel that is done in one go."""
    lanes = _taken_together(kernel)
    kernel = row_by_row(kernel, lanes)
    axes = {a.name: a.extent for a in kernel.axes}
    grid = [b.axis for b in kernel.grid if isinstance(b, k.Block)]
    if splits(kernel) and not _split_folds(kernel, out, axes, grid, lanes):
        _split_stream(kernel, out, axes, grid, lanes)
    elif not splits(kernel):
        taken = frozenset(_taken(kernel))
        phase = Phase(kernel.name, axes, grid, lanes=_lanes_axis(kernel), taken=taken)
        PhaseBuilder(kernel, phase, out).body(kernel.body)
        out.phases.append(prune(phase))


def _taken(kernel: k.Kernel) -> Iterator[str]:
    """The grid axes that are taken in blocks."""
    return (b.axis for b in kernel.grid if isinstance(b, k.Block) and b.size not in (None, 1))


def _lanes_axis(kernel: k.Kernel) -> str | None:
    """A grid axis that is taken in blocks although others lie further in: lanes run along it."""
    inner = kernel.axes[-1].name if kernel.axes else None
    return next((name for name in _taken(kernel) if name != inner), None)


def _taken_together(kernel: k.Kernel) -> str | None:
    """A split axis of which some positions are taken at once, where no product asks for that: lanes
    run along it."""
    streams = [s for s in kernel.body if isinstance(s, k.Stream)]
    if any(isinstance(v, k.Dot) for s in statements(streams) for v in _parts_of(s)):
        return None
    cut = (b.axis for s in streams for b in s.blocks if b.part and b.size not in (None, 1))
    return next(cut, None)


def _parts_of(s: k.Statement) -> Iterable[k.Value]:
    return (v for value in values_of(s) for v in visit(value))


def _nbytes(p: k.Param) -> Index:
    return product((*p.shape, p.dtype.itemsize))


# ---- parts ---------------------------------------------------------------------------------------


def _around(kernel: k.Kernel) -> tuple[list[k.Statement], list[k.Statement]]:
    """What all parts agree on, and what follows the merge."""
    body = list(kernel.body)
    first = next((n for n, s in enumerate(body) if isinstance(s, k.Stream)), len(body))
    merge = next((n for n, s in enumerate(body) if isinstance(s, k.Merge)), len(body))
    return body[:first], body[merge + 1 :]


def _split_folds(
    kernel: k.Kernel, out: Program, axes: dict[str, Index], grid: list[str], lanes: str | None
) -> bool:
    """One phase that folds each part into a partial result, one that merges the parts; False if
    the states are more than folds."""
    (split,) = splits(kernel)
    before, after = _around(kernel)
    middle = [s for s in kernel.body if not any(s is o for o in (*before, *after))]
    if len(middle) != 2 or not isinstance(stream := middle[0], k.Stream):
        return False
    (block, *more), states = stream.blocks, {s.name: s for s in stream.states}
    updates = {s.state: s for s in stream.body if isinstance(s, k.Update)}
    folds = {name: block_fold(states[name], updates[name], stream) for name in updates}
    if more or block.stop or block.size or block.part != split.name or None in folds.values():
        return False
    first = Phase(f"{kernel.name}.parts", dict(axes), list(grid), lanes=lanes)
    length = maximum(floordiv(add(axes[split.axis], split.parts - 1), split.parts), 1)
    first.cut[split.axis] = (split.name, length)
    first.axes[split.name] = split.parts
    first.grid.append(split.name)
    second = Phase(f"{kernel.name}.merge", {**axes, split.name: split.parts}, list(grid))
    parts, merged = PhaseBuilder(kernel, first, out), PhaseBuilder(kernel, second, out)
    for s in before:
        parts.statement(s)
        merged.statement(s)
    for s in stream.body:
        fold = folds[s.state] if isinstance(s, k.Update) else None
        if isinstance(s, k.Update) and fold is not None:
            _partial(parts, merged, states[s.state], fold, split, grid)
        else:
            parts.statement(s)
    merged.body(after)
    out.phases += [prune(first), prune(second)]
    return True


def _partial(
    parts: PhaseBuilder,
    merged: PhaseBuilder,
    state: k.State,
    fold: k.Reduce | k.Dot,
    split: k.Split,
    grid: Sequence[str],
) -> None:
    """state' = state op fold(..): the fold goes to memory for each part, and is folded again."""
    if isinstance(fold, k.Dot):
        row, dtype = COMBINES[SUM_OF_PRODUCTS[0]], fold.dtype.compute
        found = parts.value(fold)
    else:
        row = COMBINES[fold.combine]
        dtype = _partial_dtype(fold.dtype) if row.wide else fold.dtype.compute
        found = parts.fold(row, parts.value(fold.arg), fold.over, dtype, pairs=fold.dtype != f64)
    order = (*grid, *(a for a in state.axes if a not in grid))
    access = _buffer_of_parts(parts, state.name, order, split, dtype)
    axes = frozenset((split.name, *order))
    parts.phase.stores.append(StoreItem(access, found, None, axes))
    again = merged.item("load", access, (), axes, dtype.compute)
    total = merged.fold(row, again, (split.name,), again.dtype)
    merged.names[state.name] = merged.convert(total, fold.dtype.compute)


def _buffer_of_parts(
    parts: PhaseBuilder, name: str, order: Sequence[str], split: k.Split, dtype: DType
) -> Access:
    """A buffer with a state of every part, and where the present one is."""
    extents = tuple(parts.phase.axes[a] for a in order)
    buffer = Buffer(f"{name}.parts", dtype, True, product((split.parts, *extents, dtype.itemsize)))
    parts.program.partials.append(buffer)
    parts.program.buffers.append(buffer)
    offset: Index = axis(split.name, split.parts)
    for a, n in zip(order, extents, strict=True):
        offset = add(mul(offset, n), axis(a, n))
    return Access(buffer.name, offset)


def _partial_dtype(dtype: DType) -> DType:
    """Partial float results keep double precision.  A part of a sum of doubles leaves behind the
    error that it carried: each part is rounded once, whatever its length."""
    return f64 if dtype.kind == "float" else dtype


def _split_stream(
    kernel: k.Kernel, out: Program, axes: dict[str, Index], grid: list[str], lanes: str | None
) -> None:
    """One phase that streams through each part, one that joins the states of the parts in order."""
    (split,) = splits(kernel)
    first = Phase(
        f"{kernel.name}.parts", {**axes, split.name: split.parts}, [*grid, split.name], lanes=lanes
    )
    parts = PhaseBuilder(kernel, first, out)
    before, after = _around(kernel)
    rules = merge_rules(kernel)
    parts.body(s for s in kernel.body if not any(s is o for o in after))
    if not any(isinstance(s, k.Merge) for s in kernel.body):
        first.name = kernel.name
        out.phases.append(prune(first))
        return
    second = Phase(f"{kernel.name}.merge", dict(first.axes), list(grid))
    merged = PhaseBuilder(kernel, second, out)
    merged.body(s for s in before if not isinstance(s, k.Store))
    states: dict[str, tuple[Carried, Item]] = {}
    starts: list[tuple[Carried, Item]] = []
    alone = _folded_alone(kernel, rules)
    folded: dict[str, Item] = {}
    for name in rules:
        final = parts.names[name]
        order = tuple(a for a in axes if a in final.axes and a != split.name)
        access = _buffer_of_parts(parts, name, order, split, final.dtype)
        spread = frozenset((*order, split.name))
        now = len(first.segments) - 1
        first.stores.append(StoreItem(access, final, None, spread, now))
        if name in alone:
            folded[name] = merged.item("load", access, (), spread, final.dtype)
            continue
        earliest = Access(access.buffer, _at_start(access.offset, split))
        starts.append(
            (
                merged.carried(name, frozenset(order), final.dtype),
                merged.item("load", earliest, (), order, final.dtype),
            )
        )
        states[name] = starts[-1][0], merged.item("load", access, (), spread, final.dtype)
    merged.names |= {
        name: merged.fold(alone[name], x, (split.name,), x.dtype) for name, x in folded.items()
    }
    if starts:
        merged.open((Visit(split.name, 1, first=1),), starts)
    for name, rule in rules.items():
        if name in alone:
            continue
        sides: list[Item] = []
        for side in (merged.old, {n: other for n, (_, other) in states.items()}):
            merged.names |= side
            sides.append(merged.value(rule.transported))
        merged.names |= merged.old
        dtype = SCALARS[rule.op].result(*(s.dtype for s in sides))
        joined = merged.item("apply", rule.op, tuple(sides), _axes_of(sides), dtype)
        merged.update(name, joined)
    if starts:
        merged.close()
    merged.names |= {state.name: merged.read(state) for state, _ in starts}
    merged.body(after)
    out.phases += [prune(first), prune(second)]


def _folded_alone(kernel: k.Kernel, rules: Mapping[str, MergeRule]) -> dict[str, Combine]:
    """States whose parts are folded like elements, because no other state looks at what they are
    meanwhile: sums carry their errors along."""
    stream = next(s for s in kernel.body if isinstance(s, k.Stream))
    known = {s.name: s for s in stream.states}
    read = {
        v.name
        for name, rule in rules.items()
        for v in visit(rule.transported)
        if isinstance(v, k.Ref) and v.name != name
    }
    found: dict[str, Combine] = {}
    for s in stream.body:
        if isinstance(s, k.Update) and s.state in rules and s.state not in read:
            fold = block_fold(known[s.state], s, stream)
            if isinstance(fold, k.Reduce) and rules[s.state].transported == k.Ref(s.state):
                found[s.state] = COMBINES[fold.combine]
    return found


def _at_start(offset: Index, split: k.Split) -> Index:
    return substitute_index(offset, {split.name: 0})


def _axes_of(items: list[Item]) -> frozenset[str]:
    return frozenset[str]().union(*(i.axes for i in items))
