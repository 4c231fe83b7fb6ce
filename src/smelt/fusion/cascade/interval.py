"""Bound conditions over a block: integer intervals and three-valued logic.

A block of a stream is a rectangle: some positions of the streamed axis by the rows of a task.
Within it an integer lies between two numbers that take a few operations to compute (the first and
last index of an axis, the minimum and maximum of an array of ids). So a comparison may be known to
hold everywhere or nowhere in the block without evaluating it for any element. `and`, `or` and `not`
follow by Kleene's logic, which for any operator on truth values is read off its truth table
(`docs/derivations.md`, masks; R. Moore, "Interval Analysis", 1966).

    j <= i        may hold where first(j) - last(i) <= 0, may fail where last(j) - first(i) > 0
    j <= i        holds for no j from last(i) + 1 on: there a stream may stop
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product as every
from typing import Any, TypeAlias

import numpy as np

from smelt.fusion.cascade.term import Term, Terms, cone
from smelt.kernel.ir import IndexValue, Load
from smelt.ops.scalar import SCALARS
from smelt.ops.symbolic import Implicant, prime_implicants, sign_table
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_, i64
from smelt.types.expr import Atom, Expr, Index, add, atoms, coefficient, mul, substitute

Span: TypeAlias = tuple[Term, Term]
"""Minimum and maximum of an integer in a block."""
MAX_ARITY = 3
"""Maximum operands of an operator on truth values whose truth table is enumerated."""


@dataclass(frozen=True, slots=True)
class Hull:
    """Range of the streamed axis outside of which a condition does not hold.

    From `start` up to `stop` (exclusive); None where it is open. `exact`: no block inside is known
    to be ruled out. `dense`: data, or more than sums of indices, decide; evaluating every position
    would narrow the range further.
    """

    start: Term | None
    stop: Term | None
    exact: bool
    dense: bool = False


EVERYWHERE = Hull(None, None, False)


@dataclass(slots=True)
class _Sum:
    """An affine difference: index + sum of axes and other terms, times numbers."""

    index: Index
    axes: dict[Atom, int]
    others: list[tuple[Term, int]]

    def without(self, axis: str) -> _Sum:
        """Return the sum without one axis."""
        remaining = {a: k for a, k in self.axes.items() if a.name != axis}
        return _Sum(self.index, remaining, self.others)


@dataclass(slots=True)
class _BlockSum:
    """A sum whose terms have one value in a block: index + terms times numbers."""

    index: Index
    parts: list[tuple[Term, int]]

    def times(self, k: int) -> _BlockSum:
        """Return the sum times a number."""
        return _BlockSum(mul(k, self.index), [(t, k * c) for t, c in self.parts])

    def term(self, terms: Terms, offset: int = 0) -> Term:
        """Return the sum plus `offset` as a term, positive parts first."""
        total: Term | None = None
        for t, k in sorted(self.parts, key=lambda part: part[1] < 0):
            scaled = t if abs(k) == 1 else terms.mul(t, terms.const(abs(k), i64))
            if total is None:
                total = scaled if k > 0 else terms.neg(scaled)
            else:
                total = terms.add(total, scaled) if k > 0 else terms.sub(total, scaled)
        index = add(self.index, offset)
        if total is None:
            return terms.index(index)
        if isinstance(index, int) and index <= 0:
            return total if index == 0 else terms.sub(total, terms.const(-index, i64))
        return terms.add(total, terms.index(index))


class BlockConditions:
    """Answers questions about conditions in the blocks of one stream.

    The stream runs along the axis `name`; `fixed` axes have one position in a block. With `each`,
    the streamed axis has one position too.
    """

    def __init__(
        self, terms: Terms, name: str, fixed: frozenset[str], *, each: bool = False
    ) -> None:
        self.terms, self.name, self.each = terms, name, each
        self.fixed = fixed | {name} if each else fixed
        self.known: dict[tuple[Term, bool], Term] = {}

    # ---- conditions ----------------------------------------------------------------------------

    def may(self, t: Term, target: bool) -> Term:
        """Return whether a condition may be `target` somewhere in a block, as one truth value.

        It is true where nothing is known.
        """
        key = t, target
        answer = self.known.get(key)
        if answer is None:
            answer = self.known[key] = self._may(t, target)
        return answer

    def _may(self, t: Term, target: bool) -> Term:
        terms = self.terms
        if t.kind == "const":
            return terms.const(t.value == target, bool_)
        if t.axes <= self.fixed and is_elementwise(t):
            return t if target else terms.logical_not(t)
        if (signs := _signs(t, target)) is not None:
            d = _difference(t, self.fixed)
            pair, all_of = self._unfold_extreme(t, d, signs)
            if not pair:
                return self._sign_condition(d, signs)
            return (terms.logical_and if all_of else terms.logical_or)(
                *(self.may(x, target) for x in pair)
            )
        if (cubes := _implicants(t, target)) is not None:
            any_cube = terms.const(False, bool_)
            for cube in cubes:
                each = (self.may(t.args[k], v) for k, v in cube)
                any_cube = terms.logical_or(
                    any_cube, _join_all(terms.logical_and, terms.const(True, bool_), each)
                )
            return any_cube
        loose = t.axes - self.fixed
        read = is_element(t.args[0] if t.kind == "cast" else t) and self.name in loose
        # evaluate it at each position of the block
        if read or (loose == {self.name} and is_elementwise(t)):
            return terms.fails(terms.logical_not(t) if target else t)
        return terms.const(True, bool_)

    def _sign_condition(self, d: _Sum, signs: frozenset[int]) -> Term:
        """Return whether the sign of d may be one of `signs`."""
        terms = self.terms
        span = self._span(d)
        if span is None or signs == {-1, 0, 1}:
            return terms.const(bool(signs), bool_)
        below = self._exceeds(span[0].times(-1), strict=0 not in signs)
        above = self._exceeds(span[1], strict=0 not in signs)
        if signs == {-1, 1}:
            return terms.logical_or(below, above)
        if signs == {0}:
            return terms.logical_and(below, above)
        return below if -1 in signs else above

    def _exceeds(self, d: _BlockSum, *, strict: bool) -> Term:
        """Return d > 0 or d >= 0, written without negative terms where possible."""
        positive = _BlockSum(0, [(t, k) for t, k in d.parts if k > 0])
        negative = _BlockSum(mul(-1, d.index), [(t, -k) for t, k in d.parts if k < 0])
        if isinstance(d.index, int) and d.index > 0:
            positive.index, negative.index = d.index, 0
        return self.terms.exceeds(
            positive.term(self.terms), negative.term(self.terms), strict=strict
        )

    def _unfold_extreme(self, t: Term, d: _Sum, signs: frozenset[int]) -> tuple[list[Term], bool]:
        """Split a comparison with min, max or |x| into two comparisons.

        Returns them and whether both have to hold (else one suffices). |x| is the maximum of x and
        -x.
        """
        for x, k in d.others:
            largest = _extreme_kind(x)
            if largest is not None and len(signs & {-1, 1}) == 1:
                other = x.args[1] if len(x.args) == 2 else self.terms.neg(x.args[0])
                pair = [self.terms.substitute(t, {x: y}) for y in (x.args[0], other)]
                return pair, (-1 in signs) == (largest == (k > 0))
        return [], True

    # ---- positions -----------------------------------------------------------------------------

    def hull(self, t: Term, target: bool) -> Hull:
        """Return a range outside of which a condition is never `target` in a block."""
        if self.name not in t.axes:
            return EVERYWHERE
        if (signs := _signs(t, target)) is not None:
            d = _difference(t, self.fixed)
            pair, all_of = self._unfold_extreme(t, d, signs)
            if not pair:
                return self._solve(d, signs)
            both = [self.hull(x, target) for x in pair]
            return self._intersection(both) if all_of else self._union(both)
        cubes = _implicants(t, target)
        if not cubes:
            return Hull(None, None, exact=False, dense=t.axes - self.fixed == {self.name})
        hulls = [self._intersection([self.hull(t.args[k], v) for k, v in cube]) for cube in cubes]
        return self._union(hulls)

    def _solve(self, d: _Sum, signs: frozenset[int]) -> Hull:
        """Return the positions at which the sign of d is one of `signs`.

        The streamed axis occurs in d once.
        """
        terms = self.terms
        step = next((k for a, k in d.axes.items() if a.name == self.name), 0)
        span = self._span(d.without(self.name))
        if span is None or signs == {-1, 1}:
            return EVERYWHERE
        if abs(step) != 1 or any(self.name in t.axes for t, _ in d.others):
            return Hull(None, None, exact=False, dense=True)
        strict = int(0 not in signs)
        ends: list[Term | None] = [None, None]
        for sign, rest in zip((-1, 1), span, strict=True):
            if -sign in signs:
                continue
            if step == -sign:  # position <= rest at most (or <)
                ends[1] = rest.times(sign).term(terms, 1 - strict)
            else:
                ends[0] = rest.times(-sign).term(terms, strict)
        return Hull(ends[0], ends[1], exact=True)

    def _intersection(self, hulls: list[Hull]) -> Hull:
        starts = [h.start for h in hulls if h.start is not None]
        stops = [h.stop for h in hulls if h.stop is not None]
        return Hull(
            _join_all(self.terms.maximum, None, starts),
            _join_all(self.terms.minimum, None, stops),
            all(h.exact for h in hulls),
            any(h.dense for h in hulls),
        )

    def _union(self, hulls: list[Hull]) -> Hull:
        return (
            hulls[0]
            if len(hulls) == 1
            else Hull(
                self._outermost(self.terms.minimum, [h.start for h in hulls]),
                self._outermost(self.terms.maximum, [h.stop for h in hulls]),
                exact=False,
                dense=any(h.dense for h in hulls),
            )
        )

    def _outermost(
        self, choose: Callable[[Term, Term], Term], ends: list[Term | None]
    ) -> Term | None:
        closed = [e for e in ends if e is not None]
        return None if len(closed) < len(ends) else _join_all(choose, None, closed)

    # ---- intervals -----------------------------------------------------------------------------

    def _span(self, d: _Sum) -> tuple[_BlockSum, _BlockSum] | None:
        """Return the bounds of a sum in a block; None if unknown."""
        terms = self.terms
        low, high = _BlockSum(d.index, []), _BlockSum(d.index, [])
        axes = [(terms.index(Expr((((a,), 1),))), k) for a, k in d.axes.items()]
        for t, k in [*axes, *d.others]:
            span = self._span_of(t)
            if span is None:
                return None
            ends = [(terms.cast(e, i64), k) for e in span]
            low.parts.append(ends[k < 0])
            high.parts.append(ends[k > 0])
        return low, high

    def _span_of(self, t: Term) -> Span | None:
        """Return the bounds of a term in a block; None if unknown."""
        terms, varying = self.terms, t.axes - self.fixed
        if not t.dtype.is_integer:
            return None
        if not varying:
            return (t, t) if is_elementwise(t) else None
        # an extreme is taken along all axes of a term, also along one of which it has one position
        is_mixed = self.each and self.name in t.axes
        if len(varying) == 1 and is_elementwise(t) and not is_mixed:
            return terms.extreme(t, largest=False), terms.extreme(t, largest=True)
        row = SCALARS[t.op] if t.kind == "apply" else None
        if row is None or 0 in (slopes := row.monotone or (0,)) or not _cannot_wrap(t):
            return None
        spans = [self._span_of(a) for a in t.args]
        low, high = (
            [s[(slope < 0) ^ end] for s, slope in zip(spans, slopes, strict=True) if s is not None]
            for end in (0, 1)
        )
        if len(low) < len(spans):
            return None
        return terms.apply(t.op, *low), terms.apply(t.op, *high)


def is_element(t: Term) -> bool:
    """Return whether a term is an element of an array, or a position."""
    return t.kind == "leaf" or (t.kind == "opaque" and isinstance(t.value, (Load, IndexValue)))


def is_elementwise(t: Term) -> bool:
    """Return whether a term consists of array elements, positions and scalar operators alone."""
    return all(x.kind in ("const", "apply", "cast") or is_element(x) for x in cone(t))


def _join_all(
    join: Callable[[Term, Term], Term], result: Term | None, parts: Iterator[Term] | list[Term]
) -> Any:
    for part in parts:
        result = part if result is None else join(result, part)
    return result


# ---- comparisons -------------------------------------------------------------------------------


def _signs(t: Term, target: bool) -> frozenset[int] | None:
    """Return the signs of the operands' difference for which an integer comparison is `target`."""
    if t.kind != "apply" or t.dtype != bool_ or len(t.args) != 2:
        return None
    if any(a.dtype.kind != "int" for a in t.args):
        return None
    answers = sign_table(t.op)
    if len(answers) != len((-1, 0, 1)):
        return None
    return frozenset(sign for sign, answer in answers if answer == target)


