"""Functions of NumPy that rearrange elements, written with functions of ours.

>>> x = make.arange(6)
>>> vstack([x, x]).shape, array_split(x, 4)[1], rot90(methods.reshape(x, 2, 3)).shape
((2, 6), Array([2, 3]), (3, 2))
>>> shares_memory(x, ravel(x)), may_share_memory(x, x + 0)
(True, False)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.errors import ShapeError
from smelt.frontends.array import creation as make
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import manipulation as shapes
from smelt.frontends.array import methods, numerical, searching, sorting, views
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array.aliasing import own
from smelt.frontends.array.array import Array
from smelt.frontends.array.complex_array import ComplexArray
from smelt.frontends.array.dtypes import DTypeLike
from smelt.frontends.array.methods import as_view
from smelt.frontends.array.numpy_calls import array as _array
from smelt.frontends.array.numpy_calls import store
from smelt.frontends.array.views import axes_of
from smelt.numpy.binding import LibraryOnly, of_arrays
from smelt.numpy.library import as_ours
from smelt.types.dtype import bool_

PAD_MODES = frozenset(("constant", "edge", "reflect", "symmetric", "wrap"))


def _arrays(items: Any) -> list[Array]:
    return [_array(x) for x in items]


def reshape(a: Any, /, shape: Any, order: Any = "C", *, copy: Any = None) -> Array:
    """Return the elements in another shape; `order="F"` counts columns first."""
    x = _array(a)
    if order == "F":
        new = (shape,) if isinstance(shape, int) else tuple(shape)
        columns = as_view(x, methods.transpose(x))
        result = as_view(columns, methods.reshape(columns, new[::-1]), "reshape")
        return as_view(result, methods.transpose(result))
    result = methods.reshape(x, shape, order=order, copy=copy)
    return result if copy else as_view(x, result, "reshape")


def ravel(a: Any, order: Any = "C") -> Array:
    """Return the elements as a vector; `order="F"` goes through columns."""
    x = _array(a)
    x = as_view(x, methods.transpose(x)) if order == "F" else x
    return as_view(x, methods.ravel(x, "C" if order == "F" else order), "ravel")


def transpose(a: Any, axes: Any = None) -> Array:
    """Return the array with its dimensions in another order, reversed by default."""
    x = _array(a)
    return as_view(x, methods.transpose(x) if axes is None else methods.transpose(x, axes))


swapaxes = of_arrays(methods.swapaxes, view="")
moveaxis, flip = (of_arrays(f, view="") for f in (shapes.moveaxis, shapes.flip))
squeeze = of_arrays(shapes.squeeze, view="squeeze")


def rollaxis(a: Any, axis: int, start: int = 0) -> Array:
    """Return the array with a dimension moved before another one."""
    x = _array(a)
    (axis,), start = axes_of(axis, x.ndim, "rollaxis"), start + x.ndim if start < 0 else start
    return as_view(x, shapes.moveaxis(x, axis, start - 1 if axis < start else start))


def expand_dims(a: Any, axis: Any) -> Array:
    """Return the array with new dimensions of size 1."""
    x = _array(a)
    return as_view(x, shapes.expand_dims(x, axis))


def atleast_1d(*arys: Any) -> Any:
    """Return arrays with at least one dimension."""
    return _each(arys, lambda x: as_view(x, methods.reshape(x, 1)) if x.ndim == 0 else x)


def atleast_2d(*arys: Any) -> Any:
    """Return arrays with at least two dimensions; vectors become rows."""
    return _each(arys, _row)


def _row(x: Array) -> Array:
    return as_view(x, methods.reshape(x, (*(1,) * (2 - x.ndim), *x.shape))) if x.ndim < 2 else x


def atleast_3d(*arys: Any) -> Any:
    """Return arrays with at least three dimensions; a vector becomes [1, n, 1]."""
    return _each(arys, _third)


def _third(x: Array) -> Array:
    x = _row(x)
    return x.part((..., None), True) if x.ndim == 2 else x


def _each(arrays: Any, change: Any) -> Any:
    results = tuple(change(x) for x in _arrays(arrays))
    return results[0] if len(results) == 1 else results


def concatenate(
    arrays: Any, axis: Any = 0, out: Any = None, *, dtype: DTypeLike = None, casting: Any = None
) -> Any:
    """Join arrays along a dimension; None flattens them first."""
    result = shapes.concat(_arrays(arrays), axis=axis)
    return store(result if dtype is None else methods.convert(result, dtype), out)


concat = concatenate


def stack(arrays: Any, axis: int = 0, out: Any = None, *, dtype: DTypeLike = None) -> Any:
    """Join arrays of one shape along a new dimension."""
    result = shapes.stack(_arrays(arrays), axis=axis)
    return store(result if dtype is None else methods.convert(result, dtype), out)


def hstack(tup: Any, *, dtype: DTypeLike = None) -> Any:
    """Join arrays along columns; vectors one after another."""
    parts = [methods.reshape(x, 1) if x.ndim == 0 else x for x in _arrays(tup)]
    return concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1, dtype=dtype)


def vstack(tup: Any, *, dtype: DTypeLike = None) -> Any:
    """Join arrays along rows; vectors count as rows."""
    return concatenate([_row(x) for x in _arrays(tup)], 0, dtype=dtype)


row_stack = vstack


def dstack(tup: Any) -> Any:
    """Join arrays along the third dimension."""
    return concatenate([_third(x) for x in _arrays(tup)], 2)


def column_stack(tup: Any) -> Any:
    """Join arrays along columns; vectors count as columns."""
    return concatenate([x[:, None] if x.ndim == 1 else x for x in _arrays(tup)], 1)


def block(arrays: Any) -> Any:
    """Join nested lists of blocks."""
    depth, rank = _depth(arrays), 0
    for x in _leaves(arrays):
        rank = max(rank, x.ndim)
    return _block(arrays, depth, max(depth, rank))


def _depth(x: Any) -> int:
    return 1 + max(map(_depth, x)) if isinstance(x, list) else 0


def _leaves(x: Any) -> Any:
    if isinstance(x, list):
        for item in x:
            yield from _leaves(item)
    else:
        yield _array(x)


def _block(x: Any, depth: int, rank: int) -> Array:
    if not isinstance(x, list):
        leaf = _array(x)
        return methods.reshape(leaf, (*(1,) * (rank - leaf.ndim), *leaf.shape))
    return shapes.concat([_block(item, depth - 1, rank) for item in x], axis=-depth)


def append(arr: Any, values: Any, axis: Any = None) -> Any:
    """Return the array with values after it along a dimension; None flattens both."""
    return concatenate([_array(arr), _array(values)], axis)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """Cut an array into parts, which may differ by one in size, or before positions."""
    x = _array(ary)
    size = x.shape[axis]
    if _is_count(indices_or_sections):
        count = operator.index(indices_or_sections)
        small, extra = divmod(size, count)
        sizes = [small + 1] * extra + [small] * (count - extra)
        ends = [sum(sizes[: k + 1]) for k in range(count)]
        bounds = list(zip([0, *ends[:-1]], ends, strict=True))
    else:
        ends = [int(k) for k in indices_or_sections]
        bounds = list(zip([0, *ends], [*ends, size], strict=True))
    before = (slice(None),) * (axis % x.ndim)
    return [x.part((*before, slice(a, b)), True) for a, b in bounds]


def _is_count(sections: Any) -> bool:
    return isinstance(sections, (int, np.integer))


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """Cut an array into equal parts, or before positions."""
    x = _array(ary)
    if _is_count(indices_or_sections) and x.shape[axis] % indices_or_sections:
        raise LibraryOnly("parts of different sizes")
    return array_split(x, indices_or_sections, axis)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    """Cut an array along columns, a vector along its elements."""
    x = _array(ary)
    return split(x, indices_or_sections, 0 if x.ndim == 1 else 1)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    """Cut an array along rows."""
    return split(ary, indices_or_sections, 0)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    """Cut an array along its third dimension."""
    return split(ary, indices_or_sections, 2)


def fliplr(m: Any) -> Array:
    """Reverse the order of columns."""
    return flip(m, 1)


def flipud(m: Any) -> Array:
    """Reverse the order of rows."""
    return flip(m, 0)


def matrix_transpose(x: Any, /) -> Array:
    """Return matrices with rows and columns exchanged."""
    return _array(x).matrix_transpose(True)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Return the parts along a dimension, without that dimension."""
    array = _array(x)
    dim = views.axis_of(axis, array.ndim, "unstack")
    lead = (slice(None),) * dim
    return tuple(array.part((*lead, k), True) for k in range(operator.index(array.shape[dim])))


