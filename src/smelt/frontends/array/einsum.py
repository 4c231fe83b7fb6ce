"""Einstein summation, as contractions of two operands at a time.

>>> import smelt as sm
>>> a, b = sm.asarray([[1.0, 2.0], [3.0, 4.0]]), sm.asarray([1.0, 10.0])
>>> einsum("ij,j->i", a, b), einsum("ii", a), einsum("i,ij,j", b, a, b)
(Array([21., 43.]), Array(5.), Array(451.))
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.complex_calls import takes_complex
from smelt.frontends.array.linalg import diagonal
from smelt.frontends.array.product import contract
from smelt.frontends.array.promote import cast, common
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.statistical import sum as total
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import permute, reshape
from smelt.types.expr import Index, evaluate

DOTS = "..."


class Term(NamedTuple):
    """An operand or intermediate product, with a letter for each of its dimensions."""

    array: Value
    letters: str


@takes_complex
def einsum(subscripts: str, /, *operands: Any, optimize: Any = True) -> Array:
    """Evaluate a sum of products in Einstein's notation.

    Args:
        subscripts: letters for the dimensions of each operand and of the result, as in
            "bqd,bkd->bqk".  Letters that the result lacks are summed over.  A letter twice in one
            operand takes its diagonal; `...` stands for dimensions that broadcast.  Without `->`
            the result has the letters that occur once, in alphabetical order.
        *operands: the arrays.
        optimize: ignored; there for compatibility with NumPy.

    With more than two operands, the pair whose product has the fewest additional elements is always
    contracted first.

    Returns:
        An array of the promoted dtype.

    Raises ArgumentError for subscripts that do not fit the operands, ShapeError for sizes that
    differ, DTypeError for products of bool.
    """
    del optimize
    if not isinstance(subscripts, str):  # NumPy also accepts lists of numbers between operands
        raise _unfit(subscripts, "a text such as 'ij,jk->ik'")
    values = [value(x, "einsum") for x in operands]
    sides, out = _parse(subscripts, values)
    dtype = values[0].type.dtype
    for x in values[1:]:
        dtype = common("einsum", dtype, x.type.dtype)
    terms = [
        _take_diagonals(Term(cast(x, dtype), side)) for x, side in zip(values, sides, strict=True)
    ]
    terms = _drop_ones(terms)
    while len(terms) > 1:
        first, second = _cheapest_pair(terms, out)
        rest = [t for k, t in enumerate(terms) if k not in (first, second)]
        terms = [*rest, _product(terms[first], terms[second], rest, out)]
    total_ = _sum_others(terms[0], out)
    missing = [c for c in out if c not in total_.letters]  # of size 1 in every operand
    array = permute(total_.array, [total_.letters.index(c) for c in out if c in total_.letters])
    if missing:
        sizes = iter(shape_of(array))
        array = reshape(array, tuple(1 if c in missing else next(sizes) for c in out))
    return Array.of(array)


# ---- subscripts ----------------------------------------------------------------------------------


def _parse(subscripts: str, operands: Sequence[Value]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result, with letters for `...`."""
    compact = subscripts.replace(" ", "")
    left, arrow, out = compact.partition("->")
    sides = left.split(",")
    if not operands or len(sides) != len(operands):
        count = "1 array" if len(operands) == 1 else f"{len(operands)} arrays"
        raise _unfit(subscripts, f"letters for {count}, with commas between")
    for side in (*sides, out):
        bare = side.replace(DOTS, "", 1)
        if not all(c in string.ascii_letters for c in bare):
            raise _unfit(subscripts, "letters, `...` once for an operand, commas and `->`")
    free = [c for c in string.ascii_letters if c not in compact]
    ranks = [_dots(subscripts, s, x) for s, x in zip(sides, operands, strict=True)]
    stack = "".join(free[: max(ranks)])
    full = [s.replace(DOTS, stack[len(stack) - n :]) for s, n in zip(sides, ranks, strict=True)]
    if not arrow:
        count = Counter(left)
        out = DOTS * bool(stack) + "".join(
            sorted(c for c in count if c.isalpha() and count[c] == 1)
        )
    if stack and DOTS not in out:
        raise _unfit(subscripts, "`...` in the result too, if operands have such dimensions")
    out = out.replace(DOTS, stack)
    if len(set(out)) < len(out) or not set(out) <= set("".join(full)):
        raise _unfit(subscripts, "each letter of the result once, and in an operand")
    return full, out


