"""Pages with a measured part: what stands between two marks is what a tool measured last."""

from __future__ import annotations

import re
from pathlib import Path

MARKS = r"(<!-- measured -->\n).*?(<!-- end: measured -->)"


def write(page: Path, found: str) -> None:
    """Puts `found` between the marks of a page.  Raises ValueError where there are none."""
    text, count = re.subn(
        MARKS, lambda m: m[1] + found + m[2], page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{page.name} has {count} measured parts, not one")
    page.write_text(text, encoding="utf-8")
