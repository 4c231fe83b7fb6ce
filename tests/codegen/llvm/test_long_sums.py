"""Long sums of products with small results lose no more than a block's roundings, split or not."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.test_contractions import matrices
from tests.codegen.llvm.whole import RUNNABLE, whole

from smelt.blocks import LONG_SUM, THIN_DEPTH

LONG, LARGE = 2 * LONG_SUM, 1 << 24
"""Summed positions, and a product to which no float32 smaller than 2 can be added."""
SHAPES = ((1, 7), (1, 300), (4, 300), (7, 5), (16, 16), (17, 64), (64, 8), (129, 2), (150, 70))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("spec", ["m,k; k,n -> m,n", "k,m; k,n -> m,n", "m,k; n,k -> m,n"])
def test_ones_after_a_large_product_are_not_lost(spec: str, isa: str) -> None:
    """Those of the first product's own block may be, and no others."""
    kernel = whole(matrices("f32", spec), isa)
    assert len(kernel.built.functions) == 1  # nothing is split
    for m, n in SHAPES:
        known = {"m": m, "n": n, "k": LONG}
        x, y = (np.ones([known[str(d)] for d in node.type.shape], "f4")
                for node in kernel.graph.inputs)  # fmt: skip
        for a, node in ((x, kernel.graph.inputs[0]), (y, kernel.graph.inputs[1])):
            np.moveaxis(a, [str(d) for d in node.type.shape].index("k"), 0)[0] = LARGE**0.5
        (found,) = kernel(x, y)
        assert np.abs(found - float(LARGE + LONG - 1)).max() <= THIN_DEPTH, known


@pytest.mark.parametrize("positions", [6000, LONG_SUM - 1, LONG_SUM + 5000])
def test_equal_products_round_no_more_often_than_they_are_added(positions: int) -> None:
    """All roundings in one direction: the worst that products of one sign do."""
    kernel = whole(matrices("f32", "m,k; k,n -> m,n"), RUNNABLE[0])
    for m, n in SHAPES:
        x, y = np.full((m, positions), 0.1, "f4"), np.full((positions, n), 0.3, "f4")
        (found,) = kernel(x, y)
        exact = positions * float(x[0, 0]) * float(y[0, 0])
        assert np.abs(found - exact).max() <= min(positions, LONG_SUM) * 2.0**-24 * exact, (m, n)
