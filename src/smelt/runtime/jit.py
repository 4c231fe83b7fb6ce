"""Compile and link with LLVM in this process, for the runtime's own native parts.

Importing this module imports LLVM, which is slow; a warm start avoids it.

>>> compile_ir("define i64 @three() { ret i64 3 }")[1:4]
b'ELF'
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

from smelt.kernel.abi import POLL_SYMBOL
from smelt.packages.llvm import llvm, newpassmanagers
from smelt.python.imports import guard_forks
from smelt.runtime.elf import poll_address


class _Jit:
    """JIT of this process, created at the first load."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.engine: Any = None
        self.names = itertools.count()

    def link(self, object_code: bytes, symbols: Sequence[str]) -> Any:
        library = llvm.JITLibraryBuilder().add_object_img(object_code).add_current_process()
        library.import_symbol(POLL_SYMBOL, poll_address())
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
    """Link an object into a library of its own and return its symbol lookup.

    Raises RuntimeError if a symbol is missing. LLVM crashes on damaged objects.
    """
    return _JIT.link(object_code, symbols)


def host_machine(opt_level: int, cpu: str | None = None, features: str | None = None) -> Any:
    """Return an LLVM target machine, by default for the host's CPU and features."""
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
    """Compile an LLVM module in text form to object code, with few passes.

    The input is hand-written with its loops and inlining already as they should be, so LLVM's
    full pipeline is not worth its time. For the runtime's own native parts and for tests; kernels
    go through the code generator. Raises RuntimeError with LLVM's message if the text does not
    parse or verify.
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


guard_forks(_JIT.lock.acquire, _JIT.lock.release)  # same lock order as in `link`: before LLVM's
