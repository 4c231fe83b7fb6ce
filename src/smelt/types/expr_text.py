"""Print integer expressions: `n0*4 - i//2 + 1`.

>>> from smelt.types.expr import axis, size
>>> expr_text(size("n") * 4 - axis("i", 8) // 2 + 1, True)
'size(n)*4 - i//2 + 1'
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smelt.types.expr import Atom, Index

__all__ = ["atom_text", "expr_text"]


def _is_simple(e: Index) -> bool:
    """Whether an operand needs no parentheses."""
    if isinstance(e, int):
        return e >= 0
    if len(e.terms) != 1 or e.terms[0][1] != 1 or len(e.terms[0][0]) != 1:
        return False
    return e.terms[0][0][0].kind not in ("//", "%")


def atom_text(atom: Atom, index: bool) -> str:
    """Print an atom; with `index`, a size is `size(name)`, unlike an axis."""
    if atom.kind in ("axis", "value"):
        return atom.name
    if atom.kind == "size":
        return f"size({atom.name})" if index else atom.name
    parts = [expr_text(a, index) for a in atom.args]
    if atom.kind in ("min", "max"):
        return f"{atom.kind}({', '.join(parts)})"
    left, right = (p if _is_simple(a) else f"({p})" for p, a in zip(parts, atom.args, strict=True))
    return f"{left}{atom.kind}{right}"


@lru_cache(maxsize=8192)
def expr_text(e: Index, index: bool) -> str:
    """Print an expression in the order of the normal form, cached.

    With `index`, sizes are marked as `size(name)`.
    """
    if isinstance(e, int):
        return str(e)
    out = ""
    for m, c in e.terms:
        is_single = len(m) == 1 and (c == 1 or (c == -1 and out != ""))
        factors = [
            f"({atom_text(a, index)})"
            if a.kind in ("//", "%") and not is_single
            else atom_text(a, index)
            for a in m
        ]
        if abs(c) != 1 or not m:
            factors.append(str(abs(c)))
        sign = (" - " if c < 0 else " + ") if out else ("-" if c < 0 else "")
        out += sign + "*".join(factors)
    return out
