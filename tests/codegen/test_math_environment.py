"""Compiling and running kernels leaves the floating-point environment and errno alone (R10)."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from tests.codegen.compile_scalar import compile_row, target_machine
from tests.codegen.scalar_values import grid

from smelt.ops.scalar import SCALARS
from smelt.types.dtype import f32

_READ_CONTROL = """
declare void @llvm.x86.sse.stmxcsr(ptr)
define i32 @mxcsr() {
  %place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %value = load i32, ptr %place
  ret i32 %value
}
"""
_STICKY = 0x3F
"""Exception flags: set by any inexact result, and no part of the control word."""


@pytest.fixture(scope="module")
def control() -> Any:
    """Reads the control bits of MXCSR: rounding, flushing, masks."""
    if platform.machine() != "x86_64":
        pytest.skip("MXCSR is x86's")
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly(_READ_CONTROL), target_machine("portable", fresh=True)
    )
    engine.finalize_object()
    read = ctypes.CFUNCTYPE(ctypes.c_int32)(engine.get_function_address("mxcsr"))

    def value(_keep: object = engine) -> int:
        return read() & ~_STICKY

    return value


@pytest.mark.parametrize("name", ["exp", "log", "sin", "pow", "sqrt", "div", "mod"])
def test_control_word_and_errno_survive(name: str, control: Any) -> None:
    before = control()
    ctypes.set_errno(0)
    op = SCALARS[name]
    dtypes = (f32,) * op.arity
    function = compile_row(op, dtypes)
    function(*grid(dtypes))
    assert control() == before
    assert ctypes.get_errno() == 0


def test_subnormals_are_not_flushed() -> None:
    tiny = np.array([1e-45, 1e-40, 1.1754942e-38], np.float32)
    one = np.ones(3, np.float32)
    np.testing.assert_array_equal(compile_row(SCALARS["mul"], (f32, f32))(tiny, one), tiny)
    assert (compile_row(SCALARS["exp"], (f32,))(np.array([-100.0, -103.0], np.float32)) > 0).all()
