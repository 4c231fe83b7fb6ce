"""The model orders programs as the clock does."""

from __future__ import annotations

import pytest
from tests.fusion.ranks import correlations, run, spearman


@pytest.mark.clock
def test_ranks_agree() -> None:
    assert spearman([1.0, 2.0, 3.0], [10.0, 20.0, 21.0]) > 0.999
    actual = run()
    assert len(actual) >= 25
    times, gains = correlations(actual)
    print(f"rank correlation of times {times:.3f}, of what fusing saves {gains:.3f}")
    assert times >= 0.8
    assert gains >= 0.6
