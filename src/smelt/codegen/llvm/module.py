"""Emit the module of a kernel, and what a caller must know to run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.prefetch import assign_row_shares
from smelt.codegen.llvm.access.vector_axis import part_numbers
from smelt.codegen.llvm.instructions.indexing import I64, IndexEmitter, number
from smelt.codegen.llvm.loopir.items import (
    Apply,
    Dot,
    IndexValue,
    Item,
    Load,
    Program,
    unvarying_axes,
)
from smelt.codegen.llvm.loopir.lower import stride_name
from smelt.codegen.llvm.loopir.rewrite import cost_of
from smelt.codegen.llvm.loops.pipeline_store import StorePipeline, can_pipeline_store
from smelt.codegen.llvm.loops.unroll_factor import is_single_block
from smelt.codegen.llvm.nest import NestEmitter
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Frame, Scope, Storage
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.codegen.llvm.prepacked import packed_limits, packed_program
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.build_schedules import build_schedules, split_disjoint
from smelt.codegen.llvm.schedule.contract import (
    as_small,
    few_row_variants,
    is_satisfiable,
    small_limits,
)
from smelt.codegen.llvm.schedule.fused_gemm import epilogue_items
from smelt.codegen.llvm.schedule.product_cost import (
    contraction_cost,
    few_column_variants,
    fused_variants,
)
from smelt.codegen.llvm.scratch.workspace import lay_out, zero_operands
from smelt.codegen.llvm.streams import run_segments
from smelt.kernel.artifact import Candidate, SizeLimits, Variant, Variants
from smelt.kernel.ir import Kernel
from smelt.machine.blocks import UNPACKED
from smelt.machine.target import Target
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, add, atoms, floordiv, mul, product, sizes_of, sub


@dataclass(frozen=True, slots=True)
class Entry:
    """A function of an artifact: its symbol, number of tasks, scratch bytes, and cycles.

    `cycles` is the estimated time of one core on all tasks, arithmetic and memory traffic.
    """

    symbol: str
    tasks: Index
    scratch: Index
    cycles: Index


@dataclass(frozen=True, slots=True)
class Artifact:
    """The LLVM module of a kernel and its calling facts.

    `buffers` and `sizes` are in the order of the arguments; `strides` has the sizes that are
    strides: (size, parameter, dimension); `partials` are buffers that the caller provides besides
    the kernel's parameters: (name, bytes).  Entries run one after another.
    """

    name: str
    llvm: str
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    strides: tuple[tuple[str, str, int], ...]
    partials: tuple[tuple[str, Index], ...]
    entries: tuple[Entry, ...]


_Numbered = dict[tuple[Variant, int], Candidate]
"""Variants, each with a number: one may serve several ranges of sizes."""
FEW, OTHERS = 0, 10
"""First numbers of variants for few rows or columns, and of those for all other sizes."""


def variants_of(kernel: Kernel, target: Target) -> Variants:
    """Return the variants that serve a kernel better than the usual one, best first.

    Those for few rows or columns have limits on sizes.  Others compete by what they cost, where
    products allow several and nothing else is reduced.
    """
    variants_by_phase: list[_Numbered] = []
    for phase in program(kernel).phases:
        subphases = split_disjoint(phase)
        short = _common([_numbered(few_column_variants(p, target), FEW) for p in subphases])
        fused = _common([_numbered(fused_variants(p, target), OTHERS) for p in subphases])
        products = [i for i in phase.items if isinstance(i, Dot)]
        epilogue = cost_of(epilogue_items(phase, products)) if fused else 0.0
        s = schedule(phase, target)
        prepacked = any(c.prepacked for c in s.blocked)
        if prepacked:
            short = {}
            fused = {
                key: Candidate(c.variant, c.limits)
                for key, c in fused.items()
                if c.variant == "k_blocked"
            }
        if s.products:
            packed = s.products.packed
            few = [
                *few_row_variants(s.blocked, s.phase),
                *(Candidate(*x) for x in (packed[0].variants(s.phase, packed) if packed else ())),
            ]
            others = _contraction_variants(
                s, epilogue, target, has_costs=bool(fused) and not prepacked
            )
            variants_by_phase.append(
                short | _numbered(few, FEW) | fused | _numbered(others, OTHERS)
            )
    candidates = [c for c in _common(variants_by_phase).values() if c.variant or c.costs]
    if variants_by_phase and not any(c.variant == "k_blocked" for c in candidates):
        limits = packed_limits(kernel, target)
        candidates += [Candidate("packed", limits)] if limits else []
    return tuple(candidates)


def _contraction_variants(
    s: Schedule, epilogue: float, target: Target, *, has_costs: bool
) -> Iterator[Candidate]:
    """Yield the variants of contractions for any sizes: operands in place, and the usual one."""
    small = small_limits(s.blocked, s.phase) if s.blocked else None
    if not has_costs:
        if small is not None and is_satisfiable(small):
            yield Candidate("small", small)
        yield Candidate("", ())
        return
    variants: list[tuple[Variant, SizeLimits, list[Contraction]]] = [("", (), s.blocked)]
    if small is not None:
        depths = tuple((s.phase.axes[c.k], UNPACKED.kc) for c in s.blocked)
        variants.insert(0, ("small", depths, [as_small(c, target) for c in s.blocked]))
    for variant, limits, plans in variants:
        if is_satisfiable(limits):
            costs = (contraction_cost(c, s.phase, plans, epilogue, target) for c in plans)
            yield Candidate(variant, tuple(dict.fromkeys(limits)), tuple(costs))


def _common(parts: Sequence[_Numbered]) -> _Numbered:
    """Return the variants common to all parts of a kernel, with merged limits and costs."""
    return {
        key: Candidate(
            key[0],
            tuple(dict.fromkeys(n for f in parts for n in f[key].limits)),
            tuple(c for f in parts for c in f[key].costs),
        )
        for key in (parts[0] if parts else ())
        if all(key in f for f in parts)
    }


def _numbered(candidates: Iterable[Candidate], first: int) -> _Numbered:
    counts, numbered = Counter[Variant](), dict[tuple[Variant, int], Candidate]()
    for c in candidates:
        numbered[c.variant, first + counts[c.variant]] = c
        counts[c.variant] += 1
    return numbered


def sizes_in_code(kernel: Kernel, names: Collection[str]) -> set[str]:
    """Return those of some sizes that the code for all sizes depends on.

    Extents of loops, strides of rows, and limits of comparisons.  If rows are contiguous and
    nothing tests for their ends, their length is not among them.
    """
    sizes: set[str] = set()
    for phase in program(kernel).phases:
        accesses = [i.access for i in phase.items if isinstance(i, Load)]
        accesses += [s.access for s in phase.stores]
        indices = [i.index for i in phase.items if isinstance(i, IndexValue)]
        indices += [e for x in accesses for e in (x.offset, *chain.from_iterable(x.limits))]
        sizes |= {a for e in indices for a in sizes_of(e) if a in names}
        for n in phase.axes.values():
            sizes |= {*sizes_of(n)} if {*sizes_of(n)} <= {*names} else set()
    return sizes


def emit(
    kernel: Kernel, target: Target, *, streaming: bool = False, variant: Variant = ""
) -> Artifact:
    """Emit the artifact of a kernel; with `streaming`, by non-temporal stores of full lines.

    Raises UnsupportedError for what this back end cannot run.
    """
    packed = variant == "packed"
    source, variant = (packed_program(kernel, target), "") if packed else (program(kernel), variant)
    schedules = [s for p in source.phases for s in build_schedules(p, target, variant)]
    words: ArgumentOrder = argument_order(source, schedules)
    module = ir.Module(kernel.name)
    entries: list[Entry] = []
    for s in schedules:
        scratch = emit_function(module, source, s, words, target, streaming)
        entries.append(Entry(s.phase.name, task_count(s), scratch, cycles(s)))
    partials = tuple((p.name, p.nbytes) for p in source.partials)
    strides = tuple((stride_name(p, d), p, d) for p, d in source.strides)
    return Artifact(
        kernel.name, str(module), words.buffers, words.sizes, strides, partials, tuple(entries)
    )


# ---- phases as functions ------------------------------------------------------------------------
#
#     phase(arguments, first, last, scratch):
#       load the addresses of buffers, and sizes, from `arguments`
#       for task in first .. last:                  the linearised grid, split among threads
#         one block number for each grid axis       outer to inner
#         the loop nests of the schedule            `smelt.codegen.llvm.nest`
#
# If rows are stored one task late (`smelt.codegen.llvm.loops.pipeline_store`), the loop also
# carries the previous task's block numbers. The estimated cycles of a phase (`cycles`) are what the
# run time cuts work into chunks by.

Value = ir.Value
PTR = ir.PointerType()
KERNEL = ir.FunctionType(ir.VoidType(), [PTR, I64, I64, PTR])
"""Type of a kernel function: arguments, first task, task after the last, scratch memory."""


@dataclass(frozen=True, slots=True)
class ArgumentOrder:
    """The order of a kernel's arguments: buffers, then sizes (strides are sizes too)."""

    buffers: tuple[str, ...]
    sizes: tuple[str, ...]


