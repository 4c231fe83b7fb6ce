"""Lower a kernel to a program: phases of items with flat memory offsets, ready to be scheduled.

`smelt.codegen.llvm.loopir.lower` builds the items; this module decides what runs.  A stream that
only reduces is a reduction over the whole axis, other streams are regions of a phase, and streams
over the parts of a split axis become two phases: one that stores the states of each part in a
buffer, one that merges them in order (split-K, flash decoding).  Then the phases are rewritten, for
example by collapsing adjacent axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from smelt.codegen.llvm.loopir.clone import prune
from smelt.codegen.llvm.loopir.collapse_axes import collapse, collapse_spatial
from smelt.codegen.llvm.loopir.compute_at import compute_at_windows
from smelt.codegen.llvm.loopir.items import (
    Access,
    Buffer,
    Item,
    Load,
    Phase,
    Program,
    StoreItem,
    StreamState,
    Visit,
    apply,
)
from smelt.codegen.llvm.loopir.lower import PhaseBuilder
from smelt.codegen.llvm.loopir.row_blocking import block_rows
from smelt.codegen.llvm.loopir.rowwise_split import split_rowwise
from smelt.codegen.llvm.loopir.split_axis import split_axes
from smelt.codegen.llvm.loopir.split_grouped_reduction import split_grouped_kernel
from smelt.codegen.llvm.schedule.unroll_small_reductions import unroll_small_windows
from smelt.errors import UnsupportedError
from smelt.kernel import ir as k
from smelt.kernel.block_reduction import ReductionValue, block_reduction
from smelt.kernel.merge import MergeRule, merge_rules
from smelt.kernel.transform.stream_to_reduction import reads_reduction, reductions_of
from smelt.kernel.walk import splits, statements, substitute_index, values_of, visit
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS, Combine
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, f64
from smelt.types.expr import Index, add, axis, floordiv, maximum, mul, product


def program(kernel: k.Kernel) -> Program:
    """Lower a kernel.  Raises UnsupportedError for what this back end cannot run."""
    if any(isinstance(entry, k.Each) for entry in kernel.grid):
        raise UnsupportedError(
            f"the CPU back end has no lowering for the families of {kernel.name}"
        )
    kernel = replace(kernel, body=tuple(_without_plain_streams(kernel.body)))
    buffers = [Buffer(p.name, p.dtype, False, _nbytes(p), p.strides is None) for p in kernel.inputs]
    buffers += [Buffer(p.name, p.dtype, True, _nbytes(p)) for p in kernel.outputs]
    strides = tuple(
        (p.name, d)
        for p in kernel.inputs
        if p.strides is not None
        for d, s in enumerate(p.strides)
        if s is None
    )
    out = _Pieces(buffers)
    for piece in split_grouped_kernel(kernel):
        out.add_intermediates(piece)
        _add_phases(piece, out)
    phases = tuple(
        prune(
            block_rows(
                unroll_small_windows(collapse_spatial(compute_at_windows(collapse(split_axes(p)))))
            )
        )
        for p in out.phases
    )
    return Program(kernel.name, (*buffers, *out.partials), strides, phases, tuple(out.partials))


def _without_plain_streams(body: Iterable[k.Statement]) -> Iterator[k.Statement]:
    """Yield statements with reductions in place of streams that only reduce.

    A stream that reduces what is itself a reduction (the result of a contraction, say) is left
    alone: its blocks keep those results in fast memory.
    """
    for s in body:
        new: list[k.Statement] = []
        if isinstance(s, k.Stream) and all(isinstance(x, k.Let | k.Update) for x in s.body):
            new = reductions_of(s)
            states = {t.name for t in s.states}
            ends = [x.value for x in new if isinstance(x, k.Let) and x.name in states]
            if any(isinstance(v, ReductionValue) and reads_reduction(v, s.body) for v in ends):
                new = []
        yield from new or [s]


class _Pieces:
    """The phases of a program until now, and the arrays between them."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.buffers = buffers
        self.partials: list[Buffer] = []
        self.phases: list[Phase] = []

    def builder(self, kernel: k.Kernel, phase: Phase) -> PhaseBuilder:
        """Return a builder of a phase's items."""
        return PhaseBuilder(kernel, phase, self.buffers)

    def add(self, *built: PhaseBuilder) -> None:
        """Add phases."""
        self.phases += [x.phase() for x in built]

    def add_intermediates(self, piece: k.Kernel) -> None:
        """Add the results of a piece that are not results of the kernel."""
        names = {b.name for b in self.buffers}
        self.partials += [
            Buffer(p.name, p.dtype, True, _nbytes(p)) for p in piece.outputs if p.name not in names
        ]

    def add_parts(
        self,
        name: str,
        axes: Mapping[str, Index],
        order: Sequence[str],
        split: k.Split,
        dtype: DType,
    ) -> Access:
        """Add a buffer that holds a state for each part of a split reduction.

        Returns the access to the current part.
        """
        extents = tuple(axes[a] for a in order)
        nbytes = product((split.parts, *extents, dtype.itemsize))
        self.partials.append(Buffer(f"{name}.parts", dtype, True, nbytes))
        offset: Index = axis(split.name, split.parts)
        for a, n in zip(order, extents, strict=True):
            offset = add(mul(offset, n), axis(a, n))
        return Access(f"{name}.parts", offset)


