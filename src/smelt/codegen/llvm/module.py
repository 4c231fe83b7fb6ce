"""Kernel -> Artifact: the module's text, and what a caller must know to run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.function import FunctionEmitter, Words, task_count, words_of
from smelt.codegen.llvm.loopir.items import Access
from smelt.codegen.llvm.loopir.lower import stride_name
from smelt.codegen.llvm.prepacked import packed_limits, packed_program
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.contract import forms, near_forms
from smelt.codegen.llvm.schedule.depthwise import turned_forms
from smelt.codegen.llvm.schedule.small_image_variants import line_forms
from smelt.codegen.llvm.schedule.split_independent_outputs import disjoint
from smelt.codegen.llvm.schedule.tall_skinny import few_forms, panel_forms, tall_forms, wide_forms
from smelt.codegen.llvm.schedule.tall_skinny_nests import scheduled
from smelt.codegen.llvm.schedule.task_cost import cycles
from smelt.dataclass import dataclass
from smelt.kernel.artifact import Form, Forms, Limits
from smelt.kernel.ir import Kernel
from smelt.target import Target
from smelt.types.expr import Expr, Index, sizes_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One function of an artifact: its symbol, its number of tasks, its scratch bytes, and the
    cycles of arithmetic and memory traffic that one core spends on all tasks."""

    symbol: str
    tasks: Index
    scratch: Index
    cycles: Index


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled kernel's text and its calling facts.

    `buffers` and `sizes` give the order of the argument words; `strides` tells which sizes are
    strides of a parameter's dimension; `partials` are buffers that the caller provides beside the
    kernel's parameters: (name, bytes).  Entries run one after another."""

    name: str
    llvm: str
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    strides: tuple[tuple[str, str, int], ...]
    partials: tuple[tuple[str, Index], ...]
    entries: tuple[Entry, ...]


_Numbered = dict[tuple[Form, int], Limits]
"""Forms with their limits, each with a number: one may serve several ranges of sizes."""


def forms_of(kernel: Kernel, target: Target) -> Forms:
    """The forms that serve a kernel better than the usual one, best first, with their limits."""
    found: list[_Numbered] = []
    for phase in program(kernel).phases:
        # Of the phase as it is before it is scheduled.
        parts = disjoint(phase)
        short = _of_all([_numbered(tall_forms(p, target)) for p in parts])
        few = _of_all([_numbered(few_forms(p, target)) for p in parts])
        panels = _of_all([_numbered(panel_forms(p, target), 1) for p in parts])
        wide = _of_all([_numbered(wide_forms(p, target)) for p in parts])
        s = schedule(phase, target)
        if any(c.panels for c in s.blocked):
            short, panels, few = {}, {}, {}
        if s.products:
            made = s.products.values()
            usual = (
                *forms(s.phase, s.blocked),
                *line_forms(s.phase, made),
                *turned_forms(s.phase, made),
            )
            near = near_forms(s.phase, s.blocked, usual) if few else ()
            found.append(short | panels | _numbered(near, 1) | few | _numbered(usual) | wide)
    served = _plain(_of_all(found))
    limits = (
        ()
        if not found or any(form == "deep" for form, _ in served)
        else (packed_limits(kernel, target))
    )
    return (*served, ("packed", limits)) if limits else served


def _of_all(found: Sequence[_Numbered]) -> _Numbered:
    """The forms that all parts of a kernel have, with the limits of all of them."""
    return {
        key: tuple(dict.fromkeys(n for f in found for n in f[key]))
        for key in (found[0] if found else ())
        if all(key in f for f in found)
    }


def _plain(found: _Numbered) -> Forms:
    """Forms without their numbers."""
    return tuple((form, limits) for (form, _), limits in found.items())


def _numbered(given: Iterable[tuple[Form, Limits]], first: int = 0) -> _Numbered:
    """Forms with their limits, numbered from `first` on: one that stands there again serves other
    sizes."""
    counts, found = Counter[Form](), dict[tuple[Form, int], Limits]()
    for form, limits in given:
        found[form, first + counts[form]] = limits
        counts[form] += 1
    return found


def walked(kernel: Kernel, names: Collection[str]) -> set[str]:
    """Those of some sizes that the code for all sizes asks for: what loops go along, rows are apart
    by, and places are compared with.  Where rows follow one another without gaps, and nobody looks
    for their ends, their length is not among them."""
    found: set[str] = set()
    for phase in program(kernel).phases:
        accesses = [i.payload for i in phase.items if isinstance(i.payload, Access)]
        accesses += [s.access for s in phase.stores]
        asked = [i.payload for i in phase.items if isinstance(i.payload, Expr)]
        asked += [e for x in accesses for e in (x.offset, *chain.from_iterable(x.limits))]
        found |= {a for e in asked for a in sizes_of(e) if a in names}
        for n in phase.axes.values():
            found |= {*sizes_of(n)} if {*sizes_of(n)} <= {*names} else set()
    return found


def emit(kernel: Kernel, target: Target, *, streaming: bool = False, form: Form = "") -> Artifact:
    """The artifact of a kernel; with `streaming`, whole lines are stored past the caches.

    Raises UnsupportedError for what this back end cannot run."""
    packed = form == "packed"
    source, form = (packed_program(kernel, target), "") if packed else (program(kernel), form)
    schedules = [s for p in source.phases for s in scheduled(p, target, form)]
    words: Words = words_of(source, schedules)
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