def argument_order(program: Program, schedules: Iterable[Schedule]) -> ArgumentOrder:
    """Return every buffer, and every size that some phase reads."""
    sizes: dict[str, None] = {}
    for s in schedules:
        for e in _indices(s):
            sizes.update((a.name, None) for a in atoms(e) if a.kind == "size")
    return ArgumentOrder(tuple(b.name for b in program.buffers), tuple(sizes))


def _indices(s: Schedule) -> Iterable[Index]:
    yield from s.phase.axes.values()
    yield from (length for _, length in s.phase.cut.values())
    for item in s.phase.items:
        yield from item.indices
    yield from (st.access.offset for st in s.phase.stores)


def grid_counts(s: Schedule) -> list[tuple[str, Index]]:
    """Return the number of blocks along each grid axis, outer to inner."""
    counts: list[tuple[str, Index]] = []
    for g in s.phase.grid:
        extent = s.phase.axes[g]
        if g in s.block:
            extent = floordiv(add(extent, sub(s.block[g], 1)), s.block[g])
        counts.append((g, extent))
    return counts


def task_count(s: Schedule) -> Index:
    """Return the number of tasks of the linearised grid."""
    return product(n for _, n in grid_counts(s))


def emit_function(
    module: ir.Module,
    program: Program,
    s: Schedule,
    words: ArgumentOrder,
    target: Target,
    streaming: bool,
) -> Index:
    """Emit one schedule into a module; return the bytes of scratch that a thread needs."""
    function = ir.Function(module, KERNEL, s.phase.name)
    function.args[0].add_attribute("noalias")
    function.args[3].add_attribute("noalias")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    if any(s.phase.axes[g] == 0 for g in s.phase.grid):  # no tasks; strides may be 0
        b.ret_void()
        return 0
    buffers, sizes = load_arguments(b, function.args[0], words)
    dtypes = {buffer.name: buffer.dtype for buffer in program.buffers}
    for alias, name in s.phase.aliases.items():
        buffers[alias], dtypes[alias] = buffers[name], s.phase.dtypes[alias]
    entry = IndexEmitter(b, lambda atom: sizes[atom.name])
    _, first, last, scratch = function.args
    counts = [(g, entry.emit(n)) for g, n in grid_counts(s)]
    start = decode_task(b, first, counts)
    storage = lay_out(s).with_addresses(b, scratch, entry.emit)
    zero_operands(b, storage, scratch, entry, sizes.values())
    lengths = {
        x.name: x.nbytes // x.dtype.itemsize
        for x in program.buffers
        if isinstance(x.nbytes, int) and x.is_dense and not x.written
    }
    body, done = (function.append_basic_block(n) for n in ("task", "done"))
    shares = assign_row_shares(s)
    frame = Frame(b, target, s, buffers, dtypes, lengths, sizes, entry, shares, streaming, done)
    pipelines_store = streaming and can_pipeline_store(s)
    pipelines_store &= not any(nest.product for nest in s.nests[-2:])
    _task_loop(frame, storage, body, (first, last), counts, start, pipelines_store)
    return mul(storage.nbytes, 2) if pipelines_store else storage.nbytes