def _dots(subscripts: str, side: str, x: Value) -> int:
    """Return how many dimensions `...` stands for in an operand."""
    more = x.type.rank - len(side.replace(DOTS, ""))
    if more < 0 or (more and DOTS not in side):
        raise _unfit(subscripts, f"{x.type.rank} letters for {x.type_text}, not {side!r}")
    return more


def _unfit(subscripts: object, expected: str) -> ArgumentError:
    return ArgumentError.of("einsum", "subscripts", subscripts, expected)


# ---- operands ------------------------------------------------------------------------------------


def _take_diagonals(term: Term) -> Term:
    """Replace dimensions with the same letter by their diagonal, until all letters differ."""
    array, letters = term
    repeated = next((c for c in letters if letters.count(c) > 1), None)
    if repeated is None:
        return term
    pair = [k for k, c in enumerate(letters) if c == repeated][:2]
    rest = [k for k in range(len(letters)) if k not in pair]
    sizes = [shape_of(array)[k] for k in pair]
    if sizes[0] != sizes[1] and (array.scope is None or not array.scope.same(*sizes)):
        raise ShapeError.of("einsum", f"{repeated!r} is {sizes[0]} and {sizes[1]}", array)
    diagonals = diagonal(Array.of(permute(array, [*rest, *pair])))
    return _take_diagonals(
        Term(value(diagonals, "einsum"), "".join(letters[k] for k in rest) + repeated)
    )


def _drop_ones(terms: Sequence[Term]) -> list[Term]:
    """Remove dimensions of size 1, which broadcast and need no sum."""
    scope = next((t.array.scope for t in terms if t.array.scope is not None), None)
    if scope is not None:  # decide which are 1 here; the product reports sizes that do not fit
        sizes: dict[str, Index] = {}
        for array, letters in terms:
            for c, d in zip(letters, array.type.shape, strict=True):
                sizes[c] = scope.broadcast_dim(sizes.setdefault(c, d), d) or d
    reduced: list[Term] = []
    for array, letters in terms:
        shape = shape_of(array)
        larger = [k for k, d in enumerate(shape) if d != 1]
        if len(larger) < len(shape):
            array = reshape(array, tuple(shape[k] for k in larger))
        reduced.append(Term(array, "".join(letters[k] for k in larger)))
    return reduced


def _sum_others(term: Term, letters_kept: str) -> Term:
    """Sum a term over the letters that are not in `letters_kept`, in its own dtype."""
    over = tuple(k for k, c in enumerate(term.letters) if c not in letters_kept)
    if not over:
        return term
    sums = total(Array.of(term.array), axis=over, dtype=term.array.type.dtype)
    letters = "".join(c for c in term.letters if c in letters_kept)
    return Term(value(sums, "einsum"), letters)


def _product(a: Term, b: Term, rest: Sequence[Term], out: str) -> Term:
    """Multiply two terms and sum over letters that nothing else needs."""
    needed = out + "".join(t.letters for t in rest)
    a, b = _sum_others(a, needed + b.letters), _sum_others(b, needed + a.letters)
    shared = {*a.letters, *b.letters}.intersection(needed)
    letters = "".join(c for c in dict.fromkeys(out + a.letters + b.letters) if c in shared)
    return Term(contract("einsum", a.array, b.array, a.letters, b.letters, letters), letters)


# ---- order ---------------------------------------------------------------------------------------


def _cheapest_pair(terms: Sequence[Term], out: str) -> tuple[int, int]:
    """Return the two terms whose product has the fewest additional elements."""
    if len(terms) == 2:
        return 0, 1
    sizes = _sizes(terms)

    def elements(letters: str) -> int:
        return prod(sizes[c] for c in set(letters))

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        a, b = (terms[k].letters for k in pair)
        needed = out + "".join(t.letters for k, t in enumerate(terms) if k not in pair)
        remaining = "".join(c for c in a + b if c in needed)
        return elements(remaining) - elements(a) - elements(b), elements(a + b)

    return min(combinations(range(len(terms)), 2), key=cost)


def _sizes(terms: Sequence[Term]) -> Mapping[str, int]:
    """Return the size of each letter; in a recording, that of its first call."""

    def number(x: Value, d: Index) -> int:
        return int(evaluate(d, {} if x.scope is None else x.scope.hints))

    return {
        c: number(t.array, d)
        for t in terms
        for c, d in zip(t.letters, shape_of(t.array), strict=True)
    }
