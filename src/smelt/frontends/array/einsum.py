"""Products and sums in Einstein's notation, as contractions of two operands at a time.

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
from smelt.frontends.array.linalg import diagonal
from smelt.frontends.array.product import contract
from smelt.frontends.array.promote import cast, common
from smelt.frontends.array.statistical import sum as total
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import permute, reshape, shape_of
from smelt.types.expr import Index, evaluate

__all__ = ["einsum"]

DOTS = "..."


class Term(NamedTuple):
    """An operand, or a product of some, and a letter for each of its dimensions."""

    array: Value
    letters: str


def einsum(subscripts: str, /, *operands: Any, optimize: Any = True) -> Array:
    """The sum of products that `subscripts` tell: "bqd,bkd->bqk" names the dimensions of each
    operand and of the result; letters that the result lacks are summed over.

    As NumPy's: a letter twice in one operand is its diagonal; `...` stands for dimensions that
    broadcast; without `->` the result has the letters that occur once, in the alphabet's order.
    Of more than two operands the two are multiplied first that leave the least, whatever `optimize`
    says, which is there for NumPy's sake.

    Raises ArgumentError for subscripts that do not fit the operands, ShapeError for sizes that
    differ, DTypeError for bool.
    """
    del optimize
    if not isinstance(subscripts, str):  # NumPy's other form has numbers between the operands
        raise _unfit(subscripts, "a text such as 'ij,jk->ik'")
    values = [value(x, "einsum") for x in operands]
    sides, out = _read(subscripts, values)
    dtype = values[0].type.dtype
    for x in values[1:]:
        dtype = common("einsum", dtype, x.type.dtype)
    terms = [_plain(Term(cast(x, dtype), side)) for x, side in zip(values, sides, strict=True)]
    terms = _broadcast(terms)
    while len(terms) > 1:
        first, second = _cheapest(terms, out)
        rest = [t for k, t in enumerate(terms) if k not in (first, second)]
        terms = [*rest, _product(terms[first], terms[second], rest, out)]
    found = _summed(terms[0], out)
    missing = [c for c in out if c not in found.letters]  # of size 1 in every operand
    array = permute(found.array, [found.letters.index(c) for c in out if c in found.letters])
    if missing:
        known = iter(shape_of(array))
        array = reshape(array, tuple(1 if c in missing else next(known) for c in out))
    return Array.of(array)


# ---- subscripts ----------------------------------------------------------------------------------


def _read(subscripts: str, operands: Sequence[Value]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, those for `...` among them."""
    told = subscripts.replace(" ", "")
    left, arrow, out = told.partition("->")
    sides = left.split(",")
    if not operands or len(sides) != len(operands):
        count = "1 array" if len(operands) == 1 else f"{len(operands)} arrays"
        raise _unfit(subscripts, f"letters for {count}, with commas between")
    for side in (*sides, out):
        bare = side.replace(DOTS, "", 1)
        if not all(c in string.ascii_letters for c in bare):
            raise _unfit(subscripts, "letters, `...` once for an operand, commas and `->`")
    free = [c for c in string.ascii_letters if c not in told]
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
    """How many dimensions `...` is in an operand."""
    more = x.type.rank - len(side.replace(DOTS, ""))
    if more < 0 or (more and DOTS not in side):
        raise _unfit(subscripts, f"{x.type.rank} letters for {x.told}, not {side!r}")
    return more


def _unfit(subscripts: object, expected: str) -> ArgumentError:
    return ArgumentError(
        op="einsum", argument="subscripts", value=repr(subscripts), expected=expected
    )


# ---- operands ------------------------------------------------------------------------------------


def _plain(term: Term) -> Term:
    """A term of different letters: of a letter twice the diagonal is left."""
    array, letters = term
    twice = next((c for c in letters if letters.count(c) > 1), None)
    if twice is None:
        return term
    pair = [k for k, c in enumerate(letters) if c == twice][:2]
    rest = [k for k in range(len(letters)) if k not in pair]
    sizes = [shape_of(array)[k] for k in pair]
    if sizes[0] != sizes[1] and (array.scope is None or not array.scope.same(*sizes)):
        raise ShapeError(
            op="einsum", operands=array.told, reason=f"{twice!r} is {sizes[0]} and {sizes[1]}"
        )
    line = diagonal(Array.of(permute(array, [*rest, *pair])))
    return _plain(Term(value(line, "einsum"), "".join(letters[k] for k in rest) + twice))


def _broadcast(terms: Sequence[Term]) -> list[Term]:
    """The terms without dimensions of 1: nothing is summed along them, and others stretch them."""
    scope = next((t.array.scope for t in terms if t.array.scope is not None), None)
    if scope is not None:  # which of them are 1 here; what does not fit is told by the product
        sizes: dict[str, Index] = {}
        for array, letters in terms:
            for c, d in zip(letters, array.type.shape, strict=True):
                sizes[c] = scope.stretched(sizes.setdefault(c, d), d) or d
    found: list[Term] = []
    for array, letters in terms:
        shape = shape_of(array)
        kept = [k for k, d in enumerate(shape) if d != 1]
        if len(kept) < len(shape):
            array = reshape(array, tuple(shape[k] for k in kept))
        found.append(Term(array, "".join(letters[k] for k in kept)))
    return found


def _summed(term: Term, wanted: str) -> Term:
    """A term summed over the letters that nobody wants, in its own type."""
    over = tuple(k for k, c in enumerate(term.letters) if c not in wanted)
    if not over:
        return term
    sums = total(Array.of(term.array), axis=over, dtype=term.array.type.dtype)
    left = "".join(c for c in term.letters if c in wanted)
    return Term(value(sums, "einsum"), left)


def _product(a: Term, b: Term, rest: Sequence[Term], out: str) -> Term:
    """Two terms multiplied, summed over the letters that nothing else has."""
    wanted = out + "".join(t.letters for t in rest)
    a, b = _summed(a, wanted + b.letters), _summed(b, wanted + a.letters)
    own = {*a.letters, *b.letters}.intersection(wanted)
    letters = "".join(c for c in dict.fromkeys(out + a.letters + b.letters) if c in own)
    return Term(contract("einsum", a.array, b.array, a.letters, b.letters, letters), letters)


# ---- order ---------------------------------------------------------------------------------------


def _cheapest(terms: Sequence[Term], out: str) -> tuple[int, int]:
    """The two terms whose product takes least beyond what they take."""
    if len(terms) == 2:
        return 0, 1
    sizes = _sizes(terms)

    def elements(letters: str) -> int:
        return prod(sizes[c] for c in set(letters))

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        a, b = (terms[k].letters for k in pair)
        wanted = out + "".join(t.letters for k, t in enumerate(terms) if k not in pair)
        kept = "".join(c for c in a + b if c in wanted)
        return elements(kept) - elements(a) - elements(b), elements(a + b)

    return min(combinations(range(len(terms)), 2), key=cost)


def _sizes(terms: Sequence[Term]) -> Mapping[str, int]:
    """How long the letters are; in a recording, in its first call."""

    def number(x: Value, d: Index) -> int:
        return int(evaluate(d, {} if x.scope is None else x.scope.hints))

    return {
        c: number(t.array, d)
        for t in terms
        for c, d in zip(t.letters, shape_of(t.array), strict=True)
    }
