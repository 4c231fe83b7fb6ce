"""Old contents of scratch memory are never computed with.

Subnormal numbers there would make a product ten times as slow.

The processor tells: its flag of subnormal operands stays unset.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import llvmlite.binding as llvm
import numpy as np
import pytest
from tests.codegen.compile_scalar import target_machine
from tests.codegen.llvm.guard_pages import Guarded, run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

from smelt.codegen.llvm.scratch.workspace import STAMP

_FLAGS = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @read(ptr %place) {
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  ret void
}
define void @write(ptr %place) {
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  ret void
}
"""
_SUBNORMAL = 2
_EXCEPTIONS = 0x3F

PRODUCTS = {
    "packed": 'graph f(x: f32[m,k], y: f32[k,n]) {\n z = contract(x, y) {spec="m,k; k,n -> m,n"}\n'
    " return z\n}",
    "across": 'graph f(x: f32[m,k], y: f32[n,k]) {\n z = contract(x, y) {spec="m,k; n,k -> m,n"}\n'
    " return z\n}",
    "both": 'graph f(x: f32[k,m], y: f32[k,n]) {\n z = contract(x, y) {spec="k,m; k,n -> m,n"}\n'
    " return z\n}",
    "rows": "graph f(x: f32[b,m,k], y: f32[n,k]) {\n"
    ' z = contract(x, y) {spec="b,m,k; n,k -> b,m,n"}\n return z\n}',
}
SHAPES = {
    "packed": lambda m, k, n: ((m, k), (k, n)),
    "across": lambda m, k, n: ((m, k), (n, k)),
    "both": lambda m, k, n: ((k, m), (k, n)),
    "rows": lambda m, k, n: ((3, m, k), (n, k)),
}


@pytest.fixture(scope="module")
def seen() -> Iterator[Callable[[Callable[[], Any]], bool]]:
    """Whether a call computes with subnormal numbers."""
    if platform.machine() != "x86_64":
        pytest.skip("MXCSR is x86's")
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly(_FLAGS), target_machine("portable", fresh=True)
    )
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    read, write = (kind(engine.get_function_address(name)) for name in ("read", "write"))

    def seen(call: Callable[[], Any]) -> bool:
        word = ctypes.c_uint32()
        read(ctypes.addressof(word))
        word.value &= ~_EXCEPTIONS
        write(ctypes.addressof(word))
        call()
        read(ctypes.addressof(word))
        return bool(word.value & _SUBNORMAL)

    yield seen
    del engine


def _left_over(self: Guarded, nbytes: int, *, at_end: bool, block: Any = Guarded.block) -> int:
    """Memory full of subnormal numbers."""
    place = block(self, nbytes, at_end=at_end)
    ones = np.ones(nbytes // 4, np.int32)
    ctypes.memmove(place, ones.ctypes.data, ones.nbytes)
    return place


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, isa: str, seen: Callable[[Callable[[], Any]], bool]) -> None:
    kernel = fuse(PRODUCTS[name], isa, usual=True)
    for m, k, n in ((8, 8, 8), (70, 37, 33), (13, 100, 150), (30, 250, 257)):
        arrays = [np.ones(shape, "f4") for shape in SHAPES[name](m, k, n)]
        with mock.patch.object(Guarded, "block", _left_over):
            assert not seen(partial(run_guarded, kernel, arrays, at_end=True)), (m, k, n)


def test_deep_products(seen: Callable[[Callable[[], Any]], bool]) -> None:
    """Rows that are computed before they are multiplied, and tiles that hang over."""
    code = """graph f(x: f32[m,k], y: f32[k,n]) {
 e = exp(x)
 z = contract(e, y) {spec="m,k; k,n -> m,n"}
 return z
}"""
    kernel = fuse(code)
    for m, k, n in ((300, 301, 305), (299, 301, 150), (301, 700, 257)):
        arrays = [np.ones(shape, "f4") for shape in ((m, k), (k, n))]
        with mock.patch.object(Guarded, "block", _left_over):
            assert not seen(partial(run_guarded, kernel, arrays, at_end=True)), (m, k, n)


