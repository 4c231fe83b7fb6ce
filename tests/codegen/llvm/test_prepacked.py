"""Right operands that are packed once in a call, for tasks of few rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse
from tests.codegen.llvm.test_contractions import whole_numbers
from tests.codegen.llvm.variants import TYPES, forced

import smelt as sm
from smelt.codegen.build import select_variant
from smelt.codegen.llvm.module import emit
from smelt.machine.blocks import PREPACKED, UNPACKED

ROWS = """graph f(x: {t}[{x}m,k], w: {t}[{w}]) {{
  s = contract(x, w) {{spec="{x}m,k; {w} -> {x}m,n"}}
  h = reduce.max(s) {{axes=({axis},)}}
  u = reshape(h) {{shape=({x}m,1)}}
  y = sub(s, u)
  return y
}}"""


def rows(w: str, dtype: str = "f32", x: str = "") -> str:
    return ROWS.format(t=dtype, x=x, w=w, axis=2 if x else 1)


def test_form_follows_from_sizes() -> None:
    kernel = fuse(rows("k,n"), "avx512")  # compiled, not run
    least = {"m": UNPACKED.mc + 1, "n": 512, "k": 512}
    assert select_variant(kernel.variants, least) == "packed"
    assert select_variant(kernel.variants, {**least, "m": UNPACKED.mc}) == ""
    assert select_variant(kernel.variants, {**least, "n": 24, "k": 1 << 14}) == ""  # no whole panel
    assert select_variant(kernel.variants, {**least, "n": 128}) == ""  # small enough as it lies
    assert select_variant(kernel.variants, {**least, "k": PREPACKED // 512 + 1}) == ""
    first, second = emit(kernel.kernel, kernel.target, variant="packed").entries
    assert "pack" in first.symbol
    assert second.symbol == "k0"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("isa", RUNNABLE)
def test_every_layout(isa: str, dtype: str) -> None:
    for layout in ("k,n", "n,k"):
        kernel = forced(rows(layout, dtype), isa, "packed")
        for m, n, k in ((1, 1, 1), (9, 33, 5), (70, 64, 300), (50, 100, 17)):
            x = whole_numbers((m, k), TYPES[dtype], m)
            w = whole_numbers((k, n) if layout == "k,n" else (n, k), TYPES[dtype], n)
            for at_end in (False, True):
                actual = run_guarded(kernel, [x, w], at_end=at_end)[0]
                assert np.array_equal(actual, kernel.expected(x, w)[0]), (layout, m, n, k)


def test_one_operand_for_each_of_several_positions() -> None:
    kernel = forced(rows("b,k,n", x="b,"), RUNNABLE[0], "packed")
    x, w = whole_numbers((3, 20, 9), "f4", 1), whole_numbers((3, 9, 50), "f4", 2)
    assert np.array_equal(run_guarded(kernel, [x, w], at_end=True)[0], kernel.expected(x, w)[0])


def test_same_bits_for_any_threads_and_strides() -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s).astype("f4") for s in ((430, 700), (700, 2 * 230)))

    def code(x: Any, w: Any) -> Any:
        s = x @ w
        return s - sm.max(s, axis=1, keepdims=True)

    actual: list[bytes] = []
    for threads in (1, 2, 3):
        for right in (w[:, ::2], np.ascontiguousarray(w[:, ::2])):
            with sm.config(threads=threads):
                actual.append(np.asarray(sm.jit(code)(x, right)).tobytes())
    assert len(set(actual)) == 1
    got = np.frombuffer(actual[0], "f4").reshape(430, 230)
    exact = x.astype("f8") @ w[:, ::2].astype("f8")
    sizes = abs(x).astype("f8") @ abs(w[:, ::2]).astype("f8")
    off = abs(got - (exact - exact.max(axis=1, keepdims=True)))
    assert np.all(off <= (512 + 700 / 96) * 2.0**-24 * (sizes + sizes.max(axis=1, keepdims=True)))
