"""Products with a long sum and a small result: the sum is split and merged in order."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse
from tests.codegen.llvm.test_contractions import is_tiled, matrices, whole_numbers
from tests.codegen.llvm.test_dot_product import MORE, drawn, grouped, source, wanted

import smelt as sm
from smelt.machine.blocks import LONG_SUM

SPECS = ("m,k; k,n -> m,n", "k,m; k,n -> m,n", "m,k; n,k -> m,n", "b,k,m; b,k,n -> b,m,n")


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("spec", SPECS)
def test_parts_of_any_length(spec: str, isa: str) -> None:
    """Fewer positions than parts, none at all, and parts of several blocks."""
    kernel = fuse(matrices("f32", spec), isa, k=2 * LONG_SUM, b=1)
    assert len(kernel.built.functions) == 2
    names = "".join(c for c in spec.partition("->")[0] if c.isalpha())
    for (m, n), k in product(((1, 1), (5, 40), (20, 33)), (0, 1, 15, 17, 300, 5000)):
        size_values = {"m": m, "n": n, "k": k, "b": 2 if "b" in names else 1}
        arrays = [
            whole_numbers(tuple(size_values[str(d)] for d in node.type.shape), "f4", place)
            for place, node in enumerate(kernel.graph.inputs)
        ]
        (actual,) = kernel(*arrays)
        assert np.array_equal(actual, kernel.expected(*arrays)[0]), size_values


@pytest.mark.parametrize("pair", ["bf16 bf16", "i8 i8", "i16 i16"])
def test_short_numbers(pair: str) -> None:
    kernel = fuse(source(pair), features=MORE, k=2 * LONG_SUM)
    assert len(kernel.built.functions) == 2
    first, second = pair.split()
    for m, n, k in ((3, 40, 1000), (30, 17, 2100)):
        x, y = drawn(first, (m, k), m), drawn(second, (k, n), n)
        assert np.array_equal(kernel(x, y)[0], wanted(x, y))
    usual = fuse(source(pair), features=MORE, k=2 * LONG_SUM, usual=True)
    assert grouped(usual) == (first != "bf16" or usual.target.has_fast_bf16_dot)
    assert np.array_equal(usual(x, y)[0], wanted(x, y))


def test_what_follows_fuses_behind_the_merge() -> None:
    code = """graph f(x: f32[k,m], y: f32[k,n], b: f32[n]) {
      s = contract(x, y) {spec="k,m; k,n -> m,n"}
      t = add(s, b)
      z = max(t, 0.0:f32)
      return z
    }"""
    kernel = fuse(code, k=2 * LONG_SUM)
    assert is_tiled(kernel, RUNNABLE[0]) is False  # the merge is not a product
    for m, n, k in ((13, 33, 700), (1, 5, 40)):
        x, y, b = (whole_numbers(s, "f4", 1) for s in ((k, m), (k, n), (n,)))
        right = np.maximum(x.T.astype("f8") @ y + b, 0)
        assert np.array_equal(kernel(x, y, b)[0], right)
        assert np.array_equal(run_guarded(kernel, [x, y, b], at_end=True)[0], right)


def test_short_sums_and_large_results_stay_whole() -> None:
    spec = SPECS[1]
    assert len(fuse(matrices("f32", spec), k=LONG_SUM - 1).built.functions) == 1
    assert len(fuse(matrices("f32", spec), k=LONG_SUM, n=4096).built.functions) == 1


def test_the_same_bits_for_every_number_of_threads() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((LONG_SUM + 77, 24)).astype("f4")
    gram = sm.jit(lambda x: sm.matrix_transpose(x) @ x)
    actual: list[bytes] = []
    for threads in (1, 2, 3):
        with sm.config(threads=threads):
            actual.append(np.asarray(gram(x)).tobytes())
    assert actual[0] == actual[1] == actual[2]
