"""Unify symbolic sizes: equate dimensions, and keep a value for every size.

A dimension is an expression over sizes.  A *free* size is one that the caller may vary; an
*unknown* stands for a dimension that counts or repeats, and becomes whatever it is equated with.
Every size has its value in the traced call, which never changes: dimensions that are equated have
equal values.

>>> sizes = Sizes({})
>>> n, some = sizes.free(("x", 0), 5), sizes.unknown(("iota", 0), 5)
>>> sizes.equal(some, n), sizes.resolve(some)
(n0, n0)
>>> sizes.equal(n, 5), sizes.resolve(some)
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
    symbol_of,
    terms_of,
)

_Groups: TypeAlias = list[tuple[list[Index], list[Index]]]


class Sizes:
    """The symbolic sizes of a graph that is being generalised.

    `hints` are values of the sizes it already has.  With `splits`, a size that a reshape splits
    becomes the product of new sizes.
    """

    def __init__(self, hints: Mapping[str, int], *, splits: bool = False) -> None:
        self.values = dict(hints)
        self.splits = splits
        self.changed = False
        """Whether a size was bound since this was last set."""
        self._is_settled = False
        self._is_unknown_by_name: dict[str, bool] = {}
        """Sizes created here, in order; True for unknowns."""
        self._free: dict[Hashable, Expr] = {}
        self._unknown: dict[Hashable, Expr] = {}
        self._fallback: dict[str, Index] = {}
        """Expressions that unknowns fall back to; other sizes fall back to their values."""
        self._bound: dict[str, Index] = {}
        self._products: dict[Index, list[Index]] = {}
        """Factors of merged dimensions."""
        self._merged: dict[Index, list[Index]] = {}
        """Factors of merged dimensions as they were before the merge, for splitting them again."""
        self._evaluated: dict[Expr, int] = {}
        self._resolved: dict[Expr, Index] = {}
        self._groups_cache: dict[tuple[tuple[Index, ...], ...], _Groups] = {}
        """Results of `_groups`: repeated layers of a model need the same ones."""

    def value(self, e: Index) -> int:
        """Return the value of an expression in the traced call."""
        if isinstance(e, int):
            return e
        result = self._evaluated.get(e)
        if result is None:
            result = self._evaluated[e] = int(evaluate(e, self.values))
        return result

    def traced(self, e: Index) -> Index:
        """Return an expression in terms of the traced graph's sizes alone.

        Unlike `value`, it distinguishes expressions that only happen to have equal values.
        """
        names = {
            n: self._fallback.get(n, self.values[n])
            for n in sizes_of(e)
            if n in self._is_unknown_by_name
        }
        return substitute(e, names, "size") if names else e

    def free(self, key: Hashable, n: int) -> Expr:
        """Return the size of `key`, which the caller may vary and that is n now."""
        if key not in self._free:
            self._free[key] = self._new_size(n, unknown=False)
        return self._free[key]

    def unknown(self, key: Hashable, fallback: Index, least: int = 2) -> Index:
        """Return a dimension that becomes what it is equated with, or else `fallback`.

        A dimension below `least`, and one that is a size of the traced graph, stays as it is.
        There is one unknown for each `key`.
        """
        if self.value(fallback) < least or symbol_of(fallback):
            return fallback
        if key not in self._unknown:
            if self._is_settled:
                return fallback
            self._unknown[key] = created = self._new_size(self.value(fallback), unknown=True)
            self._fallback[sizes_of(created)[0]] = fallback
        return self.resolve(self._unknown[key])

    def _new_size(self, n: int, *, unknown: bool) -> Expr:
        name = f"{'u' if unknown else 'n'}{len(self._is_unknown_by_name)}"
        while name in self.values:
            name = f"{name}_"
        self._is_unknown_by_name[name] = unknown
        self.values[name] = n
        return size(name)

    def resolve(self, e: Index) -> Index:
        """Return an expression with bound sizes substituted."""
        if isinstance(e, int):
            return e
        result = self._resolved.get(e)
        if result is None:
            result = e
            while isinstance(result, Expr) and any(
                name in self._bound for name in sizes_of(result)
            ):
                result = substitute(result, self._bound, "size")
            self._resolved[e] = result
        return result

    def equal(self, a: Index, b: Index) -> Index:
        """Equate two dimensions, and return what both are then."""
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return a
        if self.traced(a) != self.traced(b):  # a size of the traced graph only happens to be equal
            self.fix(b)
            return self.fix(a)
        for x, y in ((a, b), (b, a)):
            name = self._size_name(x)
            if name is not None and self._is_unknown_by_name[name] and name not in sizes_of(y):
                self._bind(name, y)
                return y
        solved = self._solve(sub(a, b))
        if solved is not None:
            self._bind(*solved)
            return self.resolve(a)
        pairs = self._equal_factors(a, b)
        for x, y in pairs:
            self.equal(x, y)
        unmatched = [] if pairs else self._unmatched_unknowns(a, b)
        if unmatched:  # fix unknowns that only one of the products has
            for f in unmatched:
                self.fix(f)
            return self.equal(a, b)
        if not pairs:
            self.fix(a)
            self.fix(b)
        return self.resolve(a)

    def _solve(self, zero: Index) -> tuple[str, Index] | None:
        """Solve `zero` = 0 for a size that occurs once, alone and with factor ±1.

        Considers only sizes created here; prefers unknowns, and the latest of them.  Returns the
        size and its expression, or None.
        """
        common = gcd(*[factor for _, factor in terms_of(zero)])
        zero = floordiv(zero, common) if common > 1 else zero
        terms = terms_of(zero)
        occurrences = Counter(name for atoms, _ in terms for name in sizes_of(Expr(((atoms, 1),))))
        candidates = {
            atoms[0].name: factor
            for atoms, factor in terms
            if len(atoms) == 1 and atoms[0].kind == "size" and abs(factor) == 1
        }
        latest = [*reversed(self._is_unknown_by_name)]
        for name in sorted(latest, key=lambda name: not self._is_unknown_by_name[name]):
            if occurrences[name] == 1 and name in candidates:
                remainder = sub(zero, mul(size(name), candidates[name]))
                return name, mul(remainder, -candidates[name])
        return None

    def _equal_factors(self, a: Index, b: Index) -> list[tuple[Index, Index]]:
        """Match the factors of two products by value, and return the pairs that differ.

        An empty list if the factors do not match one to one.
        """
        left, right = ([self.resolve(f) for f in self._factors(e)] for e in (a, b))
        pairs: list[tuple[Index, Index]] = []
        for f in left:
            candidates = [g for g in right if g == f] or [
                g for g in right if self.value(g) == self.value(f)
            ]
            if not candidates:
                return []
            right.remove(candidates[0])
            pairs += [(f, candidates[0])] if f != candidates[0] else []
        return [] if right or len(left) < 2 else pairs

    def _unmatched_unknowns(self, a: Index, b: Index) -> list[Index]:
        """Return unknown factors of one product without a factor of equal value in the other."""
        left, right = ([self.resolve(f) for f in self._factors(e)] for e in (a, b))
        for f in [*left]:
            match = next((g for g in right if self.value(g) == self.value(f)), None)
            if match is not None:
                left.remove(f)
                right.remove(match)
        return [f for f in (*left, *right) if self.is_unknown(f)]

    def fix(self, e: Index) -> Index:
        """Bind the sizes of a dimension to their values, and return the result."""
        e = self.resolve(e)
        for name in sizes_of(e):
            if name in self._is_unknown_by_name:
                self._bind(name, self._fallback.get(name, self.values[name]))
        return self.resolve(e)

    def settle(self) -> None:
        """Bind the remaining unknowns to what they were in the trace."""
        self._is_settled = True
        for e in self._unknown.values():
            for name in sizes_of(self.resolve(e)):
                if self._is_unknown_by_name.get(name):
                    self._bind(name, self._fallback[name])

    def _size_name(self, e: Index) -> str | None:
        """Return the name of the size created here that an expression is, or None."""
        name = symbol_of(e)
        return name if name in self._is_unknown_by_name else None

    def _bind(self, name: str, e: Index) -> None:
        self._bound[name] = e
        self.changed = True
        self._resolved.clear()

    # ---- reshapes --------------------------------------------------------------------------------

    def reshape_dims(
        self, reshape_key: Hashable, source: Sequence[Index], target: Sequence[Index]
    ) -> list[Index]:
        """Return dimensions for a reshape from `source` to `target`.

        Sizes that would have to be split are fixed; an unknown that is split becomes the product of
        its parts.  `reshape_key` identifies the reshape.

        >>> sizes = Sizes({})
        >>> b, n = sizes.free(1, 4), sizes.free(2, 10)
        >>> sizes.reshape_dims(0, [mul(b, n), 12], [4, 10, 3, 4])
        [n0, n1, 3, 4]
        >>> sizes.reshape_dims(2, sizes.reshape_dims(1, [b, n + -1, 12], [36, 12]), [4, 9, 12])
        [n0, n1 - 1, 12]
        >>> sizes.reshape_dims(3, [b, n], [8, 5]), sizes.resolve(b)
        ([8, 5], 4)
        """
        key = tuple(source), tuple(target)
        if key not in self._groups_cache:
            self._groups_cache[key] = self._groups(source, target)
        result: list[Index] = []
        for dims, new in self._groups_cache[key]:
            result += self._assign_factors((reshape_key, len(result)), dims, new)
        return result

    def _groups(self, source: Sequence[Index], target: Sequence[Index]) -> _Groups:
        """Return runs of both shapes with equal numbers of elements, as short as possible."""
        groups: _Groups = []
        s = t = 0
        while s < len(source) or t < len(target):
            if self._leading_ones(source[s:]) > self._leading_ones(target[t:]) and source[s] == 1:
                # Drop a literal 1 rather than a size that is 1 in the trace.
                groups.append(([1], []))
                s += 1
                continue
            dims, new = list(source[s : s + 1]), list(target[t : t + 1])
            s, t = s + len(dims), t + len(new)
            source_count = self.value(dims[0]) if dims else 1
            target_count = self.value(new[0]) if new else 1
            while source_count != target_count:
                if source_count < target_count and s < len(source):
                    dims.append(source[s])
                    source_count, s = source_count * self.value(source[s]), s + 1
                elif t < len(target):
                    new.append(target[t])
                    target_count, t = target_count * self.value(target[t]), t + 1
                else:  # an earlier run of one element took a dimension of this one
                    return [(list(source), list(target))]
            groups.append((dims, new))
        unpaired = [d for dims, new in groups if not dims or not new for d in (*dims, *new)]
        if any(isinstance(d, Expr) for d in unpaired):  # is 1 in the trace, belongs to another run
            return [(list(source), list(target))]
        return groups

    def _leading_ones(self, dims: Sequence[Index]) -> int:
        """Return the number of leading dimensions that are 1 in the trace."""
        return next((k for k, d in enumerate(dims) if self.value(d) != 1), len(dims))

    def _assign_factors(
        self, key: Hashable, dims: Sequence[Index], new: Sequence[Index]
    ) -> list[Index]:
        """Assign each factor of a group's source dimensions to one of its target dimensions."""
        dims = [self.resolve(d) for d in dims]
        if not any(isinstance(d, Expr) for d in dims):
            return list(new)
        numbers = [self.value(d) for d in new]
        factors = [f for d in dims for f in self._merged.get(d, (d,)) if isinstance(f, Expr)]
        target_of = self._target_dims(factors, numbers, 0)
        if target_of is None:
            factors = [f for d in dims for f in self._factors(d)]
            target_of = self._target_dims(factors, numbers, 0)
        unknown = [f for f in factors if self.is_unknown(f)] if target_of is None else []
        if len(factors) == len(unknown) == 1:
            return self._split_unknown(key, factors[0], new)
        if self.splits and target_of is None and len(factors) == 1 and factors[0] == product(dims):
            return self._split_free(key, factors[0], new)
        if unknown:  # fix the unknowns that would be split, not the sizes in the same group
            for f in unknown:
                self.fix(f)
            return self._assign_factors(key, dims, new)
        result: list[Index] = []
        factors_of: list[list[Index]] = []
        for k, d in enumerate(new if target_of is not None else ()):
            factors_of.append([f for f, p in zip(factors, target_of or (), strict=True) if p == k])
            factor_product = product(factors_of[-1])
            result.append(mul(factor_product, self.value(d) // self.value(factor_product)))
        if target_of is None or [self.traced(d) for d in result] != [*new]:
            for d in (*dims, *new):
                self.fix(d)
            return list(new)
        self._merged.update(zip(result, factors_of, strict=True))
        self._products.update(
            (d, [f for p in part for f in self._factors(p)])
            for d, part in zip(result, factors_of, strict=True)
        )
        return result

    def _split_unknown(self, key: Hashable, dim: Index, new: Sequence[Index]) -> list[Index]:
        """Split an unknown size into a product of unknowns, one for each part.

        Parts may be known before it is.
        """
        result = [self.unknown((key, k), d) for k, d in enumerate(new)]
        if not any(self._is_unknown_by_name.get(name) for d in result for name in sizes_of(d)):
            self._products[product(result)] = result
            self.equal(dim, product(result))
        return result

    def _split_free(self, key: Hashable, dim: Index, new: Sequence[Index]) -> list[Index]:
        """Split a size that may vary into a product of new sizes, one a part."""
        result: list[Index] = []
        for k, d in enumerate(new):
            if isinstance(d, int) and d > 1:
                d = self.resolve(self.free((key, k), d))
            result.append(d)
        self._products[product(result)] = result
        self.equal(dim, product(result))
        return result

    def is_unknown(self, e: Index) -> bool:
        """Whether a dimension is an unknown that nothing has been equated with."""
        name = self._size_name(e)
        return name is not None and self._is_unknown_by_name[name]

    def free_sizes(self) -> list[Expr]:
        """Return the sizes created here that the caller may vary, as far as known."""
        return [
            size(n)
            for n, unknown in self._is_unknown_by_name.items()
            if not unknown and n not in self._bound
        ]

    def _factors(self, e: Index) -> list[Index]:
        """Return the symbolic factors of a dimension.

        A sum is one factor unless it is known to be a product.
        """
        terms = terms_of(e)
        if e in self._products or len(terms) != 1:
            return self._products.get(e, [e])
        ((atoms, _),) = terms
        return [Expr((((a,), 1),)) for a in atoms]

    def _target_dims(
        self, factors: Sequence[Index], numbers: Sequence[int], first: int
    ) -> list[int] | None:
        """Return for each factor the target dimension it divides, or None.

        Exact matches come first, then dimensions in order.
        """
        if not factors:
            return []
        value = self.value(factors[0])
        order = sorted(range(len(numbers)), key=lambda k: (numbers[k] != value, k < first, k))
        for k in order:
            if numbers[k] % value:
                continue
            remaining = [n // value if j == k else n for j, n in enumerate(numbers)]
            rest_of_factors = self._target_dims(factors[1:], remaining, k)
            if rest_of_factors is not None:
                return [k, *rest_of_factors]
        return None
