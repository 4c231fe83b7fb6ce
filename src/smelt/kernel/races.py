"""Prove that stores of different blocks do not overlap, or join in a defined order.

>>> from smelt.types.expr import axis, size
>>> r, c = axis("r", size("r")), axis("c", size("c"))
>>> determined_axes((r * size("c") + c,)) == {"r", "c"}, determined_axes((r + c,))
(True, set())

A scatter-reduce store writes an element several times. Visits of the enclosing streams run one
after another, so values are combined in stream order. No other block may write an element that the
store may touch. That holds if an earlier store, whose elements no other block writes, has covered
every possible position in each dimension: at the same index; along a whole axis; or along the
current block of an axis, provided only positions in that block are visited.

>>> from smelt.kernel.text import parse
>>> from smelt.kernel.verify import verify
>>> kernel = verify(
...     parse('''
... kernel added(x: f32[n], ids: i64[m], u: f32[m]) -> y: f32[n]
...   grid n/64
...   y[n] = x[n]
...   stream m where (ids[m] >= first(n)) & (ids[m] <= last(n))
...     at = position(ids[m], size(n))
...     y[at] add= u[m]
... ''')
... )
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations
from math import gcd

from smelt.errors import DTypeError
from smelt.kernel import ir
from smelt.kernel.bounds import Facts, nonnegative
from smelt.kernel.env import axes_of
from smelt.kernel.ir import PUT
from smelt.kernel.verify_values import CheckContext, refuse
from smelt.kernel.walk import substitute, substitute_index, visit
from smelt.ops.contract import bare_axis
from smelt.ops.scalar import SCALARS
from smelt.types import expr
from smelt.types.dtype import DType, i64
from smelt.types.expr import Atom, Expr, Index

Indices = tuple[Index, ...]


def determined_axes(index: Indices) -> set[str]:
    """Return the axes whose values follow from the value of an index (injectivity).

    If these are all axes that a store runs over, it writes every element once.
    """
    determined_so_far: set[str] = set()
    expressions = _with_recombined(index)
    while True:
        solved: set[str] = set()
        for e in expressions:
            solved |= _solve(e, determined_so_far)
        if solved <= determined_so_far:
            return determined_so_far
        determined_so_far |= solved


def _with_recombined(index: Indices) -> list[Index]:
    """Return the expressions and those that a quotient and a remainder recombine to."""
    out = list(index)
    for _ in range(len(index)):
        quotients = {a.args: a for a in map(_single_atom, out) if a is not None and a.kind == "//"}
        for rest in [a for a in map(_single_atom, out) if a is not None and a.kind == "%"]:
            inner, divisor = rest.args
            nested = _single_atom(inner)
            quotient_args = rest.args
            if rest.args not in quotients and nested is not None and nested.kind == "//":
                # (k//d) // c is written k // (d*c)
                quotient_args = (nested.args[0], expr.mul(nested.args[1], divisor))
            if quotient_args in quotients and inner not in out:
                out.append(inner)
    return out


def _single_atom(e: Index) -> Atom | None:
    """Return the atom that an expression consists of, or None."""
    if not isinstance(e, Expr) or len(e.terms) != 1 or e.terms[0][1] != 1:
        return None
    atoms = e.terms[0][0]
    return atoms[0] if len(atoms) == 1 else None


def _solve(e: Index, solved: set[str]) -> set[str]:
    """Return the axes determined by the value of `e`, given those already known."""
    if any(a.kind == "value" for a in expr.atoms(e)):
        return set()
    open_axes = [a for a in expr.axes_of(e) if a not in solved]
    extents = {a.name: a.extent for a in expr.atoms(e) if a.kind == "axis"}
    digits: list[tuple[str, Index, Index]] = []
    for a in open_axes:
        scale = expr.coefficient(e, a)
        if scale is None:
            return set()
        size = next((s for s in (scale, expr.mul(scale, -1)) if _is_positive(s)), None)
        if size is None:
            return set()
        digits.append((a, size, extents[a]))
    if len(digits) > 4:
        return set()
    if any(_mixed_radix(order) for order in permutations(digits)):
        return set(open_axes)
    return set()


def _is_positive(e: Index) -> bool:
    return nonnegative(expr.sub(e, 1))


def _mixed_radix(digits: tuple[tuple[str, Index, Index], ...]) -> bool:
    """Return whether each digit's weight exceeds the sum of all lower digits."""
    reach: Index = 0
    for _, scale, extent in digits:
        if not _is_positive(expr.sub(scale, reach)):
            return False
        reach = expr.add(reach, expr.mul(scale, expr.sub(extent, 1)))
    return True


def disjoint(a: Indices, a_facts: Facts, b: Indices, b_facts: Facts) -> bool:
    """Return whether two stores to one array can never touch the same element."""
    renamed = _renamed((*b, *b_facts))
    b, b_facts = renamed[: len(b)], renamed[len(b) :]
    facts = a_facts + b_facts
    for left, right in zip(a, b, strict=True):
        gap = expr.sub(left, right)
        if nonnegative(expr.sub(gap, 1), facts) or nonnegative(
            expr.sub(expr.mul(gap, -1), 1), facts
        ):
            return True
        if _never_zero(gap):
            return True
    return False


