"""Kernel -> machine code with its calling facts (`smelt.kernel.artifact.Built`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter

from smelt.codegen.llvm.loopir.items import Folding, Item, Phase
from smelt.codegen.llvm.module import Artifact, emit, forms_of, walked
from smelt.codegen.llvm.optimize import assembly, object_code
from smelt.codegen.llvm.panels import panels_of
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.contract import contractions
from smelt.codegen.llvm.schedule.unroll_small_reductions import short_products
from smelt.kernel.artifact import Built, Form, Forms, Function, form_for
from smelt.kernel.ir import Dot, Kernel
from smelt.kernel.packed_weights import Panel
from smelt.kernel.specialize_small_sizes import innermost, short_sizes, with_sizes
from smelt.kernel.walk import statements, values_of, visit
from smelt.llvm import beside
from smelt.target import Target
from smelt.types.expr import Index, mul, product, size, sizes_of

MOST_THREADS = 8
"""Threads that LLVM works on at once: each holds a module, and one writes the text for all."""
FEW_TERMS = 4
"""Products of a sum up to which sizes as numbers serve it: whole vectors hold its factors."""


def build(
    kernel: Kernel, target: Target, opt_level: int = 2, *, streaming: bool = False, form: Form = ""
) -> Built:
    """Compiles a kernel; with `streaming`, for results that no cache would hold; in one of its
    forms, for sizes that the form is for.

    Raises UnsupportedError for what the back end cannot run.
    """
    made = _emitted(kernel, target, form, streaming=streaming)
    return _built(made, object_code(made.llvm, target, opt_level), form)


def build_all(
    wanted: Sequence[tuple[Kernel, Form]], target: Target, opt_level: int = 2
) -> list[tuple[Built, float]]:
    """Compiles kernels in forms, and tells the seconds that each took: LLVM works on some, one on
    each core, while the text of the next is written."""
    begun: list[tuple[Artifact, Form, float, Callable[[], tuple[bytes, float]]]] = []
    threads = min(len(wanted), target.cores, MOST_THREADS)
    with beside(max(threads, 1)) if len(wanted) > 1 else nullcontext(partial) as call:
        for kernel, form in wanted:
            start = perf_counter()
            made = _emitted(kernel, target, form)
            seconds = perf_counter() - start
            begun.append((made, form, seconds, call(_timed, made.llvm, target, opt_level)))
        found: list[tuple[Built, float]] = []
        for made, form, seconds, code_of in begun:
            code, more = code_of()
            found.append((_built(made, code, form), seconds + more))
    return found


def _emitted(kernel: Kernel, target: Target, form: Form, *, streaming: bool = False) -> Artifact:
    """What a kernel becomes in a form, whose sizes that are numbers are put in first."""
    plain, _, numbers = form.partition("@")
    pairs = (pair.split("=") for pair in numbers.split(",") if pair)
    told = {name: int(n) for name, n in pairs}
    return emit(
        with_sizes(kernel, told) if told else kernel, target, streaming=streaming, form=plain
    )


def _timed(text: str, target: Target, opt_level: int) -> tuple[bytes, float]:
    """Machine code, and the seconds that LLVM took."""
    start = perf_counter()
    return object_code(text, target, opt_level), perf_counter() - start


def _built(made: Artifact, code: bytes, form: Form) -> Built:
    functions = tuple(Function(e.symbol, e.tasks, e.scratch, e.cycles) for e in made.entries)
    return Built(
        code,
        made.buffers,
        made.sizes,
        made.strides,
        made.partials,
        functions,
        made.llvm.count("\n"),
        form,
    )


def forms(kernel: Kernel, target: Target, sizes: Mapping[str, int] | None = None) -> Forms:
    """The forms that a kernel has beside the usual one, with the sizes that decide.

    Short sizes are numbers in some of them, those that they are at a first call, whose `sizes` are
    told: a program whose short sizes change keeps to the code for all, or to that for rows of as
    many where only what is around them changes, as the width of images of three channels."""
    usual = forms_of(kernel, target) if _has_products(kernel) else ()
    short = short_sizes(kernel, sizes or {})
    inner = {a: n for a, n in short.items() if a in innermost(kernel)}
    found = dict(_with_numbers(kernel, target, short))
    for form, limits in _with_numbers(kernel, target, inner) if inner != short else ():
        found.setdefault(form, limits)
    return (*found.items(), *usual)


def _with_numbers(kernel: Kernel, target: Target, short: dict[str, int]) -> Forms:
    """Forms in which short sizes are numbers, those of them that code would know."""
    if short:
        kept = walked(kernel, short)
        short = {a: n for a, n in short.items() if a in kept}
    told = with_sizes(kernel, short)
    if short and _has_products(told) and _is_far(told, target):
        short = {a: n for a, n in short.items() if a not in _of_products(kernel)}
        told = with_sizes(kernel, short)
    if not short:
        return ()
    exactly = tuple(x for a, n in short.items() for x in ((size(a), n), (mul(size(a), -1), -n)))
    numbers = "@" + ",".join(f"{a}={n}" for a, n in short.items())
    more = (*(forms_of(told, target) if _has_products(told) else ()), ("", ()))
    return tuple((form + numbers, (*limits, *exactly)) for form, limits in more)


def _is_far(kernel: Kernel, target: Target) -> bool:
    """Whether products are left when short ones are written out that are packed for tiles, which
    know all sizes: those of more than a few terms, and batches of small ones; but for small ones
    alone, all of known sizes, whose tiles address what they read and store by numbers: that takes
    0.6 to 0.8 of the time of 16 x 16 x 16."""
    phases = program(kernel).phases
    for phase in phases:
        short_products(phase)
    if all(_is_thin(phase, i) for phase in phases for i in phase.items if i.kind == "dot"):
        return False
    found = [(c, phase.axes[c.k]) for phase in phases for c in contractions(phase, target).values()]
    return not (found and all(c.is_whole(positions) for c, positions in found))


def _of_products(kernel: Kernel) -> set[str]:
    """The sizes of the axes that products have."""
    phases = program(kernel).phases
    found: set[str] = set()
    for phase in phases:
        for dot in (i for i in phase.items if i.kind == "dot"):
            assert isinstance(dot.payload, Folding)
            for a in {*dot.payload.over}.union(*(x.axes for x in dot.args)):
                found |= {*sizes_of(phase.axes[a])}
    return found


def _is_thin(phase: Phase, dot: Item) -> bool:
    """Whether few terms are summed for each of many rows."""
    assert isinstance(dot.payload, Folding)
    terms = product(phase.axes[a] for a in dot.payload.over)
    own = {*dot.args[0].axes ^ dot.args[1].axes}
    long = any(not isinstance(phase.axes[a], int) for a in own)
    return isinstance(terms, int) and terms <= FEW_TERMS and long


def panels(
    kernel: Kernel, target: Target, constant: frozenset[str]
) -> tuple[tuple[Panel, Index], ...]:
    """The parameters among `constant` that the kernel would rather read packed, how, and by how
    many rows each is multiplied."""
    return panels_of(kernel, target, constant) if _has_products(kernel) and constant else ()


def _has_products(kernel: Kernel) -> bool:
    roots = (root for s in statements(kernel) for root in values_of(s))
    return any(isinstance(v, Dot) for root in roots for v in visit(root))


def llvm_text(kernel: Kernel, target: Target) -> str:
    """The LLVM module of a kernel, before LLVM's optimisations."""
    return emit(kernel, target).llvm


def asm_text(kernel: Kernel, target: Target, opt_level: int = 2) -> str:
    """The assembly of a kernel."""
    return assembly(emit(kernel, target).llvm, target, opt_level)


__all__ = [
    "Built",
    "Form",
    "Forms",
    "Function",
    "asm_text",
    "build",
    "build_all",
    "form_for",
    "forms",
    "llvm_text",
    "panels",
]
