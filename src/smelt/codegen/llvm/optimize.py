"""Run LLVM: from a module's text to object code, or to assembly for people."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

from smelt.machine.target import Target
from smelt.packages.llvm import (
    llvm,
    llvm_lock,
    machine_code,
    newpassmanagers,
    parse_module,
    run_passes,
)


@cache
def _initialise(native: bool) -> None:
    """Register this machine's target, or all of them to compile for another."""
    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


class Backend:
    """LLVM's target machine, its pass builder and its pipeline, for one thread at a time.

    They are kept for the life of the process: LLVM caches results in a machine, which takes
    milliseconds to create, and llvmlite frees neither all of a pass builder nor all of a pipeline
    (2 KB for each compiled module if they were created for it).
    """

    def __init__(self, triple: str, cpu: str, features: str, opt_level: int) -> None:
        with llvm_lock():
            host = llvm.get_process_triple()
            _initialise(triple.partition("-")[0] == host.partition("-")[0])
            self.machine: Any = llvm.Target.from_triple(triple).create_target_machine(
                cpu=cpu, features=features, opt=opt_level, reloc="pic", codemodel="small"
            )
            self.data_layout = str(self.machine.target_data)
            self.builder: Any = llvm.create_pass_builder(
                self.machine, llvm.create_pipeline_tuning_options()
            )
            self.pipeline = _pipeline()


def _pipeline() -> Any:
    """Return the passes: variables become registers, and chains of blocks are joined."""
    passes = newpassmanagers.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    return passes


_IDLE: dict[tuple[str, str, str, int], list[Backend]] = {}
"""Backends that no thread is using: those of threads that have ended are reused."""


@contextmanager
def borrowed(target: Target, opt_level: int = 2) -> Generator[Backend]:
    """Lend a backend, which no other thread uses meanwhile."""
    key = target.triple, target.cpu, target.feature_string, opt_level
    with llvm_lock():
        idle = _IDLE.setdefault(key, [])
        backend = idle.pop() if idle else Backend(*key)
    try:
        yield backend
    finally:
        idle.append(backend)


def optimise(text: str, target: Target, backend: Backend) -> Any:
    """Parse a module in a context of its own, and optimise it.

    The builder has folded constants, numbered values and left out dead blocks already, vectors are
    explicit and invariants are in the outermost loop: LLVM's full pipeline finds nothing more and
    would take ten times as long.
    """
    module = parse_module(text, target.triple, backend.data_layout)
    run_passes(backend.pipeline, module, backend.builder)
    return module


def object_code(text: str, target: Target, opt_level: int = 2) -> bytes:
    """Compile a module to machine code.

    Raises RuntimeError with LLVM's message for invalid text.
    """
    with borrowed(target, opt_level) as backend:
        return machine_code(backend.machine, optimise(text, target, backend))


def assembly(text: str, target: Target, opt_level: int = 2) -> str:
    """Compile a module to assembler text."""
    with borrowed(target, opt_level) as backend:
        return str(backend.machine.emit_assembly(optimise(text, target, backend)))
