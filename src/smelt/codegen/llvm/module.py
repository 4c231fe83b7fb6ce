"""Emit the module of a kernel, and what a caller must know to run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.function import ArgumentOrder, FunctionEmitter, argument_order, task_count
from smelt.codegen.llvm.loopir.items import Access
from smelt.codegen.llvm.loopir.lower import stride_name
from smelt.codegen.llvm.prepacked import packed_limits, packed_program
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.contract import cached_small_variants, contraction_variants
from smelt.codegen.llvm.schedule.fused_gemm_variants import (
    panel_variants,
    small_m_variants,
    tall_variants,
    wide_variants,
)
from smelt.codegen.llvm.schedule.split_independent_outputs import split_disjoint
from smelt.codegen.llvm.schedule.tall_skinny_nests import build_schedules
from smelt.codegen.llvm.schedule.task_cost import cycles
from smelt.dataclass import dataclass
from smelt.kernel.artifact import SizeLimits, Variant, Variants
from smelt.kernel.ir import Kernel
from smelt.target import Target
from smelt.types.expr import Expr, Index, sizes_of


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


_Numbered = dict[tuple[Variant, int], SizeLimits]
"""Limits of variants, each with a number: one variant may serve several ranges of sizes."""


def variants_of(kernel: Kernel, target: Target) -> Variants:
    """Return the variants that serve a kernel better than the usual one, best first.

    With the limits on sizes of each.
    """
    variants_by_phase: list[_Numbered] = []
    for phase in program(kernel).phases:
        # From the phase before it is scheduled, which changes it.
        subphases = split_disjoint(phase)
        short = _common([_numbered(tall_variants(p, target)) for p in subphases])
        few = _common([_numbered(small_m_variants(p, target)) for p in subphases])
        panels = _common([_numbered(panel_variants(p, target), 1) for p in subphases])
        wide = _common([_numbered(wide_variants(p, target)) for p in subphases])
        s = schedule(phase, target)
        if any(c.prepacked for c in s.blocked):
            short, panels, few = {}, {}, {}
        if s.products:
            packed = s.products.packed
            usual = (
                *contraction_variants(s.phase, s.blocked),
                *(packed[0].variants(s.phase, packed) if packed else ()),
            )
            near = cached_small_variants(s.phase, s.blocked, usual) if few else ()
            variants_by_phase.append(
                short | panels | _numbered(near, 1) | few | _numbered(usual) | wide
            )
    numbered_variants = _without_numbers(_common(variants_by_phase))
    limits = (
        ()
        if not variants_by_phase or any(form == "k_blocked" for form, _ in numbered_variants)
        else (packed_limits(kernel, target))
    )
    return (*numbered_variants, ("packed", limits)) if limits else numbered_variants


def _common(parts: Sequence[_Numbered]) -> _Numbered:
    """Return the variants common to all parts of a kernel, with merged limits."""
    return {
        key: tuple(dict.fromkeys(n for f in parts for n in f[key]))
        for key in (parts[0] if parts else ())
        if all(key in f for f in parts)
    }


def _without_numbers(numbered: _Numbered) -> Variants:
    """Return variants without their numbers."""
    return tuple((form, limits) for (form, _), limits in numbered.items())


def _numbered(
    variants_with_limits: Iterable[tuple[Variant, SizeLimits]], first: int = 0
) -> _Numbered:
    """Return variants with their limits, numbered from `first` on by occurrence."""
    counts, numbered = Counter[Variant](), dict[tuple[Variant, int], SizeLimits]()
    for form, limits in variants_with_limits:
        numbered[form, first + counts[form]] = limits
        counts[form] += 1
    return numbered


def sizes_in_code(kernel: Kernel, names: Collection[str]) -> set[str]:
    """Return those of some sizes that the code for all sizes depends on.

    Extents of loops, strides of rows, and limits of comparisons.  If rows are contiguous and
    nothing tests for their ends, their length is not among them.
    """
    sizes: set[str] = set()
    for phase in program(kernel).phases:
        accesses = [i.payload for i in phase.items if isinstance(i.payload, Access)]
        accesses += [s.access for s in phase.stores]
        indices = [i.payload for i in phase.items if isinstance(i.payload, Expr)]
        indices += [e for x in accesses for e in (x.offset, *chain.from_iterable(x.limits))]
        sizes |= {a for e in indices for a in sizes_of(e) if a in names}
        for n in phase.axes.values():
            sizes |= {*sizes_of(n)} if {*sizes_of(n)} <= {*names} else set()
    return sizes


def emit(
    kernel: Kernel, target: Target, *, streaming: bool = False, form: Variant = ""
) -> Artifact:
    """Emit the artifact of a kernel; with `streaming`, by non-temporal stores of full lines.

    Raises UnsupportedError for what this back end cannot run.
    """
    packed = form == "packed"
    source, form = (packed_program(kernel, target), "") if packed else (program(kernel), form)
    schedules = [s for p in source.phases for s in build_schedules(p, target, form)]
    words: ArgumentOrder = argument_order(source, schedules)
    module = ir.Module(kernel.name)
    entries: list[Entry] = []
    for s in schedules:
        emitter = FunctionEmitter(module, source, s, words, target, streaming)
        emitter.emit()
        entries.append(Entry(s.phase.name, task_count(s), emitter.scratch_nbytes, cycles(s)))
    partials = tuple((p.name, p.nbytes) for p in source.partials)
    strides = tuple((stride_name(p, d), p, d) for p, d in source.strides)
    return Artifact(
        kernel.name, str(module), words.buffers, words.sizes, strides, partials, tuple(entries)
    )
