"""Describe how a kernel runs: its loops, or how its products are computed, and why.

    kernel k0 on avx2: 32-byte vectors, 16 registers
      form k_blocked: n0 >= 193, n2 >= 129
        product n0 x n2 over n1, tiles of 6 x 16 in 12 registers
          left   in place
          right  packed in panels of 16 columns, by transposes
          sums   in registers, in scratch between blocks of 192 positions; ...
          task   n0 144, n2 256

Phases without products are written in the loop language (`docs/loop.md`), before any pass:

      func k0(x: f32[n0*n1], y: out f32[n0*n1]; n0, n1)
        chunk t in 0 .. (n0*n1 + 2047)//2048
          each i in t*2048 .. min(n0*n1, t*2048 + 2048)
            y[i] = max(x[i] * 2.0, 0.0) + 1.0
        lanes at once: 64 of i

A kernel has several forms; a call takes the first whose limits hold at its sizes, else the usual
one.  Those that compete by predicted time follow, the fastest first:

      predicted thousands of cycles
        panels 43510.5: multiply-adds 37748.7, loop steps 2919.6, memory 2027.5, packing 617.5
        k_blocked 44968.1: multiply-adds 38043.6, loop steps 2853.3, memory 2519.0, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from smelt.codegen.llvm.loopir.items import Program
from smelt.codegen.llvm.lower_to_loop import lower_phase, refusal
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.codegen.llvm.prepacked import packed_program
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_schedules import build_schedules
from smelt.kernel.artifact import (
    Candidate,
    SizeLimits,
    Variant,
    Variants,
    competing_candidates,
    cost_parts,
    product_cycles,
    select_candidate,
)
from smelt.kernel.ir import Kernel
from smelt.kernel.size_constants import with_sizes
from smelt.loop.text import body_lines, head_text
from smelt.machine.target import Target
from smelt.types.expr import Index, build, evaluate, sizes_of, terms_of, text


def schedule_text(
    kernel: Kernel, target: Target, variants: Variants, sizes: Mapping[str, int] | None = None
) -> str:
    """Return the schedule of a kernel: of the form for `sizes`, or of every form without them."""
    vectors = f"{target.vector_bytes}-byte vectors, {target.registers} registers"
    lines = [f"kernel {kernel.name} on {target.isa}: {vectors}"]
    forms = variants if any(c.variant == "" for c in variants) else (*variants, Candidate("", ()))
    competing: list[Candidate] = []
    if sizes is not None:  # several forms may have one name, for different sizes
        chosen = select_candidate(forms, sizes)
        forms, competing = (chosen,), competing_candidates(forms, sizes) if chosen.costs else []
    for form, limits, _ in forms:
        lines.append(f"  form {_form_name(form)}: {_conditions(limits)}")
        lines += (f"    {line}" for line in _form_lines(kernel, target, form, sizes))
    lines += (f"  {line}" for line in _predictions(competing, sizes or {}))
    return "\n".join(lines) + "\n"


def _form_name(form: Variant) -> str:
    plain, _, constants = form.partition("@")
    return f"{plain or 'usual'} with {constants}" if constants else plain or "usual"


def _predictions(candidates: Sequence[Candidate], sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield the predicted kilocycles of forms, the least first, and what they are spent on."""
    if len(candidates) < 2:
        return
    yield "predicted thousands of cycles"
    for c in sorted(candidates, key=lambda c: product_cycles(c.costs, sizes)):
        spent: dict[str, float] = {}
        for cost in c.costs:
            for part, n in cost_parts(cost, sizes).items():
                spent[part] = spent.get(part, 0.0) + n
        total, ranked = sum(spent.values()), sorted(spent.items(), key=lambda x: -x[1])
        parts = (f"{part} {n / 1000:.1f}" for part, n in ranked if 100 * n >= total > 0)
        yield f"  {_form_name(c.variant)} {total / 1000:.1f}: {', '.join(parts)}"


def _conditions(limits: SizeLimits) -> str:
    """Return when a form is taken."""
    open_limits = (condition(n, most) for n, most in limits if not isinstance(n, int))
    return ", ".join(open_limits) or "all other sizes"


def condition(n: Index, most: int) -> str:
    """Return the condition `n <= most` without negative terms.

    >>> from smelt.types.expr import mul, size, sub
    >>> condition(size("m"), 192), condition(sub(17, size("m")), 0)
    ('m <= 192', 'm >= 17')
    >>> condition(sub(size("k"), mul(3, size("m"))), 0)
    'k <= m*3'
    """
    terms = dict(terms_of(n))
    limit = most - terms.pop((), 0)
    left = build({m: c for m, c in terms.items() if c > 0})
    right = build({m: -c for m, c in terms.items() if c < 0})
    if left == 0:
        return f"{text(right)} >= {-limit}"
    bound = text(right) if right != 0 else str(limit)
    if right != 0 and limit:
        bound += f" {'+' if limit > 0 else '-'} {abs(limit)}"
    return f"{text(left)} <= {bound}"


def _form_lines(
    kernel: Kernel, target: Target, form: Variant, sizes: Mapping[str, int] | None
) -> Iterator[str]:
    plain, _, numbers = form.partition("@")
    fixed = {a: int(n) for a, _, n in (pair.partition("=") for pair in numbers.split(",") if pair)}
    fixed_kernel = with_sizes(kernel, fixed) if fixed else kernel
    packed = plain == "packed"
    source = packed_program(fixed_kernel, target) if packed else program(fixed_kernel)
    for phase in source.phases:
        for schedule in build_schedules(phase, target, "" if packed else plain):
            yield from _schedule_lines(schedule, source, sizes)


def _schedule_lines(
    schedule: Schedule, source: Program, sizes: Mapping[str, int] | None
) -> Iterator[str]:
    """Yield the loops of one phase before any pass, or its products."""
    if not schedule.products and (reason := refusal(schedule)):
        yield f"loops of {schedule.phase.name} have no text yet: {reason}"
    elif not schedule.products:
        lowered = lower_phase(schedule, source)
        yield from (head_text(lowered.func), *body_lines(lowered.func.body))
        lanes = [f"{n} of {var}" for var, n in lowered.lanes.items()]
        yield from [f"  lanes at once: {', '.join(lanes)}"] if lanes else []
    for c in schedule.products.values():
        notes, tile = c.notes(), c.tile
        sums = tile.rows * tile.vectors
        yield f"product {notes.axes}, tiles of {tile.rows} x {tile.columns} in {sums} registers"
        yield f"  left   {notes.left}"
        yield f"  right  {notes.right}"
        yield f"  sums   {notes.sums}"
    blocks = [f"{a} {n}" for a, n in _known_blocks(schedule, sizes)]
    if blocks:
        yield f"  task   {', '.join(blocks)}"


def _known_blocks(schedule: Schedule, sizes: Mapping[str, int] | None) -> Iterator[tuple[str, int]]:
    """Yield the axes that tasks take in blocks of known size."""
    for axis, n in schedule.block.items():
        if set(sizes_of(n)) <= set(sizes or ()):
            yield axis, int(evaluate(n, sizes or {}))
