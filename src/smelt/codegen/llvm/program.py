"""Lower a kernel to a program: phases of items with flat memory offsets, ready to be scheduled.

`smelt.codegen.llvm.loopir.lower` builds the items; this module decides what runs.  A stream that
only reduces is a reduction over the whole axis, other streams are regions of a phase, and streams
over the parts of a split axis become two phases: one that stores the states of each part in a
buffer, one that merges them in order (split-K, flash decoding).  Then the phases are rewritten, for
example by collapsing adjacent axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from smelt.codegen.llvm.loopir.collapse_axes import collapse, collapse_spatial, split_axes
from smelt.codegen.llvm.loopir.compute_at import compute_at_windows
from smelt.codegen.llvm.loopir.items import Buffer, Dot, Phase, Program, Reduce
from smelt.codegen.llvm.loopir.lower import PhaseBuilder
from smelt.codegen.llvm.loopir.rewrite import prune
from smelt.codegen.llvm.loopir.row_blocking import block_rows
from smelt.codegen.llvm.loopir.rowwise_split import split_rowwise
from smelt.codegen.llvm.loopir.split_grouped_reduction import split_grouped_kernel
from smelt.codegen.llvm.schedule.unroll_small_reductions import unroll_small_windows
from smelt.errors import UnsupportedError
from smelt.kernel import ir as k
from smelt.kernel.block_reduction import ReductionValue, block_reduction, row_of
from smelt.kernel.transform.split_merge import SplitMerge, split_merge
from smelt.kernel.transform.stream_to_reduction import reads_reduction, reductions_of
from smelt.kernel.walk import splits, visit_body
from smelt.python.dataclass import replace
from smelt.types.dtype import DType, f64
from smelt.types.expr import Index, add, floordiv, maximum, product


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
    kinds = {type(v) for v in visit_body(kernel)}
    is_grouped = k.Reduce in kinds and k.Dot not in kinds
    for piece in split_grouped_kernel(kernel) if is_grouped else [kernel]:
        out.add_intermediates(piece)
        _add_phases(piece, out)
    phases = tuple(map(_rewritten, out.phases))
    return Program(kernel.name, (*buffers, *out.partials), strides, phases, tuple(out.partials))


def _rewritten(phase: Phase) -> Phase:
    """Run the rewrites that the kinds of a phase's items allow to change it."""
    kinds = {type(i) for i in phase.items}
    phase = collapse(split_axes(phase))
    if {Dot, Reduce} <= kinds:
        phase = compute_at_windows(phase)
    if Dot in kinds:
        phase = collapse_spatial(phase)
    if Reduce in kinds:
        phase = unroll_small_windows(phase)
    return prune(block_rows(phase) if phase.regions() else phase)


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


def _add_phases(kernel: k.Kernel, out: _Pieces) -> None:
    """Add the phases of a kernel that needs no further splitting."""
    lanes = _split_lanes_axis(kernel)
    kernel = split_rowwise(kernel, lanes) if splits(kernel) else kernel
    axes = {a.name: a.extent for a in kernel.axes}
    grid = tuple(b.axis for b in kernel.grid if isinstance(b, k.Block))
    if splits(kernel):
        _add_parts(kernel, out, Phase(kernel.name, axes, grid, lanes=lanes))
    else:
        blocked = frozenset(_blocked_axes(kernel))
        phase = Phase(kernel.name, axes, grid, lanes=_lanes_axis(kernel), blocked_axes=blocked)
        builder = out.builder(kernel, phase)
        builder.body(kernel.body)
        out.add(builder)


def _blocked_axes(kernel: k.Kernel) -> Iterator[str]:
    return (b.axis for b in kernel.grid if isinstance(b, k.Block) and b.size not in (None, 1))


def _lanes_axis(kernel: k.Kernel) -> str | None:
    """Return a grid axis for vectors: taken in blocks although others are further in."""
    inner = kernel.axes[-1].name if kernel.axes else None
    return next((name for name in _blocked_axes(kernel) if name != inner), None)


