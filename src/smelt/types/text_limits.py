"""Limits of all text forms: what is longer or deeper is refused before it costs time or stack.

>>> beyond_limits("x + " + "1" * 500)
(4, 'a number of at most 400 digits')
>>> beyond_limits("x + 1") is None
True
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from smelt.types.expr import Expr, Index, terms_of

MAX_CHARACTERS: Final = 1 << 26
"""Maximum characters of a text."""
MAX_DIGITS: Final = 400
"""Maximum digits of a number, more than any element type prints."""
MAX_NESTED: Final = 40
"""Maximum brackets open at once, and most divisions inside one another."""
MAX_INDEX_TERMS: Final = 1024
"""Maximum terms of an index expression."""
MAX_FACTORS: Final = 16
"""Maximum variables in one term of an index expression."""
MAX_BITS: Final = 128
"""Maximum bits of a coefficient; a call allows 62."""


class BeyondLimit(ValueError):
    """An expression that breaks a limit; the message says what was expected."""


_LONG_NUMBER: Final = re.compile(rf"\d{{{MAX_DIGITS + 1},}}")


def beyond_limits(source: str) -> tuple[int, str] | None:
    """Return the position in a text that breaks a limit, and what was expected there."""
    if len(source) > MAX_CHARACTERS:
        return 0, f"a text of at most {MAX_CHARACTERS} characters"
    match = _LONG_NUMBER.search(source)
    return None if match is None else (match.start(), f"a number of at most {MAX_DIGITS} digits")


def too_large(e: Index) -> str:
    """Return which limit an index expression breaks, an empty string for none."""
    terms = terms_of(e)
    if len(terms) > MAX_INDEX_TERMS:
        return f"an index expression of at most {MAX_INDEX_TERMS} terms"
    if any(len(m) > MAX_FACTORS for m, _ in terms):
        return f"terms of at most {MAX_FACTORS} factors"
    if any(c.bit_length() > MAX_BITS for _, c in terms):
        return f"coefficients below 2**{MAX_BITS}"
    if isinstance(e, Expr) and _nesting(e) > MAX_NESTED:
        return f"at most {MAX_NESTED} divisions, minima and maxima inside one another"
    return ""


def too_large_product(a: Index, b: Index) -> str:
    """Return which limit the product of two expressions breaks, before it is computed."""
    if len(terms_of(a)) * len(terms_of(b)) > MAX_INDEX_TERMS:
        return f"an index expression of at most {MAX_INDEX_TERMS} terms"
    return ""


@lru_cache(maxsize=4096)
def _nesting(e: Expr) -> int:
    """Return how many operators of variables lie inside one another."""
    direct = {a for m, _ in e.terms for a in m if a.args}
    inner = [_nesting(x) for a in direct for x in a.args if isinstance(x, Expr)]
    return max(inner, default=0) + 1 if direct else 0