def load_arguments(
    b: ir.IRBuilder, args: Value, words: ArgumentOrder
) -> tuple[dict[str, Value], dict[str, Value]]:
    """Load the arguments: addresses of buffers, and sizes."""
    buffers, sizes = dict[str, Value](), dict[str, Value]()
    for k, name in enumerate(words.buffers):
        address = b.gep(args, [number(k)], source_etype=I64)
        buffers[name] = b.load(address, typ=PTR, name=name)
    for k, name in enumerate(words.sizes):
        address = b.gep(args, [number(len(words.buffers) + k)], source_etype=I64)
        sizes[name] = b.load(address, typ=I64, name=name)
    return buffers, sizes


def decode_task(b: ir.IRBuilder, task: Value, counts: list[tuple[str, Value]]) -> list[Value]:
    """Return the block numbers of a task, outer to inner."""
    numbers: list[Value] = []
    for dim, (_, count) in enumerate(reversed(counts)):
        if dim == len(counts) - 1:
            numbers.append(task)
        else:
            safe = b.select(b.icmp_signed(">", count, number(0)), count, number(1))
            numbers.append(b.urem(task, safe))
            task = b.udiv(task, safe)
    return numbers[::-1]


def _task_loop(
    frame: Frame,
    storage: Storage,
    body: ir.Block,
    tasks: tuple[Value, Value],
    counts: list[tuple[str, Value]],
    start: list[Value],
    pipelines_store: bool,
) -> None:
    """Emit the loop over tasks, from the first one up to the last one's successor."""
    b, (first, last) = frame.b, tasks
    stride = frame.entry.emit(storage.nbytes) if pipelines_store else number(0)
    entry = b.block
    b.cbranch(b.icmp_signed("<", first, last), body, frame.done)
    b.position_at_end(body)
    task = b.phi(I64)
    task.add_incoming(first, entry)
    numbers = [b.phi(I64) for _ in counts]
    for phi, value in zip(numbers, start, strict=True):
        phi.add_incoming(value, entry)
    pipeline = StorePipeline(b, entry, stride, start) if pipelines_store else None
    nests = _nests(frame, storage, numbers)
    if pipeline is None:
        if frame.s.phase.regions():
            run_segments(nests)
        else:
            for nest in frame.s.nests:
                nests.run(nest)
        following = advance_task(b, numbers, counts)
        after = b.add(task, number(1))
    else:
        with pipeline.begin(nests, _nests(frame, storage, pipeline.numbers)) as late_store:
            with nests.within(late_store=late_store):
                for nest in frame.s.nests[:-1]:
                    nests.run(nest)
            following = advance_task(b, numbers, counts)
            after = b.add(task, number(1))
            more = b.icmp_signed("<", after, last)
            pipeline.end(nests, more, _nests(frame, storage, following).ranges)
    latch = b.block
    if pipeline is not None:
        pipeline.close(latch, numbers)
    task.add_incoming(after, latch)
    for phi, value in zip(numbers, following, strict=True):
        phi.add_incoming(value, latch)
    b.cbranch(b.icmp_signed("<", after, last), body, frame.done)
    b.position_at_end(frame.done)
    if frame.streaming:
        emit_store_fence(b, frame.target)
    b.ret_void()


