"""Stores that join what stands there: what may write one element several times, in a known order.

The visits of streams around such a store are made one after another, so that the order in which
values join an element is that of the streams.  No other block may write what it may meet.  That
holds where a store before it, whose own elements no other block writes, has covered all of it in
each dimension: at the same index; or along a whole axis; or along the present block of an axis, if
only positions inside of that block are visited.

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
from smelt.kernel.ir import LAST
from smelt.kernel.races import determined
from smelt.kernel.verify_values import Place, refuse
from smelt.kernel.walk import substitute
from smelt.ops.contract import bare_axis
from smelt.ops.scalar import SCALARS
from smelt.types import expr
from smelt.types.dtype import DType, i64
from smelt.types.expr import Expr, Index


def joins(join: str, dtype: DType) -> bool:
    """Whether values of a type join by an operator of that name."""
    if join == LAST:
        return True
    row = SCALARS.get(join)
    if row is None or row.arity != 2:
        return False
    try:
        return row.result(dtype, dtype) == dtype
    except DTypeError:
        return False


def check_join(s: ir.Store, place: Place, own: frozenset[str]) -> None:
    """The visits of a joining store come one by one: what its index does not tell is held still.
    `own` are the axes of its index, and those of one position."""
    dtype = place.env.param(s.param).dtype.compute
    if not joins(s.join, dtype):
        refuse(f"{s.join} does not join two values of {dtype.name}")
    values = [s.value] if s.where is None else [s.value, s.where]
    every = own.union(*(axes_of(v, place.env) for v in values))
    single = {a for a, extent in place.extents.items() if extent == 1}
    plain = tuple(e for e in s.index if not _positions(e))
    loose = every - determined(plain) - place.fixed - single
    if loose:
        refuse(f"several positions of {min(loose)} join at once, in no known order")


def reaches(
    first: Index,
    at: Index,
    extent: Index,
    place: Place,
    whole: frozenset[str],
    streams: tuple[ir.Stream, ...],
) -> bool:
    """Whether a store at `first`, of which it had the axes `whole` at once inside of `streams`, has
    covered all that `at` can be in this dimension."""
    if extent == 1 or (first == at and not _positions(at)):
        return True
    name = bare_axis(first)
    if name is None or place.extents.get(name) != extent:
        return False
    if name in whole:
        return True
    around = next((x for x in place.streams if any(b.axis == name for b in x.blocks)), None)
    if around is not None and not any(x is around for x in streams):
        return False
    return _inside_block(at, name, place)


def _inside_block(at: Index, axis: str, place: Place) -> bool:
    """Whether only such positions are visited as lie in the present block of an axis."""
    names = _positions(at)
    if (
        len(names) != 1
        or not isinstance(at, Expr)
        or at.terms != expr.value(names[0], place.extents[axis]).terms
    ):
        return False
    wanted = _plain(place.lets[names[0]], place)
    ends: set[str] = set()
    for stream in place.streams:
        for test in _tests(stream.where) if stream.where is not None else ():
            value, end = test.args
            if not isinstance(end, ir.Extreme) or not isinstance(end.arg, ir.IndexValue):
                continue
            if bare_axis(end.arg.index) == axis and _plain(value, place) == wanted:
                ends.add(f"{test.op} {'last' if end.largest else 'first'}")
    return {"ge first", "le last"} <= ends


def _tests(condition: ir.Value) -> Iterator[ir.Apply]:
    """The comparisons that all have to hold."""
    if isinstance(condition, ir.Apply) and condition.op == "and":
        for part in condition.args:
            yield from _tests(part)
    elif isinstance(condition, ir.Apply) and len(condition.args) == 2:
        yield condition


def _plain(value: ir.Value, place: Place) -> ir.Value:
    """A value without names, and without a conversion at its outside that loses nothing."""
    while True:
        found = substitute(value, names=place.lets)
        if found == value:
            break
        value = found
    if isinstance(value, ir.Cast) and value.dtype == i64:
        return value.arg
    return value


def _positions(e: Index) -> list[str]:
    return [a.name for a in expr.atoms(e) if a.kind == "value"]
