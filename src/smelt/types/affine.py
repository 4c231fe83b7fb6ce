"""What index expressions depend on: all their axes, the stride along one, what moves as they do.

>>> from smelt.types.expr import axis, size
>>> i = axis("i", size("n"))
>>> coefficient(i * 4 + size("n"), "i"), without_constant(i + 3)[0] == without_constant(i + 1)[0]
(4, True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from smelt.types.expr import (
    Atom,
    Expr,
    Index,
    Monomial,
    add,
    atoms,
    axes_of,
    mul,
    nonnegative,
    sub,
    terms_of,
)

__all__ = ["axes_through", "coefficient", "overlaps", "without_constant"]


def axes_through(index: Iterable[Index], of: Callable[[str], frozenset[str]]) -> frozenset[str]:
    """The axes of index expressions, those included `of` computed positions in them."""
    found: set[str] = set()
    for e in index:
        for atom in atoms(e):
            if atom.kind == "axis":
                found.add(atom.name)
            elif atom.kind == "value":
                found |= of(atom.name)
    return frozenset(found)


@lru_cache(
    maxsize=8192
)  # of names and numbers: extents, in which equal axes may differ, do not count
def coefficient(e: Index, name: str) -> Index | None:
    """The stride of axis `name` in `e` (an expression without axes), or None if not affine."""
    total: Index = 0
    for m, c in terms_of(e):
        hits = [a for a in m if a.kind == "axis" and a.name == name]
        nested = any(name in axes_of(x) for a in m for x in a.args)
        others = any(axes_of(Expr((((a,), 1),))) for a in m if a not in hits)
        if nested or len(hits) > 1 or (hits and others):
            return None
        if hits:
            rest = tuple(a for a in m if a is not hits[0])
            total = add(total, Expr(((rest, c),)) if rest else c)
    return total


def without_constant(e: Index) -> tuple[tuple[tuple[Monomial, int], ...], int]:
    """The terms with atoms, and the constant, which the normal form has last: expressions that have
    the same terms differ by a number."""
    terms = terms_of(e)
    return (terms[:-1], terms[-1][1]) if terms and not terms[-1][0] else (terms, 0)


def overlaps(e: Index) -> bool:
    """Whether different positions of its axes may give the same number, as those of a window do.
    Axes that a dimension was cut into do not: each steps over all that shorter ones reach.

    >>> from smelt.types.expr import axis, size
    >>> i, j = axis("i", size("n")), axis("j", 4)
    >>> overlaps(i + j), overlaps(i * 2 + j), overlaps(i * 4 + j), overlaps(j * size("n") + i)
    (True, True, False, False)
    """
    found = [a for m, _ in terms_of(e) for a in m if a.kind == "axis"]
    if len(found) != len(set(found)) or len(found) != len(axes_of(e)):
        return True
    steps = {a: coefficient(e, a.name) for a in found}
    return not _nested({a: s for a, s in steps.items() if s is not None}, len(found))


def _nested(steps: dict[Atom, Index], count: int) -> bool:
    """Whether axes can be ordered so that each steps over all that those before it reach."""
    if len(steps) < count:
        return False
    reach: Index = 0
    while steps:
        over = [a for a, s in steps.items() if nonnegative(sub(s, add(reach, 1)))]
        least = [a for a in over if all(nonnegative(sub(s, steps[a])) for s in steps.values())]
        if not least:
            return False
        reach = add(reach, mul(steps.pop(least[0]), sub(least[0].extent, 1)))
    return True