def implied_answer(t: Term, condition: Term, answer: bool) -> bool | None:
    """Return the value of a comparison implied by another one, None if open.

    Both compare the same integers.
    """
    orientation = 1 if t.args == condition.args else -1 if t.args == condition.args[::-1] else 0
    condition_signs = _signs(condition, answer) if orientation else None
    for target in (False, True):
        signs = _signs(t, target) if condition_signs is not None else None
        if (
            signs is not None
            and condition_signs is not None
            and {orientation * s for s in condition_signs} <= signs
        ):
            return target
    return None


def _difference(t: Term, fixed: frozenset[str]) -> _Sum:
    """Return the first operand of a comparison minus the second, as an affine sum."""
    difference = _Sum(0, {}, [])
    pending = [(t.args[0], 1), (t.args[1], -1)]
    while pending:
        x, sign = pending.pop()
        row = SCALARS[x.op] if x.kind == "apply" else None
        if x.kind == "const":
            difference.index = add(difference.index, sign * int(x.value))
        elif isinstance(x.value, IndexValue) and (affine := _split_affine(x.value.index, fixed)):
            rest, axes = affine
            difference.index = add(difference.index, mul(sign, rest))
            for a, k in axes.items():
                difference.axes[a] = difference.axes.get(a, 0) + sign * k
        elif x.kind == "cast" and x.args[0].dtype.kind == "int" and _cannot_wrap(x):
            pending.append((x.args[0], sign))
        elif row is not None and row.linear and _cannot_wrap(x):
            pending += [(a, sign * c) for a, c in zip(x.args, row.linear, strict=True)]
        else:
            difference.others.append((x, sign))
    difference.axes = {a: k for a, k in difference.axes.items() if k}
    return difference


