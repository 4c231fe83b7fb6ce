"""Kernel -> Artifact: the module's text, and what a caller must know to run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.contract import forms, near_forms
from smelt.codegen.llvm.flat import stride_name
from smelt.codegen.llvm.function import FunctionEmitter, Words, task_count, words_of
from smelt.codegen.llvm.items import Access
from smelt.codegen.llvm.nests import schedule
from smelt.codegen.llvm.price import cycles
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.stencil import turned_forms
from smelt.codegen.llvm.tall import few_forms, tall_forms, wide_forms
from smelt.codegen.llvm.tall_nests import scheduled
from smelt.codegen.llvm.windowed import line_forms
from smelt.dataclass import dataclass
from smelt.kernel.built import Form, Forms, Limits
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


def forms_of(kernel: Kernel, target: Target) -> Forms:
    """The forms that serve a kernel better than the usual one, best first, with their limits."""
    found: list[dict[tuple[Form, int], Limits]] = []
    for phase in program(kernel).phases:
        # Of the phase as it is before it is scheduled.
        short, few = [*tall_forms(phase, target)], [*few_forms(phase, target)]
        wide = [*wide_forms(phase, target)]
        s = schedule(phase, target)
        if any(c.panels for c in s.blocked):
            short, few, wide = [], [], []
        if s.products:
            made = s.products.values()
            usual = (*forms(s.phase, s.blocked), *line_forms(s.phase, made),
                     *turned_forms(s.phase, made))  # fmt: skip
            near = near_forms(s.phase, s.blocked, usual) if few else ()
            found.append(_numbered((*short, *near, *few, *usual, *wide)))
    return tuple(
        (form, tuple(dict.fromkeys(n for f in found for n in f[form, k])))
        for form, k in (found[0] if found else ())
        if all((form, k) in f for f in found)
    )


def _numbered(given: Iterable[tuple[Form, Limits]]) -> dict[tuple[Form, int], Limits]:
    """Forms with their limits; one that stands there twice serves other sizes the second time."""
    counts, found = Counter[Form](), dict[tuple[Form, int], Limits]()
    for form, limits in given:
        found[form, counts[form]] = limits
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


def emit(
    kernel: Kernel, target: Target, *, streaming: bool = False, form: Form = ""
) -> Artifact:  # fmt: skip
    """The artifact of a kernel; with `streaming`, whole lines are stored past the caches.

    Raises UnsupportedError for what this back end cannot run."""
    source = program(kernel)
    schedules = [scheduled(p, target, form) for p in source.phases]
    words: Words = words_of(source, schedules)
    module = ir.Module(kernel.name)
    entries: list[Entry] = []
    for s in schedules:
        emitter = FunctionEmitter(module, source, s, words, target, streaming)
        emitter.emit()
        entries.append(Entry(s.phase.name, task_count(s), emitter.storage.nbytes, cycles(s)))
    partials = tuple((p.name, p.nbytes) for p in source.partials)
    strides = tuple((stride_name(p, d), p, d) for p, d in source.strides)
    return Artifact(kernel.name, str(module), words.buffers, words.sizes, strides, partials,
                    tuple(entries))  # fmt: skip
