"""How integer expressions are written: `n0*4 - i//2 + 1`.

>>> from smelt.types.expr import axis, size
>>> written(size("n") * 4 - axis("i", 8) // 2 + 1, True)
'size(n)*4 - i//2 + 1'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smelt.types.expr import Index

__all__ = ["is_simple", "written"]


def is_simple(e: Index) -> bool:
    """Whether an operand needs no parentheses."""
    if isinstance(e, int):
        return e >= 0
    if len(e.terms) != 1 or e.terms[0][1] != 1 or len(e.terms[0][0]) != 1:
        return False
    return e.terms[0][0][0].kind not in ("//", "%")


def written(e: Index, index: bool) -> str:
    """Terms in the normal form's order; with `index`, sizes are told from axes."""
    if isinstance(e, int):
        return str(e)
    out = ""
    for m, c in e.terms:
        alone = len(m) == 1 and (c == 1 or (c == -1 and out != ""))
        factors = [f"({a.text(index)})" if a.kind in ("//", "%") and not alone
                   else a.text(index) for a in m]  # fmt: skip
        if abs(c) != 1 or not m:
            factors.append(str(abs(c)))
        sign = (" - " if c < 0 else " + ") if out else ("-" if c < 0 else "")
        out += sign + "*".join(factors)
    return out
