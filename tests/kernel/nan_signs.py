"""Run kernels with the other sign of every NaN that arithmetic makes.

IEEE 754 gives a NaN that arithmetic makes no sign, and processors differ: that of `inf - inf` is
negative on x86 and positive on Arm and GPUs, that of `nan + -nan` has the sign of either operand. A
result that depends on it, by `signbit` or `copysign`, may be any of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from smelt.kernel.evaluate import Evaluator, Tile
from smelt.kernel.ir import Apply, Cast, Dot, Reduce, Scan, Value

MOVES = ("neg", "abs", "copysign", "select")
"""Operators that say which sign their result has, or take it from an operand."""


@contextmanager
def other_nan_signs(noise: float = 0) -> Iterator[None]:
    """Make the interpreter of kernels give computed NaN the other sign.

    With `noise`, sums and other reductions of floats change by about so much of their results, as
    they do when their elements are combined in another order.
    """
    plain, random = Evaluator.value, np.random.default_rng(0)

    def changed(self: Evaluator, v: Value) -> Tile:
        tile = plain(self, v)
        computes = isinstance(v, Cast | Reduce | Scan | Dot)
        computes |= isinstance(v, Apply) and v.op not in MOVES
        if not computes or tile.data.dtype.kind in "iub":
            return tile
        data = np.where(np.isnan(tile.data), np.negative(tile.data), tile.data)
        if noise and isinstance(v, Reduce | Scan | Dot):
            data = data * (1 + noise * random.standard_normal(data.shape))
        return Tile(tile.axes, tile.start, data.astype(tile.data.dtype))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "value", changed)
        yield
