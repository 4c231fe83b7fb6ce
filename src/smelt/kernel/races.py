"""Who writes what: stores that no two blocks, visits or elements may share.

>>> from smelt.types.expr import axis, size
>>> r, c = axis("r", size("r")), axis("c", size("c"))
>>> determined((r * size("c") + c,)) == {"r", "c"}, determined((r + c,))
(True, set())
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from math import gcd

from smelt.kernel.bounds import Facts, nonnegative
from smelt.kernel.walk import substitute_index
from smelt.types import affine, expr
from smelt.types.expr import Atom, Expr, Index

Indices = tuple[Index, ...]


def determined(index: Indices) -> set[str]:
    """The axes that can be told from the numbers of an index.

    If that is all of the axes that a store runs over, it writes every element once.
    """
    known: set[str] = set()
    seen = _whole(index)
    while True:
        found: set[str] = set()
        for e in seen:
            found |= _told_by(e, known)
        if found <= known:
            return known
        known |= found


def _whole(index: Indices) -> list[Index]:
    """The expressions, and those that a quotient and a remainder among them add up to."""
    out = list(index)
    for _ in range(len(index)):
        quotients = {a.args: a for a in map(_alone, out) if a is not None and a.kind == "//"}
        for rest in [a for a in map(_alone, out) if a is not None and a.kind == "%"]:
            inner, divisor = rest.args
            nested = _alone(inner)
            joined = rest.args
            if rest.args not in quotients and nested is not None and nested.kind == "//":
                # (k//d) // c is written k // (d*c)
                joined = (nested.args[0], expr.mul(nested.args[1], divisor))
            if joined in quotients and inner not in out:
                out.append(inner)
    return out


def _alone(e: Index) -> Atom | None:
    """The atom that an expression is."""
    if not isinstance(e, Expr) or len(e.terms) != 1 or e.terms[0][1] != 1:
        return None
    atoms = e.terms[0][0]
    return atoms[0] if len(atoms) == 1 else None


def _told_by(e: Index, known: set[str]) -> set[str]:
    """Axes that the number `e` tells, given those already known."""
    if any(a.kind == "value" for a in expr.atoms(e)):
        return set()
    open_axes = [a for a in expr.axes_of(e) if a not in known]
    extents = {a.name: a.extent for a in expr.atoms(e) if a.kind == "axis"}
    digits: list[tuple[str, Index, Index]] = []
    for a in open_axes:
        scale = affine.coefficient(e, a)
        if scale is None:
            return set()
        size = next((s for s in (scale, expr.mul(scale, -1)) if _positive(s)), None)
        if size is None:
            return set()
        digits.append((a, size, extents[a]))
    if len(digits) > 4:
        return set()
    if any(_mixed_radix(order) for order in permutations(digits)):
        return set(open_axes)
    return set()


def _positive(e: Index) -> bool:
    return nonnegative(expr.sub(e, 1))


def _mixed_radix(digits: tuple[tuple[str, Index, Index], ...]) -> bool:
    """Whether each digit's place is worth more than all lower ones together."""
    reach: Index = 0
    for _, scale, extent in digits:
        if not _positive(expr.sub(scale, reach)):
            return False
        reach = expr.add(reach, expr.mul(scale, expr.sub(extent, 1)))
    return True


def disjoint(a: Indices, a_facts: Facts, b: Indices, b_facts: Facts) -> bool:
    """Whether two stores into one array can never meet, whatever their axes are."""
    b_own = _renamed((*b, *b_facts))
    b, b_facts = b_own[: len(b)], b_own[len(b) :]
    facts = a_facts + b_facts
    for left, right in zip(a, b, strict=True):
        gap = expr.sub(left, right)
        if nonnegative(expr.sub(gap, 1), facts) or nonnegative(
            expr.sub(expr.mul(gap, -1), 1), facts
        ):
            return True
        if _never_zero(gap):
            return True
    return False


def _renamed(index: Iterable[Index]) -> Indices:
    """The same expressions over axes of their own."""
    out: list[Index] = []
    for e in index:
        axes = {a.name: a for a in expr.atoms(e) if a.kind in ("axis", "value")}
        other = {
            name: expr.axis(f"{name}*", a.extent)
            if a.kind == "axis"
            else expr.value(f"{name}*", a.extent)
            for name, a in axes.items()
        }
        out.append(substitute_index(e, other))
    return tuple(out)


def _never_zero(e: Index) -> bool:
    """Whether e is a multiple of some number, plus what is not."""
    if isinstance(e, int):
        return e != 0
    common = gcd(*(c for m, c in e.terms if m))
    constant = next((c for m, c in e.terms if not m), 0)
    return constant % common != 0
