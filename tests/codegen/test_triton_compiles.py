"""Printed goldens compile ahead of time where Triton is installed; no GPU is needed."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from tests.codegen.test_triton_goldens import PRINTED
from tests.kernel.goldens import GOLDENS

from smelt.codegen.triton.schedule import Policy
from smelt.codegen.triton.source import print_stages, triton_source
from smelt.kernel.text import parse

triton = pytest.importorskip("triton", reason="compiling ahead of time needs Triton")

WHOLE_LANES = 64
FAST = Policy("fast", "narrow")
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
    kernel = parse(GOLDENS[name])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    module = load(triton_source(kernel), tmp_path / f"{name}.py", monkeypatch)
    for stage in print_stages(kernel):
        for index in ("int32", "int64") if stage.program.has_wide_offsets else ("int32",):
            assert compiled(stage, module, index).asm["cubin"]


def compiled(stage, module, index):
    """A launch compiled with offsets of a type, for arrays and sizes that nothing is known of."""
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    program = stage.program
    dtypes = {p.name: p.dtype.name for p in (*stage.kernel.inputs, *stage.kernel.outputs)}
    signature = {"ptr_members": "*i64"} if program.members else {}
    signature |= {f"ptr_{p}": f"*{TYPES.get(dtypes[p], dtypes[p])}" for p in program.pointers}
    signature |= dict.fromkeys([*program.strides, *(f"size_{s}" for s in program.sizes)], "i32")
    constants = {f"BLOCK_{a}": n or WHOLE_LANES for a, n in program.blocks.items()}
    constants |= {"MEMBERS": 256, "DIVISOR": 16} if program.members else {}
    constants |= {"INDEX": getattr(tl, index)} if program.has_wide_offsets else {}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(getattr(module, program.name), signature, constants)
    options = {"num_warps": 4, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


PRODUCT = """
kernel product(x: {left}[m,k], w: {right}[k,n]) -> y: {result}[m,n]
  grid m, n
  y[m,n] = dot({x}, {w} over k as {result})
"""
VARIANTS = {
    "halves": (
        {"left": "bf16", "right": "bf16", "result": "f32", "x": "x[m,k]", "w": "w[k,n]"},
        Policy(),
    ),
    "two terms": (
        {"left": "f32", "right": "bf16", "result": "f32", "x": "exp(x[m,k])", "w": "w[k,n]"},
        Policy("fast", "split"),
    ),
    "rounded": (
        {"left": "f32", "right": "f16", "result": "f32", "x": "x[m,k]", "w": "w[k,n]"},
        Policy("fast", "narrow"),
    ),
    "tf32": (
        {"left": "f32", "right": "f32", "result": "f32", "x": "x[m,k]", "w": "w[k,n]"},
        Policy("fast", "narrow"),
    ),
    "bytes": (
        {"left": "i8", "right": "i8", "result": "i32", "x": "i32(x[m,k])", "w": "i32(w[k,n])"},
        Policy(),
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_product_of_a_policy_compiles_for_sm_90(name, tmp_path, monkeypatch):
    fields, policy = VARIANTS[name]
    kernel = parse(PRODUCT.format(**fields).strip())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    source = triton_source(kernel, policy=policy)
    module = load(source, tmp_path / "product.py", monkeypatch)
    (stage,) = print_stages(kernel, policy=policy)
    text = compiled(stage, module, "int32").asm["ptx"]
    assert "wgmma" in text or "mma.sync" in text


ROWS = """
kernel rows(x: f32[r,c], n: i32[r,c]) -> y: f32[r,c], p: i32[r,c], top: i64[r]
  grid r
  a = sum(x[r,c] along c)
  top[r] = argmax(a over c)
  p[r,c] = pow(n[r,c], 3)
  y[r,c] = rsqrt(exp(a)) / log2(sum(x[r,c] over c))
"""


@pytest.mark.parametrize("columns", [1000, 100_000])
def test_rows_with_hardware_functions_compile_for_sm_90(columns, tmp_path, monkeypatch):
    kernel, sizes = parse(ROWS.strip()), {"r": 8, "c": columns}
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    module = load(triton_source(kernel, sizes, FAST), tmp_path / "rows.py", monkeypatch)
    (stage,) = print_stages(kernel, sizes, FAST)
    text = compiled(stage, module, "int32").asm["ptx"]
    assert all(f in text for f in ("ex2.approx", "rsqrt.approx", "div.full"))
