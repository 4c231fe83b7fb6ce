"""The checked-in LLVM IR of the native run time is what its C compiles to."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from tools import runtime_ir

from smelt.runtime import native_layout
from smelt.runtime.native import native_source

COMPILER = Path("build/ziglang/bin/python")
NAMES = sorted(path.stem for path in runtime_ir.FOLDER.glob("*.c"))


def test_the_texts_belong_to_the_sources() -> None:
    assert runtime_ir.digest() == native_layout.DIGEST, "run make runtime-ir"
    assert sorted(path.stem for path in runtime_ir.FOLDER.glob("*.ll")) == NAMES


@pytest.mark.nightly
def test_the_compiler_makes_the_same_texts() -> None:
    python = sys.executable if importlib.util.find_spec("ziglang") else str(COMPILER)
    if not Path(python).exists():
        pytest.skip("make runtime-ir installs the compiler")
    command = [python, "-m", "tools.runtime_ir", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_texts_need_nothing_of_the_process(name: str, triple: str) -> None:
    """No function of the C library, no table of constants that a loader would have to place."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(native_source(name))
    module.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2, reloc="pic")
    module.triple = triple
    assembly = machine.emit_assembly(module)
    assert "__stack_chk_fail" not in assembly
    assert "__aarch64_" not in assembly
    declared = {f.name for f in module.functions if f.is_declaration}
    if name == "library":  # which a dynamic linker serves
        return
    for word in ("memcpy", "memset", ".rodata"):
        assert word not in assembly
    assert {n for n in declared if not n.startswith("llvm.")} <= {"smelt_relax"}
