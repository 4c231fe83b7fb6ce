"""Verify scatter-reduce stores: several writes to one element, in a defined order.

Visits of the enclosing streams run one after another, so values are combined in stream order. No
other block may write an element that the store may touch. That holds if an earlier store, whose
elements no other block writes, has covered every possible position in each dimension: at the same
index; along a whole axis; or along the current block of an axis, provided only positions in that
block are visited.

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

from collections.abc import Iterator

from smelt.errors import DTypeError
from smelt.kernel import ir
from smelt.kernel.env import axes_of
from smelt.kernel.ir import PUT
from smelt.kernel.races import determined_axes
from smelt.kernel.verify_values import CheckContext, refuse
from smelt.kernel.walk import substitute, visit
from smelt.ops.contract import bare_axis
from smelt.ops.scalar import SCALARS
from smelt.types import expr
from smelt.types.dtype import DType, i64
from smelt.types.expr import Expr, Index

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
