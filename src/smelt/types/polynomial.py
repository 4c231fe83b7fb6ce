"""Divide polynomials, given as mappings from monomials to coefficients, as far as exact.

What a monomial's factors mean does not matter here (see `smelt.types.expr`). A monomial is a sorted
tuple of factors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import gcd
from typing import Protocol, TypeVar


class Factor(Protocol):
    """A factor of a monomial."""

    def order(self) -> tuple[str, str]:
        """Return its sort key among other factors."""
        ...


F = TypeVar("F", bound=Factor)

MAX_CONTENT = 64
"""Largest common divisor of the terms of a sum whose divisors are all tried."""
MAX_QUOTIENT_TERMS = 8
"""Most terms of a quotient that are computed."""


def divide_term(
    term: tuple[tuple[F, ...], int], monomial: tuple[F, ...], c: int
) -> tuple[tuple[F, ...], int] | None:
    """Return monomial*c / term; None if that has a remainder."""
    factors, k = term
    if not k or c % k:
        return None
    remaining = list(monomial)
    for a in factors:
        if a not in remaining:
            return None
        remaining.remove(a)
    return tuple(remaining), c // k


def divide(
    terms: Iterable[tuple[tuple[F, ...], int]], divisor: Iterable[tuple[tuple[F, ...], int]]
) -> tuple[Mapping[tuple[F, ...], int], Mapping[tuple[F, ...], int]]:
    """Return (q, r) with terms = q*divisor + r.

    Long division by the divisor's leading term, the one of most factors (Cox, Little and O'Shea,
    Ideals, Varieties, and Algorithms, 2.3).
    """
    q: dict[tuple[F, ...], int] = {}
    r = dict(terms)
    divisor = tuple(divisor)
    lead = max(divisor, key=lambda t: (len(t[0]), [a.order() for a in t[0]]))
    for _ in range(MAX_QUOTIENT_TERMS):
        parts = (divide_term(lead, m, c) for m, c in r.items() if c)
        part = next((p for p in parts if p is not None), None)
        if part is None:
            break
        factors, times = part
        q[factors] = q.get(factors, 0) + times
        for m, c in divisor:
            both = tuple(sorted(m + factors, key=lambda a: a.order()))
            r[both] = r.get(both, 0) - c * times
    return q, r


def common_divisors(terms: Collection[tuple[tuple[F, ...], int]]) -> Iterable[int]:
    """Return numbers above 1 that divide all terms.

    For a sum each of them, for a product the largest. A number has none.
    """
    if all(not m for m, _ in terms):
        return ()
    common = gcd(*(c for _, c in terms))
    if len(terms) == 1 or common > MAX_CONTENT:
        return (common,) if common > 1 else ()
    return (k for k in range(2, common + 1) if common % k == 0)


def factorizations(
    terms: Iterable[tuple[tuple[F, ...], int]],
    divisor: Collection[tuple[tuple[F, ...], int]],
    fixed: Callable[[F], bool],
) -> Iterator[tuple[Mapping[tuple[F, ...], int], Mapping[tuple[F, ...], int]]]:
    """Yield factorizations (p, k) of the divisor that may simplify a quotient.

    divisor = p*k, and the terms may be p*x + y with 0 <= y < p. k is a number that divides all of
    the divisor, or p is the part of a term with `fixed` factors.
    """
    for k in common_divisors(divisor):
        yield {m: c // k for m, c in divisor}, {(): k}
    (monomial, times), *others = divisor
    for m, c in () if others or times < 0 else terms:
        step = tuple(a for a in m if fixed(a)), abs(c)
        coarse = None if step == ((), 1) else divide_term(step, monomial, times)
        if coarse is not None and coarse != ((), 1):
            yield dict((step,)), dict((coarse,))


__all__ = ["divide", "divide_term", "factorizations"]
