"""The core operators: fewer are left to torch over time, and every row agrees with it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tools import torch_operators as coverage  # noqa: E402

from smelt.frontends.torch.table import TABLE  # noqa: E402

ROOT = Path(__file__).parents[3]
MAX_EXTERN = 15
"""Lower it when an operator gets a row; never raise it."""
NEWEST = torch.__version__.startswith("2.13")


def test_every_row_names_an_operator_of_torch():
    for name in TABLE:
        space, packet, overload = name.split(".")
        if name != "prims.fma.default":  # Dynamo's own, which it registers when it meets one
            assert hasattr(getattr(getattr(torch.ops, space), packet), overload), name


@pytest.mark.skipif(not NEWEST, reason="the core set differs between versions of torch")
def test_the_extern_list_only_shrinks():
    actual = coverage.core_operators()
    extern = [s.name for s in actual if s.status == "extern"]
    assert len(actual) >= 190
    assert len(extern) == MAX_EXTERN, extern
    assert not [s.name for s in actual if s.status == "extern" and not s.note]


@pytest.mark.skipif(not NEWEST, reason="the core set differs between versions of torch")
def test_the_page_is_not_stale():
    expected = coverage.render_page(coverage.core_operators())
    assert (ROOT / "docs" / "torch_operators.md").read_text(encoding="utf-8") == expected


def test_reasons_are_of_operators_that_are_left():
    left = {s.name.split(".")[1] for s in coverage.core_operators() if s.status == "extern"}
    if NEWEST:
        assert not set(coverage.EXTERN_REASONS) - left, "a reason for what is computed now"
    assert set(coverage.PARTIAL_SUPPORT) <= set(TABLE)
