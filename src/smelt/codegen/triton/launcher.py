"""Print the function that launches a kernel on torch's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.codegen.triton.members import DIVISOR
from smelt.codegen.triton.schedule import ELEMENTS_PER_WARP, MAX_WARPS, STAGES, Schedule
from smelt.codegen.triton.statements import WIDE, Program
from smelt.codegen.triton.tensor_copies import COPY_BYTES, row_strides
from smelt.codegen.triton.writer import refuse
from smelt.kernel.ir import Kernel, Param
from smelt.python.dataclass import dataclass
from smelt.types.expr import Atom, Expr, Index


@dataclass(frozen=True, slots=True)
class Stage:
    """One launch of a kernel: what it computes, with which lanes, and its program."""

    kernel: Kernel
    schedule: Schedule
    program: Program


def print_launcher(kernel: Kernel, stages: Sequence[Stage]) -> str:
    """Return the text of `launch`: it allocates the outputs and returns them.

    A family of arrays is a list, as an argument and as a result.
    """
    inputs = {p.name: p for p in kernel.inputs}
    outputs = {p.name: p for p in kernel.outputs}
    sources = _size_sources(kernel)
    member_sizes = {
        s for stage in stages if stage.program.members for s in stage.program.members.sizes
    }
    used = [s for stage in stages for s in stage.program.sizes]
    every = dict.fromkeys([*_all_sizes(kernel), *used])
    extra = [s for s in every if s not in sources and s not in member_sizes]
    keywords = ", ".join(f"size_{s}" for s in extra)
    arguments = ", ".join([*(f"in_{p}" for p in inputs), *(["*", keywords] if extra else [])])
    lines = [f"def launch({arguments}):", f'    """Run {kernel.name} on tensors of a GPU."""']
    lines += [
        f"    size_{s} = in_{p}.shape[{d}]"
        for s, (p, d) in sources.items()
        if s not in member_sizes
    ]
    lines += [line for p in inputs.values() for line in _check(p)]
    copied = dict.fromkeys(n for stage in stages for n in stage.program.copied)
    lines += [line for n in copied if n in inputs for line in _check_rows(inputs[n])]
    lines += [f"    {ALLOCATOR}"] if copied else []
    first = next(iter(kernel.inputs), None)
    for p in outputs.values():
        lines.append(f"    out_{p.name} = {_output(p, inputs, first)}")
        lines += _check_rows(p, "out") if p.name in copied else []
    scratch = [p for s in stages for p in s.kernel.outputs if p.name not in outputs]
    lines += [f"    out_{p.name} = {_allocate(p, first)}" for p in scratch]
    written = {*outputs, *(p.name for p in scratch)}
    for stage in stages:
        lines += _launch(stage, written)
    results = [f"out_{p}" for p in outputs]
    lines.append(f"    return {', '.join(results)}")
    return "\n".join([*lines, ""])


def _output(p: Param, inputs: Mapping[str, Param], first: Param | None) -> str:
    if p.name in inputs:
        return f"in_{p.name}"
    if not p.each:
        return _allocate(p, first)
    like = next((x for x in inputs.values() if x.each and x.shape == p.shape), None)
    if like is None:
        refuse(p.name, "a new family of arrays whose sizes no argument has")
    dtype = f"torch.{p.dtype.long}"
    return f"[torch.empty(x.shape, dtype={dtype}, device=x.device) for x in in_{like.name}]"


def _launch(stage: Stage, written: set[str]) -> list[str]:
    """Return the lines of one launch: constants, grid and arguments."""
    kernel, schedule, program = stage.kernel, stage.schedule, stage.program
    tensors = {n: (f"out_{n}" if n in written else f"in_{n}") for n in program.pointers}
    members = program.members
    lines: list[str] = []
    if members is None:
        lines += [_block(kernel, a, n, schedule) for a, n in program.blocks.items()]
        lines.append(f"    programs = {_programs(kernel, schedule)}")
    else:
        lines += _table(stage, written)
    passed = [
        *(["members"] if members else []),
        *tensors.values(),
        *(f"{tensors[p]}.stride({d})" for p, d in program.strides.values()),
        *(f"size_{s}" for s in program.sizes),
        *(["MEMBERS=MEMBERS", "DIVISOR=DIVISOR"] if members else []),
        *(f"BLOCK_{a}=BLOCK_{a}" for a in program.blocks),
    ]
    if program.has_wide_offsets:
        every = ", ".join(tensors.values())
        if members:
            every += "".join(f", *{_argument(p, written)}" for p in members.params)
        lines.append(f"    elements = max(_span(x) for x in [{every.removeprefix(', ')}])")
        passed.append(f"{WIDE}=tl.int64 if elements >= 2**31 else tl.int32")
    warps = "1"
    if schedule.warps is not None:
        warps = str(schedule.warps)
    elif program.blocks:
        total = " * ".join(f"BLOCK_{a}" for a in program.blocks)
        warps = f"max(min({total} // {ELEMENTS_PER_WARP}, {MAX_WARPS}), 1)"
    lines += [f"    num_warps = {warps}", "    if programs:"]
    lines.append(f"        {program.name}[(programs,)](")
    options = ["num_warps=num_warps"]
    options += [] if schedule.stages == STAGES else [f"num_stages={schedule.stages}"]
    options.append("enable_fp_fusion=False")
    lines += [f"            {p}," for p in (*passed, *options)]
    return [*lines, "        )"]


SPAN = '''def _span(x):
    """Return one more than the offset of a tensor's last element."""
    return 1 + sum((n - 1) * abs(s) for n, s in zip(x.shape, x.stride()) if n)
