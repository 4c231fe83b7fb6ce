"""Methods of arrays as NumPy and JAX have them: `x.sum(0)`, `x.reshape(2, -1)`, `x.T`.

One table names the function behind each method; `attach` gives them to `Array`.
Methods that NumPy documents as views return views where NumPy's rules hold (see `aliasing`), else
new arrays.

>>> from smelt.frontends.array.creation import arange
>>> x: Any = arange(6).reshape(2, 3)
>>> x.sum(0), x.max(), x.ravel().tolist(), x.astype(float).std(ddof=1).shape
(Array([3, 5, 7]), Array(5), [0, 1, 2, 3, 4, 5], ())
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final

import numpy as np

from smelt.errors import ArgumentError, DTypeError, UnsupportedError
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import linalg, numpy_calls, sorting
from smelt.frontends.array import manipulation as shapes
from smelt.frontends.array import searching as search
from smelt.frontends.array.aliasing import (
    Function,
    Operator,
    Part,
    Place,
    alias,
    own,
    reshaped,
    unread,
)
from smelt.frontends.array.array import Array
from smelt.frontends.array.complex_array import ComplexArray, held, is_complex_like
from smelt.frontends.array.complex_calls import call_complex
from smelt.frontends.array.creation import asarray, full
from smelt.frontends.array.dtypes import DTypeLike, as_dtype, astype, lookup_dtype
from smelt.frontends.array.numpy_calls import store
from smelt.frontends.array.operators import finished, hand_out, keep_order
from smelt.frontends.array.promote import cast, follows_numpy, user_follows_numpy
from smelt.frontends.array.value import STATE, CopiedOperand, is_at_once, leaf
from smelt.frontends.array.views import axes_of
from smelt.ops.view import Permute
from smelt.python.imports import fork_safe_import


def _shape_arguments(shape: tuple[Any, ...]) -> Any:
    """Return the shape of `x.reshape(2, 3)` or `x.reshape((2, 3))`."""
    return shape[0] if len(shape) == 1 else shape


def check_order(order: Any, what: str) -> None:
    """Raise UnsupportedError for an order of elements other than that of rows."""
    if order not in (None, "C", "K", "A"):
        raise UnsupportedError(
            f"{what}(order={order!r})", hint="Transpose before and after: order='F' is x.T's order."
        )


def as_view(x: Array, result: Any, how: str = "") -> Any:
    """Make a result a view of its operand where NumPy's is one.

    `how` is "reshape" or "ravel" for functions that copy, depending on strides; "squeeze" for those
    that return the array itself if there is nothing to do.
    """
    if how == "squeeze" and result.ndim == x.ndim:
        return x
    if isinstance(x, ComplexArray):
        x.own_parts()
    if how in ("reshape", "ravel") and not _keeps_memory(x, result, how):
        if how == "ravel":
            return result
        x = result  # NumPy's result is a view of the copy
    if isinstance(x, ComplexArray):
        x.own_parts()
        parts = [_alias(p, r) for p, r in zip(x.parts, result.parts, strict=True)]
        return x.view_of_parts(*parts)
    return _alias(x, result)


def _uncopied(x: Any) -> Any:
    """Return the array for an operator whose result becomes a view: it copies no shared memory."""
    if x.__class__ is not Array or not isinstance(x.node, CopiedOperand) or not is_at_once():
        return x
    elements = x.computed()
    return x if elements is None else Array.of(leaf(elements))


def _alias(x: Array, result: Array) -> Array:
    if result is x and isinstance(x.node, CopiedOperand):
        return alias(x, Array.unread(), ())
    return alias(x, Array.of(x.node) if result is x else result)


def _keeps_memory(x: Array, result: Array, how: str) -> bool:
    """Return whether strides allow a reshaped or flattened view."""
    step = x.dtype.itemsize
    if isinstance(x, ComplexArray):
        x, result = x.parts[0], result.parts[0]  # pyright: ignore[reportAttributeAccessIssue]
    place = x.place
    if place is None or place.is_whole:
        return True
    shadow = place.shadow()
    if how == "ravel":
        for size, stride in zip(reversed(shadow.shape), reversed(shadow.strides), strict=True):
            if size != 1 and stride != step:
                return shadow.size == 0
            step *= size
        return True
    scope = result.node.scope
    type_ = result.node.type if scope is None else scope.concrete(result.node.type)
    try:
        reshaped(shadow, type_.shape)
    except ValueError:
        return False
    return True


def _copied_at_once(x: Any, shape: tuple[Any, ...]) -> Array | None:
    """Return a view of memory in another shape if NumPy copies for it, else None."""
    if x.__class__ is not Array or x.place is None or not x.place.links or not is_at_once():
        return None
    elements = x.place.elements()
    if elements is None:
        return None
    try:
        reshaped(x.place.shadow(), _shape_arguments(shape))
        return None
    except TypeError:
        return None
    except ValueError:
        pass  # NumPy copies, or the sizes do not fit
    try:
        copied = Array.of(leaf(np.array(elements.reshape(*shape), order="C")))
    except ValueError:
        return None
    return _alias(copied, copied)  # NumPy's result is a view of the copy


def _viewed(function: Callable[..., Any], how: str = "") -> Callable[..., Any]:
    """Wrap a method whose result is a view where NumPy's rules hold."""

    @wraps(function)
    def method(x: Any, *args: Any, **kwargs: Any) -> Any:
        names = sys._getframe(1).f_globals  # pyright: ignore[reportPrivateUsage]
        if how == "reshape" and not kwargs and follows_numpy(names):
            copied = _copied_at_once(x, args)
            if copied is not None:
                return hand_out(copied, ())
        if not follows_numpy(names):
            return function(x, *args, **kwargs)
        operand = _uncopied(x)
        result = function(operand, *args, **kwargs)
        if operand is not x and how in ("reshape", "ravel") and not _keeps_memory(x, result, how):
            result = function(x, *args, **kwargs)  # a copy, with the present elements
        return hand_out(as_view(x, result, how), (x,))

    return method


