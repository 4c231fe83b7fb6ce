"""Polynomials as mappings from monomials to coefficients: division, as far as it is exact.

What a monomial's factors are does not matter here; `smelt.types.expr` says that.  A monomial is a
tuple of factors in an order of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import gcd
from typing import Protocol, TypeVar


class Factor(Protocol):
    """What monomials are products of."""

    def order(self) -> tuple[str, str]:
        """Where it stands among other factors."""
        ...


F = TypeVar("F", bound=Factor)

MOST_CONTENT = 64
"""What divides all terms of a sum, up to which each of its divisors is tried."""
STEPS = 8
"""Terms of a quotient at most: more are not looked for."""


def divides(
    term: tuple[tuple[F, ...], int], monomial: tuple[F, ...], c: int
) -> tuple[tuple[F, ...], int] | None:
    """monomial*c / term, or None where that has a rest."""
    factors, k = term
    if not k or c % k:
        return None
    left = list(monomial)
    for a in factors:
        if a not in left:
            return None
        left.remove(a)
    return tuple(left), c // k


def divide(
    terms: Iterable[tuple[tuple[F, ...], int]], divisor: Iterable[tuple[tuple[F, ...], int]]
) -> tuple[Mapping[tuple[F, ...], int], Mapping[tuple[F, ...], int]]:
    """(q, r) with terms = q*divisor + r: long division by the divisor's leading term, the one of
    most factors (Cox, Little and O'Shea, Ideals, Varieties, and Algorithms, 2.3)."""
    q: dict[tuple[F, ...], int] = {}
    r = dict(terms)
    divisor = tuple(divisor)
    lead = max(divisor, key=lambda t: (len(t[0]), [a.order() for a in t[0]]))
    for _ in range(STEPS):
        parts = (divides(lead, m, c) for m, c in r.items() if c)
        part = next((p for p in parts if p is not None), None)
        if part is None:
            break
        factors, times = part
        q[factors] = q.get(factors, 0) + times
        for m, c in divisor:
            both = tuple(sorted(m + factors, key=lambda a: a.order()))
            r[both] = r.get(both, 0) - c * times
    return q, r


def contents(terms: Collection[tuple[tuple[F, ...], int]]) -> Iterable[int]:
    """Numbers above 1 that divide all terms: of a sum each of them, of a product the largest.  A
    number has none: it is what remains to be divided by."""
    if all(not m for m, _ in terms):
        return ()
    whole = gcd(*(c for _, c in terms))
    if len(terms) == 1 or whole > MOST_CONTENT:
        return (whole,) if whole > 1 else ()
    return (k for k in range(2, whole + 1) if whole % k == 0)


def steps(
    terms: Iterable[tuple[tuple[F, ...], int]],
    divisor: Collection[tuple[tuple[F, ...], int]],
    fixed: Callable[[F], bool],
) -> Iterator[tuple[Mapping[tuple[F, ...], int], Mapping[tuple[F, ...], int]]]:
    """(p, k) with divisor = p*k, where the terms may be p*x + y with 0 <= y < p: k is a number that
    divides all of the divisor, or p is what a term has of factors that are fixed."""
    for k in contents(divisor):
        yield {m: c // k for m, c in divisor}, {(): k}
    (by, times), *others = divisor
    for m, c in () if others or times < 0 else terms:
        step = tuple(a for a in m if fixed(a)), abs(c)
        coarse = None if step == ((), 1) else divides(step, by, times)
        if coarse is not None and coarse != ((), 1):
            yield dict((step,)), dict((coarse,))


__all__ = ["divide", "divides", "steps"]