def real(val: Any) -> Any:
    """Return the real parts, as a view."""
    return methods.part_view(_array(val), 0)


def imag(val: Any) -> Any:
    """Return the imaginary parts, as a view; zeros for real numbers."""
    return methods.part_view(_array(val), 1)


def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Array:
    """Rotate by `k` quarter turns from the first of two dimensions to the second."""
    x, (a, b), k = _array(m), axes, k % 4
    if k == 2:
        return flip(flip(x, a), b)
    if k == 0:
        return as_view(x, x)
    x = flip(x, b) if k == 1 else x
    rotated = swapaxes(x, a, b)
    return rotated if k == 1 else flip(rotated, b)


def resize(a: Any, new_shape: Any) -> Array:
    """Return the elements in another shape, repeated as often as needed."""
    flat = ravel(a)
    shape = (new_shape,) if isinstance(new_shape, int) else tuple(new_shape)
    count = int(np.prod(shape))
    if not flat.shape[0]:
        return make.zeros(shape, flat.dtype)
    times = -(-count // flat.shape[0])
    return methods.reshape(shapes.tile(flat, max(times, 1))[:count], shape)


def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Array:
    """Return elements along `axis` at positions of their own; None flattens first."""
    x, index = _array(arr), _array(indices)
    if axis is None:
        x, axis = methods.ravel(x), 0
    return searching.take_along_axis(x, index, axis=axis)


def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Return elements of the choice that each position names."""
    if mode != "raise" or len(choices) > 32:
        raise LibraryOnly("positions beyond the choices")
    index = _array(a)
    if bool(calls.any((index < 0) | (index >= len(choices)))):
        raise LibraryOnly("positions beyond the choices")
    result = _array(choices[0])
    for k, choice in enumerate(choices):
        result = el.where(index == k, choice, result)
    return store(result, out)


def compress(condition: Any, a: Any, axis: Any = None) -> Array:
    """Return the parts along `axis` whose condition is true; None flattens first."""
    return methods.compress(_array(a), condition, axis)


def extract(condition: Any, arr: Any) -> Array:
    """Return the elements where a condition is true, which may have fewer elements."""
    return searching.take(methods.ravel(_array(arr)), flatnonzero(condition), axis=0)


def delete(arr: Any, obj: Any, axis: Any = None) -> Array:
    """Return the array without the parts at positions; None flattens first."""
    x, axis = (methods.ravel(_array(arr)), 0) if axis is None else (_array(arr), axis)
    where = obj if isinstance(obj, slice) else np.asarray(obj)
    rest = np.delete(np.arange(x.shape[axis]), where)
    return searching.take(x, make.asarray(rest), axis=axis)


def insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Array:
    """Return the array with values before a position; several positions are NumPy's."""
    if not _is_count(obj):
        raise LibraryOnly("several positions")
    x, axis = (methods.ravel(_array(arr)), 0) if axis is None else (_array(arr), axis % arr.ndim)
    first, second = array_split(x, [int(obj) % (x.shape[axis] + 1) if obj < 0 else int(obj)], axis)
    new = _array(values)
    count = (
        new.shape[axis] if new.ndim == x.ndim else new.shape[0] if x.ndim == 1 and new.ndim else 1
    )
    if x.ndim > 1 and new.ndim and new.ndim < x.ndim:
        new = shapes.expand_dims(new, axis) if axis else new
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    new = methods.convert(shapes.broadcast_to(new, shape), x.dtype)
    return shapes.concat([first, new, second], axis=axis)


def sort(
    a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None
) -> Array:
    """Return the elements sorted along `axis`; None flattens first."""
    x, axis = (ravel(a), 0) if axis is None else (_array(a), axis)
    return sorting.sort(x, axis=axis)


def partition(a: Any, kth: Any, axis: Any = -1) -> Array:
    """Return the elements sorted along `axis`, which puts `kth` in its place."""
    return sort(a, axis)


def argpartition(a: Any, kth: Any, axis: Any = -1) -> Array:
    """Return the positions that sort along `axis`."""
    return methods.argsort(a, axis)


def lexsort(keys: Any, axis: int = -1) -> Array:
    """Return the positions that sort by the last key, then by the one before."""
    first, *others = _arrays(keys)
    order = sorting.argsort(first, axis=axis)
    for key in others:
        picked = searching.take_along_axis(key, order, axis=axis)
        order = searching.take_along_axis(order, sorting.argsort(picked, axis=axis), axis=axis)
    return order


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Return where the elements of `v` belong in a sorted vector."""
    return searching.searchsorted(_array(a), _array(v), side=side, sorter=sorter)


def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """Return the number of the bin that each element belongs to."""
    edges, values = _array(bins), _array(x)
    if edges.shape[0] > 1 and bool(edges[-1] < edges[0]):
        raise LibraryOnly("bins in falling order")
    return searching.searchsorted(edges, values, side="left" if right else "right")


def argwhere(a: Any) -> Array:
    """Return the positions of nonzero elements, one row each."""
    x = _array(a)
    if not x.ndim:
        return _array(np.zeros((int(bool(x)), 0), int))
    return shapes.stack(list(searching.nonzero(x)), axis=-1)


def flatnonzero(a: Any) -> Array:
    """Return the positions of nonzero elements of the flattened array."""
    return searching.nonzero(ravel(a))[0]


def where(condition: Any, *choices: Any) -> Any:
    """Select by a condition; with the condition alone, the positions where it is true."""
    mask = _array(condition)
    if not choices:
        return searching.nonzero(mask)
    mask = mask if mask.dtype is bool_ else mask != 0
    return el.where(mask, *choices)


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Return elements of the first choice whose condition is true."""
    result = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        result = el.where(_array(condition), choice, result)
    return result


def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Array:
    """Return functions of the elements, each where its condition is true."""
    values = _array(x)
    conditions = [
        _array(c) for c in (condlist if isinstance(condlist, (list, tuple)) else [condlist])
    ]
    functions = list(funclist)
    result = make.zeros_like(values)
    if len(functions) == len(conditions) + 1:
        result = methods.convert(_applied(functions.pop(), values, args, kw) + result, values.dtype)
    for condition, function in zip(conditions, functions, strict=True):
        result = el.where(condition, _applied(function, values, args, kw), result)
    return methods.convert(result, values.dtype)


def _applied(function: Any, values: Array, args: Any, named: Any) -> Any:
    return function(values, *args, **named) if callable(function) else function


def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Array:
    """Return the array with elements around it; modes of ours are recorded, others NumPy's."""
    if not isinstance(mode, str) or mode not in PAD_MODES or set(kwargs) - {"constant_values"}:
        raise LibraryOnly(f"padding by mode {mode!r}")
    constant = kwargs.get("constant_values", 0)
    if not isinstance(constant, (bool, int, float)):
        raise LibraryOnly("several constants to pad with")
    try:
        return numerical.pad(_array(array), pad_width, mode, **kwargs)
    except ShapeError:
        raise LibraryOnly("margins wider than the array") from None


def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Array:
    """Return the array broadcast to a shape."""
    x = _array(array)
    view = as_view(x, shapes.broadcast_to(x, shape))
    methods.set_flags(view, write=False)  # of the same shape too
    return view


def broadcast_arrays(*args: Any, subok: bool = False) -> Any:
    """Return arrays broadcast against each other."""
    arrays = _arrays(args)
    results = shapes.broadcast_arrays(*arrays)
    return tuple(as_view(x, result) for x, result in zip(arrays, results, strict=True))


def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """Return a vector without leading and trailing zeros."""
    x = _array(filt)
    kept = np.flatnonzero(np.asarray(x))
    if x.ndim != 1 or not len(kept):
        raise LibraryOnly("an array that is not 1-D, or has no nonzero element")
    first = int(kept[0]) if "f" in trim.lower() else 0
    last = int(kept[-1]) + 1 if "b" in trim.lower() else x.shape[0]
    return x.part(slice(first, last), True)


def ix_(*args: Any) -> Any:
    """Return index arrays that select the grid of several vectors."""
    return as_ours(np.ix_(*(np.asarray(a) for a in args)))


def _write_through(name: str) -> Any:
    """Wrap a NumPy function that writes to its array argument.

    NumPy writes to a copy, which is then assigned to our array.
    """
    theirs = getattr(np, name)

    def function(arr: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(arr, Array):
            theirs(arr, *args, **kwargs)
            return
        buffer = np.array(arr)
        theirs(buffer, *map(_host, args), **{k: _host(v) for k, v in kwargs.items()})
        arr[...] = buffer

    return calls.named(function, name, (theirs.__doc__ or "").strip().partition("\n")[0])


def _host(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, Array) else x


def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    """Write the elements of another array, where a condition is true.

    Raises TypeError where the rule `casting` does not allow the conversion.
    """
    values = shapes.broadcast_to(_array(src), dst.shape)
    if isinstance(dst, Array) and type(src) is not int:  # Python's integers take any dtype
        if not np.can_cast(values.dtype.numpy, dst.dtype.numpy, casting):
            raise TypeError(f"{values.dtype} cannot be cast to {dst.dtype} by {casting!r}")
    chosen = values if where is True else el.where(_array(where), values, _array(dst))
    if isinstance(dst, Array):
        dst[...] = methods.convert(chosen, dst.dtype)
    else:
        np.copyto(dst, np.asarray(chosen), casting=casting)


def putmask(a: Any, mask: Any, values: Any) -> None:
    """Write elements of `values`, repeated to the size, where a mask is true."""
    if not isinstance(a, Array):
        raise LibraryOnly("an array of NumPy, written in place")
    chosen = methods.convert(resize(values, a.shape), a.dtype)
    a[...] = el.where(_array(mask) != 0, chosen, a)


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Write a number on the main diagonal of a matrix."""
    if not isinstance(a, Array) or wrap or a.ndim != 2 or not isinstance(val, (int, float)):
        _fill_diagonal(a, val, wrap)
        return
    rows, columns = make.arange(a.shape[0])[:, None], make.arange(a.shape[1])[None, :]
    a[...] = methods.convert(el.where(rows == columns, val, a), a.dtype)


put, place, put_along_axis, _fill_diagonal = (
    _write_through(name) for name in ("put", "place", "put_along_axis", "fill_diagonal")
)


def shares_memory(a: Any, b: Any, /, max_work: Any = None) -> bool:
    """Return whether two arrays have elements in common."""
    return _overlap(a, b, lambda x, y: np.shares_memory(x, y, max_work))


def may_share_memory(a: Any, b: Any, /, max_work: Any = None) -> bool:
    """Return whether the bounds of two arrays in memory overlap."""
    return _overlap(a, b, lambda x, y: np.may_share_memory(x, y, max_work))


def _overlap(a: Any, b: Any, compare: Callable[[Any, Any], bool]) -> bool:
    return any(compare(x, y) for x, m in _memories(a) for y, n in _memories(b) if m is n)


def _memories(x: Any) -> list[tuple[Any, Any]]:
    """Return what stands for the memory of an array, and which memory it is."""
    if isinstance(x, ComplexArray):
        return [pair for part in x.parts for pair in _memories(part)]
    if not isinstance(x, Array):
        return [(np.asarray(x), None)]
    place = own(x)
    return [(place.shadow(), None if place.memory.node.shared else place.memory)]
