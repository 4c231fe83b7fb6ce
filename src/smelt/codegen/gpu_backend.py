"""Show kernels for GPUs as Triton programs, which do not run here.

>>> from smelt.backend.gpus import gpu
>>> backend = GpuBackend()
>>> backend.serves(gpu("h100")), backend.languages
(True, ('triton',))
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.backend import Gpu, Machine, check_language
from smelt.codegen.triton.source import triton_source
from smelt.kernel.ir import Kernel


class GpuBackend:
    """Triton programs for a GPU."""

    name = "gpu"
    languages = ("triton",)

    def serves(self, machine: Machine) -> bool:
        """Return whether a machine is a GPU."""
        return isinstance(machine, Gpu)

    def text(
        self, kernel: Kernel, language: str, machine: Machine, sizes: Mapping[str, int] | None
    ) -> str:
        """Return the Triton file; raise DeviceKernelError for a kernel that cannot be printed."""
        check_language(self, language)
        return triton_source(kernel, sizes)
