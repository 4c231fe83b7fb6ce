"""Facts about a compiled program, read from the JSON of its report.

Every number may be missing: it is None then, and printed as unknown, never guessed.

>>> from_report('{"total": {"kernels": 2, "operators": 9, "compile_seconds": 0.005}}')
Facts(kernels=2, operators=9, bytes_fused=None, bytes_unfused=None, compile_seconds=0.005)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Facts(NamedTuple):
    """Counters of a compiled program."""

    kernels: int | None = None
    """Kernels that the plan launches."""
    operators: int | None = None
    """Kernels without fusion: one per operator."""
    bytes_fused: int | None = None
    """Bytes read and written by the plan."""
    bytes_unfused: int | None = None
    """Bytes read and written without fusion."""
    compile_seconds: float | None = None
    """From the traced program to loaded native code."""

    @property
    def bytes_avoided(self) -> int | None:
        """Bytes of intermediates that are neither written nor read again."""
        if self.bytes_fused is None or self.bytes_unfused is None:
            return None
        return self.bytes_unfused - self.bytes_fused


def from_report(report: str | Mapping[str, Any]) -> Facts:
    """Return facts from `Report.to_json()`, as text or as a mapping."""
    data: Any = json.loads(report) if isinstance(report, str) else report
    total: Mapping[str, Any] = data.get("total") or {}
    return Facts(
        kernels=total.get("kernels"),
        operators=total.get("operators"),
        bytes_fused=total.get("bytes"),
        bytes_unfused=total.get("bytes_unfused"),
        compile_seconds=total.get("compile_seconds"),
    )
