"""Print a kernel as a Python file: imports, the Triton program, and its launcher.

>>> from smelt.kernel.text import parse
>>> kernel = parse('''
... kernel double(x: f32[n]) -> y: f32[n]
...   grid n/4096
...   y[n] = x[n] * 2
... ''')
>>> print(triton_source(kernel)[:39])
# Printed by Smelt from this kernel:
#
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.codegen.triton.block_axes import REGISTER_LANES, block_axes
from smelt.codegen.triton.combining_stores import combining_launches
from smelt.codegen.triton.launcher import DESCRIPTORS, SPAN, Stage, print_launcher
from smelt.codegen.triton.merge_launches import merge_rows
from smelt.codegen.triton.schedule import EXACT, Policy, Schedule, choose_schedule
from smelt.codegen.triton.split_launches import split_launches
from smelt.codegen.triton.split_products import split_products
from smelt.codegen.triton.split_scans import PROCESSORS, split_scans
from smelt.codegen.triton.split_states import PROCESSOR_REGISTERS, split_states
from smelt.codegen.triton.statements import print_program
from smelt.codegen.triton.widen_columns import widen_columns
from smelt.kernel.ir import Kernel
from smelt.kernel.text_print import text

CHECK = """\
if __name__ == "__main__":  # on a GPU, with smelt-compiler: compare with NumPy
    from smelt.codegen.triton.self_check import self_check

    self_check(__file__, launch)
"""
"""The end of every file."""


def prepare(
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    policy: Policy = EXACT,
    registers: int = PROCESSOR_REGISTERS,
) -> tuple[Kernel, ...]:
    """Return the launches of a kernel as they are printed: with the loops and lanes of programs.

    Raises DeviceKernelError for a kernel without such loops.
    """
    return tuple(with_loops(k, sizes) for k in divide(kernel, sizes, policy, registers))


def divide(
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    policy: Policy = EXACT,
    registers: int = PROCESSOR_REGISTERS,
    processors: int = PROCESSORS,
) -> tuple[Kernel, ...]:
    """Return the launches of a kernel.

    Launches that carry more than the `registers` of a processor are divided; few long rows are
    scanned in parts by all `processors`.
    """
    launches = split_products(kernel, sizes)
    if not launches:
        combining = combining_launches(kernel, policy, sizes) or (kernel,)
        launches = tuple(x for k in combining for x in split_launches(k))
    launches = tuple(x for k in launches for x in split_scans(k, sizes, processors))
    merged = [k for launch in launches for k in merge_rows(launch, sizes)]
    return tuple(k for launch in merged for k in split_states(launch, sizes, registers))


def with_loops(
    launch: Kernel, sizes: Mapping[str, int] | None = None, register_lanes: int = REGISTER_LANES
) -> Kernel:
    """Return a launch with the loops and lanes of its programs.

    Rows of more than `register_lanes` elements are looped over. Raises DeviceKernelError for a
    kernel without such loops.
    """
    return widen_columns(block_axes(launch, sizes, register_lanes))


def print_stages(
    kernel: Kernel, sizes: Mapping[str, int] | None = None, policy: Policy = EXACT
) -> tuple[Stage, ...]:
    """Return the printed program of every launch; raise DeviceKernelError as `prepare` does."""
    prepared = prepare(kernel, sizes, policy=policy)
    return tuple(print_stage(k, choose_schedule(k, sizes, policy)) for k in prepared)


def print_stage(launch: Kernel, schedule: Schedule) -> Stage:
    """Return the printed program of one prepared launch."""
    return Stage(launch, schedule, print_program(launch, schedule))


def triton_source(
    kernel: Kernel, sizes: Mapping[str, int] | None = None, policy: Policy = EXACT
) -> str:
    """Return the Triton programs of a kernel, with blocks chosen for `sizes`.

    Raises DeviceKernelError, with what is missing, for a kernel that cannot be printed.
    """
    return print_file(kernel, print_stages(kernel, sizes, policy))


def print_file(kernel: Kernel, stages: Sequence[Stage]) -> str:
    """Return the file of a kernel whose launches are printed."""
    functions: dict[str, str] = {}
    for stage in stages:
        functions |= stage.program.functions
    programs = [*functions.values(), *(stage.program.text for stage in stages)]
    head = ["# Printed by Smelt from this kernel:", "#"]
    head += [f"#     {line}" for line in text(kernel).splitlines()]
    imports = ["", "import torch", "import triton", "import triton.language as tl", ""]
    if any("libdevice." in p for p in programs):
        imports.insert(-1, "from triton.language.extra import libdevice")
    if any(stage.program.has_wide_offsets for stage in stages):
        programs.append(SPAN)
    if any(stage.program.copied for stage in stages):
        programs.append(DESCRIPTORS)
    file = ["\n".join([*head, *imports]), *programs, print_launcher(kernel, stages), CHECK]
    return "\n\n".join(file)