'''
"""A function of files whose arrays may be too long for offsets of 32 bits."""


def _table(stage: Stage, written: set[str]) -> list[str]:
    """Return the lines that fill the table of a family's members."""
    kernel, schedule, program = stage.kernel, stage.schedule, stage.program
    members = program.members
    assert members is not None
    names = [_argument(p, written) for p in members.params]
    shapes = [
        (e, f"{n}[k].shape[{d}]")
        for p, n in zip(members.params, names, strict=True)
        for d, e in enumerate(p.shape)
    ]
    lines = [f"    MEMBERS = triton.next_power_of_2(max(len({names[0]}), 1))"]
    lines.append("    rows, programs = [], 0")
    fixed = [(a, n) for a, n in program.blocks.items() if n is not None]
    lines += [_block(kernel, a, n, schedule) for a, n in fixed]
    whole = [a for a, n in program.blocks.items() if n is None]
    lines += [f"    BLOCK_{a} = {schedule.whole[a]}" for a in whole]
    lines.append(f"    for k in range(len({names[0]})):")
    sources = {python_text(e): text for e, text in reversed(shapes)}
    for s in members.sizes:
        if f"size_{s}" not in sources:
            refuse(kernel.name, f"the size {s} of a family, which is not a dimension")
        lines.append(f"        size_{s} = {sources[f'size_{s}']}")
    for a in whole:
        padded = f"triton.next_power_of_2(max({python_text(kernel.axis(a).extent)}, 1))"
        lines.append(f"        BLOCK_{a} = max(BLOCK_{a}, {padded})")
    lines.append(f"        count = {_programs(kernel, schedule)}")
    entries = [*(f"size_{s}" for s in members.sizes), *(f"{n}[k].data_ptr()" for n in names)]
    lines.append(f"        rows.append([programs, programs + count, {', '.join(entries)}])")
    lines.append("        programs += count")
    arrays = [k for k, p in enumerate(members.params, len(members.sizes) + 2) if p.shape]
    divided = [*range(2, len(members.sizes) + 2), *arrays]
    are_divided = f"all(row[k] % {DIVISOR} == 0 for row in rows for k in {divided})"
    lines.append(f"    DIVISOR = {DIVISOR} if {are_divided} else 1")
    behind = f"[programs, 2**31 - 1] + [0] * {len(entries)}"
    lines.append(f"    rows += [{behind}] * (MEMBERS - len(rows))")
    device = f"{names[0]}[0].device"
    lines.append("    if programs:")
    lines.append(
        f"        members = torch.tensor(list(zip(*rows)), dtype=torch.int64, device={device})"
    )
    return lines


def _argument(p: Param, written: set[str]) -> str:
    return f"out_{p.name}" if p.name in written else f"in_{p.name}"


def _all_sizes(kernel: Kernel) -> list[str]:
    shapes = [d for p in (*kernel.inputs, *kernel.outputs) for d in p.shape]
    expressions = [*shapes, *(a.extent for a in kernel.axes)]
    return list(dict.fromkeys(s for e in expressions for s in _sizes(e)))


def _sizes(e: Index) -> list[str]:
    if isinstance(e, int):
        return []
    names: list[str] = []
    for monomial, _ in e.terms:
        for atom in monomial:
            names += [atom.name] if atom.kind == "size" else []
            names += [s for x in atom.args for s in _sizes(x)]
    return names


def _size_sources(kernel: Kernel) -> dict[str, tuple[str, int]]:
    """Return a dimension of an input for each size that is one."""
    result: dict[str, tuple[str, int]] = {}
    for p in kernel.inputs:
        for d, e in enumerate(p.shape if not p.each else ()):
            if isinstance(e, Expr) and len(e.terms) == 1 and e.terms[0][1] == 1:
                atoms = e.terms[0][0]
                if len(atoms) == 1 and atoms[0].kind == "size":
                    result.setdefault(atoms[0].name, (p.name, d))
    return result


def python_text(e: Index) -> str:
    """Return an expression over sizes in Python, where `//` and `%` round down too.

    >>> from smelt.types.expr import size
    >>> python_text(size("n") * 2 + 1)
    'size_n*2 + 1'
    """
    if isinstance(e, int):
        return str(e)
    parts: list[str] = []
    for monomial, factor in e.terms:
        factors = [_atom_text(a) for a in monomial]
        if factor != 1 or not factors:
            factors.append(str(factor))
        parts.append("*".join(factors))
    return " + ".join(parts).replace("+ -", "- ")


def _atom_text(atom: Atom) -> str:
    if atom.kind == "size":
        return f"size_{atom.name}"
    left, right = map(python_text, atom.args)
    if atom.kind in ("min", "max"):
        return f"{atom.kind}({left}, {right})"
    return f"(({left}) {atom.kind} ({right}))"


def _check(p: Param) -> list[str]:
    """Return the checks that an input is stored as the program reads it."""
    strides = p.strides
    wrong = f"not in_{p.name}.is_contiguous()"
    if p.each:
        wrong = f"not all(x.is_contiguous() for x in in_{p.name})"
    elif strides is not None:
        fixed = [(d, n) for d, n in enumerate(strides) if n is not None]
        wrong = " or ".join(f"in_{p.name}.stride({d}) != {n}" for d, n in fixed)
    if not wrong or not p.shape:
        return []
    return [
        f"    if {wrong}:",
        f'        raise ValueError("{p.name} is stored with other strides")',
    ]


ALLOCATOR = "triton.set_allocator(_descriptors)"
DESCRIPTORS = '''def _descriptors(size, align, stream):
    """Allocate memory for the tensor descriptors of a launch."""
    return torch.empty((size,), dtype=torch.int8, device="cuda")
