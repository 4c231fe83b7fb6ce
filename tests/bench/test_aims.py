"""The lists of missed aims agree with the measured tables of their pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tools import convolutions

from bench import apart, attention, losses, products
from bench.sheet import rows_below_targets, sheet
from bench.table import Table

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "apart": apart.AIMS,
    "attention": attention.AIMS,
    "convolutions": convolutions.AIMS,
    "losses": losses.AIMS,
    "products": products.AIMS,
}


@pytest.mark.parametrize(("page", "aims"), PAGES.items())
def test_pages_list_what_is_below(page: str, aims: Mapping[str, float]) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    table = _listed(text)
    assert table.rows and rows_below_targets(table, aims) in text


def _listed(text: str) -> Table:
    """The table whose rows the page's list is of: the last one before it."""
    before = text[: text.index("should be at least")]
    return Table.of_markdown(before[max(before.rfind(mark) for mark in ("\n\n|", "-->\n|")) :])


def test_a_page_without_aims_has_no_list() -> None:
    table = Table("t", ("row", "gain"), (("a", "0.50"),))
    assert "Below" not in sheet("T", "t", "x\n\ny\n\nz", table)
    assert "- `gain` should be at least 1. Below it: a (0.50)." in sheet(
        "T", "t", "x\n\ny\n\nz", table, aims={"gain": 1.0}
    )


def test_a_markdown_table_is_read_as_it_was_written() -> None:
    table = Table("t", ("row", "gain"), (("a, b", "0.50"), ("c", "–")))
    assert Table.of_markdown("Before.\n\n" + table.markdown() + "\n\nAfter.", "t") == table