def _transposed(x: Any) -> Any:
    """Return the transpose: at once a view of an array in memory by NumPy's rules."""
    names = sys._getframe(1).f_globals  # pyright: ignore[reportPrivateUsage]
    if not follows_numpy(names):
        return transpose(x)
    view = None
    if x.__class__ is Array:
        view = unread(x, Operator(Permute(tuple(range(x.ndim))[::-1])))
    return hand_out(as_view(x, transpose(x)), (x,)) if view is None else view


def _for_users(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method whose small results are NumPy's own where its rules hold."""

    @wraps(function)
    def method(x: Any, *args: Any, **kwargs: Any) -> Any:
        names = sys._getframe(1).f_globals  # pyright: ignore[reportPrivateUsage]
        if not STATE.small_elements or STATE.following or not follows_numpy(names):
            return function(x, *args, **kwargs)
        result = NUMPYS.get(name, function)(x, *args, **kwargs)
        arguments = [id(y) for y in (x, *args, *kwargs.values())]
        del x, args, kwargs  # an operand that only this call holds is not stored
        return result if id(result) in arguments else hand_out(result, ())

    return method


def reshape(x: Array, *shape: Any, order: Any = "C", copy: bool | None = None) -> Array:
    """Return the elements in another shape, one of whose sizes may be -1.

    Raises ShapeError, UnsupportedError for the order of columns.
    """
    check_order(order, "reshape")
    return shapes.reshape(x, _shape_arguments(shape), copy=copy)


def ravel(x: Array, order: Any = "C") -> Array:
    """Return the elements as a vector.

    Raises UnsupportedError for the order of columns.
    """
    check_order(order, "ravel")
    return shapes.reshape(x, (-1,))


def flatten(x: Array, order: Any = "C") -> Array:
    """Return the elements as a vector of their own.

    Raises UnsupportedError for the order of columns.
    """
    return x.__copy__() if x.ndim == 1 else ravel(x, order)


def transpose(x: Array, *axes: Any) -> Array:
    """Return the array with its dimensions in another order, reversed by default.

    Raises AxisError, ShapeError.
    """
    order = _shape_arguments(axes) if axes else None
    return shapes.permute_dims(x, tuple(range(x.ndim))[::-1] if order is None else order)


def swapaxes(x: Array, axis1: int, axis2: int) -> Array:
    """Return the array with two dimensions exchanged.

    Raises AxisError.
    """
    (first,), (second,) = (axes_of(a, x.ndim, "swapaxes") for a in (axis1, axis2))
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return shapes.permute_dims(x, order)


def convert(
    x: Array,
    dtype: DTypeLike,
    order: Any = "K",
    casting: Any = "unsafe",
    subok: bool = True,
    copy: bool = True,
) -> Array:
    """Return the elements converted to another dtype; arguments as in NumPy.

    Raises DTypeError, UnsupportedError for the order of columns.
    """
    check_order(order, "astype")
    result = astype(x, dtype, copy=copy)
    return result if result is x else keep_order(result, x)


def _is_numpys(dtype: Any) -> bool:
    try:
        np.dtype(dtype)
    except TypeError:
        return False
    return True


def _convert_for_users(x: Array, dtype: Any, *args: Any, **options: Any) -> Any:
    """Return the elements converted to another dtype.

    By NumPy's rules complex ones become real, and dtypes that only NumPy has give its own arrays.
    """
    if not user_follows_numpy():
        return convert(x, dtype, *args, **options)
    try:
        target = lookup_dtype(dtype)
    except DTypeError:
        if not _is_numpys(dtype):
            raise
        target = None
    is_swapped = isinstance(dtype, (str, np.dtype)) and (
        dtype[:1] == ">" if isinstance(dtype, str) else not dtype.isnative
    )
    if target is None or is_swapped:
        return x._read("x.astype").astype(dtype, *args, **options)  # pyright: ignore[reportPrivateUsage]
    if isinstance(x, ComplexArray) and target.kind != "complex":
        return call_complex("as_real", x, target)
    return convert(x, dtype, *args, **options)


def clip(x: Array, min: Any = None, max: Any = None, out: Any = None) -> Any:
    """Return the elements limited to the range from `min` to `max`."""
    return store(numpy_calls.clip(x, min, max), out)


def rounded(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """Return the elements rounded to `decimals` digits after the point, halves to even."""
    return store(el.round(numpy_calls.array(a, "round"), decimals), out)


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Return NumPy's dot product: over the last axis, and the last but one of `b`.

    Raises ShapeError, DTypeError.
    """
    x, y = numpy_calls.array(a, "dot"), numpy_calls.array(b, "dot")
    if not x.ndim or not y.ndim:
        return store(x * y, out)
    if x.ndim <= 2 and y.ndim <= 2:
        return store(linalg.matmul(x, y), out)
    return store(linalg.tensordot(x, y, axes=([-1], [-1 if y.ndim == 1 else -2])), out)


def repeat(a: Any, repeats: Any, axis: int | None = None) -> Array:
    """Return every element `repeats` times along `axis`; None flattens first."""
    return shapes.repeat(numpy_calls.array(a, "repeat"), repeats, axis=axis)


def take(
    a: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise"
) -> Any:
    """Return the elements at `indices` along `axis`; None flattens first.

    `mode` is "raise", "wrap" or "clip".  Raises IndexRangeError, AxisError, ArgumentError.
    """
    x = numpy_calls.array(a, "take")
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    index = numpy_calls.array(indices, "take")
    if mode == "wrap":
        index = index % x.shape[axis]
    elif mode == "clip":
        index = el.clip(index, 0, x.shape[axis] - 1)
    elif mode != "raise":
        raise ArgumentError(op="take", argument="mode", value=mode, expected="raise, wrap or clip")
    picked = search.take(x, ravel(index), axis=axis)
    shape = (*x.shape[: axis % x.ndim], *index.shape, *x.shape[axis % x.ndim + 1 :])
    return store(shapes.reshape(picked, shape), out)


def squeeze(x: Array, axis: Any = None) -> Array:
    """Return the array without the dimensions `axis` of size 1, all of them by default."""
    return shapes.squeeze(x, axis)


def sort_in_place(
    x: Array, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None
) -> None:
    """Sort the elements along `axis` in place."""
    x.replace_value(sorting.sort(x, axis=axis).node)


def argsort(
    a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None
) -> Array:
    """Return the positions that sort along `axis`; None flattens first."""
    x = numpy_calls.array(a, "argsort")
    x, axis = (ravel(x), 0) if axis is None or not x.ndim else (x, axis)
    return sorting.argsort(x, axis=axis, stable=bool(stable) or kind in ("stable", "mergesort"))


def partition(x: Array, kth: Any, axis: int = -1, kind: Any = None, order: Any = None) -> None:
    """Sort in place, which puts every element in its order around `kth`."""
    sort_in_place(x, axis)


def argpartition(x: Array, kth: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Array:
    """Return the positions that sort, of which `kth` is in its place."""
    return argsort(x, axis)


def searchsorted(x: Array, v: Any, side: str = "left", sorter: Any = None) -> Array:
    """Return where the elements of `v` belong in this sorted vector."""
    queries = numpy_calls.array(v, "searchsorted")
    return search.searchsorted(x, queries, side=side, sorter=sorter)


def fill(x: Array, value: Any) -> None:
    """Set every element to a number."""
    if isinstance(x, ComplexArray) or is_complex_like(value):
        x[...] = value
    else:
        x.replace_value(cast(full(x.shape, value, x.dtype).node, x.dtype))


def item(x: Array, *index: Any) -> Any:
    """Return one element as a Python number: the only one, or that at an index.

    Raises ArgumentError if there are several and no index, IndexError, TracerError inside `jit`.
    """
    if not index:
        return _only_item(x)
    position = _shape_arguments(index)
    if isinstance(position, tuple):
        return _only_item(x[position])
    return _only_item(ravel(x)[position])


_only_item: Final = Array.item


def diagonal(x: Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Return diagonals of the matrices in two dimensions, which become the last one."""
    return linalg.diagonal(shapes.moveaxis(x, (axis1, axis2), (-2, -1)), offset=offset)


def read_only_view(
    x: Array, ours: Callable[[Array], Array], theirs: Callable[[Any], Any], refusal: str = ""
) -> Any:
    """Return a function of an array as a view that cannot be written.

    `theirs` is NumPy's function; `refusal` says what is not supported where it can be written.
    """
    if isinstance(x, ComplexArray):
        parts = [read_only_view(p, ours, theirs, refusal) for p in x.parts]
        return x.view_of_parts(*parts)
    link = Function(lambda v: ours(Array.of(v)).node, theirs)
    result = unread(x, link)
    if result is None:
        result = alias(x, ours(x), (link,))
    result.place.refusal = refusal
    return result


def diagonal_view(x: Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Return `diagonal` as NumPy does: a view that cannot be written."""
    return read_only_view(
        x,
        lambda v: diagonal(v, offset, axis1, axis2),
        lambda data: data.diagonal(offset, axis1, axis2),
    )


def trace(
    a: Any,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike = None,
    out: Any = None,
) -> Any:
    """Return the sums of the diagonals of the matrices in two dimensions."""
    diagonals = diagonal(numpy_calls.array(a, "trace"), offset, axis1, axis2)
    return numpy_calls.sum(diagonals, -1, dtype, out)


def compress(x: Array, condition: Any, axis: int | None = None) -> Array:
    """Return the parts along `axis` whose condition is true; None flattens first."""
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    mask = np.flatnonzero(np.asarray(condition))
    return search.take(x, asarray(mask), axis=axis)


def tobytes(x: Array, order: Any = "C") -> bytes:
    """Return the elements' bytes in the order of rows.

    Raises TracerError inside `jit`.
    """
    return np.asarray(x).tobytes(order)


def view(x: Array, dtype: Any = None, type: Any = None) -> Array:
    """Return the array's bits as another dtype, in memory of its own.

    Raises ArgumentError if the sizes do not fit, TracerError inside `jit`.
    """
    if dtype is None or dtype is Array:
        return x.__copy__()
    return asarray(np.array(x).view(as_dtype(dtype).numpy))


def _view(x: Array, dtype: Any = None, type: Any = None) -> Array:
    names = sys._getframe(1).f_globals  # pyright: ignore[reportPrivateUsage]
    if not follows_numpy(names):
        return view(x, dtype, type)
    if dtype is None or dtype is Array:
        return as_view(x, x)
    name = as_dtype(dtype).numpy
    if isinstance(x, ComplexArray):
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        return held(asarray(x.exported("x.view(dtype)", frame).view(name)))
    return read_only_view(
        x, lambda v: view(v, dtype), lambda data: data.view(name), "x.view(dtype)"
    )


def _diagonal(x: Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    names = sys._getframe(1).f_globals  # pyright: ignore[reportPrivateUsage]
    return (diagonal_view if follows_numpy(names) else diagonal)(x, offset, axis1, axis2)


def _refuse(name: str, hint: str) -> Callable[..., Any]:
    def method(x: Array, *args: Any, **options: Any) -> Any:
        raise UnsupportedError(f"x.{name}()", hint=hint)

    return method


class Flat:
    """Elements of an array in the order of rows: `x.flat[3]`, `for v in x.flat`."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return int(self._array.size)

    def __iter__(self) -> Iterator[Array]:
        return iter(ravel(self._array))

    def __getitem__(self, key: Any) -> Any:
        return finished(ravel(self._array)[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        flat = ravel(self._array).__copy__()
        flat[key] = value
        result = shapes.reshape(flat, self._array.shape)
        if isinstance(self._array, ComplexArray):
            self._array.replace_parts(result)  # pyright: ignore[reportArgumentType]
        else:
            self._array.replace_value(result.node)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(ravel(self._array), dtype=dtype)

    def __array_namespace__(self) -> Any:
        return self._array.__array_namespace__()


def set_flat(x: Array, values: Any) -> None:
    """Assign `x.flat = values`: a number, or as many elements as the array has."""
    Flat(x)[...] = values


def real_part(x: Array) -> Array:
    """Return the real parts, which writes to them change; a copy if `x` is real."""
    is_view = follows_numpy(sys._getframe(1).f_globals)  # pyright: ignore[reportPrivateUsage]
    return part_view(x, 0) if is_view else x.parts[0] if isinstance(x, ComplexArray) else el.real(x)


def imaginary_part(x: Array) -> Array:
    """Return the imaginary parts, which writes to them change; zeros if `x` is real."""
    is_view = follows_numpy(sys._getframe(1).f_globals)  # pyright: ignore[reportPrivateUsage]
    return part_view(x, 1) if is_view else x.parts[1] if isinstance(x, ComplexArray) else el.imag(x)


def part_view(x: Array, k: int) -> Array:
    """Return real or imaginary parts as NumPy does: views, or zeros that cannot be written."""
    if isinstance(x, ComplexArray):
        part = x.parts[k]
        x.own_parts()
        owner = base(x)
        link = Part(("real", "imag")[k], x if owner is None else owner)
        is_shared = isinstance(part.node, CopiedOperand)
        return alias(part, Array.unread() if is_shared else Array.of(part.node), (link,))
    if k == 0:
        return x
    zeros = full(x.shape, False, x.dtype)
    own(zeros).is_writeable = False
    return zeros


def set_real(x: Array, values: Any) -> None:
    """Assign `x.real = values`, which broadcast."""
    (x.parts[0] if isinstance(x, ComplexArray) else x)[...] = values


def set_imag(x: Array, values: Any) -> None:
    """Assign `x.imag = values`, which broadcast.

    Raises DTypeError for an array of real numbers.
    """
    if not isinstance(x, ComplexArray):
        raise DTypeError(f"x.imag = ...: {x.node.type_text} has no imaginary parts")
    x.parts[1][...] = values


def _strides(x: Array) -> tuple[int, ...]:
    part = x.parts[0] if isinstance(x, ComplexArray) else x
    if part.place is not None:
        return part.place.shadow().strides
    steps, size = [], x.dtype.itemsize
    for extent in reversed(x.shape):
        steps.append(size)
        size *= extent
    return tuple(reversed(steps))


def _html(x: Array) -> str:
    """Return the array for notebooks: a table for small matrices, else its text."""
    recorded = isinstance(x, ComplexArray) or x.node.scope is not None
    if recorded or x.ndim != 2 or not 0 < x.size <= 400:
        escape = fork_safe_import("html").escape
        return f"<pre>{escape(repr(x), quote=False)}</pre>"
    rows = "".join(
        "<tr>" + "".join(f"<td>{_shown(v)}</td>" for v in row) + "</tr>"
        for row in np.asarray(x).tolist()
    )
    shape = " × ".join(map(str, x.shape))
    return f"<table>{rows}</table><small>Array {shape}, {x.dtype}</small>"


def _shown(v: bool | int | float) -> str:
    return f"{v:.6g}" if isinstance(v, float) else str(v)


def _rounded_operator(x: Array, digits: int | None = None) -> Any:
    if x.ndim:
        return el.round(x, digits or 0)
    number = _only_item(x)
    return round(number) if digits is None else round(number, digits)


def base(x: Array) -> Any:
    """Return the array that owns the elements of a view, else None."""
    part = x.parts[0] if isinstance(x, ComplexArray) else x
    place = part.place
    if place is None or place.memory.owner() is part:
        return None
    memory = place.memory
    whole = None if memory.whole is None else memory.whole()
    if whole is not None:
        return whole
    owner = memory.owner()
    if owner is None:  # nobody holds it: its elements are all that is left of it
        owner = Array.of(memory.node)
        owner.place = Place(memory, (), True)
        memory.owner = weakref.ref(owner)
    if part is x:
        return owner
    whole = x.view_of_parts(owner, base(x.parts[1]))
    whole.own_parts()
    return whole


class Flags:
    """Flags of an array's memory: `x.flags.writeable`, `x.flags["C_CONTIGUOUS"]`."""

    __slots__ = ("_array",)

    _NAMES: Final = {
        "C": "c_contiguous",
        "F": "f_contiguous",
        "O": "owndata",
        "W": "writeable",
        "A": "aligned",
    }

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, name: str) -> bool:
        return bool(getattr(self, self._NAMES.get(name, name.lower())))

    def __setitem__(self, name: str, value: bool) -> None:
        setattr(self, self._NAMES.get(name, name.lower()), value)

    def __repr__(self) -> str:
        names = ("c_contiguous", "f_contiguous", "owndata", "writeable", "aligned")
        return "\n".join(f"  {n.upper()} : {getattr(self, n)}" for n in names)

    def _shadow(self) -> Any:
        x = self._array
        if isinstance(x, ComplexArray):
            x.own_parts()
            part = own(x.parts[0]).shadow()
            element = np.empty(1, x.dtype.numpy)  # not that of a part, which has gaps
            return np.lib.stride_tricks.as_strided(element, part.shape, part.strides)
        return own(x).shadow()

    c_contiguous = contiguous = property(
        lambda self: self._shadow().flags.c_contiguous,
        doc="Whether the elements follow each other in the order of rows.",
    )
    f_contiguous = property(
        lambda self: self._shadow().flags.f_contiguous,
        doc="Whether the elements follow each other in the order of columns.",
    )
    forc = property(
        lambda self: self.c_contiguous or self.f_contiguous,
        doc="Whether the elements follow each other in either order.",
    )
    fnc = property(
        lambda self: self.f_contiguous and not self.c_contiguous,
        doc="Whether the elements follow each other in the order of columns only.",
    )
    owndata = property(
        lambda self: base(self._array) is None, doc="Whether the array is not a view."
    )
    aligned = True

    @property
    def writeable(self) -> bool:
        """Whether the elements can be written."""
        x = self._array
        parts = x.parts if isinstance(x, ComplexArray) else (x,)
        return all(p.place is None or p.place.is_writeable for p in parts)

    @writeable.setter
    def writeable(self, value: bool) -> None:
        set_flags(self._array, write=value)


def set_flags(x: Array, write: Any = None, align: Any = None, uic: Any = None) -> None:
    """Allow or forbid writing to the elements by this array.

    Raises ArgumentError for a view of what cannot be written.
    """
    for part in x.parts if isinstance(x, ComplexArray) else (x,):
        if write is None:
            return
        place = own(part)
        owner = place.memory.owner()
        allowed = owner is None or owner is part or owner.place.is_writeable
        if write and not (allowed and all(link.is_writeable for link in place.links)):
            raise ArgumentError("cannot set WRITEABLE flag to True of this array")
        place.is_writeable = bool(write)


METHODS: Final[dict[str, Callable[..., Any]]] = {
    "all": numpy_calls.all, "any": numpy_calls.any, "argmax": numpy_calls.argmax,
    "argmin": numpy_calls.argmin, "argpartition": argpartition, "argsort": argsort,
    "astype": _convert_for_users, "clip": clip, "compress": compress,
    "conj": el.conj, "conjugate": el.conj,
    "copy": lambda x, order="C": x.__copy__(), "cumprod": numpy_calls.cumprod,
    "cumsum": numpy_calls.cumsum, "diagonal": _diagonal, "dot": dot, "fill": fill,
    "flatten": flatten, "item": item, "max": numpy_calls.max, "mean": numpy_calls.mean,
    "min": numpy_calls.min, "nonzero": search.nonzero, "partition": partition,
    "prod": numpy_calls.prod, "ptp": numpy_calls.ptp, "ravel": _viewed(ravel, "ravel"),
    "repeat": repeat, "reshape": _viewed(reshape, "reshape"), "round": rounded,
    "searchsorted": searchsorted, "sort": sort_in_place, "squeeze": _viewed(squeeze, "squeeze"),
    "std": numpy_calls.std, "sum": numpy_calls.sum, "swapaxes": _viewed(swapaxes),
    "take": take, "tobytes": tobytes, "trace": trace, "transpose": _viewed(transpose),
    "var": numpy_calls.var, "view": _view, "_repr_html_": _html, "__round__": _rounded_operator,
    "__divmod__": lambda x, y: (x // y, x % y),
    "__format__": lambda x, spec: format(_only_item(x), spec) if spec else str(x),
    "resize": _refuse("resize", "An array keeps its size: y = np.resize(x, shape)."),
    "setflags": set_flags,
    "byteswap": _refuse("byteswap", "Use np.asarray(x).byteswap() of NumPy."),
    "tofile": _refuse("tofile", "Use np.asarray(x).tofile(path) of NumPy, or np.save."),
    "dump": _refuse("dump", "Use np.save, or pickle the array."),
}  # fmt: skip
"""Method -> function that is called with the array first."""

NUMPYS: Final[dict[str, Callable[..., Any]]] = {}
"""Method -> function of `smelt.numpy` that is called in its place where NumPy's rules hold."""

PROPERTIES: Final[dict[str, property]] = {
    "T": property(_transposed, doc="The array with its dimensions in reverse order."),
    "real": property(real_part, set_real, doc="The real parts, which can be written."),
    "imag": property(imaginary_part, set_imag, doc="The imaginary parts: zeros if it is real."),
    "nbytes": property(lambda x: x.size * x.dtype.itemsize, doc="Bytes of the elements."),
    "itemsize": property(lambda x: x.dtype.itemsize, doc="Bytes of one element."),
    "flat": property(Flat, set_flat, doc="The elements in the order of rows."),
    "strides": property(_strides, doc="Steps in bytes, those of an array stored by rows."),
    "base": property(base, doc="The array that the array is a view of, None if it is none."),
    "flags": property(Flags, doc="How the elements are stored, and whether they can be written."),
}
"""Attribute -> property."""


_MAKE_VIEWS: Final = frozenset(
    ("diagonal", "ravel", "reshape", "squeeze", "swapaxes", "transpose", "view")
)
"""Methods that look at their caller's rules themselves."""


def attach() -> None:
    """Give `Array` the methods and properties of both tables."""
    for name, function in METHODS.items():
        setattr(Array, name, function if name in _MAKE_VIEWS else _for_users(name, function))
    for name, member in PROPERTIES.items():
        setattr(Array, name, member)
