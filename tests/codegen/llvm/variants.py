"""Compile kernels in a chosen variant, whatever the sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import SingleKernel, fuse
from tests.codegen.llvm.test_contractions import matrices, whole_numbers

TYPES = {"f32": "f4", "f64": "f8", "i32": "i4"}


@cache
def forced(code: str, isa: str, variant: str = "panels") -> SingleKernel:
    """The kernel in one of these forms whatever the sizes: for calls that see its functions."""
    kernel = fuse(code, isa)
    assert variant in [name for name, *_ in kernel.variants]
    built, loaded = kernel.variant_code(variant)
    return replace(kernel, built=built, loaded=loaded, variants=())


def is_right_in_every_layout(
    isa: str, dtype: str, variant: str, every: tuple[tuple[int, int, int], ...]
) -> None:
    """Of integers, whose sums are exact, at either end of what may be touched."""
    for left, right in product(("m,k", "k,m"), ("k,n", "n,k")):
        kernel = forced(matrices(dtype, f"{left}; {right} -> m,n"), isa, variant)
        for m, n, k in every:
            shapes = {"m,k": (m, k), "k,m": (k, m), "k,n": (k, n), "n,k": (n, k)}
            x, y = (whole_numbers(shapes[s], TYPES[dtype], m) for s in (left, right))
            for at_end in (False, True):
                actual = run_guarded(kernel, [x, y], at_end=at_end, one_by_one=not at_end)[0]
                assert np.array_equal(actual, kernel.expected(x, y)[0]), (left, right, m, n, k)


def is_right_with_what_surrounds(
    kernel: SingleKernel, every: tuple[tuple[int, int, int], ...]
) -> None:
    """A product of x and w between operators that read b, r, c or positions i."""
    rng = np.random.default_rng(3)
    for m, n, k in every:
        shapes = {"x": (m, k), "w": (k, n), "b": (n,), "r": (m, n), "c": (m,)}
        by_name = {name: whole_numbers(shape, "f4", m) for name, shape in shapes.items()} | {
            "i": rng.integers(0, m, m)
        }
        arrays = [by_name[str(node.op.label)] for node in kernel.graph.inputs]
        read = [by_name[p.name] for p in kernel.kernel.inputs]
        result = run_guarded(kernel, read, at_end=True, sizes={"m": m, "n": n, "k": k})
        for got, wanted in zip(result, kernel.expected(*arrays), strict=True):
            assert np.array_equal(got, wanted), (m, n, k)
