"""Integers divide exactly: by constants without any division, by one another as floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

from smelt.codegen.build import asm_text
from smelt.machine.target import Target

Array = np.ndarray[Any, Any]
TYPES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
DIVISORS = (
    *(1, 2, 3, 5, 7, 10, 12, 25, 60, 64, 127, 641, 3600, 2**31 - 1, 2**32, 2**32 + 1, 10**9 + 7),
    *(2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, -1, -2, -7, -10, -(2**63)),
)


def source(dtype: str, divisors: list[int]) -> str:
    lines, names = [], []
    for k, d in enumerate(divisors):
        lines += [f" q{k} = floordiv(x, {d}:{dtype})", f" r{k} = mod(x, {d}:{dtype})"]
        names += [f"q{k}", f"r{k}"]
    body = "\n".join(lines)
    return f"graph f(x: {dtype}[n]) {{\n{body}\n return {', '.join(names)}\n}}"


def numbers(dtype: np.dtype[Any], divisors: list[int]) -> Array:
    """The ends of the type, and what lies around multiples of the divisors."""
    rng, info = np.random.default_rng(1), np.iinfo(dtype)
    results = [info.min, info.min + 1, info.max, info.max - 1, 0, 1]
    results += [int(v) for v in rng.integers(info.min, info.max, 40, dtype=dtype, endpoint=True)]
    for d in divisors:
        most = info.max // abs(d)
        times = [0, 1, most, most - 1, *(int(t) for t in rng.integers(0, most, 8, np.uint64, True))]
        results += [sign * (t * d + off) for t in times for off in (-1, 0, 1) for sign in (1, -1)]
    return np.array([v for v in results if info.min <= v <= info.max], dtype)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", TYPES)
def test_by_constants(name: str, isa: Any) -> None:
    dtype = np.dtype(name.replace("i", "int") if name[0] == "i" else name.replace("u", "uint"))
    info = np.iinfo(dtype)
    divisors = [d for d in DIVISORS if info.min <= d <= info.max]
    x = numbers(dtype, divisors)
    result = fuse(source(name, divisors), isa)(x)
    with np.errstate(over="ignore"):
        wanted = [f(x, dtype.type(d)) for d in divisors for f in (np.floor_divide, np.remainder)]
    for k, (a, b) in enumerate(zip(result, wanted, strict=True)):
        assert np.array_equal(a, b), (divisors[k // 2], x[a != b][:3], a[a != b][:3])


@pytest.mark.parametrize("name", [n for n in TYPES if "64" not in n])
def test_by_one_another(name: str) -> None:
    dtype = np.dtype(name.replace("i", "int") if name[0] == "i" else name.replace("u", "uint"))
    x = numbers(dtype, [d for d in DIVISORS if d in range(-100, 100)])
    x, y = np.repeat(x[::3], len(x[::2])), np.tile(x[::2], len(x[::3]))
    code = (
        f"graph f(x: {name}[n], y: {name}[n]) {{\n q = floordiv(x, y)\n r = mod(x, y)\n"
        " return q, r\n}"
    )
    for isa in RUNNABLE:
        q, r = fuse(code, isa)(x, y)
        with np.errstate(all="ignore"):
            assert np.array_equal(q, np.floor_divide(x, y)), isa
            assert np.array_equal(r, np.remainder(x, y)), isa


@pytest.mark.parametrize("name", ["i64", "u64"])
def test_no_lane_is_divided_on_its_own(name: str) -> None:
    kernel = fuse(source(name, [7, 1000]), RUNNABLE[-1]).kernel
    asm = asm_text(kernel, Target.for_isa("avx512"))
    assert "vpmuludq" in asm
    assert "vpextrq" not in asm and "divq" not in asm
