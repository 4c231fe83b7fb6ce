"""The code generators as back ends: LLVM for CPUs, Triton for GPUs.

>>> from smelt.backend import backend_of, gpu
>>> register_backends()
>>> backend_of(gpu("h100")).languages
('triton',)
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt import knobs
from smelt.backend import Gpu, Machine, register
from smelt.codegen.build import asm_text, llvm_text
from smelt.codegen.triton.source import triton_source
from smelt.errors import ArgumentError
from smelt.kernel.ir import Kernel
from smelt.target import Target
from smelt.tiling import Tiling

__all__ = ["CpuBackend", "GpuBackend", "register_backends"]


class CpuBackend:
    """LLVM code for a CPU."""

    name = "cpu"
    languages = ("llvm", "asm")

    def serves(self, machine: Machine) -> bool:
        """Return whether a machine is a CPU."""
        return isinstance(machine, Target)

    def tiling(self, machine: Machine) -> Tiling:
        """Return the blocks of kernels for a CPU."""
        return machine.tiling

    def text(
        self, kernel: Kernel, language: str, machine: Machine, sizes: Mapping[str, int] | None
    ) -> str:
        """Return the LLVM module before optimisation, or the assembly."""
        _check(language, self.languages)
        assert isinstance(machine, Target)
        if language == "llvm":
            return llvm_text(kernel, machine)
        return asm_text(kernel, machine, knobs.OPT_LEVEL.get())


class GpuBackend:
    """Triton programs for a GPU."""

    name = "gpu"
    languages = ("triton",)

    def serves(self, machine: Machine) -> bool:
        """Return whether a machine is a GPU."""
        return isinstance(machine, Gpu)

    def tiling(self, machine: Machine) -> Tiling:
        """Return the blocks of kernels for a GPU."""
        return machine.tiling

    def text(
        self, kernel: Kernel, language: str, machine: Machine, sizes: Mapping[str, int] | None
    ) -> str:
        """Return the Triton file; raise DeviceKernelError for a kernel that cannot be printed."""
        _check(language, self.languages)
        return triton_source(kernel, sizes)


def _check(language: str, languages: tuple[str, ...]) -> None:
    if language not in languages:
        raise ArgumentError(
            op="text",
            argument="language",
            value=language,
            expected=f"one of {', '.join(languages)}",
        )


def register_backends() -> None:
    """Make the back ends known to whoever asks the registry."""
    register(CpuBackend())
    register(GpuBackend())