def _add_phases(kernel: k.Kernel, out: _Pieces) -> None:
    """Add the phases of a kernel that needs no further splitting."""
    lanes = _split_lanes_axis(kernel)
    kernel = split_rowwise(kernel, lanes)
    axes = {a.name: a.extent for a in kernel.axes}
    grid = tuple(b.axis for b in kernel.grid if isinstance(b, k.Block))
    if splits(kernel) and not _split_reductions(kernel, out, axes, grid, lanes):
        _split_stream(kernel, out, axes, grid, lanes)
    elif not splits(kernel):
        blocked = frozenset(_blocked_axes(kernel))
        phase = Phase(kernel.name, axes, grid, lanes=_lanes_axis(kernel), blocked_axes=blocked)
        builder = out.builder(kernel, phase)
        builder.body(kernel.body)
        out.add(builder)


def _blocked_axes(kernel: k.Kernel) -> Iterator[str]:
    """Return the grid axes that are taken in blocks."""
    return (b.axis for b in kernel.grid if isinstance(b, k.Block) and b.size not in (None, 1))


def _lanes_axis(kernel: k.Kernel) -> str | None:
    """Return a grid axis for vectors: taken in blocks although others are further in."""
    inner = kernel.axes[-1].name if kernel.axes else None
    return next((name for name in _blocked_axes(kernel) if name != inner), None)


def _split_lanes_axis(kernel: k.Kernel) -> str | None:
    """Return a split axis for vectors: taken in blocks, but for no contraction."""
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


def _before_and_after(kernel: k.Kernel) -> tuple[list[k.Statement], list[k.Statement]]:
    """Return the statements before the streams, and those after the merge."""
    body = list(kernel.body)
    first = next((n for n, s in enumerate(body) if isinstance(s, k.Stream)), len(body))
    merge = next((n for n, s in enumerate(body) if isinstance(s, k.Merge)), len(body))
    return body[:first], body[merge + 1 :]


def _split_reductions(
    kernel: k.Kernel, out: _Pieces, axes: dict[str, Index], grid: tuple[str, ...], lanes: str | None
) -> bool:
    """Add a phase that reduces each part, and one that merges the partial results.

    False if the states are more than reductions.
    """
    (split,) = splits(kernel)
    before, after = _before_and_after(kernel)
    middle = [s for s in kernel.body if not any(s is o for o in (*before, *after))]
    if len(middle) != 2 or not isinstance(stream := middle[0], k.Stream):
        return False
    (block, *more), states = stream.blocks, {s.name: s for s in stream.states}
    updates = {s.state: s for s in stream.body if isinstance(s, k.Update)}
    reductions = {name: block_reduction(states[name], updates[name], stream) for name in updates}
    if more or block.stop or block.size or block.part != split.name or None in reductions.values():
        return False
    length = maximum(floordiv(add(axes[split.axis], split.parts - 1), split.parts), 1)
    cut, all_axes = {split.axis: (split.name, length)}, {**axes, split.name: split.parts}
    first = Phase(f"{kernel.name}.parts", all_axes, (*grid, split.name), cut, lanes=lanes)
    second = Phase(f"{kernel.name}.merge", all_axes, grid)
    parts, merged = out.builder(kernel, first), out.builder(kernel, second)
    for s in before:
        parts.statement(s)
        merged.statement(s)
    for s in stream.body:
        reduction = reductions[s.state] if isinstance(s, k.Update) else None
        if isinstance(s, k.Update) and reduction is not None:
            _store_partial(out, (parts, merged), states[s.state], reduction, split, grid)
        else:
            parts.statement(s)
    merged.body(after)
    out.add(parts, merged)
    return True


