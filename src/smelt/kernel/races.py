"""Prove that stores of different blocks, visits or elements do not overlap.

>>> from smelt.types.expr import axis, size
>>> r, c = axis("r", size("r")), axis("c", size("c"))
>>> determined_axes((r * size("c") + c,)) == {"r", "c"}, determined_axes((r + c,))
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


def determined_axes(index: Indices) -> set[str]:
    """Return the axes whose values follow from the value of an index (injectivity).

    If these are all axes that a store runs over, it writes every element once.
    """
    determined_so_far: set[str] = set()
    expressions = _with_recombined(index)
    while True:
        solved: set[str] = set()
        for e in expressions:
            solved |= _solve(e, determined_so_far)
        if solved <= determined_so_far:
            return determined_so_far
        determined_so_far |= solved


def _with_recombined(index: Indices) -> list[Index]:
    """Return the expressions and those that a quotient and a remainder recombine to."""
    out = list(index)
    for _ in range(len(index)):
        quotients = {a.args: a for a in map(_single_atom, out) if a is not None and a.kind == "//"}
        for rest in [a for a in map(_single_atom, out) if a is not None and a.kind == "%"]:
            inner, divisor = rest.args
            nested = _single_atom(inner)
            quotient_args = rest.args
            if rest.args not in quotients and nested is not None and nested.kind == "//":
                # (k//d) // c is written k // (d*c)
                quotient_args = (nested.args[0], expr.mul(nested.args[1], divisor))
            if quotient_args in quotients and inner not in out:
                out.append(inner)
    return out


def _single_atom(e: Index) -> Atom | None:
    """Return the atom that an expression consists of, or None."""
    if not isinstance(e, Expr) or len(e.terms) != 1 or e.terms[0][1] != 1:
        return None
    atoms = e.terms[0][0]
    return atoms[0] if len(atoms) == 1 else None


def _solve(e: Index, solved: set[str]) -> set[str]:
    """Return the axes determined by the value of `e`, given those already known."""
    if any(a.kind == "value" for a in expr.atoms(e)):
        return set()
    open_axes = [a for a in expr.axes_of(e) if a not in solved]
    extents = {a.name: a.extent for a in expr.atoms(e) if a.kind == "axis"}
    digits: list[tuple[str, Index, Index]] = []
    for a in open_axes:
        scale = affine.coefficient(e, a)
        if scale is None:
            return set()
        size = next((s for s in (scale, expr.mul(scale, -1)) if _is_positive(s)), None)
        if size is None:
            return set()
        digits.append((a, size, extents[a]))
    if len(digits) > 4:
        return set()
    if any(_mixed_radix(order) for order in permutations(digits)):
        return set(open_axes)
    return set()


def _is_positive(e: Index) -> bool:
    return nonnegative(expr.sub(e, 1))


def _mixed_radix(digits: tuple[tuple[str, Index, Index], ...]) -> bool:
    """Return whether each digit's weight exceeds the sum of all lower digits."""
    reach: Index = 0
    for _, scale, extent in digits:
        if not _is_positive(expr.sub(scale, reach)):
            return False
        reach = expr.add(reach, expr.mul(scale, expr.sub(extent, 1)))
    return True


def disjoint(a: Indices, a_facts: Facts, b: Indices, b_facts: Facts) -> bool:
    """Return whether two stores to one array can never touch the same element."""
    renamed = _renamed((*b, *b_facts))
    b, b_facts = renamed[: len(b)], renamed[len(b) :]
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
    """Rename the axes of expressions apart from those of another store."""
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
    """Return whether e is nonzero modulo the common factor of its coefficients."""
    if isinstance(e, int):
        return e != 0
    common = gcd(*(c for m, c in e.terms if m))
    constant = next((c for m, c in e.terms if not m), 0)
    return constant % common != 0
