"""Compile kernels to PTX with LLVM: the driver makes machine code of it.

text, code_for = ThreadCompiler().prepare(kernel, {})
code = code_for("sm_90")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import llvmlite

from smelt.codegen.nvptx.thread import THREADS, ThreadProgram, print_threads
from smelt.kernel.device_code import Argument, DeviceCode, Launch
from smelt.kernel.ir import Kernel
from smelt.python.imports import fork_safe_import
from smelt.types.expr import add, floordiv, mul

PTX_VERSION: Final = "+ptx80"
"""Version of PTX, which CUDA 12.0 brought."""
NEWEST: Final = 90
"""Newest architecture that this version of PTX knows; PTX of it runs on later ones."""
_TRIPLE: Final = "nvptx64-nvidia-cuda"


class ThreadCompiler:
    """Compiler of kernels by LLVM; `emit` makes an image of LLVM IR for an architecture."""

    has_streams = has_tables = False

    def __init__(self, emit: Callable[[ThreadProgram, str], bytes] | None = None) -> None:
        self.identity = f"threads 2 llvmlite {llvmlite.__version__} {PTX_VERSION}"
        self._emit = _image if emit is None else emit

    def prepare(
        self, kernel: Kernel, sizes: Mapping[str, int]
    ) -> tuple[str, Callable[[str], DeviceCode]]:
        """Print a kernel, for all sizes; see `DeviceCompiler`.

        Raises DeviceKernelError for what threads do not compute.
        """
        program = print_threads(kernel)
        return program.text, lambda arch: _code(program, arch, self._emit(program, arch))


def _image(program: ThreadProgram, arch: str) -> bytes:
    return emit_ptx(program.text, arch).encode() + b"\0"


def _code(program: ThreadProgram, arch: str, image: bytes) -> DeviceCode:
    blocks = floordiv(add(mul(program.points, program.lanes), THREADS - 1), THREADS)
    arguments = (
        *(Argument("buffer", p) for p in program.pointers),
        *(Argument("stride", p, d) for p, d in program.strides),
        *(Argument("size", s) for s in program.sizes),
    )
    launch = Launch(program.symbol, (blocks,), THREADS, 0, arguments)
    return DeviceCode((image,), arch, (launch,), (), (), is_wide=True)


def emit_ptx(text: str, arch: str) -> str:
    """Return the PTX of LLVM IR.

    Nothing contracts: multiply-adds are fused where the formulas say so alone.
    """
    llvm: Any = fork_safe_import("smelt.packages.llvm")
    machine = _machine(f"sm_{min(int(arch.removeprefix('sm_')), NEWEST)}")
    module = llvm.parse_module(text, _TRIPLE, str(machine.target_data))
    module.verify()
    builder = llvm.llvm.create_pass_builder(machine, llvm.llvm.create_pipeline_tuning_options(2))
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


@cache
def _machine(arch: str) -> Any:
    llvm: Any = fork_safe_import("smelt.packages.llvm").llvm
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(_TRIPLE)
    return target.create_target_machine(cpu=arch, features=PTX_VERSION, opt=3)
