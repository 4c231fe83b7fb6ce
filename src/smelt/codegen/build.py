"""The back end of CPUs: compile kernels by LLVM to machine code with its calling facts.

The result is a `smelt.kernel.artifact.CompiledKernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter

from smelt import knobs
from smelt.backend import Machine, check_language
from smelt.codegen.llvm.describe import schedule_text
from smelt.codegen.llvm.loopir.items import Dot, Phase
from smelt.codegen.llvm.loopir.rewrite import Draft
from smelt.codegen.llvm.module import Artifact, emit, sizes_in_code, variants_of
from smelt.codegen.llvm.optimize import assembly, object_code
from smelt.codegen.llvm.prepacked import prepackable_panels
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.contract import plan_contractions
from smelt.codegen.llvm.schedule.unroll_small_reductions import unroll_short_dots
from smelt.errors import InternalError
from smelt.journal import progress
from smelt.kernel import ir as k
from smelt.kernel.artifact import (
    Candidate,
    CompiledKernel,
    Function,
    Variant,
    Variants,
    select_variant,
)
from smelt.kernel.ir import Kernel
from smelt.kernel.packed_weights import Panel
from smelt.kernel.size_constants import innermost_sizes, short_sizes, with_sizes
from smelt.kernel.walk import visit_body
from smelt.machine.target import Target
from smelt.packages.llvm import worker_threads
from smelt.types.expr import Index, mul, product, size, sizes_of

MAX_BUILD_THREADS = 8
"""Maximum threads that LLVM compiles on at once: each has a module, one emits the text for all."""
FEW_TERMS = 4
"""Maximum products of a sum for which constant sizes pay: full vectors hold its factors."""


UNROLLED_TERMS = 8
"""Maximum terms of a sum that is worth unrolling for constant sizes beside a loop for all sizes."""


def build(
    kernel: Kernel,
    target: Target,
    opt_level: int = 2,
    *,
    streaming: bool = False,
    variant: Variant = "",
) -> CompiledKernel:
    """Compile a kernel in one of its code variants, for sizes within its limits.

    `streaming`: its results exceed every cache, and are written by non-temporal stores.

    Raises UnsupportedError for what the back end cannot run.
    """
    artifact = _emit(kernel, target, variant, streaming=streaming)
    return _package(artifact, object_code(artifact.llvm, target, opt_level), variant)


def build_all(
    requests: Sequence[tuple[Kernel, Variant]], target: Target, opt_level: int = 2
) -> list[tuple[CompiledKernel, float]]:
    """Compile kernels in variants, and return the seconds that each took.

    LLVM compiles on several cores, while the text of the next kernel is emitted.
    """
    pending: list[tuple[Artifact, Variant, float, Callable[[], tuple[bytes, float]]]] = []
    threads = min(len(requests), target.cores, MAX_BUILD_THREADS)
    finished = progress.stage("generating code", len(requests))
    with worker_threads(max(threads, 1)) if len(requests) > 1 else nullcontext(partial) as call:
        for kernel, variant in requests:
            start = perf_counter()
            artifact = _emit(kernel, target, variant)
            seconds = perf_counter() - start
            pending.append(
                (
                    artifact,
                    variant,
                    seconds,
                    call(_timed_object_code, artifact.llvm, target, opt_level, finished),
                )
            )
        results: list[tuple[CompiledKernel, float]] = []
        for artifact, variant, seconds, code_of in pending:
            code, llvm_seconds = code_of()
            results.append((_package(artifact, code, variant), seconds + llvm_seconds))
    return results


def _emit(kernel: Kernel, target: Target, variant: Variant, *, streaming: bool = False) -> Artifact:
    """Emit a kernel in a variant, after substituting the variant's constant sizes."""
    plain, _, numbers = variant.partition("@")
    pairs = (pair.split("=") for pair in numbers.split(",") if pair)
    values = {name: int(n) for name, n in pairs}
    return emit(
        with_sizes(kernel, values) if values else kernel, target, streaming=streaming, variant=plain
    )


