"""Analyse index expressions: their axes, strides along an axis, and overlap.

>>> from smelt.types.expr import axis, size
>>> i = axis("i", size("n"))
>>> coefficient(i * 4 + size("n"), "i"), split_constant(i + 3)[0] == split_constant(i + 1)[0]
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


def dependent_axes(index: Iterable[Index], of: Callable[[str], frozenset[str]]) -> frozenset[str]:
    """Return the axes of index expressions.

    Also those that `of` returns for the computed positions in them.
    """
    axes: set[str] = set()
    for e in index:
        for atom in atoms(e):
            if atom.kind == "axis":
                axes.add(atom.name)
            elif atom.kind == "value":
                axes |= of(atom.name)
    return frozenset(axes)


# Equal axes may differ in their extents, on which the result does not depend.
@lru_cache(maxsize=8192)
def coefficient(e: Index, name: str) -> Index | None:
    """Return the stride of axis `name` in `e`, free of axes.

    None if `e` is not affine in the axis.
    """
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


def split_constant(e: Index) -> tuple[tuple[tuple[Monomial, int], ...], int]:
    """Split an expression into its terms with atoms and its constant.

    Expressions with the same terms differ by a number.
    """
    terms = terms_of(e)
    return (terms[:-1], terms[-1][1]) if terms and not terms[-1][0] else (terms, 0)


def may_overlap(e: Index) -> bool:
    """Whether different positions of the axes may give the same number, as in windows.

    Axes into which a dimension was split do not overlap: each steps over everything that shorter
    ones reach.

    >>> from smelt.types.expr import axis, size
    >>> i, j = axis("i", size("n")), axis("j", 4)
    >>> (
    ...     may_overlap(i + j),
    ...     may_overlap(i * 2 + j),
    ...     may_overlap(i * 4 + j),
    ...     may_overlap(j * size("n") + i),
    ... )
    (True, True, False, False)
    """
    axes = [a for m, _ in terms_of(e) for a in m if a.kind == "axis"]
    if len(axes) != len(set(axes)) or len(axes) != len(axes_of(e)):
        return True
    steps = {a: coefficient(e, a.name) for a in axes}
    return not _nested({a: s for a, s in steps.items() if s is not None}, len(axes))


def _nested(steps: dict[Atom, Index], count: int) -> bool:
    """Whether some order lets each axis step over all that earlier ones reach."""
    if len(steps) < count:
        return False
    reach: Index = 0
    while steps:
        outer = [a for a, s in steps.items() if nonnegative(sub(s, add(reach, 1)))]
        smallest = [a for a in outer if all(nonnegative(sub(s, steps[a])) for s in steps.values())]
        if not smallest:
            return False
        reach = add(reach, mul(steps.pop(smallest[0]), sub(smallest[0].extent, 1)))
    return True
