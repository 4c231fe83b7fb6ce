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

from collections.abc import Mapping

from smelt.codegen.triton.contractions import block_contractions
from smelt.codegen.triton.launcher import print_launcher
from smelt.codegen.triton.schedule import choose_schedule
from smelt.codegen.triton.statements import print_program
from smelt.codegen.triton.whole_streams import join_parts, widen_columns
from smelt.kernel.ir import Kernel
from smelt.kernel.text_print import text

__all__ = ["prepare", "triton_source"]


def prepare(kernel: Kernel) -> Kernel:
    """Return the kernel as it is printed: with the loops and lanes of a program."""
    return widen_columns(join_parts(block_contractions(kernel)))


def triton_source(kernel: Kernel, sizes: Mapping[str, int] | None = None) -> str:
    """Return the Triton program of a kernel, with blocks chosen for `sizes`.

    Raises DeviceKernelError, with what is missing, for a kernel that cannot be printed.
    """
    kernel_printed = prepare(kernel)
    schedule = choose_schedule(kernel_printed, sizes)
    program = print_program(kernel_printed, schedule)
    head = ["# Printed by Smelt from this kernel:", "#"]
    head += [f"#     {line}" for line in text(kernel).splitlines()]
    imports = ["", "import torch", "import triton", "import triton.language as tl", ""]
    if "libdevice." in program.text:
        imports.insert(-1, "from triton.language.extra import libdevice")
    parts = ["\n".join([*head, *imports]), program.text, print_launcher(kernel, schedule, program)]
    return "\n\n".join(parts)