def _timed_object_code(
    text: str, target: Target, opt_level: int, finished: Callable[[], None]
) -> tuple[bytes, float]:
    """Return machine code, and the seconds that LLVM took; then call `finished`."""
    start = perf_counter()
    code, seconds = object_code(text, target, opt_level), perf_counter() - start
    finished()
    return code, seconds


def _package(artifact: Artifact, code: bytes, variant: Variant) -> CompiledKernel:
    """Combine machine code with the calling facts of a kernel."""
    functions = tuple(Function(e.symbol, e.tasks, e.scratch, e.cycles) for e in artifact.entries)
    return CompiledKernel(
        code,
        artifact.buffers,
        artifact.sizes,
        artifact.strides,
        artifact.partials,
        functions,
        artifact.llvm.count("\n"),
        variant,
    )


def code_variants(
    kernel: Kernel, target: Target, sizes: Mapping[str, int] | None = None
) -> Variants:
    """Return the extra code variants of a kernel, each with its limits on sizes.

    In some of them the short sizes of a first call (`sizes`) are constants.  If they change later,
    a program keeps to the code for all sizes, or to the variant with constant innermost sizes if
    only the others change, like the width of images with three channels.
    """
    usual = variants_of(kernel, target) if _has_contractions(kernel) else ()
    short = short_sizes(kernel, sizes or {})
    inner = {a: n for a, n in short.items() if a in innermost_sizes(kernel)}
    constant = list(_constant_size_variants(kernel, target, short))
    listed = {c.variant for c in constant}
    if inner != short:
        constant += (
            c for c in _constant_size_variants(kernel, target, inner) if c.variant not in listed
        )
    return (*constant, *usual)


def _constant_size_variants(kernel: Kernel, target: Target, short: dict[str, int]) -> Variants:
    """Return variants in which short sizes are constants, if the code depends on them."""
    if short:
        relevant = sizes_in_code(kernel, short)
        short = {a: n for a, n in short.items() if a in relevant}
    specialised = with_sizes(kernel, short)
    if short and _has_contractions(specialised) and _keeps_symbolic_sizes(specialised, target):
        short = {a: n for a, n in short.items() if a not in _contraction_sizes(kernel)}
        specialised = with_sizes(kernel, short)
    if not short:
        return ()
    exactly = tuple(x for a, n in short.items() for x in ((size(a), n), (mul(size(a), -1), -n)))
    numbers = "@" + ",".join(f"{a}={n}" for a, n in short.items())
    variants = variants_of(specialised, target) if _has_contractions(specialised) else ()
    if not any(c.variant == "" for c in variants):
        variants = (*variants, Candidate("", ()))
    return tuple(
        Candidate(variant + numbers, (*limits, *exactly), costs)
        for variant, limits, costs in variants
    )


def _keeps_symbolic_sizes(kernel: Kernel, target: Target) -> bool:
    """Return whether sizes of contractions should stay symbolic.

    That is if contractions remain, after short ones are unrolled, whose tiles serve all sizes
    equally well: those of more than a few terms, and batches of small ones.  Not if constants
    unroll one of them, which would take a loop and a horizontal sum for a few terms, and not if all
    are small: their tiles then address what they read and store by constants, which is faster.
    """
    phases = program(kernel).phases
    short_dots = _short_dots(phases)
    phases = [unroll_short_dots(phase) for phase in phases]
    if _short_dots(phases) < short_dots:
        return False
    if all(
        _is_small_and_long(phase, i) for phase in phases for i in phase.items if isinstance(i, Dot)
    ):
        return False
    drafts = [Draft(phase) for phase in phases]  # a plan may have axes that its phase gets by it
    plans = [(c, draft) for draft in drafts for c in plan_contractions(draft, target).values()]
    return not (plans and all(c.is_single_block(draft.axes[c.k]) for c, draft in plans))


def _short_dots(phases: Sequence[Phase]) -> int:
    """Return the number of contractions that sum few terms, of a constant number."""
    counts = [
        product(phase.axes[a] for a in item.over)
        for phase in phases
        for item in phase.items
        if isinstance(item, Dot)
    ]
    return sum(isinstance(n, int) and n <= UNROLLED_TERMS for n in counts)


