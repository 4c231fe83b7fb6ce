"""The protocols of a back end: what the driver and reports ask of it.

Data flows one way: lowering hands over kernels, which say what is computed and in which blocks;
how a machine does it (packing, register tiles, warps) is decided here and not seen above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from smelt.backend.machine import Machine
from smelt.errors import ArgumentError
from smelt.kernel.artifact import CompiledKernel, Variant, Variants
from smelt.kernel.ir import Kernel


class Backend(Protocol):
    """What shows kernels as code for one kind of machine."""

    @property
    def name(self) -> str:
        """What errors and reports call it: `cpu` or `gpu`."""
        ...

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of the generated texts, from the highest."""
        ...

    def serves(self, machine: Machine) -> bool:
        """Return whether kernels for a machine are this back end's."""
        ...

    def text(
        self, kernel: Kernel, language: str, machine: Machine, sizes: Mapping[str, int] | None
    ) -> str:
        """Return the generated text of a kernel in a language.

        Raises DeviceKernelError for a kernel that the back end has no code for, ArgumentError for
        another language.
        """
        ...


@runtime_checkable
class CodeGenerator(Backend, Protocol):
    """A back end that compiles kernels to code which the runtime loads."""

    def schedule(
        self, kernel: Kernel, machine: Machine, sizes: Mapping[str, int] | None
    ) -> Variants:
        """Return the code variants of a kernel, each with its limits on sizes."""
        ...

    def compile(
        self, requests: Sequence[tuple[Kernel, Variant]], machine: Machine
    ) -> list[tuple[CompiledKernel, float]]:
        """Compile kernels in variants, and return the seconds that each took."""
        ...

    def compile_variant(
        self, kernel: Kernel, machine: Machine, variant: Variant, *, streaming: bool
    ) -> CompiledKernel:
        """Compile a variant; `streaming` results exceed every cache."""
        ...


def check_language(backend: Backend, language: str) -> None:
    """Raise ArgumentError for a language that a back end does not write."""
    if language not in backend.languages:
        raise ArgumentError(
            op="text",
            argument="language",
            value=language,
            expected=f"one of {', '.join(backend.languages)}",
        )
