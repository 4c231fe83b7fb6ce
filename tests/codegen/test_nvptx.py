"""Kernels printed for threads: their results on the CPU, their PTX, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.cuda.fake_driver import FakeDriver
from tests.runtime.cuda.fake_threads import fake_threads

import smelt as sm
from smelt.codegen.nvptx.source import ThreadCompiler
from smelt.codegen.nvptx.thread import WARP, print_threads
from smelt.compiler.device import use_compiler
from smelt.errors import DeviceKernelError
from smelt.kernel.text import parse
from smelt.runtime.cuda.driver import use_library

GOLDENS = Path(__file__).parents[1] / "golden" / "nvptx"


def softmax(x):
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


def norm(x, w):
    return x * w / sm.sqrt(sm.mean(x * x, axis=1, keepdims=True) + 1e-6)


MATRIX = (5, 70)
PROGRAMS = {
    "map": (lambda x: sm.tanh(x) * 2 + 1, [MATRIX]),
    "broadcast": (lambda x, y: x[:, None] * y - 1, [(5,), (70,)]),
    "transposed": (lambda x: sm.exp(x.T) * 2, [MATRIX]),
    "flipped": (lambda x: sm.flip(x, axis=1) + sm.roll(x, 3, axis=1), [MATRIX]),
    "padded": (lambda x: sm.pad(x, ((1, 2), (3, 0)), constant_values=4.0) * 2, [MATRIX]),
    "concatenated": (lambda x: sm.concat([x, x * 2], axis=1), [MATRIX]),
    "selected": (lambda x: sm.where(x > 0, x, sm.log1p(sm.abs(x))), [MATRIX]),
    "integers": (lambda x: sm.astype(x * 10, sm.int32) // 3 % 5, [MATRIX]),
    "halves": (lambda x: sm.astype(x, sm.float16) * 2, [MATRIX]),
    "bfloats": (lambda x: sm.astype(sm.astype(x, sm.bfloat16) * 2, sm.float32), [MATRIX]),
    "softmax": (softmax, [MATRIX]),
    "norm": (norm, [MATRIX, (70,)]),
    "columns": (lambda x: sm.sum(x, axis=0) / 3, [MATRIX]),
    "extremes": (lambda x: sm.max(x, axis=1) - sm.min(x, axis=1), [MATRIX]),
    "any": (lambda x: sm.any(x > 2, axis=1), [MATRIX]),
    "total": (lambda x: sm.sum(x * x), [MATRIX]),
    "variance": (lambda x: sm.var(x, axis=1), [MATRIX]),
}


def run_on_threads(function, arrays):
    fake = FakeDriver()
    with use_library(fake), use_compiler(fake_threads()), sm.config(cache=False):
        result = sm.jit(function)(*(sm.asarray(a, device="cuda:0") for a in arrays))
        data = np.asarray(result.to_device("cpu"))
        fake.check()
    return data


@pytest.mark.parametrize("name", PROGRAMS)
def test_threads_compute_what_the_cpu_does(name):
    function, shapes = PROGRAMS[name]
    random = np.random.default_rng(9)
    arrays = [random.standard_normal(s).astype(np.float32) for s in shapes]
    wanted = np.asarray(sm.jit(function)(*arrays))
    actual = run_on_threads(function, arrays)
    assert actual.dtype == wanted.dtype
    np.testing.assert_allclose(actual.astype(np.float64), wanted.astype(np.float64), 2e-6, 2e-6)


@pytest.mark.parametrize("name", ["rounded", "selected", "halves", "bfloats", "integers"])
def test_maps_have_the_cpu_s_bits(name):
    """Formulas that choose tables on some processors (tanh) may differ in the last bit."""
    function = PROGRAMS[name][0] if name in PROGRAMS else lambda x: sm.sqrt(sm.abs(x)) / (x * x + 1)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, 1.5], np.float32)
    x = np.concatenate([special, np.random.default_rng(3).standard_normal(200).astype(np.float32)])
    wanted = np.asarray(sm.jit(function)(x))
    actual = run_on_threads(function, [x])
    kind = f"u{wanted.dtype.itemsize}"
    is_nan = wanted != wanted
    np.testing.assert_array_equal(actual != actual, is_nan)
    np.testing.assert_array_equal(actual.view(kind)[~is_nan], wanted.view(kind)[~is_nan])


@pytest.mark.parametrize("name", ["int8", "uint32", "uint64", "float16"])
def test_conversions_have_the_cpu_s_bits(name):
    """Floats that fit no integer too, and float64 is rounded to float16 once."""
    x = np.array([0.0, np.inf, -np.inf, np.nan, 3e9, -3e9, 1e20, -129.9, 1.0009765625 + 2.0**-30])
    x = x if name == "float16" else x.astype(np.float32)

    def convert(x):
        return sm.astype(x * 1, getattr(sm, name))

    np.testing.assert_array_equal(run_on_threads(convert, [x]), np.asarray(sm.jit(convert)(x)))


def test_extremes_keep_nan():
    x = np.ones((2, 40), np.float32)
    x[1, 33] = np.nan
    actual = run_on_threads(lambda x: sm.max(x, axis=1), [x])
    assert actual[0] == 1 and np.isnan(actual[1])


ROWS = """
kernel rows(x: f32[n,m]) -> y: f32[n]
  axis i in n, j in m
  grid i
  v0 = sum(x[i,j] over j)
  y[i] = v0