def _split_lanes_axis(kernel: k.Kernel) -> str | None:
    """Return a split axis for vectors: taken in blocks, but for no contraction."""
    streams = [s for s in kernel.body if isinstance(s, k.Stream)]
    if any(isinstance(v, k.Dot) for v in visit_body(streams)):
        return None
    cut = (b.axis for s in streams for b in s.blocks if b.part and b.size not in (None, 1))
    return next(cut, None)


def _nbytes(p: k.Param) -> Index:
    return product((*p.shape, p.dtype.itemsize))


# ---- parts ---------------------------------------------------------------------------------------


def _add_parts(kernel: k.Kernel, out: _Pieces, phase: Phase) -> None:
    """Add the phases of a split stream: its parts, and the merge of their states.

    If all states are reductions of whole parts, each part is reduced at once.
    """
    (split,) = splits(kernel)
    axes = {**phase.axes, split.name: split.parts}
    parts = replace(phase, axes=axes, grid=(*phase.grid, split.name))
    reductions = _whole_reductions(kernel)
    separate = split_merge(kernel, {n: _partial_dtype(r) for n, r in reductions.items()})
    if separate is None:
        builder = out.builder(kernel, parts)
        builder.body(kernel.body)
        out.add(builder)
        return
    out.add_intermediates(separate.parts)
    parts = replace(parts, name=f"{kernel.name}.parts")
    if reductions:
        length = maximum(floordiv(add(axes[split.axis], split.parts - 1), split.parts), 1)
        parts = replace(parts, cut={split.axis: (split.name, length)})
        reduced = {name: row_of(r).name for name, r in reductions.items()}
    else:
        reduced = _independent_reductions(separate)
    builder = out.builder(separate.parts, parts)
    for s in separate.parts.body:
        if reductions and isinstance(s, k.Stream):
            _reduce_part(builder, s, reductions)
        else:
            builder.statement(s)
    merge = separate.merge(separate.after, reduced)
    merged = out.builder(merge, Phase(f"{kernel.name}.merge", axes, phase.grid))
    merged.body(merge.body)
    out.add(builder, merged)


def _whole_reductions(kernel: k.Kernel) -> dict[str, ReductionValue]:
    """Return the reductions that states are, if the stream takes a part at once."""
    streams = [s for s in kernel.body if isinstance(s, k.Stream)]
    if len(streams) != 1 or not any(isinstance(s, k.Merge) for s in kernel.body):
        return {}
    (stream,), states = streams, {s.name: s for s in streams[0].states}
    (block, *more) = stream.blocks
    if more or block.stop or block.size or not block.part:
        return {}
    result: dict[str, ReductionValue] = {}
    for s in stream.body:
        if isinstance(s, k.Update):
            reduction = block_reduction(states[s.state], s, stream)
            if reduction is None:
                return {}
            result[s.state] = reduction
    return result


def _reduce_part(
    builder: PhaseBuilder, s: k.Stream, reductions: Mapping[str, ReductionValue]
) -> None:
    """Reduce all of a part for each state: a sum is not rounded before the merge."""
    for x in s.body:
        if not isinstance(x, k.Update):
            builder.statement(x)
            continue
        r = reductions[x.state]
        if isinstance(r, k.Reduce):
            arg, dtype = builder.value(r.arg), _partial_dtype(r)
            total = builder.reduce(row_of(r), arg, r.over, dtype, pairs=r.dtype != f64)
        else:
            total = builder.value(r)
        builder.define(x.state, total)


def _partial_dtype(r: ReductionValue) -> DType:
    """Return the type of partial results: float64 for sums of floats.

    A compensated sum of doubles drops its error term: each part is rounded once, whatever its
    length.
    """
    wide = isinstance(r, k.Reduce) and row_of(r).wide and r.dtype.kind == "float"
    return f64 if wide else r.dtype.compute


def _independent_reductions(separate: SplitMerge) -> dict[str, str]:
    """Return the states whose parts are reduced like elements, so that sums may be compensated."""
    stream = next(s for s in separate.kernel.body if isinstance(s, k.Stream))
    states = {s.name: s for s in stream.states}
    updates = {s.state: s for s in stream.body if isinstance(s, k.Update)}
    every = separate.reductions(separate.after)
    in_block = {n: block_reduction(states[n], updates[n], stream) for n in every}
    return {n: combine for n, combine in every.items() if isinstance(in_block[n], k.Reduce)}
