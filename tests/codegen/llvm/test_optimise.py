"""What LLVM is asked to do: little beside making machine code, however long a loop's body is."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import thread_time
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.codegen.build import llvm_text
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.optimize import machine_for, optimise
from smelt.kernel.text import parse
from smelt.target import Target

MACHINE = Target.for_isa("avx512")


def texts(f: Callable[..., Any], *arrays: Any) -> list[str]:
    """LLVM's text of a function's kernels."""
    kernels = sm.explain(f, *arrays).kernels
    return [llvm_text(parse(k.text), MACHINE) for k in kernels]


def stepped(text: str) -> int:
    """Loops whose addresses LLVM may step: their positions go into more than what hides them."""
    found = 0
    for name in re.findall(r"\n(?:loop|tile)[.\d]*:\n +(%\.\d+) = phi i64", text):
        uses = re.findall(rf"^.*{re.escape(name)}\b(?! =).*$", text, re.MULTILINE)
        found += len([u for u in uses if " asm " not in u]) > 1  # one counts it on
    return found


def long_body(x: Any) -> Any:
    return sm.tanh(sm.exp(sm.sin(x))) * sm.erf(x)


def test_addresses_of_long_bodies_and_of_what_tiles_leave_are_not_stepped() -> None:
    x = np.ones((20, 700), np.float32)
    (long,) = texts(long_body, x)
    (short,) = texts(lambda x: x * 2 + 1, x)
    assert stepped(short) > 0
    assert stepped(long) == 0
    w = np.ones((700, 64), np.float32)
    (product,) = texts(lambda x, w: x @ w, x, w)
    assert 0 < stepped(product) <= product.count("\ntile") // 4  # the highest of four heights


GRADIENT = """kernel k(a: f32[128], y: f32[256,500], x: f32[4,64,128]) -> z: f32[500,128]
  axis i in 500, j in 128, k in 256
  grid i, j
  v0 = y[k,i]
  v1 = x[k//64,k%64,j]
  v2 = v1 * a[j]
  v3 = dot(v0, v2 over k)
  z[i,j] = v3"""


@pytest.mark.clock
def test_what_is_decided_goes_before_common_values_are_looked_for() -> None:
    """NewGVN took three times as long as machine code, over tiles that these sizes never need."""
    text = emit(parse(GRADIENT), MACHINE, form="tall").llvm
    machine = machine_for(MACHINE.triple, MACHINE.cpu, MACHINE.feature_string, 2)
    found: list[tuple[float, float]] = []
    for _ in range(3):
        start = thread_time()
        module = optimise(text, MACHINE)
        middle = thread_time()
        machine.emit_object(module)
        found.append((middle - start, thread_time() - middle))
    optimising, emitting = map(min, zip(*found, strict=True))
    print(f"{optimising:.4f} s, then {emitting:.4f} s")
    assert optimising < emitting