def _store_partial(
    out: _Pieces,
    builders: tuple[PhaseBuilder, PhaseBuilder],
    state: k.State,
    reduction: k.Reduce | k.Dot,
    split: k.Split,
    grid: Sequence[str],
) -> None:
    """Store the reduction of each part, and reduce the parts again in the merge.

    state' = state op reduction(..)
    """
    parts, merged = builders
    if isinstance(reduction, k.Dot):
        row, dtype = COMBINES[SUM_OF_PRODUCTS[0]], reduction.dtype.compute
        partial = parts.value(reduction)
    else:
        row = COMBINES[reduction.combine]
        dtype = _partial_dtype(reduction.dtype) if row.wide else reduction.dtype.compute
        partial = parts.reduce(
            row, parts.value(reduction.arg), reduction.over, dtype, pairs=reduction.dtype != f64
        )
    order = (*grid, *(a for a in state.axes if a not in grid))
    access = out.add_parts(state.name, parts.axes, order, split, dtype)
    axes = frozenset((split.name, *order))
    parts.add_store(StoreItem(access, partial, None, axes))
    partials = merged.item(Load((), axes, dtype.compute, access))
    total = merged.reduce(row, partials, (split.name,), partials.dtype)
    merged.define(state.name, merged.convert(total, reduction.dtype.compute))


def _partial_dtype(dtype: DType) -> DType:
    """Return the type of partial results: float64 for floats.

    A compensated sum of doubles drops its error term: each part is rounded once, whatever its
    length.
    """
    return f64 if dtype.kind == "float" else dtype


def _split_stream(
    kernel: k.Kernel, out: _Pieces, axes: dict[str, Index], grid: tuple[str, ...], lanes: str | None
) -> None:
    """Add the phases of a split reduction: partial results, then their merge in order."""
    (split,) = splits(kernel)
    merges = any(isinstance(s, k.Merge) for s in kernel.body)
    name = f"{kernel.name}.parts" if merges else kernel.name
    all_axes = {**axes, split.name: split.parts}
    parts = out.builder(kernel, Phase(name, all_axes, (*grid, split.name), lanes=lanes))
    before, after = _before_and_after(kernel)
    rules = merge_rules(kernel)
    parts.body(s for s in kernel.body if not any(s is o for o in after))
    if not merges:
        out.add(parts)
        return
    merged = out.builder(kernel, Phase(f"{kernel.name}.merge", all_axes, grid))
    merged.body(s for s in before if not isinstance(s, k.Store))
    states: dict[str, tuple[StreamState, Item]] = {}
    starts: list[tuple[StreamState, Item]] = []
    independent = _independent_reductions(kernel, rules)
    partials: dict[str, Item] = {}
    for name in rules:
        final = parts.names[name]
        order = tuple(a for a in axes if a in final.axes and a != split.name)
        access = out.add_parts(name, all_axes, order, split, final.dtype)
        part_axes = frozenset((*order, split.name))
        parts.add_store(StoreItem(access, final, None, part_axes, parts.now))
        if name in independent:
            partials[name] = merged.item(Load((), part_axes, final.dtype, access))
            continue
        earliest = Access(access.buffer, _at_first_part(access.offset, split))
        starts.append(
            (
                merged.carried(name, frozenset(order), final.dtype),
                merged.item(Load((), frozenset(order), final.dtype, earliest)),
            )
        )
        states[name] = starts[-1][0], merged.item(Load((), part_axes, final.dtype, access))
    for name, x in partials.items():
        merged.define(name, merged.reduce(independent[name], x, (split.name,), x.dtype))
    if starts:
        merged.open((Visit(split.name, 1, first=1),), starts)
    for name, rule in rules.items():
        if name in independent:
            continue
        sides: list[Item] = []
        for side in (merged.old, {n: other for n, (_, other) in states.items()}):
            merged.define_all(side)
            sides.append(merged.value(rule.rescaled))
        merged.define_all(merged.old)
        dtype = SCALARS[rule.op].result(*(s.dtype for s in sides))
        combined = merged.item(apply(rule.op, tuple(sides), dtype))
        merged.update(name, combined)
    if starts:
        merged.close()
    merged.define_all({state.name: merged.read(state) for state, _ in starts})
    merged.body(after)
    out.add(parts, merged)


def _independent_reductions(kernel: k.Kernel, rules: Mapping[str, MergeRule]) -> dict[str, Combine]:
    """Return the states whose parts are reduced like elements.

    No other state reads them meanwhile, so that sums may be compensated.
    """
    stream = next(s for s in kernel.body if isinstance(s, k.Stream))
    states = {s.name: s for s in stream.states}
    read = {
        v.name
        for name, rule in rules.items()
        for v in visit(rule.rescaled)
        if isinstance(v, k.Ref) and v.name != name
    }
    combine_of: dict[str, Combine] = {}
    for s in stream.body:
        if isinstance(s, k.Update) and s.state in rules and s.state not in read:
            reduction = block_reduction(states[s.state], s, stream)
            if isinstance(reduction, k.Reduce) and rules[s.state].rescaled == k.Ref(s.state):
                combine_of[s.state] = COMBINES[reduction.combine]
    return combine_of


def _at_first_part(offset: Index, split: k.Split) -> Index:
    return substitute_index(offset, {split.name: 0})
