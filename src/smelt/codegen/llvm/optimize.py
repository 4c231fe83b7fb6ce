"""LLVM's part: from a module's text to object code, and to assembly for people."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from smelt.target import Target

_LOCK = threading.Lock()


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def machine_for(triple: str, cpu: str, features: str, opt_level: int) -> Any:
    """LLVM's target machine, made once for each description."""
    _initialise()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=opt_level, reloc="pic", codemodel="small"
    )


def optimise(text: str, target: Target, opt_level: int = 2) -> Any:
    """The parsed module after LLVM's scalar optimisations (vectors are explicit already)."""
    machine = machine_for(target.triple, target.cpu, target.feature_string, opt_level)
    module = llvm.parse_assembly(text)
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def object_code(text: str, target: Target, opt_level: int = 2) -> bytes:
    """Machine code of a module.  Raises RuntimeError with LLVM's message for bad text."""
    with _LOCK:
        machine = machine_for(target.triple, target.cpu, target.feature_string, opt_level)
        return bytes(machine.emit_object(optimise(text, target, opt_level)))


def assembly(text: str, target: Target, opt_level: int = 2) -> str:
    """The same as assembler text."""
    with _LOCK:
        machine = machine_for(target.triple, target.cpu, target.feature_string, opt_level)
        return str(machine.emit_assembly(optimise(text, target, opt_level)))
