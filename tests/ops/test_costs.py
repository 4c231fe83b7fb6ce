"""The column `cost` orders operators as the clock does."""

from __future__ import annotations

import pytest
from tests.fusion.ranks import spearman
from tests.ops.costs import measured

from smelt.ops.scalar import SCALARS

NAMES = ("div", "exp", "erf", "sigmoid", "tanh", "log1p", "erfc", "asinh", "logaddexp", "pow")
"""Rows of all prices, none of which drowns in reading and writing."""


@pytest.mark.clock
def test_dearer_rows_take_longer() -> None:
    actual = list(measured(SCALARS[n] for n in NAMES))
    assert spearman([row.cost for row, _ in actual], [cost for _, cost in actual]) > 0.8, actual
