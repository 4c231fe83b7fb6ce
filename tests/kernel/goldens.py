"""The golden kernels of tests/golden/kernels, by name."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden" / "kernels"


def _read(path: Path) -> str:
    head, _, body = path.read_text().partition("\n")
    assert head == f"[case {path.stem}]", path
    return body.rstrip("\n")


GOLDENS: dict[str, str] = {path.stem: _read(path) for path in sorted(FOLDER.glob("*.case"))}
