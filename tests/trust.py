"""Numbers that tests measure for docs/trust.md, which `python -m tools.trust` collects."""

from __future__ import annotations

import json
import os
from pathlib import Path

FILE = "TRUST_VALUES"
"""Environment variable with the file that numbers are appended to; without it none is kept."""


def measured(name: str, value: float) -> None:
    """Records a number under a name in plain words."""
    print(f"{name}: {value:,.6g}")
    if place := os.environ.get(FILE):
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, value]) + "\n")