def _cannot_wrap(t: Term) -> bool:
    """Return whether integer arithmetic cannot wrap here.

    Positions fit into 32 bits, and 64 bits are taken to be wide enough for anything.
    """
    loaded = (x for x in cone(t) if is_element(x) and not isinstance(x.value, IndexValue))
    return t.dtype.kind == "int" and (
        t.dtype.bits == 64 or (t.dtype.bits >= 32 and not any(loaded))
    )


_EXTREME_KINDS: dict[str, bool | None] = {}


def _extreme_kind(t: Term) -> bool | None:
    """Return True for the maximum of two operands, False for the minimum, else None.

    For one operand the second is its negative, as in |x|. The kind is found by evaluating samples.
    """
    if t.kind != "apply" or not 1 <= len(t.args) <= 2 or not _cannot_wrap(t):
        return None
    if t.op not in _EXTREME_KINDS:
        row = SCALARS[t.op]
        samples = list(every((-5, -1, 0, 2, 7), repeat=row.arity))
        results = [int(row.numpy(*map(np.int64, v))) for v in samples]
        pairs = [(v[0], v[1] if row.arity == 2 else -v[0]) for v in samples]
        matches = [
            end for end, pick in ((True, max), (False, min)) if results == list(map(pick, pairs))
        ]
        _EXTREME_KINDS[t.op] = matches[0] if matches else None
    return _EXTREME_KINDS[t.op]


def _split_affine(e: Index, fixed: frozenset[str]) -> tuple[Index, dict[Atom, int]] | None:
    """Split an affine position into a fixed part and factors of its other axes.

    None if the position is not affine in them.
    """
    varying = {a: a for a in atoms(e) if a.kind == "axis" and a.name not in fixed}
    factors: dict[Atom, int] = {}
    for a in varying:
        k = coefficient(e, a.name)
        if not isinstance(k, int):
            return None
        factors[a] = k
    return (e if isinstance(e, int) else substitute(e, {a.name: 0 for a in varying})), factors


# ---- operators on truth values -----------------------------------------------------------------


def _implicants(t: Term, target: bool) -> tuple[Implicant, ...] | None:
    """Return the prime implicants of a truth-valued operator being `target`; None for others.

    Each says which operands have which value; the operator is `target` if any of them holds.
    """
    if t.kind != "apply" or not 0 < len(t.args) <= MAX_ARITY:
        return None
    if any(a.dtype != bool_ for a in t.args):
        return None
    return prime_implicants(t.op, len(t.args), target)
