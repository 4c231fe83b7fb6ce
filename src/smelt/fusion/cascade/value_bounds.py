"""Bound the value of an element by the magnitudes of its operands.

A score that is never computed is still bounded: a sum of d products is at most d times the largest
factors. The bound is a term over reductions that read each array once, where computing the element
would take a contraction. It is NaN or infinite where an array is, so a comparison with it notices
that.

>>> from smelt.fusion.cascade.term import Terms
>>> from smelt.types.dtype import f32
>>> terms = Terms()
>>> x = terms.leaf("x", {"m", "n"}, f32)
>>> value_bounds(terms, x, {}, frozenset("m"))
Span(low=neg(max(max(leaf:x, neg(leaf:x)))), high=max(max(leaf:x, neg(leaf:x))))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from smelt.fusion.cascade.interval import is_element
from smelt.fusion.cascade.term import Term, Terms, evaluate
from smelt.kernel.ir import Dot
from smelt.ops.combine import EXTREMES
from smelt.ops.scalar import SCALARS


class Span(NamedTuple):
    """Lower and upper bound of an element, as terms."""

    low: Term
    high: Term


def value_bounds(
    terms: Terms, t: Term, conditions: Mapping[Term, bool], rows: frozenset[str]
) -> Span | None:
    """Return bounds of an element for each position of the axes `rows`, None if unknown.

    `conditions` maps conditions to the values that they are taken to have.
    """
    return _Between(terms, conditions, rows).of(t)


class _Between:
    def __init__(self, terms: Terms, conditions: Mapping[Term, bool], rows: frozenset[str]) -> None:
        self.terms, self.conditions, self.rows = terms, conditions, rows
        self.spans: dict[Term, Span | None] = {}

    def of(self, t: Term) -> Span | None:
        """Return the bounds of a term."""
        if t not in self.spans:
            self.spans[t] = self._bounds_of(t)
        return self.spans[t]

    def _bounds_of(self, t: Term) -> Span | None:
        terms = self.terms
        if t in self.conditions:
            return _point(terms.const(self.conditions[t], t.dtype))
        if t.kind == "const":
            return _point(t)
        if t.dtype.is_float and is_element(t):
            return self._symmetric(self._largest(t))
        if t.kind == "cast" and t.args[0].dtype.kind == "int" and t.dtype.is_float:
            return self._symmetric(self._largest(t)) if is_element(t.args[0]) else None
        if t.kind == "opaque" and len(t.args) == 2 and t.dtype.is_float and _is_product(t):
            sides = [self._magnitude(a) for a in t.args]
            over = tuple(sorted((t.args[0].axes | t.args[1].axes) - t.axes))
            return self._multiplied([terms.count(over, t.dtype), *sides])
        spans = [self.of(a) for a in t.args]
        if t.kind == "cast" and (span := spans[0]) is not None:
            return Span(*(_fold_constants(terms, terms.cast(e, t.dtype)) for e in span))
        return self._applied(t, spans) if t.kind == "apply" else None

    def _applied(self, t: Term, spans: list[Span | None]) -> Span | None:
        """Return the bounds of an operator's result, from the columns of its table row."""
        terms, row = self.terms, SCALARS[t.op]
        if row.is_select:
            return self._chosen(spans)
        if all(s is not None and s.low.kind == "const" and s.low is s.high for s in spans):
            return _point(_fold_constants(terms, terms.apply(t.op, *(s.low for s in spans if s))))
        if not t.dtype.is_float:
            return None
        if row.powers:
            magnitudes: list[Term | None] = []
            for a, span, p in zip(t.args, spans, row.powers, strict=True):
                if p < 0 and (
                    span is None or span.low.kind != "const" or span.low is not span.high
                ):
                    return None
                divisor = span.low if p < 0 and span is not None else None
                magnitudes += (
                    [self._magnitude(a)] * p
                    if divisor is None
                    else [_fold_constants(terms, terms.div(terms.const(1.0, t.dtype), divisor))]
                    * -p
                )
            return self._multiplied(magnitudes)
        slopes = row.linear or row.monotone
        if not slopes or 0 in slopes:
            return None
        ends: list[Term] = []
        for end in (0, 1):
            parts = [s[(slope < 0) ^ end] for s, slope in zip(spans, slopes) if s is not None]
            if len(parts) < len(spans):
                return None
            bound = terms.apply(t.op, *parts)
            for e in () if row.linear else parts:  # NaN where an infinite operand was clamped
                bound = bound if e.kind == "const" else terms.add(bound, terms.sub(e, e))
            ends.append(bound)
        return Span(*ends)

    def _chosen(self, spans: list[Span | None]) -> Span | None:
        mask, *values = spans
        if mask is not None and mask.low.kind == "const":
            return values[0 if mask.low.value else 1]
        then, otherwise = values
        if then is None or otherwise is None:
            return None
        terms = self.terms
        return Span(
            terms.minimum(then.low, otherwise.low), terms.maximum(then.high, otherwise.high)
        )

    def _magnitude(self, t: Term) -> Term | None:
        """Return an upper bound of a term's absolute value."""
        span, terms = self.of(t), self.terms
        if span is None:
            return None
        low = _fold_constants(terms, terms.neg(span.low))
        if low is span.high:
            return low
        return _fold_constants(terms, terms.maximum(low, span.high))

    def _multiplied(self, factors: list[Term | None]) -> Span | None:
        magnitude: Term | None = None
        for f in factors:
            if f is None:
                return None
            magnitude = f if magnitude is None else self.terms.mul(magnitude, f)
        return None if magnitude is None else self._symmetric(magnitude)

    def _symmetric(self, magnitude: Term) -> Span:
        return Span(self.terms.neg(magnitude), magnitude)

    def _largest(self, t: Term) -> Term:
        """Return the largest magnitude of an array's elements, for each row."""
        terms = self.terms
        magnitude = terms.maximum(t, terms.neg(t))
        over = tuple(sorted(t.axes - self.rows))
        return terms.reduce(EXTREMES[1], magnitude, over, t.dtype) if over else magnitude


def _point(t: Term) -> Span:
    return Span(t, t)


def _is_product(t: Term) -> bool:
    """Return whether a term that reduces other axes is a sum of products."""
    value: Any = t.value
    return isinstance(value, Dot) or (isinstance(value, tuple) and value[:2] == ("reduce", ""))


def _fold_constants(terms: Terms, t: Term) -> Term:
    """Evaluate an operator on constants; cancel a double negation."""
    if t.kind in ("apply", "cast") and all(a.kind == "const" for a in t.args):
        return terms.const(evaluate(t, _no_leaf).item(), t.dtype)
    inner = t.args[0] if t.kind == "apply" and SCALARS[t.op].linear == (-1,) else None
    if inner is not None and inner.kind == "apply" and SCALARS[inner.op].linear == (-1,):
        return inner.args[0]
    return t


def _no_leaf(t: Term) -> Any:
    raise AssertionError(t)
