"""The table of losses: equal results of all libraries, and its cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.losses import BUILDERS, TITLES, measure, operands, page, table


def flat(built: Any) -> list[np.ndarray[Any, Any]]:
    """All arrays of a nest of results; losses beside gradients come last."""
    if isinstance(built, (tuple, list)):
        return [a for part in built for a in flat(part)]
    return [np.asarray(built.detach() if hasattr(built, "detach") else built)]


@pytest.mark.parametrize("case", TITLES)
def test_every_library_computes_the_same(case: str) -> None:
    pytest.importorskip("torch")
    arrays = operands(case, 16)
    ours, theirs = (flat(BUILDERS[peer](case)(*arrays)) for peer in ("smelt", "torch"))
    for got, want in zip(ours[-len(theirs) :], theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_figures_and_their_table() -> None:
    actual = measure("head", "smelt", rounds=1, share=16)
    assert actual["ns"] > 0
    assert actual["bytes"] >= 0
    figures = {"head": {"smelt": {"ns": 2e6, "bytes": 2**21}, "torch": {"ns": 3e6, "bytes": 2**22}}}
    (row,) = table(figures).rows
    assert row[1:] == ("2.00 ms", "3.00 ms", "2 MiB", "4 MiB", "1.50")
    assert "2 MiB" in page(figures)
