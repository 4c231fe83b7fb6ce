"""Resident memory of this process, as the operating system counts it.

The peak comes from `VmHWM` of Linux and not from `getrusage`, which survives `exec`: a child would
report its large parent's peak as its own. `reset_peak` resets the peak, so that it can cover a
part of the work; where the system has no such counters, the peak covers the complete process.

>>> resident_bytes() > 0 and peak_bytes() >= 0
True
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): resets the peak resident set size to what is resident now


def resident_bytes() -> int:
    """Return the resident memory of this process, or its peak where only that is available."""
    now = _status("VmRSS")
    return peak_bytes() if now is None else now


def peak_bytes() -> int:
    """Return the peak resident memory since the start or `reset_peak`."""
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024  # macOS counts bytes


def reset_peak() -> bool:
    """Reset the peak; return False where the system cannot."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)
        return True
    return False


def _status(field: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None
