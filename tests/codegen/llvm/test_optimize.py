"""LLVM's optimisations: little beside code generation, however long a loop's body is."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from time import thread_time
from typing import Any

import pytest

from smelt.codegen.llvm import optimize
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.optimize import borrowed, object_code, optimise
from smelt.kernel.text import parse
from smelt.machine.target import Target
from smelt.packages.llvm import machine_code

MACHINE = Target.for_isa("avx512")


GRADIENT = """kernel k(a: f32[128], y: f32[256,500], x: f32[4,64,128]) -> z: f32[500,128]
  axis i in 500, j in 128, k in 256
  grid i, j
  v0 = y[k,i]
  v1 = x[k//64,k%64,j]
  v2 = v1 * a[j]
  v3 = dot(v0, v2 over k)
  z[i,j] = v3"""


@pytest.mark.clock
def test_passes_take_less_time_than_machine_code() -> None:
    """Numbering values in LLVM took three times as long, over tiles that these sizes never need."""
    text = emit(parse(GRADIENT), MACHINE, variant="tall_skinny").llvm
    results: list[tuple[float, float]] = []
    with borrowed(MACHINE) as backend:
        for _ in range(3):
            start = thread_time()
            module = optimise(text, MACHINE, backend)
            middle = thread_time()
            backend.machine.emit_object(module)
            results.append((middle - start, thread_time() - middle))
    optimising, emitting = map(min, zip(*results, strict=True))
    print(f"{optimising:.4f} s, then {emitting:.4f} s")
    assert optimising < emitting


SETTLED = """
define void @k(ptr noalias %v1, i64 %v2, i64 %v3, ptr noalias %v4) {
  %n = load i64, ptr null, align 4
  br label %task
task:
  %v23 = icmp slt i64 0, %n
  br i1 %v23, label %loop.2, label %next.2
loop.2:
  %v33 = insertelement <16 x i64> undef, i64 %n, i32 0
  %v34 = shufflevector <16 x i64> %v33, <16 x i64> undef, <16 x i32> zeroinitializer
  %v35 = icmp eq <16 x i64> %v34, zeroinitializer
  %v39 = or <16 x i1> %v35, poison
  %v54 = insertelement <16 x i64> undef, i64 %n, i32 0
  %v58 = sub i64 %n, 1
  %v95 = icmp slt i64 0, %n
  br i1 %v95, label %loop.2, label %next.2
next.2:
  %v96 = icmp slt i64 0, %n
  br i1 %v96, label %loop.3, label %next.3
loop.3:
  %v97 = phi i64 [ 0, %next.2 ], [ %v170, %next.5 ]
  %v98 = mul i64 %n, %v97
  %v99 = add nuw nsw i64 0, %v98
  %v100 = sub nuw nsw i64 %n, 0
  br label %loop.4
next.3:
  %v179 = insertelement <2 x i64> undef, i64 %n, i32 0
  %v200 = insertelement <2 x i64> undef, i64 %n, i32 0
  %v204 = sub i64 %n, 1
  %v238 = sub nuw nsw i64 %n, 0
  br label %loop.7
loop.4:
  %v148 = icmp slt i64 0, %n
  br label %next.5
loop.5:
  %v150 = sub i64 %n, 0
  %v169 = icmp slt i64 0, %n
  br label %loop.5
next.5:
  %v170 = add i64 %v97, 1
  %v171 = icmp slt i64 %v170, %n
  br i1 %v171, label %loop.3, label %next.3
loop.7:
  %v906 = icmp slt i64 0, %n
  br label %next.10
loop.10:
  br label %if.17
next.10:
  %v1016 = icmp slt i64 0, %n
  br label %loop.11
if.17:
  %v965 = icmp slt i64 0, %n
  br label %loop.10
loop.11:
  %v1039 = icmp slt i64 0, %n
  br label %loop.11
}
"""


def test_llvm_options_are_set_once() -> None:
    """A second time ends the process: of a module that is imported again, say."""
    module = "smelt.packages.llvm"
    code = f"import sys, {module}; del sys.modules[{module!r}]; import {module}; print(1)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr[-500:]


def test_compiling_again_and_again_takes_no_memory() -> None:
    """A pass builder and passes for every module, which llvmlite frees in part, left 2 KB each."""
    code = f"""
import ctypes
from smelt.compiler import driver
from smelt.codegen.llvm.optimize import object_code
class Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]
try:
    mallinfo2 = ctypes.CDLL(None).mallinfo2
except AttributeError:  # another C library
    print(0)
    raise SystemExit
mallinfo2.restype = Sizes
host = driver.host()
def used(times):
    for _ in range(times):
        object_code({SETTLED.replace("null", "%v1")!r}, host)
    return mallinfo2().h
before = used(30)
print((used(200) - before) / 200)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert float(done.stdout) < 400


def test_machines_outlive_the_threads_that_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel of a program is compiled by a thread that ends with it: each made LLVM's machine
    anew.  Threads at the same time have one each."""
    built: list[object] = []
    first, together = threading.Barrier(2), threading.Event()
    make = optimize.Backend

    def counted(*key: Any) -> Any:
        built.append(make(*key))
        return built[-1]

    def emitted(machine: Any, module: Any) -> bytes:
        used.append(machine)
        if not together.is_set():
            first.wait(10)
        return machine_code(machine, module)

    used: list[object] = []
    monkeypatch.setattr(optimize, "_IDLE", {})
    monkeypatch.setattr(optimize, "Backend", counted)
    monkeypatch.setattr(optimize, "machine_code", emitted)
    text = "define void @f() { ret void }"
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(object_code, [text] * 2, [MACHINE] * 2)
    together.set()
    assert one == other
    assert used[0] is not used[1]
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(object_code, text, MACHINE).result() == one
    assert len(built) == 2
    with pytest.raises(RuntimeError):
        object_code("nonsense", MACHINE)
    object_code(text, MACHINE)
    assert len(built) == 2
