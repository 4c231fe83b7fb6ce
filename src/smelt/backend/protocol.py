"""The protocol of a back end: what the driver and reports ask of it.

Data flows one way: lowering hands over kernels, which say what is computed and in which blocks;
how a machine does it (packing, register tiles, warps) is decided here and not seen above.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from smelt.backend.machine import Machine
from smelt.kernel.ir import Kernel
from smelt.tiling import Tiling

__all__ = ["Backend"]


class Backend(Protocol):
    """A code generator with its runtime, for one kind of machine."""

    @property
    def name(self) -> str:
        """What errors and reports call it: `cpu` or `gpu`."""
        ...

    def serves(self, machine: Machine) -> bool:
        """Return whether kernels for a machine are this back end's."""
        ...

    def tiling(self, machine: Machine) -> Tiling:
        """Return the blocks and parts of kernels for a machine."""
        ...

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of the generated texts, from the highest."""
        ...

    def text(
        self, kernel: Kernel, language: str, machine: Machine, sizes: Mapping[str, int] | None
    ) -> str:
        """Return the generated text of a kernel in a language.

        Raises DeviceKernelError for a kernel that the back end has no code for, ArgumentError for
        another language.
        """
        ...