"""
COLUMNS = """
kernel columns(x: f32[n,m]) -> y: f32[m]
  axis i in n, j in m
  grid j
  v0 = max(x[i,j] over i)
  y[j] = v0
"""
MAP = """
kernel map(x: f32[n], y: f16[n]) -> z: f16[n]
  grid n/4096
  z[n] = exp(x[n]) / y[n] + x[n] * 2
"""


@pytest.mark.parametrize("text", [ROWS, COLUMNS, MAP], ids=["rows", "columns", "map"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_ptx_has_the_instructions_of_its_golden(text, arch):
    """Instructions by kind, without registers and labels, which versions of LLVM number anew."""
    kernel = parse(text)
    code = ThreadCompiler().prepare(kernel, {})[1](arch)
    ptx = code.images[0].rstrip(b"\0").decode()
    assert (
        f".target {min(arch, 'sm_90', key=lambda a: int(a[3:]))}" in ptx
        and f".visible .entry kernel_{kernel.name}(" in ptx
    )
    lines = [re.sub(r"^@!?%p\d+ ", "", x.strip()).split()[0] for x in ptx.splitlines() if x.strip()]
    kinds = [x for x in lines if re.match(r"(ld|st|shfl|fma|div|add\.rn|cvt|max|bra)\b", x)]
    path = GOLDENS / f"{kernel.name}.txt"
    assert "\n".join(kinds) + "\n" == path.read_text(), f"{path}\n" + "\n".join(kinds)


def test_rows_are_read_by_warps_and_columns_by_threads():
    assert print_threads(parse(ROWS)).lanes == WARP
    assert print_threads(parse(COLUMNS)).lanes == 1
    assert print_threads(parse(MAP)).lanes == 1


def test_nothing_contracts():
    """A product and a sum stay two instructions: `fma` is where a formula says so."""
    text = (
        "kernel k(x: f32[n], y: f32[n]) -> z: f32[n]\n  grid n/4096\n  z[n] = x[n] * y[n] + x[n]\n"
    )
    ptx = ThreadCompiler().prepare(parse(text), {})[1]("sm_90").images[0].decode()
    assert "mul.rn.f32" in ptx and "add.rn.f32" in ptx and "fma" not in ptx


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: sm.argmax(x, axis=1), [MATRIX]),
        (lambda x: sm.cumulative_sum(x, axis=1), [MATRIX]),
        (lambda x, y: x @ y, [(20, 30), (30, 20)]),
    ],
    ids=["argmax", "scan", "product"],
)
def test_what_threads_do_not_compute_is_refused(function, shapes):
    arrays = [np.ones(s, np.float32) for s in shapes]
    with pytest.raises(DeviceKernelError, match="which PTX by LLVM has not"):
        run_on_threads(function, arrays)
