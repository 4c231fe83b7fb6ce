"""Prove that accesses of loops stay inside their arrays.

>>> from smelt.loop.text import parse
>>> func = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   full = n // 16 * 16
...   each i in 0 .. full by 16
...     y[i : 16] = x[i : 16]
... ''').funcs[0]
>>> full, loop = func.body
>>> point = Known().let(full).loop(loop)
>>> point.proves_inside(loop.body[0].place, size("n")), point.proves_inside(Place("x", 16), 16)
(True, False)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from smelt.kernel.bounds import COMPARISONS, NEGATED, nonnegative
from smelt.loop import ir
from smelt.loop.ir import Place
from smelt.loop.walk import Rewriter
from smelt.python.dataclass import dataclass
from smelt.types import expr
from smelt.types.expr import Index, size
from smelt.types.polynomial import divide_term

__all__ = ["Known", "Place", "size"]


@dataclass(frozen=True, slots=True)
class Known:
    """What holds at a program point: definitions of names, and expressions that are >= 0."""

    lets: Mapping[str, ir.Value] = field(default_factory=dict[str, ir.Value])
    definitions: Mapping[str, Index] = field(default_factory=dict[str, Index])
    facts: tuple[Index, ...] = ()

    def let(self, s: ir.Let) -> Known:
        """Add a definition."""
        point = replace(self, lets={**self.lets, s.name: s.value})
        index = ir.as_index(s.value)
        if index is not None:
            definitions = {**self.definitions, s.name: self.expand(index)}
            return replace(point, definitions=definitions)
        match s.value:
            case ir.Apply("select", (_, left, right)):
                sides = [e for v in (left, right) if (e := ir.as_index(v)) is not None]
                if len(sides) == 2:
                    return point.add(*_between(s.name, *map(self.expand, sides)))
            case _:
                pass
        return point

    def loop(self, loop: ir.For) -> Known:
        """Add the range of a loop's variable."""
        low, high, step = map(self.expand, (loop.low, loop.high, loop.step))
        var = ir.variable(loop)
        is_whole = step != 1 and expr.mod(expr.sub(high, low), step) == 0
        last = expr.sub(high, step if is_whole else 1)
        return self.add(expr.sub(var, low), expr.sub(last, var))

    def add(self, *facts: Index) -> Known:
        """Add expressions that are >= 0."""
        return replace(self, facts=(*self.facts, *(f for f in facts if not isinstance(f, int))))

    def where(self, cond: ir.Value, *, holds: bool = True) -> Known:
        """Add what a condition says where it is true (`holds`) or false."""
        return self.add(*self.facts_of(cond, holds=holds))

    def expand(self, e: Index) -> Index:
        """Replace names by their definitions."""
        if isinstance(e, int) or not any(a.name in self.definitions for a in expr.atoms(e)):
            return e
        definitions = self.definitions
        return Rewriter(lambda a: definitions.get(a.name)).index(e)

    def facts_of(self, cond: ir.Value, *, holds: bool = True) -> tuple[Index, ...]:
        """Return expressions that are >= 0 where a condition is true (`holds`) or false."""
        match cond:
            case ir.Ref(name) if name in self.lets:
                return self.facts_of(self.lets[name], holds=holds)
            case ir.Splat(arg):
                return self.facts_of(arg, holds=holds)
            case ir.Apply("and", (a, b)) if holds:
                return self.facts_of(a) + self.facts_of(b)
            case ir.Apply("or", (a, b)) if not holds:
                return self.facts_of(a, holds=False) + self.facts_of(b, holds=False)
            case ir.Apply("not", (a,)):
                return self.facts_of(a, holds=not holds)
            case ir.Apply(op, (a, b)):
                left, right = ir.as_index(a), ir.as_index(b)
                if left is None or right is None:
                    return ()
                relation = op if holds else NEGATED.get(op, "")
                gap = self.expand(expr.sub(left, right))
                if relation == "eq":
                    return gap, expr.mul(gap, -1)
                if relation not in COMPARISONS:
                    return ()
                sign, shift = COMPARISONS[relation]
                return (expr.add(expr.mul(gap, sign), shift),)
            case _:
                return ()

    def lanes(self, mask: ir.Value) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
        """Return bounds of the lanes that a mask leaves: first lanes, and counts of lanes."""
        match mask:
            case ir.Ref(name) if name in self.lets:
                return self.lanes(self.lets[name])
            case ir.Prefix(count):
                return (), (self.expand(count),)
            case ir.Shuffle((a, *others) as every, "interleave") if all(x == a for x in others):
                starts, counts = self.lanes(a)
                by = len(every)
                return tuple(expr.mul(e, by) for e in starts), tuple(
                    expr.mul(e, by) for e in counts
                )
            case ir.Apply("and", (a, b)):
                (starts, counts), (more_starts, more_counts) = self.lanes(a), self.lanes(b)
                return starts + more_starts, counts + more_counts
            case ir.Apply(op, (ir.Apply("add", (a, ir.Lane())), b)) if op in COMPARISONS:
                left, right = ir.as_index(a), ir.as_index(b)
                if left is None or right is None:
                    return (), ()
                sign, shift = COMPARISONS[op]  # sign*(left + lane - right) + shift >= 0
                gap = self.expand(expr.sub(right, left))
                return (
                    ((expr.sub(gap, shift),), ()) if sign > 0 else ((), (expr.add(gap, shift + 1),))
                )
            case _:
                return (), ()

    def proves(self, e: Index) -> bool:
        """Return whether an expression is >= 0."""
        e = self.expand(e)
        if nonnegative(e, self.facts):
            return True
        multiples = self._multiples(e)
        if nonnegative(e, self.facts + multiples):
            return True
        rest = {m: None for f in multiples for m in self._multiples(expr.mul(f, -1))}
        return bool(rest) and nonnegative(e, (*multiples, *self.facts, *rest))

    def _multiples(self, e: Index) -> tuple[Index, ...]:
        """Return multiples of facts that have a term of `e`: c * (r - row) with c * -row."""
        out: dict[Index, None] = {}
        for fact in self.facts:
            for monomial, c in expr.terms_of(fact):
                for other, d in expr.terms_of(e):
                    quotient = divide_term((monomial, c), other, d) if monomial else None
                    factor = 0 if quotient is None else expr.build({quotient[0]: quotient[1]})
                    if factor not in (0, 1) and expr.nonnegative(factor):
                        out[expr.mul(fact, factor)] = None
        return tuple(out)

    def proves_inside(self, place: ir.Place, elements: Index) -> bool:
        """Return whether every element of a place lies in an array of so many elements."""
        if not isinstance(place.at, int | expr.Expr):
            return False
        point, starts, counts = self, (), ()
        if place.mask is not None:
            starts, counts = self.lanes(place.mask)
            point = self.where(place.mask).add(*(expr.sub(n, 1) for n in counts))
        first, stride = place.at, self.expand(place.stride)
        falls = not nonnegative(stride)
        if falls and not nonnegative(expr.mul(stride, -1)):
            return False
        low = [first, *(expr.add(first, expr.mul(k, stride)) for k in starts)]
        high = [expr.add(first, expr.mul(expr.sub(n, 1), stride)) for n in (place.lanes, *counts)]
        low, high = (high, low) if falls else (low, high)
        room = expr.sub(elements, 1)
        return any(map(point.proves, low)) and any(point.proves(expr.sub(room, e)) for e in high)


def _between(name: str, left: Index, right: Index) -> tuple[Index, ...]:
    """Return bounds of a name that is one of two expressions."""
    value = ir.number(name)
    low, high = expr.minimum(left, right), expr.maximum(left, right)
    return expr.sub(value, low), expr.sub(high, value)