def _renamed(index: Iterable[Index]) -> Indices:
    """Rename the axes of expressions apart from those of another store."""
    out: list[Index] = []
    for e in index:
        axes = {a.name: a for a in expr.atoms(e) if a.kind in ("axis", "value")}
        other = {
            name: expr.axis(f"{name}*", a.extent)
            if a.kind == "axis"
            else expr.value(f"{name}*", a.extent)
            for name, a in axes.items()
        }
        out.append(substitute_index(e, other))
    return tuple(out)


def _never_zero(e: Index) -> bool:
    """Return whether e is nonzero modulo the common factor of its coefficients."""
    if isinstance(e, int):
        return e != 0
    common = gcd(*(c for m, c in e.terms if m))
    constant = next((c for m, c in e.terms if not m), 0)
    return constant % common != 0


# ---- scatter-reduce stores ----------------------------------------------------------------------

MAX_EXPANDED = 4096
"""Maximum operators of a value with its names inlined, which may double with every name."""


def can_join(join: str, dtype: DType) -> bool:
    """Return whether two values of a type combine by the operator `join`."""
    if join == PUT:
        return True
    row = SCALARS.get(join)
    if row is None or row.arity != 2:
        return False
    try:
        return row.result(dtype, dtype) == dtype
    except DTypeError:
        return False


def check_join(s: ir.Store, place: CheckContext, index_axes: frozenset[str]) -> None:
    """Check that a scatter-reduce store runs its visits one by one.

    `index_axes` are the axes of the store's index and those of extent 1; every other axis it
    varies along must be fixed.
    """
    dtype = place.env.param(s.param).dtype.compute
    if not can_join(s.join, dtype):
        refuse(f"{s.join} does not join two values of {dtype.name}")
    values = [s.value] if s.where is None else [s.value, s.where]
    axes = index_axes.union(*(axes_of(v, place.env) for v in values))
    single = {a for a, extent in place.extents.items() if extent == 1}
    plain = tuple(e for e in s.index if not _positions(e))
    loose = axes - determined_axes(plain) - place.fixed - single
    if loose:
        refuse(f"several positions of {min(loose)} join at once, in no known order")


def covers(
    first: Index,
    at: Index,
    extent: Index,
    place: CheckContext,
    full_axes: frozenset[str],
    streams: tuple[ir.Stream, ...],
    where: ir.Value | None,
) -> bool:
    """Return whether the store at `first` covered all values of `at` in this dimension.

    `full_axes` are the axes that store had in full; `streams` are the streams around it. The store
    at `at` runs only if `where` holds.
    """
    if extent == 1 or (first == at and not _positions(at)):
        return True
    name = bare_axis(first)
    if name is None or place.extents.get(name) != extent:
        return False
    if name in full_axes:
        return True
    enclosing = next((x for x in place.streams if any(b.axis == name for b in x.blocks)), None)
    if enclosing is not None and not any(x is enclosing for x in streams):
        return False
    return _inside_block(at, name, place, where)


def _inside_block(at: Index, axis: str, place: CheckContext, where: ir.Value | None) -> bool:
    """Return whether only positions in the current block of an axis are visited."""
    names = _positions(at)
    if (
        len(names) != 1
        or not isinstance(at, Expr)
        or at.terms != expr.value(names[0], place.extents[axis]).terms
    ):
        return False
    position = _expand(place.lets[names[0]], place)
    ends: set[str] = set()
    for condition in (where, *(s.where for s in place.streams)):
        for test in () if condition is None else _comparisons(condition):
            value, end = test.args
            if not isinstance(end, ir.Extreme) or not isinstance(end.arg, ir.IndexValue):
                continue
            if bare_axis(end.arg.index) == axis and _expand(value, place) == position:
                ends.add(f"{test.op} {'last' if end.largest else 'first'}")
    return {"ge first", "le last"} <= ends


def _comparisons(condition: ir.Value) -> Iterator[ir.Apply]:
    if isinstance(condition, ir.Apply) and condition.op == "and":
        for part in condition.args:
            yield from _comparisons(part)
    elif isinstance(condition, ir.Apply) and len(condition.args) == 2:
        yield condition


def _expand(value: ir.Value, place: CheckContext) -> ir.Value:
    """Inline all names of a value and strip an outer lossless conversion."""
    while True:
        expanded = substitute(value, names=place.lets)
        if expanded == value or sum(1 for _ in visit(expanded)) > MAX_EXPANDED:
            break
        value = expanded
    if isinstance(value, ir.Cast) and value.dtype == i64:
        return value.arg
    return value


def _positions(e: Index) -> list[str]:
    return [a.name for a in expr.atoms(e) if a.kind == "value"]
