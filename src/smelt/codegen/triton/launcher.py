"""Print the function that launches a kernel on torch's tensors."""

from __future__ import annotations

from smelt.codegen.triton.schedule import ELEMENTS_PER_WARP, Schedule
from smelt.codegen.triton.statements import Program
from smelt.kernel.ir import Kernel, Param
from smelt.types.expr import Atom, Expr, Index

__all__ = ["print_launcher"]


def print_launcher(kernel: Kernel, schedule: Schedule, program: Program) -> str:
    """Return the text of `launch`: it allocates the outputs and returns them."""
    inputs = {p.name: p for p in kernel.inputs}
    outputs = {p.name: p for p in kernel.outputs}
    sources = _size_sources(kernel)
    extra = [s for s in _all_sizes(kernel) if s not in sources]
    keywords = ", ".join(f"size_{s}" for s in extra)
    arguments = ", ".join([*(f"in_{p}" for p in inputs), *(["*", keywords] if extra else [])])
    lines = [f"def launch({arguments}):", f'    """Run {kernel.name} on tensors of a GPU."""']
    lines += [f"    size_{s} = in_{p}.shape[{d}]" for s, (p, d) in sources.items()]
    lines += [line for p in inputs.values() for line in _check(p)]
    for p in outputs.values():
        if p.name in inputs:
            lines.append(f"    out_{p.name} = in_{p.name}")
        else:
            lines.append(f"    out_{p.name} = {_allocate(p, next(iter(kernel.inputs), None))}")
    tensors = {n: (f"out_{n}" if n in outputs else f"in_{n}") for n in program.pointers}
    listed = ", ".join(tensors.values())
    lines.append(f"    if max(x.numel() for x in [{listed}]) >= 2**31:")
    lines.append('        raise ValueError("offsets have 32 bits: arrays of 2**31 elements")')
    lines += [_block(kernel, a, n, schedule) for a, n in program.blocks.items()]
    lines += _grid(kernel, schedule)
    passed = [
        *tensors.values(),
        *(f"{tensors[p]}.stride({d})" for p, d in program.strides.values()),
        *(f"size_{s}" for s in program.sizes),
        *(f"BLOCK_{a}=BLOCK_{a}" for a in program.blocks),
    ]
    if program.blocks:
        total = " * ".join(f"BLOCK_{a}" for a in program.blocks)
        lines.append(f"    num_warps = max(min({total} // {ELEMENTS_PER_WARP}, 16), 1)")
    else:
        lines.append("    num_warps = 1")
    lines.append("    if programs:")
    lines.append(f"        {program.name}[(programs,)](")
    lines += [f"            {p}," for p in passed]
    lines += [
        "            num_warps=num_warps,",
        "            enable_fp_fusion=False,",
        "        )",
    ]
    results = [f"out_{p}" for p in outputs]
    lines.append(f"    return {', '.join(results)}")
    return "\n".join([*lines, ""])


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
        for d, e in enumerate(p.shape):
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
    if strides is not None:
        fixed = [(d, n) for d, n in enumerate(strides) if n is not None]
        wrong = " or ".join(f"in_{p.name}.stride({d}) != {n}" for d, n in fixed)
    if not wrong or not p.shape:
        return []
    return [
        f"    if {wrong}:",
        f'        raise ValueError("{p.name} is stored with other strides")',
    ]


def _allocate(p: Param, source: Param | None) -> str:
    shape = ", ".join(map(python_text, p.shape)) + ("," if len(p.shape) == 1 else "")
    device = '"cuda"' if source is None else f"in_{source.name}.device"
    return f"torch.empty(({shape}), dtype=torch.{p.dtype.long}, device={device})"


def _block(kernel: Kernel, axis: str, lanes: int | None, schedule: Schedule) -> str:
    if lanes is not None:
        return f"    BLOCK_{axis} = {lanes}"
    extent = python_text(kernel.axis(axis).extent)
    padded = f"triton.next_power_of_2(max({extent}, {schedule.whole[axis]}))"
    return f"    BLOCK_{axis} = {padded}"


def _grid(kernel: Kernel, schedule: Schedule) -> list[str]:
    counts: list[str] = []
    for axis, lanes in schedule.grid.items():
        extent = python_text(kernel.axis(axis).extent)
        if lanes == 1:
            counts.append(extent if extent.isalnum() or extent.isidentifier() else f"({extent})")
        else:
            counts.append(f"triton.cdiv({extent}, BLOCK_{axis})")
    return [f"    programs = {' * '.join(counts) or '1'}"]
