"""Recognise elementwise kernels on arrays of one shape: one launch may compute many of them.

An optimiser updates each parameter by the same formula, whatever its shape. As a map of arrays of
one dimension the kernels are equal, and `over_arrays` makes one of them the kernel of a family.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel step(w, g: f32[n,m], rate: f32[]) -> y: f32[n,m]
...   grid n, m/4096
...   y[n,m] = w[n,m] - g[n,m] * rate[]
... ''')
>>> print(text(over_arrays(flat_map(kernel), 8)))
kernel k(a0, a2: f32[a1] for each of 8, a3: f32[] for each of 8) -> a4: f32[a1] for each of 8
  grid each, a1/4096
  a4[a1] = a0[a1] - a2[a1] * a3[]
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from smelt.kernel.canonical import canonical_kernel, names_of
from smelt.kernel.ir import (
    Apply,
    Axis,
    Block,
    Cast,
    Const,
    Each,
    Kernel,
    Let,
    Load,
    Param,
    Ref,
    Statement,
    Store,
    Value,
)
from smelt.kernel.walk import map_statement, transform, values_of, visit
from smelt.types.expr import Index, size

__all__ = ["POINTWISE", "flat_map", "is_every_element", "over_arrays"]

_BLOCK = 4096
_AXIS = "elements"
POINTWISE = (Const, Ref, Load, Apply, Cast)
"""The values of statements that take elements one by one."""


def flat_map(kernel: Kernel) -> Kernel | None:
    """Return an elementwise kernel as one on arrays of one dimension, with canonical names.

    All arrays have one shape and one element of each is used at a time; scalars are read beside
    them. None for other kernels. Parameters keep their order.
    """
    params = (*kernel.inputs, *kernel.outputs)
    shapes = {p.shape for p in params if p.shape}
    is_plain = all(isinstance(s, Let | Store) for s in kernel.body) and len(shapes) == 1
    if not is_plain or any(p.strides is not None or p.each for p in params):
        return None
    names = {*names_of(kernel)}
    if _AXIS in names or len({p.name for p in params}) < len(params):
        return None
    places = {place for s in kernel.body for place in _places(s)}
    if len(places) != 1 or not is_every_element(kernel, places.pop(), shapes.pop()):
        return None
    axis = Axis(_AXIS, size(_AXIS))

    def flat(p: Param) -> Param:
        return replace(p, shape=(axis.extent,)) if p.shape else p

    body = (_flat_statement(s, axis.index) for s in kernel.body)
    plain = Kernel(
        kernel.name,
        tuple(map(flat, kernel.inputs)),
        tuple(map(flat, kernel.outputs)),
        (axis,),
        (Block(_AXIS, _BLOCK),),
        tuple(body),
    )
    return canonical_kernel(plain)[0].kernel


def over_arrays(flat: Kernel, count: int) -> Kernel:
    """Return a kernel on flat arrays over families of `count` arrays."""
    inputs, outputs = (
        tuple(replace(p, each=count) for p in side) for side in (flat.inputs, flat.outputs)
    )
    return replace(flat, inputs=inputs, outputs=outputs, grid=(Each(count), *flat.grid))


def _places(s: Statement) -> Iterator[tuple[Index, ...] | None]:
    """Yield the indices of the arrays' elements; None for what is no plain map."""
    if isinstance(s, Store):
        yield s.index if s.where is None and not s.join else None
    for v in (v for root in values_of(s) for v in visit(root)):
        if isinstance(v, Load) and (v.index or v.other is not None):
            yield v.index if v.other is None else None
        elif not isinstance(v, POINTWISE):
            yield None


def is_every_element(
    kernel: Kernel, place: tuple[Index, ...] | None, shape: tuple[Index, ...]
) -> bool:
    """Return whether the grid visits every element of such arrays once, at `place`."""
    if place is None:
        return False
    whole = [replace(b, size=None) for b in kernel.grid if isinstance(b, Block)]
    axes = [(a.index, a.extent) for a in kernel.axes if Block(a.name) in whole]
    pairs = [(e, n) for e, n in zip(place, shape, strict=True) if (e, n) != (0, 1)]
    is_grid = len(axes) == len(kernel.axes) == len(kernel.grid)
    return is_grid and len(pairs) == len(axes) and all(p in axes for p in pairs)


def _flat_statement(s: Statement, index: Index) -> Statement:
    def change(v: Value) -> Value:
        return replace(v, index=(index,)) if isinstance(v, Load) and v.index else v

    changed = map_statement(s, lambda v: transform(v, change))
    return replace(changed, index=(index,)) if isinstance(changed, Store) else changed
