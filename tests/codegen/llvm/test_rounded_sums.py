"""Products whose sums are rounded or cut to another type as they are stored, in poisoned memory."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.codegen.llvm.guarded import run_guarded
from tests.codegen.llvm.whole import RUNNABLE, whole

from smelt.types.dtype import bf16

SUMS = {"i64": np.int64, "i32": np.int32, "f64": np.float64, "f32": np.float32}
RESULTS = {
    "i8": np.dtype("i1"), "i16": np.dtype("i2"), "i32": np.dtype("i4"), "i64": np.dtype("i8"),
    "f16": np.dtype("f2"), "bf16": bf16.numpy, "f32": np.dtype("f4"), "f64": np.dtype("f8"),
}  # fmt: skip
SPECS = ("m,k; k,n -> m,n", "m,k; n,k -> m,n", "k,m; k,n -> m,n")
SIZES = ((70, 33, 65), (5, 40, 200), (1, 64, 48), (130, 7, 16))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("sums", SUMS)
def test_every_type_of_sums_and_results(sums: str, result: str, isa: str) -> None:
    rng = np.random.default_rng(0)
    for spec in SPECS:
        left, right = (s.strip() for s in spec.partition("->")[0].split(";"))
        cast = "" if sums == result else f" r = cast(s) {{dtype={result}}}\n"
        kernel = whole(
            f"graph f(x: {sums}[{left}], y: {sums}[{right}]) {{\n"
            f' s = contract(x, y) {{spec="{spec}"}}\n{cast} return {"r" if cast else "s"}\n}}', isa
        )  # fmt: skip
        for (m, k, n), at_end in product(SIZES, (False, True)):
            x, y = (rng.integers(-1, 2, (m, k)), rng.integers(-1, 2, (k, n)))
            want = (x @ y).astype(RESULTS[result])
            a = (x if left == "m,k" else x.T).astype(SUMS[sums])
            b = (y if right == "k,n" else y.T).astype(SUMS[sums])
            found = run_guarded(kernel, [np.ascontiguousarray(a), np.ascontiguousarray(b)],
                                at_end=at_end)[0]  # fmt: skip
            assert np.array_equal(found, want), (spec, m, k, n)