'''
"""A function of files whose programs make tensor descriptors."""


def _check_rows(p: Param, kind: str = "in") -> list[str]:
    """Return the check that tensor descriptors may have an array: 16 bytes divide its rows."""
    rows = [str(d) for d, n in enumerate(row_strides(p)) if not isinstance(n, int)]
    wrong = [f"{kind}_{p.name}.data_ptr() % {COPY_BYTES}"]
    wrong += [f"{kind}_{p.name}.stride({d}) * {p.dtype.itemsize} % {COPY_BYTES}" for d in rows]
    return [
        f"    if {' or '.join(wrong)}:",
        f'        raise ValueError("{p.name} has rows that no tensor descriptor copies")',
    ]


def _allocate(p: Param, source: Param | None) -> str:
    shape = ", ".join(map(python_text, p.shape)) + ("," if len(p.shape) == 1 else "")
    device = '"cuda"'
    if source is not None:
        device = f"in_{source.name}{'[0]' if source.each else ''}.device"
    return f"torch.empty(({shape}), dtype=torch.{p.dtype.long}, device={device})"


def _block(kernel: Kernel, axis: str, lanes: int | None, schedule: Schedule) -> str:
    if lanes is not None:
        return f"    BLOCK_{axis} = {lanes}"
    extent = python_text(kernel.axis(axis).extent)
    padded = f"triton.next_power_of_2(max({extent}, {schedule.whole[axis]}))"
    return f"    BLOCK_{axis} = {padded}"


def _programs(kernel: Kernel, schedule: Schedule) -> str:
    counts: list[str] = []
    for axis, lanes in schedule.grid.items():
        extent = python_text(kernel.axis(axis).extent)
        if lanes == 1:
            counts.append(extent if extent.isalnum() or extent.isidentifier() else f"({extent})")
        else:
            counts.append(f"triton.cdiv({extent}, BLOCK_{axis})")
    every = " * ".join(counts) or "1"
    return every if schedule.programs is None else f"min({every}, {schedule.programs})"
