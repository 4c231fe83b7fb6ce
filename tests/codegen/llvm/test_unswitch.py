"""Selects by outer positions: rows of one position take its sides only."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse

import smelt as sm
from smelt.codegen.llvm.module import emit


def doubled(a: sm.Array, b: sm.Array) -> sm.Array:
    """Scan x[t] = a[t] * x[t - 1] + b[t] along the first axis, by halving.

    So does PyTorch's `associative_scan`: concatenations of results stand in concatenated results
    again.
    """
    count = int(b.shape[0])
    if count < 2:
        return b
    last = count - count % 2
    odd = doubled(a[1::2] * a[:last:2], a[1::2] * b[:last:2] + b[1::2])
    if count == 2:
        return sm.concat([b[:1], odd], axis=0)
    even = a[2::2] * (odd[:-1] if count % 2 == 0 else odd) + b[2::2]
    even = sm.concat([b[:1], even], axis=0)
    if count % 2:
        odd = sm.concat([odd, odd[:1]], axis=0)
    pairs = sm.stack([even, odd], axis=1)
    return sm.reshape(pairs, (2 * pairs.shape[0], *b.shape[1:]))[:count]


def kernel(count: int, isa: str | None = None) -> SingleKernel:
    kind = sm.spec((count, "m", "n"), "f32")
    return fuse(sm.jit(doubled).lower(kind, kind).as_text(), isa)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("count", [11, 16])
def test_every_way_is_right_and_reads_nothing_else(count: int, isa: str) -> None:
    rng = np.random.default_rng(5)
    built = kernel(count, isa)
    for m, n in ((1, 1), (3, 16), (2, 31), (20, 33), (1, 300)):
        a, b = rng.standard_normal((2, count, m, n)).astype(np.float32)
        (wanted,), (actual,) = built.expected(a, b), built(a, b)
        np.testing.assert_array_equal(actual, wanted, err_msg=f"{m} {n}")
        for at_end in (True, False):
            assert run_guarded(built, [a, b], at_end=at_end)[0].tobytes() == actual.tobytes()


def test_scans_whose_lines_have_open_sizes_are_planned() -> None:
    """Rounds over rows had a view as a member that nobody in them reads."""
    kind = sm.spec((11, "m", "n"), "f32")
    jitted = sm.jit(doubled).lower(kind, kind).compile()
    a, b = np.random.default_rng(3).standard_normal((2, 11, 4, 5)).astype(np.float32)
    wanted = [b[0]]
    for k in range(1, 11):
        wanted.append(a[k] * wanted[-1] + b[k])
    np.testing.assert_allclose(np.asarray(jitted(a, b)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(RUNNABLE[0] != "avx512", reason="other sets test lanes in loops")
def test_a_way_loads_its_own_side_alone() -> None:
    # In one loop for all places every vector read 26 others, most of them under masks.
    kind = sm.spec((11, 16, 128), "f32")
    text = sm.jit(doubled).lower(kind, kind).compile().as_text("llvm")
    _, joining = text.rsplit("define", 1)
    loops = [x for x in re.split(r"\n\S+:\n", joining) if "store" in x]
    loads = [len(re.findall(r"load.*<\d+ x float>", x)) for x in loops]
    assert min(loads) == 1 and max(loads) <= 8, loads


BESIDE = """graph f(x: f32[16,n,m], y: f32[16,n,m], z: f32[n,m], s: f32[{k},n,m]) {{
  a = reshape(x) {{shape=(16, 1, n, m)}}
  b = reshape(y) {{shape=(16, 1, n, m)}}
  pairs = concat(a, b) {{axis=1}}
  v = reshape(pairs) {{shape=(32, n, m)}}
  e = exp(z)
  w = mul(v, e)
  {small}
  return w, t
}}"""


@pytest.mark.parametrize(
    ("small", "k", "entries"),
    [
        ("t = neg(s)", 1, 2),
        ("t = neg(z)", 1, 2),  # both read it at the same places
        ("t = neg(e)", 1, 1),  # which is dear
        ("t = neg(s)", 16, 1),  # has axes of its own
    ],
)
def test_a_small_result_beside_a_large_one_leaves_it_its_grid(small, k, entries) -> None:
    for isa in RUNNABLE:
        single = fuse(BESIDE.format(small=small, k=k), isa)
        assert len(emit(single.kernel, single.target).entries) == entries
        for n, m in ((0, 3), (1, 1), (3, 31), (2, 130)):
            shapes = (16, n, m), (16, n, m), (n, m), (k, n, m)
            arrays = [np.random.default_rng(n).standard_normal(t).astype("f4") for t in shapes]
            sizes, inputs = {"n": n, "m": m}, {p.name for p in single.kernel.inputs}
            for at_end in (True, False):
                read = [a for p, a in zip("xyzs", arrays) if p in inputs]
                result = run_guarded(single, read, at_end=at_end, sizes=sizes)
                for got, wanted in zip(result, single.expected(*arrays), strict=True):
                    np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=f"{n} {m}")
