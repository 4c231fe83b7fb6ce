"""Divide polynomials as far as exact, and prove that they are never negative.

A polynomial is a mapping from monomials to coefficients, or its items. A monomial is a sorted tuple
of factors; what they mean does not matter here (see `smelt.types.expr`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce
from itertools import product
from math import comb, gcd, prod
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
"""Maximum terms of a quotient that are computed."""
PROOF_STEPS = 4096
"""Maximum steps of one proof of a sign, counted by `proof_steps`."""


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


def is_nonnegative(
    terms: Collection[tuple[tuple[F, ...], int]], positive: Callable[[F], bool]
) -> bool:
    """Return whether a polynomial of nonnegative factors is provably >= 0.

    Factors for which `positive` holds are at least 1: x = x' + 1. Then coefficients that are all
    nonnegative suffice. The number of coefficients is exponential in the factors of a term, so
    above `PROOF_STEPS` only a cheaper proof is tried. The answer depends on the arguments alone.
    """
    if all(c >= 0 for _, c in terms):
        return True
    counted = [(Counter(m), c) for m, c in terms]
    if proof_steps(counted) > PROOF_STEPS:
        common = reduce(Counter.__and__, [m for m, _ in counted])
        counted = [(m - common, c) for m, c in counted]
    negative = [m for m, c in counted if c < 0]
    if any(_shifted_coefficient(m, counted, positive) < 0 for m in negative):
        return False
    if proof_steps(counted) > PROOF_STEPS:
        return _is_covered(counted, positive)
    return all(
        _shifted_coefficient(factor, counted, positive) >= 0
        for m in negative
        for factor in _factors(m, positive)
    )


def proof_steps(terms: Collection[tuple[Counter[F], int]]) -> int:
    """Return the most steps of a complete proof: a term's share of a coefficient is one."""
    return len(terms) * sum(prod(k + 1 for k in m.values()) for m, c in terms if c < 0)


def _factors(monomial: Counter[F], positive: Callable[[F], bool]) -> Iterator[Counter[F]]:
    """Yield the monomials that a term has after the shift of its positive factors."""
    powers = [range(0 if positive(a) else k, k + 1) for a, k in monomial.items()]
    for chosen in product(*powers):
        yield Counter({a: k for a, k in zip(monomial, chosen, strict=True) if k})


def _shifted_coefficient(
    monomial: Counter[F],
    terms: Iterable[tuple[Counter[F], int]],
    positive: Callable[[F], bool],
) -> int:
    """Return the coefficient of a monomial after the shift of positive factors."""
    return sum(
        c * prod(comb(k, monomial[a]) for a, k in m.items())
        for m, c in terms
        if monomial <= m and all(k == monomial[a] or positive(a) for a, k in m.items())
    )


def _is_covered(terms: Iterable[tuple[Counter[F], int]], positive: Callable[[F], bool]) -> bool:
    """Return whether multiples of every negative term outweigh it, taken in order."""
    terms = list(terms)
    left = [c for _, c in terms]
    for m, c in terms:
        missing = -c
        for k, (multiple, _) in enumerate(terms):
            if missing > 0 and left[k] > 0 and m <= multiple and all(map(positive, multiple - m)):
                taken = min(missing, left[k])
                left[k] -= taken
                missing -= taken
        if missing > 0:
            return False
    return True
