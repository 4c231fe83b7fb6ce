"""Strided vectors that several rows share are gathered once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse
from tests.codegen.llvm.variants import forced

from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_schedules import build_schedules
from smelt.loop.passes.reuse_loads import NOWHERE

SCALED = """graph f(x: f32[m,{d}*g], w: {t}[n,{d}*g], s: f32[n,g], z: f32[n,g]) {{
 c = cast(w) {{dtype=f32}}
 u = reshape(c) {{shape=(n, g, {d})}}
 v = reshape(s) {{shape=(n, g, 1)}}
 q = reshape(z) {{shape=(n, g, 1)}}
 e = sub(u, q)
 a = mul(e, v)
 b = reshape(a) {{shape=(n, {d}*g)}}
 y = contract(x, b) {{spec="m,k; n,k -> m,n"}}
 return y
}}"""
"""Groups of so many summed positions have a scale and a zero point each."""
PACKED = """graph f(x: f32[m,8*g], w: u8[n,4*g], s: f32[n,g]) {
 l = and(w, 15:u8)
 h = shr(w, 4:u8)
 i = reshape(l) {shape=(n, 4*g, 1)}
 j = reshape(h) {shape=(n, 4*g, 1)}
 k = concat(i, j) {axis=2}
 c = cast(k) {dtype=f32}
 u = reshape(c) {shape=(n, g, 8)}
 v = reshape(s) {shape=(n, g, 1)}
 a = mul(u, v)
 b = reshape(a) {shape=(n, 8*g)}
 y = contract(x, b) {spec="m,k; n,k -> m,n"}
 return y
}"""
"""Two numbers to a byte, which lie along the sum."""
SIZES = ((1, 1, 1), (13, 33, 2), (37, 129, 9), (70, 97, 17))
NUMBERS = {"f32": "f4", "u8": "u1", "i8": "i1"}


def drawn(code: str, m: int, n: int, g: int, seed: int) -> list[np.ndarray[Any, Any]]:
    """Arguments of whole numbers, so that sums are exact."""
    kernel, rng = fuse(code, RUNNABLE[0]), np.random.default_rng(seed)
    size_values, result = {"m": m, "n": n, "g": g}, list[np.ndarray[Any, Any]]()
    for x in kernel.graph.inputs:
        shape = tuple(
            d if isinstance(d, int) else int(eval(str(d), {}, size_values)) for d in x.type.shape
        )
        low, high = (-4, 5) if x.type.dtype.name in ("f32", "i8") else (0, 256)
        result.append(rng.integers(low, high, shape).astype(NUMBERS[x.type.dtype.name]))
    return result


CODES = [PACKED, *(SCALED.format(d=d, t=t) for d, t in ((1, "f32"), (3, "u8"), (16, "f32")))]


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("code", CODES, ids=range(len(CODES)))
def test_every_form_says_the_same(isa: str, code: str) -> None:
    for variant in (
        "",
        *(f for f, *_ in fuse(code, isa).variants if f in ("k_blocked", "small_m", "panels")),
    ):
        kernel = forced(code, isa, variant) if variant else fuse(code, isa)
        for m, n, g in SIZES:
            inputs = drawn(code, m, n, g, m + n)
            for at_end in (False, True):
                actual = run_guarded(kernel, inputs, at_end=at_end)[0]
                assert np.array_equal(actual, kernel.expected(*inputs)[0]), (variant, m, n, g)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0])
def test_numbers_of_one_group_stay_in_it(special: float) -> None:
    code = SCALED.format(d=16, t="f32")
    kernel = fuse(code, RUNNABLE[0])
    for m, n, g in SIZES[1:]:
        inputs = drawn(code, m, n, g, 5)
        inputs[2][n // 2, g // 2] = inputs[3][n - 1, 0] = special
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(kernel(*inputs)[0], kernel.expected(*inputs)[0])


@pytest.mark.parametrize("isa", RUNNABLE)
def test_what_is_shared_is_gathered_where_it_begins(isa: str) -> None:
    """Shared lanes are gathered once: before a transposed weight, in the loops over a plain one."""
    for code in CODES:
        kernel = fuse(code, isa)
        (phase,) = program(kernel.kernel).phases
        for variant in {f for f, *_ in kernel.variants if f in ("k_blocked", "small_m", "panels")}:
            schedules = build_schedules(phase, kernel.target, variant)
            nest = schedules[0].nests[0].packs[1]
            text = emit(kernel.kernel, kernel.target, variant=variant).llvm
            assert (str(NOWHERE) in text) == (code == PACKED), (variant, code)
            assert (nest.order[0] == nest.vector) == (code == PACKED)
