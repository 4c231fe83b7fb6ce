"""A measured part of a page is replaced, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import measured


def test_only_what_was_measured_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- measured -->\nold\n\\1\n<!-- end: measured -->\nb\n", encoding="utf-8")
    measured.write(page, "| \\1 | µs |\n")
    actual = page.read_text(encoding="utf-8")
    assert actual == "a\n<!-- measured -->\n| \\1 | µs |\n<!-- end: measured -->\nb\n"


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n", encoding="utf-8")
    with pytest.raises(ValueError, match="0 measured parts"):
        measured.write(page, "b")
    assert page.read_text(encoding="utf-8") == "a\n"
