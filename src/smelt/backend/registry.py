"""Back ends by the machines that they serve.

Asked by the driver, reports and front ends alone: what is between is handed a machine.
"""

from __future__ import annotations

from smelt.backend.machine import Machine
from smelt.backend.protocol import Backend, CodeGenerator
from smelt.errors import InternalError

_BACKENDS: list[Backend] = []
_GENERATORS: list[CodeGenerator] = []


def register(backend: Backend) -> None:
    """Add a back end, unless one of its name is there already."""
    if any(b.name == backend.name for b in _BACKENDS):
        return
    _BACKENDS.append(backend)
    if isinstance(backend, CodeGenerator):
        _GENERATORS.append(backend)


def backend_of(machine: Machine) -> Backend:
    """Return the back end that serves a machine."""
    for backend in _BACKENDS:
        if backend.serves(machine):
            return backend
    raise InternalError(f"no back end serves {machine.name}")


def generator_of(machine: Machine) -> CodeGenerator:
    """Return the back end that compiles for a machine."""
    for backend in _GENERATORS:
        if backend.serves(machine):
            return backend
    raise InternalError(f"no back end compiles for {machine.name}")
