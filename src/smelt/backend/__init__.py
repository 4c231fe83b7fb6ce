"""The seam between the compiler and its back ends: protocols, and the machines that are known.

What is above (passes, fusion, lowering) asks a `Machine` for facts and a `Tiling` for blocks; what
is below (`smelt.codegen`, `smelt.runtime`) implements a `Backend`. Only the driver, reports and the
front ends ask the registry which back end a machine has.

    machine.py    the protocol of a machine, a CPU (`smelt.machine.target.Target`) or a GPU
    gpu.py        a GPU: facts, blocks, and the terms of a kernel's time
    gpus.py       the table of GPUs with published figures, imported by those who name one
    protocol.py   the protocol of a back end
    registry.py   back ends by the machines that they serve
"""

from smelt.backend.gpu import Gpu, KernelTime
from smelt.backend.machine import Machine
from smelt.backend.protocol import Backend, CodeGenerator, check_language
from smelt.backend.registry import backend_of, generator_of, register

__all__ = [
    "Backend",
    "CodeGenerator",
    "Gpu",
    "KernelTime",
    "Machine",
    "backend_of",
    "check_language",
    "generator_of",
    "register",
]
