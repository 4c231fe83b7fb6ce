"""LLVM inside this process: text to object code for the run time's own parts, and its linker.

Importing this module imports LLVM, which takes tens of milliseconds: a warm process gets by without
it.

>>> compile_ir("define i64 @three() { ret i64 3 }")[1:4]
b'ELF'
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from typing import Any

from smelt.llvm import llvm, newpassmanagers

__all__ = ["compile_ir", "host_machine", "link"]


class _Jit:
    """The process's one JIT, made at the first load."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.engine: Any = None
        self.names = itertools.count()

    def link(self, object_code: bytes, symbols: Sequence[str]) -> Any:
        library = llvm.JITLibraryBuilder().add_object_img(object_code).add_current_process()
        for symbol in symbols:
            library.export_symbol(symbol)
        with self.lock:
            if self.engine is None:
                llvm.initialize_native_target()
                llvm.initialize_native_asmprinter()
                self.engine = llvm.create_lljit_compiler(host_machine(2))
        return library.link(self.engine, f"smelt.{next(self.names)}")


_JIT = _Jit()


def link(object_code: bytes, symbols: Sequence[str]) -> Any:
    """Each object in a library of its own, of the process's one LLVM JIT: what `symbols` are looked
    up in.  Raises RuntimeError where a symbol is missing.  LLVM crashes on damaged objects."""
    return _JIT.link(object_code, symbols)


def host_machine(opt_level: int, cpu: str | None = None, features: str | None = None) -> Any:
    """An LLVM target machine for this process, by default with the host's CPU and features."""
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name() if cpu is None else cpu,
        features=llvm.get_host_cpu_features().flatten() if features is None else features,
        opt=opt_level,
        reloc="pic",
        codemodel="small",
    )


def compile_ir(
    ir: str, opt_level: int = 2, cpu: str | None = None, features: str | None = None
) -> bytes:
    """Object code of an LLVM module in text form, after a few passes: what is written by hand has
    its loops and its inlining as they should be, and LLVM's whole pipeline takes twice as long.

    For the run time's own native parts and for tests; kernels have code generation's emitter.
    Raises RuntimeError with LLVM's message where the text does not parse or verify.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    machine = host_machine(opt_level, cpu, features)
    module = llvm.parse_assembly(ir)
    module.triple = llvm.get_process_triple()
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes = newpassmanagers.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    if opt_level > 0:
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return bytes(machine.emit_object(module))


if hasattr(os, "register_at_fork"):  # before LLVM's own lock is taken, as in `link`
    os.register_at_fork(
        before=_JIT.lock.acquire,
        after_in_parent=_JIT.lock.release,
        after_in_child=_JIT.lock.release,
    )
