"""Say in one sentence what fusion did: the first line of a report's text and of its page.

sentence(report.to_json()["total"])   # 7 operators became 1 kernel; 182 MB through memory ..
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.explain.units import show_bytes, show_count, show_factor


def sentence(total: Mapping[str, Any]) -> str:
    """Return the sentence about a report's totals, given as they are in JSON.

    >>> total = {"operators": 7, "kernels": 1, "calls": 0, "exact": True}
    >>> sentence(total | {"bytes": 18_100_000, "bytes_unfused": 182_000_000})
    '7 operators became 1 kernel; 182 MB through memory became 18.1 MB (10.1x less)'

    The words are "run as" where nothing was fused.
    """
    operators, kernels, calls = (total[name] for name in ("operators", "kernels", "calls"))
    moved, unfused = total["bytes"], total["bytes_unfused"]
    units = [show_count(kernels, "kernel")] if kernels or not calls else []
    units += [show_count(calls, "library call")] if calls else []
    fused = operators > kernels + calls
    verb = "became" if fused else "runs as" if operators == 1 else "run as"
    shown = ("" if total["exact"] else "at most ") + show_bytes(moved)
    if unfused > moved:
        factor = f" ({show_factor(unfused / moved)} less)" if moved else ""
        traffic = f"{show_bytes(unfused)} through memory became {shown}{factor}"
    else:
        traffic = f"{shown} through memory"
    return f"{show_count(operators, 'operator')} {verb} {' and '.join(units)}; {traffic}"
