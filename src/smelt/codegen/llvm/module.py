"""Emit the module of a kernel, and what a caller must know to run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.function import (
    ArgumentOrder,
    argument_order,
    cycles,
    emit_function,
    task_count,
)
from smelt.codegen.llvm.loopir.items import Dot, IndexValue, Load
from smelt.codegen.llvm.loopir.lower import stride_name
from smelt.codegen.llvm.loopir.rewrite import cost_of
from smelt.codegen.llvm.nests.contraction import Contraction
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
from smelt.kernel.artifact import Candidate, SizeLimits, Variant, Variants
from smelt.kernel.ir import Kernel
from smelt.machine.blocks import UNPACKED
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, sizes_of


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
