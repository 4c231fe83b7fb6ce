"""LLVM's part: from a module's text to object code, and to assembly for people."""

from __future__ import annotations

from functools import cache
from typing import Any

from smelt.llvm import alone, llvm, newpassmanagers
from smelt.target import Target


@cache
def _initialise(native: bool) -> None:
    """Registers this machine's target, or all of them to compile for another."""
    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


@cache
def machine_for(triple: str, cpu: str, features: str, opt_level: int) -> Any:
    """LLVM's target machine, made once for each description."""
    host = llvm.get_process_triple()
    _initialise(triple.partition("-")[0] == host.partition("-")[0])
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=opt_level, reloc="pic", codemodel="small"
    )


def optimise(text: str, target: Target, opt_level: int = 2) -> Any:
    """The parsed module, its variables in registers and common values shared.

    Vectors are explicit and values stand in the outermost loop already, so LLVM's full pipeline
    finds nothing more; it would take ten times as long.  What numbers decide is folded, and what
    is left without a use or a way to it goes, before common values are looked for: NewGVN supposes
    that loops end in their first round until it finds otherwise, so that all sums of a tile, and
    all places of a short row, begin as one value, and telling those apart took it up to nine tenths
    of all that LLVM did.
    """
    machine = machine_for(target.triple, target.cpu, target.feature_string, opt_level)
    module = llvm.parse_assembly(text)
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes = newpassmanagers.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_sccp_pass()
    passes.add_simplify_cfg_pass()
    passes.add_dead_code_elimination_pass()
    passes.add_new_gvn_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return module


def object_code(text: str, target: Target, opt_level: int = 2) -> bytes:
    """Machine code of a module.  Raises RuntimeError with LLVM's message for bad text."""
    with alone():
        machine = machine_for(target.triple, target.cpu, target.feature_string, opt_level)
        return bytes(machine.emit_object(optimise(text, target, opt_level)))


def assembly(text: str, target: Target, opt_level: int = 2) -> str:
    """The same as assembler text."""
    with alone():
        machine = machine_for(target.triple, target.cpu, target.feature_string, opt_level)
        return str(machine.emit_assembly(optimise(text, target, opt_level)))
