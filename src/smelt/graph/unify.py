"""Sizes that may vary, and what is known of them: each stands for a number until it is bound.

A dimension is an expression over sizes.  A *free* size is one that the caller may vary; an
*unknown* stands for a dimension of what counts or repeats, and is whatever it meets.  Every size
has a value, that of the call that was traced, and nothing ever changes a value: two dimensions that
are asked to be equal have equal ones.

>>> sizes = Sizes({})
>>> n, some = sizes.free(("x", 0), 5), sizes.unknown(("iota", 0), 5)
>>> sizes.equal(some, n), sizes.now(some)
(n0, n0)
>>> sizes.equal(n, 5), sizes.now(some)
(5, 5)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from math import gcd
from typing import TypeAlias

from smelt.types.expr import (
    Expr,
    Index,
    evaluate,
    floordiv,
    mul,
    product,
    size,
    sizes_of,
    sub,
    substitute,
    terms_of,
)

__all__ = ["Sizes", "is_size"]

_Runs: TypeAlias = list[tuple[list[Index], list[Index]]]


class Sizes:
    """The sizes of a graph that is made general; `hints` are those that it has already."""

    def __init__(self, hints: Mapping[str, int]) -> None:
        self.values = dict(hints)
        self.changed = False
        """Whether a size was bound since this was last set."""
        self._settled = False
        self._own: dict[str, bool] = {}
        """Sizes made here, and whether they are unknown."""
        self._free: dict[Hashable, Expr] = {}
        self._unknown: dict[Hashable, Expr] = {}
        self._given: dict[str, Index] = {}
        """What they are if nothing is met: numbers for all that are not here."""
        self._bound: dict[str, Index] = {}
        self._products: dict[Index, list[Index]] = {}
        """What dimensions that were merged are products of."""
        self._merged: dict[Index, list[Index]] = {}
        """The same, by dimensions as they were before: into these they are split again."""
        self._evaluated: dict[Expr, int] = {}
        self._now: dict[Expr, Index] = {}
        self._runs: dict[tuple[tuple[Index, ...], ...], _Runs] = {}
        """What was found before: layers of a model ask the same again and again."""

    def value(self, e: Index) -> int:
        """What an expression is in the call that was traced."""
        if isinstance(e, int):
            return e
        found = self._evaluated.get(e)
        if found is None:
            found = self._evaluated[e] = int(evaluate(e, self.values))
        return found

    def traced(self, e: Index) -> Index:
        """What an expression is in the graph that was traced, for every value of the sizes that it
        has: another expression may happen to have the same value."""
        names = {n: self._given.get(n, self.values[n]) for n in sizes_of(e) if n in self._own}
        return substitute(e, names, "size") if names else e

    def free(self, where: Hashable, n: int) -> Expr:
        """A size that the caller may vary and that is n now; the same one for the same place."""
        if where not in self._free:
            self._free[where] = self._made(n, unknown=False)
        return self._free[where]

    def unknown(self, where: Hashable, given: Index, least: int = 2) -> Index:
        """A dimension that takes what it meets, or else stays as it was given, as one that is less
        than `least` always does; the same one for the same place."""
        if self.value(given) < least or (isinstance(given, Expr) and is_size(given)):
            return given
        if where not in self._unknown:
            if self._settled:
                return given
            self._unknown[where] = made = self._made(self.value(given), unknown=True)
            self._given[sizes_of(made)[0]] = given
        return self.now(self._unknown[where])

    def _made(self, n: int, *, unknown: bool) -> Expr:
        name = f"{'u' if unknown else 'n'}{len(self._own)}"
        while name in self.values:
            name = f"{name}_"
        self._own[name] = unknown
        self.values[name] = n
        return size(name)

    def now(self, e: Index) -> Index:
        """The expression without sizes that are bound."""
        if isinstance(e, int):
            return e
        found = self._now.get(e)
        if found is None:
            found = e
            while isinstance(found, Expr) and any(name in self._bound for name in sizes_of(found)):
                found = substitute(found, self._bound, "size")
            self._now[e] = found
        return found

    def equal(self, a: Index, b: Index) -> Index:
        """Has two dimensions be equal; what both are then."""
        a, b = self.now(a), self.now(b)
        if a == b:
            return a
        if self.traced(a) != self.traced(b):  # a size that the graph has already, with such a hint
            self.fix(b)
            return self.fix(a)
        for x, y in ((a, b), (b, a)):
            name = self._name(x)
            if name is not None and self._own[name] and name not in sizes_of(y):
                self._bind(name, y)
                return y
        solved = self._solved(sub(a, b))
        if solved is not None:
            self._bind(*solved)
            return self.now(a)
        pairs = self._pairs(a, b)
        for x, y in pairs:
            self.equal(x, y)
        alone = [] if pairs else self._alone(a, b)
        if alone:  # what only one of two products has is rather a number
            for f in alone:
                self.fix(f)
            return self.equal(a, b)
        if not pairs:
            self.fix(a)
            self.fix(b)
        return self.now(a)

    def _solved(self, zero: Index) -> tuple[str, Index] | None:
        """The last of the sizes made here that stand in a difference once and alone, rather an
        unknown one, and what makes the difference 0."""
        common = gcd(*[factor for _, factor in terms_of(zero)])
        zero = floordiv(zero, common) if common > 1 else zero
        terms = terms_of(zero)
        times = Counter(name for atoms, _ in terms for name in sizes_of(Expr(((atoms, 1),))))
        alone = {
            atoms[0].name: factor
            for atoms, factor in terms
            if len(atoms) == 1 and atoms[0].kind == "size" and abs(factor) == 1
        }
        latest = [*reversed(self._own)]
        for name in sorted(latest, key=lambda name: not self._own[name]):
            if times[name] == 1 and name in alone:
                rest = sub(zero, mul(size(name), alone[name]))
                return name, mul(rest, -alone[name])
        return None

    def _pairs(self, a: Index, b: Index) -> list[tuple[Index, Index]]:
        """Factors of two products that are equal if each stands for one of the other's; none if
        that cannot be seen."""
        left, right = ([self.now(f) for f in self._factors(e)] for e in (a, b))
        found: list[tuple[Index, Index]] = []
        for f in left:
            same = [g for g in right if g == f] or [
                g for g in right if self.value(g) == self.value(f)
            ]
            if not same:
                return []
            right.remove(same[0])
            found += [(f, same[0])] if f != same[0] else []
        return [] if right or len(left) < 2 else found

    def _alone(self, a: Index, b: Index) -> list[Index]:
        """Unknown factors of one product that have none with their value in the other."""
        left, right = ([self.now(f) for f in self._factors(e)] for e in (a, b))
        for f in [*left]:
            same = next((g for g in right if self.value(g) == self.value(f)), None)
            if same is not None:
                left.remove(f)
                right.remove(same)
        return [f for f in (*left, *right) if self.is_unknown(f)]

    def fix(self, e: Index) -> Index:
        """Has the sizes of a dimension be numbers; what it is then."""
        e = self.now(e)
        for name in sizes_of(e):
            if name in self._own:
                self._bind(name, self._given.get(name, self.values[name]))
        return self.now(e)

    def settle(self) -> None:
        """Has what is unknown still be as it was given."""
        self._settled = True
        for e in self._unknown.values():
            for name in sizes_of(self.now(e)):
                if self._own.get(name):
                    self._bind(name, self._given[name])

    def _name(self, e: Index) -> str | None:
        """The size made here that an expression is, if it is one."""
        name = sizes_of(e)[0] if is_size(e) else None
        return name if name in self._own else None

    def _bind(self, name: str, e: Index) -> None:
        self._bound[name] = e
        self.changed = True
        self._now.clear()

    # ---- the same elements under other dimensions ------------------------------------------------

    def regrouped(
        self, where: Hashable, source: Sequence[Index], target: Sequence[Index]
    ) -> list[Index]:
        """Dimensions for a shape `target` that has the elements of `source` in the same order.
        Sizes of which one would have to be split are fixed; one that is unknown is what its parts
        turn out to be.

        >>> sizes = Sizes({})
        >>> b, n = sizes.free(1, 4), sizes.free(2, 10)
        >>> sizes.regrouped(0, [mul(b, n), 12], [4, 10, 3, 4])
        [n0, n1, 3, 4]
        >>> sizes.regrouped(2, sizes.regrouped(1, [b, n + -1, 12], [36, 12]), [4, 9, 12])
        [n0, n1 - 1, 12]
        >>> sizes.regrouped(3, [b, n], [8, 5]), sizes.now(b)
        ([8, 5], 4)
        """
        both = tuple(source), tuple(target)
        if both not in self._runs:
            self._runs[both] = self._groups(source, target)
        found: list[Index] = []
        for dims, new in self._runs[both]:
            found += self._placed((where, len(found)), dims, new)
        return found

    def _groups(self, source: Sequence[Index], target: Sequence[Index]) -> _Runs:
        """Runs of both shapes with as many elements, as short as possible."""
        groups: _Runs = []
        s = t = 0
        while s < len(source) or t < len(target):
            if self._ones(source[s:]) > self._ones(target[t:]) and source[s] == 1:
                groups.append(([1], []))  # rather than a size that is 1 now, of which one is left
                s += 1
                continue
            dims, new = list(source[s : s + 1]), list(target[t : t + 1])
            s, t = s + len(dims), t + len(new)
            left = self.value(dims[0]) if dims else 1
            right = self.value(new[0]) if new else 1
            while left != right:
                if left < right and s < len(source):
                    dims.append(source[s])
                    left, s = left * self.value(source[s]), s + 1
                elif t < len(target):
                    new.append(target[t])
                    right, t = right * self.value(target[t]), t + 1
                else:  # a run of one element in front of it is to blame
                    return [(list(source), list(target))]
            groups.append((dims, new))
        alone = [d for dims, new in groups if not dims or not new for d in (*dims, *new)]
        if any(isinstance(d, Expr) for d in alone):  # it is 1 now, and belongs to another run
            return [(list(source), list(target))]
        return groups

    def _ones(self, dims: Sequence[Index]) -> int:
        """How many dimensions are 1 now, before one that is not."""
        return next((k for k, d in enumerate(dims) if self.value(d) != 1), len(dims))

    def _placed(self, where: Hashable, dims: Sequence[Index], new: Sequence[Index]) -> list[Index]:
        """One group: each factor of its dimensions stands in one of the new ones."""
        dims = [self.now(d) for d in dims]
        if not any(isinstance(d, Expr) for d in dims):
            return list(new)
        numbers = [self.value(d) for d in new]
        factors = [f for d in dims for f in self._merged.get(d, (d,)) if isinstance(f, Expr)]
        places = self._places(factors, numbers, 0)
        if places is None:
            factors = [f for d in dims for f in self._factors(d)]
            places = self._places(factors, numbers, 0)
        unknown = [f for f in factors if self.is_unknown(f)] if places is None else []
        if len(factors) == len(unknown) == 1:
            return self._parts(where, factors[0], new)
        if unknown:  # what is split is rather a number: a size is not fixed for standing beside it
            for f in unknown:
                self.fix(f)
            return self._placed(where, dims, new)
        found: list[Index] = []
        parts: list[list[Index]] = []
        for k, d in enumerate(new if places is not None else ()):
            parts.append([f for f, p in zip(factors, places or (), strict=True) if p == k])
            whole = product(parts[-1])
            found.append(mul(whole, self.value(d) // self.value(whole)))
        if places is None or [self.traced(d) for d in found] != [*new]:
            for d in (*dims, *new):
                self.fix(d)
            return list(new)
        self._merged.update(zip(found, parts, strict=True))
        self._products.update(
            (d, [f for p in part for f in self._factors(p)])
            for d, part in zip(found, parts, strict=True)
        )
        return found

    def _parts(self, where: Hashable, whole: Index, new: Sequence[Index]) -> list[Index]:
        """What is unknown in parts, which may be known before it is."""
        found = [self.unknown((where, k), d) for k, d in enumerate(new)]
        if not any(self._own.get(name) for d in found for name in sizes_of(d)):
            self._products[product(found)] = found
            self.equal(whole, product(found))
        return found

    def is_unknown(self, e: Index) -> bool:
        """Whether nothing is known of a dimension but its number."""
        name = self._name(e)
        return name is not None and self._own[name]

    def varying(self) -> list[Expr]:
        """The sizes made here that the caller may vary, as far as is known."""
        return [size(n) for n, unknown in self._own.items() if not unknown and n not in self._bound]

    def _factors(self, e: Index) -> list[Index]:
        """What a dimension is a product of, numbers aside; a sum that is not known to be one is one
        factor."""
        terms = terms_of(e)
        if e in self._products or len(terms) != 1:
            return self._products.get(e, [e])
        ((atoms, _),) = terms
        return [Expr((((a,), 1),)) for a in atoms]

    def _places(
        self, factors: Sequence[Index], numbers: Sequence[int], first: int
    ) -> list[int] | None:
        """For each factor the dimension it divides, in order if possible, whole ones first."""
        if not factors:
            return []
        value = self.value(factors[0])
        order = sorted(range(len(numbers)), key=lambda k: (numbers[k] != value, k < first, k))
        for k in order:
            if numbers[k] % value:
                continue
            rest = [n // value if j == k else n for j, n in enumerate(numbers)]
            more = self._places(factors[1:], rest, k)
            if more is not None:
                return [k, *more]
        return None


def is_size(e: Index) -> bool:
    """Whether a dimension is a size and nothing else."""
    names = sizes_of(e)
    return len(names) == 1 and e == size(names[0])