WINDOWS = {
    "windows": ("b,c,h,w,u,v; o,c,u,v -> b,o,h,w", "x: f32[b,c,h,w], k: f32[o,c,{t},{t}]", 2),
    "nhwc": ("b,h,w,c,u,v; u,v,c,o -> b,h,w,o", "x: f32[b,h,w,c], k: f32[{t},{t},c,o]", 1),
    "stencil": ("b,c,h,w,u,v; c,u,v -> b,c,h,w", "x: f32[b,c,h,w], k: f32[c,{t},{t}]", 2),
}


def _windows(name: str, taps: int, step: int) -> str:
    spec, inputs, axis = WINDOWS[name]
    margins = ["0"] * 4
    margins[axis] = margins[axis + 1] = str(taps // 2)
    margin = ", ".join(margins)
    return f"""graph f({inputs.format(t=taps)}) {{
  v0 = pad(x) {{low=({margin}), high=({margin}), value=0}}
  v1 = window(v0) {{axis={axis}, extent={taps}, step={step}, dilation=1}}
  v2 = window(v1) {{axis={axis + 1}, extent={taps}, step={step}, dilation=1}}
  v3 = contract(v2, k) {{spec="{spec}"}}
  return v3
}}"""


def _sides(name: str, taps: int, at: tuple[int, int, int, int]) -> list[tuple[int, ...]]:
    batch, side, c, o = at
    if name == "nhwc":
        return [(batch, side, side, c), (taps, taps, c, o)]
    weights = (o, c, taps, taps) if name == "windows" else (c, taps, taps)
    return [(batch, c, side, side), weights]


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(
    name: str, taps: int, step: int, isa: str, seen: Callable[[Callable[[], Any]], bool]
) -> None:
    """Between lines, beyond the last one, and rows and columns that no tile is full of."""
    kernel = fuse(_windows(name, taps, step), isa)
    for at in ((1, 7, 30, 33), (3, 13, 9, 50), (2, 28, 40, 17), (5, 5, 16, 16)):
        arrays = [np.ones(shape, "f4") for shape in _sides(name, taps, at)]
        with mock.patch.object(Guarded, "block", _left_over):
            assert not seen(partial(run_guarded, kernel, arrays, at_end=True)), at


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("count", [8, 10, 33, 48, 64, 200])
def test_windows_with_weights_in_rows(
    count: int, isa: str, seen: Callable[[Callable[[], Any]], bool]
) -> None:
    """Rows that some tasks pack and others do not, if their number is known."""
    text = _windows("windows", 3, 1).replace("f32[o,c,", f"f32[{count},16,").replace(",c,", ",16,")
    kernel = fuse(text.replace("b,16,h,w,u,v; o,16,u", "b,c,h,w,u,v; o,c,u"), isa)
    arrays = [np.ones(shape, "f4") for shape in _sides("windows", 3, (1, 14, 16, count))]
    with mock.patch.object(Guarded, "block", _left_over):
        assert not seen(partial(run_guarded, kernel, arrays, at_end=True))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_matrix_vector_products(isa: str, seen: Callable[[Callable[[], Any]], bool]) -> None:
    kernel = fuse(PRODUCTS["across"], isa)
    for m, k, n in ((3, 1000, 1000), (7, 300, 700), (2, 37, 100)):
        arrays = [np.ones(shape, "f4") for shape in SHAPES["across"](m, k, n)]
        with mock.patch.object(Guarded, "block", _left_over):
            assert not seen(partial(run_guarded, kernel, arrays, at_end=True)), (m, k, n)


def test_operands_are_cleared_for_another_layout_only(
    seen: Callable[[Callable[[], Any]], bool],
) -> None:
    """Tasks of one kernel that follow one another in a thread do not pay for it."""
    kernel = fuse(_windows("windows", 3, 1))
    memory, block = np.zeros(1 << 20, np.int32), Guarded.block

    def scratch(self: Guarded, nbytes: int, *, at_end: bool) -> int:
        return memory.ctypes.data if nbytes > 1 << 16 else block(self, nbytes, at_end=at_end)

    def call(side: int) -> bool:
        arrays = [np.ones(shape, "f4") for shape in _sides("windows", 3, (1, side, 9, 20))]
        with mock.patch.object(Guarded, "block", scratch):
            return seen(partial(run_guarded, kernel, arrays, at_end=True))

    assert not call(7)
    memory[STAMP // 4 :] = 1
    assert call(7)  # nobody but this kernel was there, as far as it is told
    assert not call(5)
    memory[:] = 1
    assert not call(7)
