"""Replace the measured part of a page, between two marks, by a tool's latest output."""

from __future__ import annotations

import re
from pathlib import Path

MARKS = r"(<!-- measured -->\n).*?(<!-- end: measured -->)"


def write(page: Path, table: str) -> None:
    """Put a table between the marks of a page; raise ValueError without the marks."""
    text, count = re.subn(
        MARKS, lambda m: m[1] + table + m[2], page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{page.name} has {count} measured parts, not one")
    page.write_text(text, encoding="utf-8")