def emit_store_fence(b: ir.IRBuilder, target: Target) -> None:
    """Emit the fence after which non-temporal stores are visible."""
    if name := target.facts.store_fence:
        kind = ir.FunctionType(ir.VoidType(), [])
        module = b.module
        b.call(module.globals.get(name) or ir.Function(module, kind, name), [])
    else:
        b.fence("seq_cst")


def advance_task(
    b: ir.IRBuilder, numbers: Sequence[Value], counts: list[tuple[str, Value]]
) -> list[Value]:
    """Return the block numbers of the next task: an odometer."""
    following: list[Value] = []
    carry: Value = number(1)
    for dim in range(len(counts) - 1, -1, -1):
        up = b.add(numbers[dim], carry)
        if dim == 0:
            following.append(up)
            break
        full = b.icmp_signed(">=", up, counts[dim][1])
        following.append(b.select(full, number(0), up))
        carry = b.select(full, number(1), number(0))
    return following[::-1]


def _nests(frame: Frame, storage: Storage, blocks: Sequence[Value]) -> NestEmitter:
    """Return the nest emitter of a task, given its block numbers."""
    b, s, numbers = frame.b, frame.s, dict(zip(frame.s.phase.grid, blocks, strict=True))
    scope = Scope()
    ranges: dict[str, tuple[Value, Value]] = {}
    for axis in s.local:
        extent = frame.index(s.phase.axes[axis])
        if is_single_block(s, axis):
            ranges[axis] = number(0), extent
            continue
        if axis in s.block:
            step = frame.index(s.block[axis])
            low = b.mul(numbers[axis], step)
        elif axis in s.phase.cut:
            part, length = s.phase.cut[axis]
            step = frame.index(length)
            low = b.mul(numbers[part], step)
        else:
            ranges[axis] = (number(0), extent)
            continue
        low = b.select(b.icmp_signed("<", low, extent), low, extent)
        high = b.add(low, step)
        ranges[axis] = (low, b.select(b.icmp_signed("<", high, extent), high, extent))
    for position_axis, reach in s.phase.window_positions.items():
        low, high = ranges[reach.axis]
        first = b.mul(low, number(reach.step))
        last = b.add(b.mul(b.sub(high, number(1)), number(reach.step)), number(reach.length))
        ranges[position_axis] = first, b.select(b.icmp_signed("<", low, high), last, first)
    for g, value in numbers.items():
        if g not in s.local:
            scope.bind(g, value)
    return NestEmitter(frame, ranges, scope, storage)


