"""LLVM's part: from a module's text to object code, and to assembly for people."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

from smelt.llvm import alone, llvm, machine_code, newpassmanagers, run_passes
from smelt.target import Target

_TANGLED = 3_400_000
"""Characters of a module times its variables beyond which instructions are combined before common
values are looked for.  All sums of a tile begin as one value; telling those of four products apart
in loop after loop took NewGVN 3.7 of 3.9 seconds, of which combining first leaves 0.02."""
_LOOPED = 100_000_000
"""The same for one function's loops, for common values are looked for in one function at a time.
Below it combining takes twice the time of what it spares: functions of tiles, with a hundred loops
and 150,000 characters, take a tenth less without."""


@cache
def _initialise(native: bool) -> None:
    """Registers this machine's target, or all of them to compile for another."""
    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


_IDLE: dict[tuple[str, str, str, int], list[Any]] = {}
"""Target machines that no thread is using: those of threads that have ended are not made anew."""


def _made(triple: str, cpu: str, features: str, opt_level: int) -> Any:
    with alone():
        host = llvm.get_process_triple()
        _initialise(triple.partition("-")[0] == host.partition("-")[0])
        return llvm.Target.from_triple(triple).create_target_machine(
            cpu=cpu, features=features, opt=opt_level, reloc="pic", codemodel="small"
        )


@contextmanager
def borrowed(target: Target, opt_level: int = 2) -> Generator[Any]:
    """LLVM's target machine, which no other thread uses meanwhile: LLVM keeps what it finds out in
    it.  Threads that compile come and go with what they compile, and each machine takes
    milliseconds to make and to find its way."""
    key = target.triple, target.cpu, target.feature_string, opt_level
    with alone():
        idle = _IDLE.setdefault(key, [])
        machine = idle.pop() if idle else _made(*key)
    try:
        yield machine
    finally:
        idle.append(machine)


def is_tangled(text: str) -> bool:
    """Whether common values of a module take longer to find than instructions to combine."""
    if len(text) * text.count(" = alloca ") > _TANGLED:
        return True
    if len(text) * text.count(" = phi ") <= _LOOPED:
        return False
    functions = text.split("\ndefine ")
    return any(len(f) * f.count(" = phi ") > _LOOPED for f in functions)


def optimise(text: str, target: Target, machine: Any) -> Any:
    """The parsed module, in a context of its own, its variables in registers and common values
    shared.

    Vectors are explicit and values stand in the outermost loop already, so LLVM's full pipeline
    finds nothing more; it would take ten times as long.  What numbers decide is folded, and what
    then has no use and no way to it goes, before common values are looked for: NewGVN told sums and
    places apart in loops that never run, which took it up to nine tenths of all that LLVM did.
    """
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes = newpassmanagers.create_new_module_pass_manager()
    passes.add_sroa_pass()
    if is_tangled(text):
        passes.add_instruction_combine_pass()
    else:
        passes.add_sccp_pass()
        passes.add_simplify_cfg_pass()
        passes.add_dead_code_elimination_pass()
    passes.add_new_gvn_pass()
    passes.add_simplify_cfg_pass()
    run_passes(passes, module, builder)
    return module


def object_code(text: str, target: Target, opt_level: int = 2) -> bytes:
    """Machine code of a module.  Raises RuntimeError with LLVM's message for bad text."""
    with borrowed(target, opt_level) as machine:
        return machine_code(machine, optimise(text, target, machine))


def assembly(text: str, target: Target, opt_level: int = 2) -> str:
    """The same as assembler text."""
    with borrowed(target, opt_level) as machine:
        return str(machine.emit_assembly(optimise(text, target, machine)))