def _contraction_sizes(kernel: Kernel) -> set[str]:
    phases = program(kernel).phases
    sizes: set[str] = set()
    for phase in phases:
        for dot in (i for i in phase.items if isinstance(i, Dot)):
            for a in {*dot.over}.union(*(x.axes for x in dot.args)):
                sizes |= {*sizes_of(phase.axes[a])}
    return sizes


def _is_small_and_long(phase: Phase, dot: Dot) -> bool:
    """Return whether few terms are summed for each of many rows."""
    terms = product(phase.axes[a] for a in dot.over)
    unshared_axes = {*dot.args[0].axes ^ dot.args[1].axes}
    is_long = any(not isinstance(phase.axes[a], int) for a in unshared_axes)
    return isinstance(terms, int) and terms <= FEW_TERMS and is_long


def panels(
    kernel: Kernel, target: Target, constant: frozenset[str]
) -> tuple[tuple[Panel, Index], ...]:
    """Return the parameters among `constant` to prepack, and how.

    With each the number of rows that are multiplied with it.
    """
    return (
        prepackable_panels(kernel, target, constant)
        if _has_contractions(kernel) and constant
        else ()
    )


def _has_contractions(kernel: Kernel) -> bool:
    return any(isinstance(v, k.Dot) for v in visit_body(kernel))


def llvm_text(kernel: Kernel, target: Target) -> str:
    """Return the LLVM module of a kernel, before LLVM's optimisations."""
    return emit(kernel, target).llvm


def asm_text(kernel: Kernel, target: Target, opt_level: int = 2) -> str:
    """Return the assembly of a kernel."""
    return assembly(emit(kernel, target).llvm, target, opt_level)


def described(kernel: Kernel, target: Target, sizes: Mapping[str, int] | None = None) -> str:
    """Return how a kernel's products are computed, for `sizes` or in every variant."""
    return schedule_text(kernel, target, code_variants(kernel, target, sizes), sizes)


__all__ = [
    "CompiledKernel",
    "Function",
    "Variant",
    "Variants",
    "asm_text",
    "build",
    "build_all",
    "code_variants",
    "described",
    "llvm_text",
    "panels",
    "select_variant",
]


# ---- the back end --------------------------------------------------------------------------------


class CpuBackend:
    """LLVM code for a CPU."""

    name = "cpu"
    languages = ("schedule", "llvm", "asm")

    def serves(self, machine: Machine) -> bool:
        """Return whether a machine is a CPU."""
        return isinstance(machine, Target)

    def text(
        self, kernel: Kernel, language: str, machine: Machine, sizes: Mapping[str, int] | None
    ) -> str:
        """Return the schedule in words, the LLVM module before optimisation, or the assembly."""
        check_language(self, language)
        if language == "schedule":
            return described(kernel, _cpu(machine), sizes)
        if language == "llvm":
            return llvm_text(kernel, _cpu(machine))
        return asm_text(kernel, _cpu(machine), knobs.OPT_LEVEL.get())

    def schedule(
        self, kernel: Kernel, machine: Machine, sizes: Mapping[str, int] | None
    ) -> Variants:
        """Return the code variants of a kernel, each with its limits on sizes."""
        return code_variants(kernel, _cpu(machine), sizes)

    def compile(
        self, requests: Sequence[tuple[Kernel, Variant]], machine: Machine
    ) -> list[tuple[CompiledKernel, float]]:
        """Compile kernels in variants, and return the seconds that each took."""
        return build_all(requests, _cpu(machine), knobs.OPT_LEVEL.get())

    def compile_variant(
        self, kernel: Kernel, machine: Machine, variant: Variant, *, streaming: bool
    ) -> CompiledKernel:
        """Compile a variant; `streaming` results exceed every cache."""
        level = knobs.OPT_LEVEL.get()
        return build(kernel, _cpu(machine), level, streaming=streaming, variant=variant)


def _cpu(machine: Machine) -> Target:
    if not isinstance(machine, Target):
        raise InternalError(f"{machine.name} is not a CPU")
    return machine
