"""The LLVM code generator as the back end of CPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt import knobs
from smelt.backend import Machine, check_language
from smelt.codegen.build import asm_text, build, build_all, code_variants, described, llvm_text
from smelt.errors import InternalError
from smelt.kernel.artifact import CompiledKernel, Variant, Variants
from smelt.kernel.ir import Kernel
from smelt.machine.target import Target
from smelt.machine.tiling import Tiling


class CpuBackend:
    """LLVM code for a CPU."""

    name = "cpu"
    languages = ("schedule", "llvm", "asm")

    def serves(self, machine: Machine) -> bool:
        """Return whether a machine is a CPU."""
        return isinstance(machine, Target)

    def tiling(self, machine: Machine) -> Tiling:
        """Return the blocks of kernels for a CPU."""
        return machine.tiling

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
