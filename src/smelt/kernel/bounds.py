"""Prove that index expressions stay inside arrays for every size and block.

Sizes are taken to be at least 1 and axes to lie inside their extents. Conditions known to hold at
a program point are passed as facts: expressions that are >= 0. The prover is sound but
incomplete: failing to find a proof says little.

>>> from smelt.types.expr import axis, size
>>> n = size("n")
>>> i, j = axis("i", n), axis("j", n * 2)
>>> proves_inside(i * 2 + 1, n * 2), proves_inside(i + 1, n), proves_inside(j - n, n)
(True, False, False)
>>> proves_inside(j - n, n, facts=(j - n,))
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from smelt.kernel.ir import Apply, Cast, Const, IndexValue, Ref, Value
from smelt.types import expr
from smelt.types.dtype import i64
from smelt.types.expr import Atom, Expr, Index, Monomial
from smelt.types.text import too_large, too_large_product

Facts = tuple[Index, ...]
_EFFORT: Final = 4
"""Depth limit of one proof: facts used, case splits and divisions eliminated."""
_MAX_SUBGOALS: Final = 4096
"""Maximum subgoals of one proof, which many facts would multiply."""
_MAX_DEPTH: Final = 256
"""Maximum operators and names inside one another in a value that becomes an index expression."""


def proves_inside(index: Index, extent: Index, facts: Iterable[Index] = ()) -> bool:
    """Return whether 0 <= index < extent follows from the facts."""
    assumptions = tuple(facts)
    return _proves_inside_cached(
        index, extent, assumptions, tuple(map(expr.extents, (index, extent, *assumptions)))
    )


@lru_cache(maxsize=4096)
def _proves_inside_cached(
    index: Index, extent: Index, facts: Facts, _: tuple[tuple[Index, ...], ...]
) -> bool:
    """Cached `proves_inside`, because code variants of a kernel repeat its queries.

    The last argument only makes the extents of the axes part of the cache key.
    """
    return nonnegative(index, facts) and nonnegative(expr.sub(expr.sub(extent, 1), index), facts)


def nonnegative(e: Index, facts: Facts = (), effort: int = _EFFORT) -> bool:
    """Return whether e >= 0 follows from the facts."""
    return _prove(e, facts, effort, {})


_Memo: TypeAlias = dict[tuple[Expr, Facts, int], bool]
"""Results of a proof's subgoals, which recur in different orders."""


def _prove(e: Index, facts: Facts, effort: int, memo: _Memo) -> bool:
    if isinstance(e, int):
        return e >= 0
    key = e, facts, effort
    holds = memo.get(key)
    if holds is None and len(memo) >= _MAX_SUBGOALS:
        return False
    if holds is None:
        holds = memo[key] = expr.nonnegative(e) or (
            effort > 0 and _prove_by_steps(e, facts, effort, memo)
        )
    return holds


def _prove_by_steps(e: Expr, facts: Facts, effort: int, memo: _Memo) -> bool:
    """Derive e >= 0 by cases, a fact, a division bound or range ends."""
    extreme = next((a for m, _ in e.terms for a in m if a.kind in ("min", "max")), None)
    if extreme is not None:
        return _prove_by_cases(e, extreme, facts, effort - 1, memo)
    for k, fact in enumerate(facts):
        rest = facts[:k] + facts[k + 1 :]
        if _may_cancel(e, fact) and _prove(expr.sub(e, fact), rest, effort - 1, memo):
            return True
    return _prove_without_division(e, facts, effort - 1, memo) or _prove_at_range_end(
        e, facts, effort, memo
    )


def _may_cancel(e: Expr, fact: Index) -> bool:
    """Return whether subtracting the fact could cancel a term."""
    return isinstance(fact, Expr) and any(
        m and (c > 0) == (d > 0) for m, c in e.terms for k, d in fact.terms if m == k
    )


def _split_linear(e: Expr, atom: Atom) -> tuple[Index, Index] | None:
    """Split e into (c, rest) with e = c*atom + rest, if `atom` occurs linearly."""
    scale: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in e.terms:
        if m.count(atom) > 1:
            return None
        if atom in m:
            others = list(m)
            others.remove(atom)
            scale[tuple(others)] = c
        else:
            rest[m] = c
    return expr.build(scale), expr.build(rest)


def _prove_by_cases(e: Expr, atom: Atom, facts: Facts, effort: int, memo: _Memo) -> bool:
    """Replace a minimum or maximum by its arguments.

    If its sign makes it an upper (lower) bound that only helps, one argument suffices; otherwise
    both cases must hold.
    """
    split = _split_linear(e, atom)
    if split is None:
        return False
    scale, rest = split
    results = (
        _prove(expr.add(expr.mul(scale, side), rest), facts, effort, memo) for side in atom.args
    )
    downward = nonnegative(expr.mul(scale, -1), (), 1)
    upward = nonnegative(scale, (), 1)
    if (atom.kind == "max" and upward) or (atom.kind == "min" and downward):
        return any(results)
    return all(results)


