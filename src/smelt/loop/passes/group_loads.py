"""Group loads of vectors with a small stride: full vectors are read, of which each takes lanes.

Columns of rows of 3 are 3 elements apart. Loads of one stride that begin less than a stride apart
are read together, and if they leave no gap nothing of their vectors is masked:

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n*3], y: out f32[n]; n)
...   each i in 0 .. n//4*4 by 4
...     y[i : 4] = x[i*3 : 4 * 3] + x[i*3 + 2 : 4 * 3]
... ''')
>>> print(text(Module("f", (group_loads(module.funcs[0]),))))
func f(x: f32[n*3], y: out f32[n]; n)
  each i in 0 .. (n//4)*4 by 4
    v_1 = x[i*3 : 4 * 3 with 0, 2]
    v_2 = x[i*3 + 2 : 4 * 3 with -2, 0]
    y[i : 4] = v_1 + v_2

What a statement reads together is read before its operators: registers then hold
little else. Longer strides are gathers, unless at least half of the elements between are needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.walk import Body, Names, Rewriter, loads, values, with_func_body
from smelt.types.expr import Expr, Index, constant_term, sub

__all__ = ["Module", "group_loads"]

FARTHEST_STEP = 4
"""Largest stride between lanes that is read as full vectors and shuffled."""
MAX_STEP = 16
"""Largest stride of a group that is read as vectors, if at least every second element is needed."""


def is_dense(step: int, members: int) -> bool:
    """Return whether reading everything in between is cheaper than gathering."""
    return step <= FARTHEST_STEP or (step <= MAX_STEP and 2 * members >= step)


def group_loads(func: ir.Func) -> ir.Func:
    """Note at each load with a small stride what is read together with it."""
    return with_func_body(func, _Grouped(Names(func)).body(func.body))


def dense_groups(
    loads: Iterable[tuple[Hashable, Index, Index | None]],
) -> dict[tuple[Hashable, Index], tuple[int, ...]]:
    """Return the distances from each load to those that are read together with it.

    Loads are what a group has in common (such as the array), an offset and a stride. A group starts
    less than a stride behind its first load.

    >>> dense_groups([("x", 0, 3), ("x", 5, 3), ("x", 1, 3), ("x", 7, 9)])
    {('x', 0): (0, 1), ('x', 1): (-1, 0), ('x', 5): (0,)}
    """
    offsets: dict[tuple[Hashable, int, Index], dict[int, Index]] = {}
    for array, at, step in loads:
        if isinstance(step, int) and 1 < step <= MAX_STEP:
            start = constant_term(at)
            offsets.setdefault((array, step, sub(at, start)), {})[start] = at
    return {
        (array, at[start]): tuple(x - start for x in group)
        for (array, step, _), at in offsets.items()
        for group in _within(at, step)
        if is_dense(step, len(group))
        for start in group
    }


def _within(starts: Iterable[int], step: int) -> Iterator[list[int]]:
    """Group the starts that are less than a step behind the first of their group."""
    waiting = sorted(starts)
    while waiting:
        group = [at for at in waiting if at < waiting[0] + step]
        waiting = waiting[len(group) :]
        yield group


class _Grouped(Rewriter):
    """Rewrites blocks, each with groups of its own."""

    def __init__(self, new_names: Names) -> None:
        super().__init__()
        self.new_names = new_names
        self.lets: list[ir.Let] = []
        self.groups: Mapping[tuple[Hashable, Index], tuple[int, ...]] = {}

    def body(self, body: Body) -> Body:
        outer = self.groups
        strided = (v.place for s in body for v in loads(*values(s)))
        self.groups = dense_groups(_access(p) for p in strided if _has_stride(p))
        new = super().body(body)
        self.groups = outer
        return new

    def statement(self, s: ir.Statement) -> Body:
        if not (self.groups or isinstance(s, ir.For | ir.If)):
            return (s,)
        outer, self.lets = self.lets, []
        new = self.rebuild(s)
        before, self.lets = self.lets, outer
        return (*before, new)

    def value(self, v: ir.Value) -> ir.Value:
        v = super().value(v)
        if not isinstance(v, ir.Load) or not _has_stride(v.place):
            return v
        p = v.place
        array, at, _ = _access(p)
        group = self.groups.get((array, at))
        if group is None:
            return v
        load = ir.Load(ir.Place(p.buffer, p.at, p.lanes, p.stride, p.mask, group), v.other)
        if len(group) == 1:
            return load
        self.lets.append(ir.Let(self.new_names.new("v"), load))
        return ir.Ref(self.lets[-1].name)


def _has_stride(p: ir.Place) -> bool:
    return p.lanes > 1 and p.stride != 1 and isinstance(p.at, int | Expr)


def _access(p: ir.Place) -> tuple[Hashable, Index, Index]:
    """Return what a group has in common, the offset and the stride of a place."""
    assert isinstance(p.at, int | Expr)
    return (p.buffer, p.lanes, p.stride, p.mask), p.at, p.stride
