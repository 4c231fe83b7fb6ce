"""Printed goldens compile ahead of time where Triton is installed; no GPU is needed."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from tests.codegen.test_triton_goldens import PRINTED
from tests.kernel.goldens import GOLDENS

from smelt.codegen.triton.schedule import choose_schedule
from smelt.codegen.triton.source import prepare, triton_source
from smelt.codegen.triton.statements import print_program
from smelt.kernel.text import parse

triton = pytest.importorskip("triton", reason="compiling ahead of time needs Triton")

WHOLE_LANES = 64
TYPES = {"f32": "fp32", "f64": "fp64", "f16": "fp16", "bool": "i1"}


def load(source: str, path, monkeypatch):
    """The printed file as a module; its launcher's torch is not needed."""
    if importlib.util.find_spec("torch") is None:
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PRINTED)
def test_printed_golden_compiles_for_sm_90(name, tmp_path, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    kernel = parse(GOLDENS[name])
    blocked = prepare(kernel)
    program = print_program(blocked, choose_schedule(blocked))
    module = load(triton_source(kernel), tmp_path / f"{name}.py", monkeypatch)
    dtypes = {p.name: p.dtype.name for p in (*kernel.inputs, *kernel.outputs)}
    signature = {f"ptr_{p}": f"*{TYPES.get(dtypes[p], dtypes[p])}" for p in program.pointers}
    signature |= dict.fromkeys([*program.strides, *(f"size_{s}" for s in program.sizes)], "i32")
    blocks = {f"BLOCK_{a}": n or WHOLE_LANES for a, n in program.blocks.items()}
    signature |= dict.fromkeys(blocks, "constexpr")
    source = ASTSource(getattr(module, program.name), signature, blocks)
    options = {"num_warps": 4, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert compiled.asm["cubin"]
