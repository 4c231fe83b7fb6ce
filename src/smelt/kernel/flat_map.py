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
    IndexValue,
    Kernel,
    Let,
    Load,
    Param,
    Ref,
    Statement,
    Store,
    Update,
    Value,
)
from smelt.kernel.walk import transform, visit_statement
from smelt.types.expr import Index, product, size

PlainStatement = Let | Store | Update
_BLOCK = 4096
_AXIS = "elements"
_POINTWISE = (Const, Ref, Load, Apply, Cast)


def flat_map(kernel: Kernel) -> Kernel | None:
    """Return an elementwise kernel as one on arrays of one dimension, with canonical names.

    All arrays have one shape and one element of each is used at a time; scalars are read beside
    them, and the number of elements. None for other kernels. Parameters keep their order.
    """
    params = (*kernel.inputs, *kernel.outputs)
    shapes = {p.shape for p in params if p.shape}
    is_plain = all(isinstance(s, Let | Store) for s in kernel.body) and len(shapes) == 1
    if not is_plain or any(p.strides is not None or p.each for p in params):
        return None
    names = {*names_of(kernel)}
    if _AXIS in names or len({p.name for p in params}) < len(params):
        return None
    count = product(shape := shapes.pop())
    places = {place for s in kernel.body for place in _places(s, count)}
    if len(places) != 1 or not is_every_element(kernel, places.pop(), shape):
        return None
    axis = Axis(_AXIS, size(_AXIS))

    def flat(p: Param) -> Param:
        return replace(p, shape=(axis.extent,)) if p.shape else p

    body = (flat_statement(s, axis) for s in kernel.body if isinstance(s, Let | Store))
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


def is_plain(v: Value, count: Index) -> bool:
    """Return whether a value takes elements of arrays one by one; `count` is their number."""
    if isinstance(v, IndexValue):
        return v.index == count
    return isinstance(v, _POINTWISE) and not (isinstance(v, Load) and v.other is not None)


def _flat_value(v: Value, axis: Axis) -> Value:
    """Return a plain value along the axis of all elements."""
    match v:
        case Load(index=index) if index:
            return replace(v, index=(axis.index,))
        case IndexValue():
            return replace(v, index=axis.extent)
        case _:
            return v


def _places(s: Statement, count: Index) -> Iterator[tuple[Index, ...] | None]:
    """Yield the indices of the arrays' elements; None for what is not a plain map."""
    if isinstance(s, Store):
        yield s.index if s.where is None and not s.join else None
    for v in visit_statement(s):
        if not is_plain(v, count):
            yield None
        elif isinstance(v, Load) and v.index:
            yield v.index


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


def flat_statement(s: PlainStatement, axis: Axis) -> PlainStatement:
    """Return a plain statement along the axis of all elements."""
    changed = replace(s, value=transform(s.value, lambda v: _flat_value(v, axis)))
    is_array = isinstance(changed, Store) and changed.index
    return replace(changed, index=(axis.index,)) if is_array else changed