def cycles(s: Schedule) -> Index:
    """Return the cycles that one core spends on the whole phase: just enough to choose chunks."""
    total: Index = 0
    fixed = [
        n
        for a, n in s.phase.axes.items()
        if a in s.phase.grid and a not in s.local and a not in part_numbers(s.phase)
    ]
    for nest in s.nests:
        if nest.product is not None:
            c = nest.product
            axes = {*c.item.axes, *c.outer, c.k, *unvarying_axes(s.phase.segments[nest.time])}
            points = product(s.phase.axes[a] for a in s.phase.axes if a in axes)
            total = add(total, c.cycles(points, s.phase.axes[c.m] if c.m else 1))
            continue
        inner = [i for i in nest.items if nest.vector is None or nest.vector in i.axes]
        work = sum(_own_cost(i) for i in inner) + 2 * (
            len(nest.reductions) + len(nest.stores) + len(nest.state_updates)
        )
        still = unvarying_axes(s.phase.segments[nest.time])
        points = product((*fixed, *(s.phase.axes[a] for a in (*nest.order, *still))))
        lanes = s.lanes if nest.vector is not None else 1
        total = add(total, floordiv(mul(points, max(int(8 * work), 1)), 8 * lanes))
    return add(total, 50)


def _own_cost(item: Item) -> float:
    if isinstance(item, Apply):
        return SCALARS[item.op].cost
    return 6.0 if isinstance(item, Load) else 0.5