def _prove_without_division(e: Expr, facts: Facts, effort: int, memo: _Memo) -> bool:
    """Eliminate a floor division: b*(a//b) lies between a - b + 1 and a.

    Hence e >= 0 follows from b*e >= 1 - b with the quotient replaced by its worse bound.
    """
    for atom in dict.fromkeys(a for m, _ in e.terms for a in m if a.kind == "//"):
        split = _split_linear(e, atom)
        a, b = atom.args
        if split is None or not nonnegative(expr.sub(b, 1), (), 1):
            continue
        scale, rest = split
        if not isinstance(scale, int):
            times = expr.floordiv(scale, b)
            if expr.mul(times, b) != scale or not isinstance(times, int):
                continue
            worst = expr.mul(a if times < 0 else expr.sub(a, expr.sub(b, 1)), times)
            if _prove(expr.add(worst, rest), facts, effort, memo):
                return True
            continue
        worst = expr.mul(a if scale < 0 else expr.sub(a, expr.sub(b, 1)), scale)
        scaled = expr.add(expr.add(worst, expr.mul(rest, b)), expr.sub(b, 1))
        if _prove(scaled, facts, effort, memo):
            return True
    return False


def _prove_at_range_end(e: Expr, facts: Facts, effort: int, memo: _Memo) -> bool:
    """Replace one variable by the end of its range where `e` is smallest."""
    for atom in dict.fromkeys(a for m, _ in e.terms for a in m if a.kind != "size"):
        split = _split_linear(e, atom)
        span = expr.bounds(Expr((((atom,), 1),)))
        if split is None or span is None:
            continue
        scale, rest = split
        for sign, worst in ((1, span[0]), (-1, span[1])):
            if atom in expr.atoms(worst):
                continue  # a quotient of sizes is its own bound
            if nonnegative(expr.mul(scale, sign), (), 1):
                return _prove(expr.add(expr.mul(scale, worst), rest), facts, effort, memo)
    return False


# ---- facts -------------------------------------------------------------------------------------

COMPARISONS = {"lt": (-1, -1), "le": (-1, 0), "gt": (1, -1), "ge": (1, 0)}
"""Comparisons as bounds, as (sign, shift).

    a op b  <=>  sign*(a - b) + shift >= 0
"""
NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "ne": "eq"}
"""Complement of each comparison."""
_ARITHMETIC = {"add": expr.add, "sub": expr.sub, "mul": expr.mul}


def facts_of(condition: Value, lets: Mapping[str, Value], *, holds: bool = True) -> Facts:
    """Return the facts that a boolean value implies where it is true (`holds`) or false.

    `lets` maps bound names to their definitions.
    """
    match resolve(condition, lets):
        case Apply(op="and", args=(a, b)) if holds:
            return facts_of(a, lets) + facts_of(b, lets)
        case Apply(op="or", args=(a, b)) if not holds:
            return facts_of(a, lets, holds=False) + facts_of(b, lets, holds=False)
        case Apply(op="not", args=(a,)):
            return facts_of(a, lets, holds=not holds)
        case Apply(op=op, args=(a, b)):
            relation = op if holds else NEGATED.get(op, "")
            left, right = as_index(a, lets), as_index(b, lets)
            if left is None or right is None:
                return ()
            gap = expr.sub(left, right)
            if relation == "eq":
                return gap, expr.mul(gap, -1)
            if relation in COMPARISONS:
                sign, shift = COMPARISONS[relation]
                return (expr.add(expr.mul(gap, sign), shift),)
            return ()
        case _:
            return ()


def resolve(value: Value, lets: Mapping[str, Value]) -> Value:
    """Return what a name is bound to; other values are themselves."""
    while isinstance(value, Ref) and not value.next and value.name in lets:
        value = lets[value.name]
    return value


def as_index(value: Value, lets: Mapping[str, Value]) -> Index | None:
    """Convert an i64 value to an index expression.

    None if that is impossible or too large.  Only i64 qualifies: it is wide enough for index
    arithmetic not to wrap.
    """
    return _as_index(value, lets, {}, _MAX_DEPTH)


def _as_index(
    value: Value, lets: Mapping[str, Value], converted: dict[str, Index | None], depth: int
) -> Index | None:
    """Convert a value; `converted` has the results for names, which may be read many times."""
    if depth == 0:
        return None
    match value:
        case Ref(name=name, next=False) if name in lets:
            if name not in converted:
                converted[name] = _as_index(lets[name], lets, converted, depth - 1)
            return converted[name]
        case IndexValue(index=index, dtype=dtype) if dtype == i64:
            return index
        case Const(value=int(number), dtype=dtype) if dtype == i64:
            return number
        case Cast(arg=arg, dtype=dtype) if dtype == i64:
            return _as_index(arg, lets, converted, depth - 1)
        case Apply(op=op, args=(a, b)) if op in _ARITHMETIC:
            left = _as_index(a, lets, converted, depth - 1)
            right = None if left is None else _as_index(b, lets, converted, depth - 1)
            if left is None or right is None or too_large_product(left, right):
                return None
            result = _ARITHMETIC[op](left, right)
            return None if too_large(result) else result
        case _:
            return None
