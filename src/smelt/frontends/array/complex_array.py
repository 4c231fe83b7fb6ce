"""Define complex arrays: pairs of real arrays with one shape and dtype.

Every operator on a complex array records operators on its real and imaginary parts, so that
programs with complex numbers fuse as others do.  The memory of NumPy's complex arrays is read in
place: parts are its views.  What NumPy computes at once stays whole until parts are needed.

>>> z = complex_array(np.asarray([1 + 2j, 3.0]))
>>> z, z.dtype, z.real
(Array([1.+2.j, 3.+0.j]), c128, Array([1., 3.]))
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from smelt.errors import ArgumentError, DTypeError, ShapeError, TracerError, UnsupportedError
from smelt.frontends.array.aliasing import hold, own, own_part
from smelt.frontends.array.array import Array, number_or_value
from smelt.frontends.array.at_once import view_of
from smelt.frontends.array.complex_calls import ComplexOperand, complex_functions
from smelt.frontends.array.convert import as_buffer, export_array, from_host, is_foreign_array
from smelt.frontends.array.evaluate_pending import evaluate, flush, flush_readers
from smelt.frontends.array.number import Number
from smelt.frontends.array.operators import (
    Operators,
    call_operator,
    finished,
    in_order,
    is_view,
    keep_order,
)
from smelt.frontends.array.promote import cast, follows_numpy, number
from smelt.frontends.array.scope import Scope, shape_of
from smelt.frontends.array.subscript import plain_key
from smelt.frontends.array.tree import register_pair
from smelt.frontends.array.value import STATE, Buffer, Value, copied, is_at_once, leaf
from smelt.types.dtype import DType, c64, c128, f32, f64, from_numpy, promote

PART_OF: Final[dict[DType, DType]] = {c64: f32, c128: f64}
"""Complex dtype -> dtype of its parts."""
COMPLEX_OF: Final[dict[DType, DType]] = {f32: c64, f64: c128}
"""Dtype of parts -> complex dtype."""


class ComplexArray(Array):
    """Array of complex64 or complex128, stored as two real arrays.

    It has the interface of `sm.Array`.
    """

    __slots__ = ("_parts", "whole")

    _parts: tuple[Array, Array] | None
    whole: Buffer | None
    """Elements that NumPy computed, in memory of their own, as long as there are no parts."""

    @property
    def node(self) -> Any:
        """Raise ComplexOperand: there is no single value."""
        raise ComplexOperand(f"complex numbers ({self.dtype.long}) for this function")

    @property
    def parts(self) -> tuple[Array, Array]:
        """Real and imaginary parts, the arrays themselves."""
        if self._parts is None:
            assert self.whole is not None
            self._parts = _part_of(self.whole.real), _part_of(self.whole.imag)
            self.whole = None
        return self._parts

    @property
    def _scope(self) -> Scope | None:
        """The recording that the array belongs to."""
        return None if self._parts is None else self._parts[0].node.scope

    def computed(self) -> Buffer | None:
        """Return the elements, which may not be written, if they are computed, else None.

        None also for an array whose order in memory may not be that of rows.
        """
        if self.whole is not None:
            return self.whole
        places = [x.place for x in self.parts]
        if any(p is not None and p.is_permuted for p in places):
            return None
        real, imag = (None if x.node.scope is not None else view_of(x.node) for x in self.parts)
        if real is None or imag is None:
            return None
        return _whole_of(real, imag, self.dtype.numpy)

    def replace_parts(self, other: ComplexArray) -> None:
        """Make the elements of another array the newest version of this one."""
        if self.whole is not None and other.whole is not None:
            self.whole[...] = other.whole
            return
        part = PART_OF[self.dtype]
        for mine, new in zip(self.parts, other.parts, strict=True):
            mine.replace_value(cast(new.node, part))

    @property
    def dtype(self) -> DType:
        """Dtype of the elements."""
        if self.whole is not None:
            return from_numpy(self.whole.dtype)
        return COMPLEX_OF[self.parts[0].dtype]

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes of the dimensions; inside `jit` they are symbolic integers."""
        return self.parts[0].shape if self.whole is None else self.whole.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> Any:
        """Number of elements."""
        return self.parts[0].size if self.whole is None else self.whole.size

    @property
    def is_small(self) -> bool:
        """Whether NumPy's users get this result as NumPy's own, unless it is a view."""
        if self.whole is not None:
            return self.whole.nbytes <= 8 * STATE.small_elements
        part = self.parts[0]
        nbytes: Any = part.node.type.nbytes
        return part.is_small and 2 * nbytes <= 8 * STATE.small_elements

    def handed_out(self) -> Any:
        """Return this small result as NumPy's own array or scalar; views stay as they are."""
        if STATE.following or (self.whole is None and any(map(is_view, self.parts))):
            return self
        place = self.parts[0].place if self._parts else None
        if place is not None and place.memory.is_held:
            return self._in_shared_memory("a result")
        data = self.elements("a result")
        if place is not None and place.memory.order is not None:
            return in_order(data, place.memory.order)
        return data if data.ndim else data[()]

    def matrix_transpose(self, is_view: bool) -> Array:
        """Return the transpose of each matrix, as a view if NumPy's rules hold."""
        parts = [x.matrix_transpose(is_view) for x in self.parts]
        return self.view_of_parts(*parts) if is_view else _of(*parts)

    def replace_value(self, node: Any) -> None:
        """Raise ComplexOperand: methods that write in place are those of real arrays."""
        raise ComplexOperand("writing to a complex array by this method")

    @property
    def type_text(self) -> str:
        """Type for messages: `c64[3,4]`."""
        real = self.parts[0]
        text: str = real.node.type_text
        return self.dtype.name + text[len(real.dtype.name) :]

    def __hash__(self) -> int:
        if self._scope is not None:
            return id(self)
        return hash(complex(self) if not self.ndim else self.parts[0])

    # Reading

    def elements(self, use: str) -> Buffer:
        """Return the elements in memory of their own.

        Raises TracerError inside `jit`, GradientError under differentiation.
        """
        if self.whole is not None:
            return self.whole.copy()
        scope = self._scope
        if scope is not None and scope.check_open(self.type_text):
            raise TracerError(use=use, value=self.type_text)
        flush(*(x.node for x in self.parts if x.node.data is None))
        real, imag = (x._read(use) for x in self.parts)  # pyright: ignore[reportPrivateUsage]
        return _joined(real, imag, self.dtype.numpy)

    def _shared_elements(self, use: str) -> Buffer:
        """Return memory of the elements, which the array itself reads from now on."""
        data = self.elements(use)  # both parts are computed by one program
        parts = [x._read(use) for x in self.parts]  # pyright: ignore[reportPrivateUsage]
        whole = _common_memory(parts[0], parts[1], data.dtype)
        data = data if whole is None else whole
        for x, part in zip(self.parts, (data.real, data.imag), strict=True):
            x.replace_value(from_host(part))
        flush_readers(data)
        return data

    def exported(self, use: str, frame: Any, copy: bool | None = None) -> Buffer:
        """Return the elements for other code, in memory that both see if NumPy's rules hold.

        Else they are copied, unless `copy` is False.  So are parts that are views of memories of
        different shapes, and the copy is read-only.
        """
        if not follows_numpy(frame.f_globals):
            return self._shared_elements(use) if copy is False else self.elements(use)
        return self._in_shared_memory(use)

    def _in_shared_memory(self, use: str) -> Buffer:
        whole, place = self.join_parts(), own(self.parts[0])
        if whole is None:
            data = self.elements(use)
            data.flags.writeable = False
            return data
        view = place.of(whole).view()
        view.flags.writeable = view.flags.writeable and place.is_writeable
        return view

    def join_parts(self) -> Buffer | None:
        """Return memory of both parts that other code may write to from now on.

        None for views of memories of different shapes.
        """
        whole = self.whole
        if whole is not None:
            self._parts = Array.of(leaf(whole.real)), Array.of(leaf(whole.imag))
            self.whole = None
        places = [own(x) for x in self.parts]
        nodes = [place.memory.node for place in places]
        flush(*[x for x in nodes if x.data is None])  # by one program
        real, imag = map(evaluate, nodes)
        shadow = places[0].memory.shadow()
        if real.shape != imag.shape or not _is_same_memory(*[p.of(shadow) for p in places]):
            return None
        if whole is None:
            whole = _whole_of(real, imag, self.dtype.numpy)
        flush_readers(real, imag)
        for place, part in zip(places, (whole.real, whole.imag), strict=True):
            place.memory.move(part)
        return whole

    def _read(self, use: str) -> Buffer:
        return self.elements(use)

    def __int__(self) -> int:
        raise DTypeError(f"int(x): {self.type_text} is complex", hint="Use int(x.real).")

    def __float__(self) -> float:
        raise DTypeError(f"float(x): {self.type_text} is complex", hint="Use float(x.real).")

    def __index__(self) -> int:
        raise DTypeError(f"{self.type_text} is not an integer and cannot be an index")

    def _check_may_leave(self, use: str) -> None:
        for x in self._parts or ():
            x._check_may_leave(use)  # pyright: ignore[reportPrivateUsage]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Buffer:
        self._check_may_leave("np.asarray(x)")
        if copy or (copy is None and dtype is not None and self.dtype.numpy != dtype):
            return self.elements("np.asarray(x)").astype(dtype or self.dtype.numpy, copy=False)
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        return np.asarray(self.exported("np.asarray(x)", frame, copy), dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        mine = _UFUNCS.get(ufunc)
        if mine and method == "__call__" and not options and not isinstance(inputs[0], Array):
            return complex_functions()[mine](*inputs)
        return self._by_numpy(ufunc, method, inputs, options, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def __dlpack__(self, *, stream: Any = None, copy: bool | None = None, **options: Any) -> Any:
        if stream is not None:
            raise UnsupportedError(f"stream={stream!r}: the CPU has no streams")
        self._check_may_leave("a DLPack export")
        use = "a DLPack export"
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        data = self.elements(use) if copy else self.exported(use, frame, copy)
        return export_array(data, **{k: v for k, v in options.items() if v is not None})

    def _is_readable(self) -> bool:
        return self._scope is None

    def __repr__(self) -> str:
        if not self._is_readable():
            real = self.parts[0]
            return f"Array(<{self.dtype}{str(real.node.type)[len(real.dtype.name) :]}>)"
        data = self.elements("repr(x)")
        body = np.array2string(data, prefix="Array(", separator=", ", threshold=1000)
        plain = data.dtype == np.complex128 and data.size
        return f"Array({body})" if plain else f"Array({body}, dtype={self.dtype})"

    # Parts

    def __iter__(self) -> Iterator[Array]:
        if not self.ndim:
            raise ArgumentError("iteration over an array of rank 0")
        if self.ndim == 1 and not (self._scope or STATE.scope or STATE.tapes):
            return map(self._element, range(len(self)))
        is_view = follows_numpy(sys._getframe(1).f_globals)  # pyright: ignore[reportPrivateUsage]
        return (self.part(k, is_view) for k in range(len(self)))

    def _element(self, k: int) -> Any:
        """Return an element as NumPy's scalar."""
        if self.whole is not None:
            return self.whole[k]
        real, imag = (x._read("iteration")[k] for x in self.parts)  # pyright: ignore[reportPrivateUsage]
        return self.dtype.numpy.type(complex(real, imag))

    def __contains__(self, x: Any) -> bool:
        return bool(np.asarray(self == x).any())

    def __getitem__(self, key: Any) -> Any:
        is_view = follows_numpy(sys._getframe(1).f_globals)  # pyright: ignore[reportPrivateUsage]
        items = plain_key(key) if is_view and self.whole is not None else None
        if items is not None and (_is_copied(items) or len(items) == self.ndim):
            try:
                data = np.asarray(self.whole[items])  # type: ignore[index]
                if _is_copied(items) or not data.ndim:
                    return finished(of_whole(data))
            except IndexError:
                pass  # ours is raised
        return finished(self.part(key, is_view))

    def part(self, key: Any, is_view: bool) -> Any:
        """Return x[key], as a view if NumPy's rules hold and the key allows it."""
        parts = [x.part(key, is_view) for x in self.parts]
        if parts[0].__class__ is Array and parts[0].place is not None:
            return self.view_of_parts(*parts)
        return pair(*parts)

    def view_of_parts(self, real: Array, imag: Array) -> ComplexArray:
        """Return the complex array of views of the parts, without a copy."""
        self.own_parts()
        return _of(real, imag)

    def own_parts(self) -> None:
        """Note in the parts' memory that they are those of a complex array."""
        for x in self.parts:
            own_part(x, self)

    def __setitem__(self, key: Any, x: Any) -> None:
        if self.whole is not None and is_at_once() and self._write_whole(key, x):
            return
        real, imag = self.parts
        if is_complex_like(x):
            other = complex_array(x)
            part = PART_OF[self.dtype]
            real[key], imag[key] = (Array.of(cast(p.node, part)) for p in other.parts)
        else:
            real[key] = x
            imag[key] = 0.0

    def apply_in_memory(self, name: str, other: Any) -> bool:
        """Compute an operator into the elements; return whether NumPy did."""
        operand = other.computed() if isinstance(other, Operators) else other
        if name not in _IN_PLACE or not isinstance(
            operand, (np.ndarray, np.generic, int, float, complex)
        ):
            return False
        whole = self._writeable()
        if whole is None:
            return False
        try:
            getattr(np, name)(whole, operand, out=whole)
        except (TypeError, ValueError):
            return False  # ours is raised
        return True

    def _writeable(self) -> Buffer | None:
        """Return elements that NumPy may write, None if others need the present ones."""
        if self.whole is not None:
            return self.whole
        places = [x.place for x in self.parts]
        if any(place is None or not place.memory.is_held for place in places):
            return None
        real, imag = (place.writeable() for place in places)
        if real is None or imag is None:
            return None
        return _common_memory(real, imag, self.dtype.numpy)

    def _write_whole(self, key: Any, x: Any) -> bool:
        """Write elements that NumPy computed; return whether that was possible."""
        items = plain_key(key)
        if isinstance(x, ComplexArray):
            x = x.computed()
        elif isinstance(x, Operators):
            x = None if x.node.scope is not None else view_of(x.node)
        if items is None or not isinstance(x, (np.ndarray, np.generic, int, float, complex)):
            return False
        try:
            self.whole[items] = x  # type: ignore[index]
        except (ValueError, TypeError, IndexError):
            return False  # the error is that of the parts
        return True

    @property
    def at(self) -> Any:
        """Raise UnsupportedError: updates of copies are written for real arrays."""
        raise ComplexOperand("x.at[...] of complex numbers", hint="Update x.real and x.imag.")

    def __copy__(self) -> ComplexArray:
        if self.whole is not None:
            return of_whole(self.whole.copy())
        return _of(*(x.__copy__() for x in self.parts))

    def __deepcopy__(self, memo: dict[int, Any]) -> ComplexArray:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return complex_array, (self.elements("pickling"),)

    # Operators

    def apply_forward(self, family: Any, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        return finished(_in_order(call_operator(family.what, self, other), self, other), 3)

    def apply_reflected(self, family: Any, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        return finished(_in_order(call_operator(family.what, other, self), self, other), 3)

    def apply_in_place(self, family: Any, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        if not self.ndim:  # as for real numbers: a sum or an element
            return finished(self.apply_forward(family, other), 3)
        if is_at_once() and self.apply_in_memory(family.what, other):
            return self
        result = call_operator(family.what, self, other)
        if isinstance(result, np.ndarray) and result.dtype.kind == "c":
            result = of_whole(result)
        if not isinstance(result, ComplexArray) or result.shape != self.shape:
            raise ShapeError(
                op=family.what,
                operands=f"{self.type_text}, ...",
                reason="in place the result would not have the array's shape",
            )
        self.replace_parts(result)
        return self

    def __matmul__(self, other: Any) -> Any:
        return self.apply_forward(_MATMUL, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self.apply_reflected(_MATMUL, other)

    def __imatmul__(self, other: Any) -> Any:
        return self.apply_in_place(_MATMUL, other)

    def __neg__(self) -> Any:
        return self._unary("negative")

    def __pos__(self) -> Any:
        return finished(self.__copy__())

    def __abs__(self) -> Any:
        return self._unary("abs")

    def __invert__(self) -> Any:
        return self._unary("bitwise_invert")

    def _unary(self, name: str) -> Any:
        return finished(call_operator(name, self), 3)


def _is_same_memory(x: Buffer, y: Buffer) -> bool:
    return x.ctypes.data == y.ctypes.data and (x.shape, x.strides) == (y.shape, y.strides)


def _of(real: Array, imag: Array) -> ComplexArray:
    result = ComplexArray.__new__(ComplexArray)
    result._parts = real, imag  # pyright: ignore[reportPrivateUsage]
    result.whole = None
    return result


def _joined(real: Buffer, imag: Buffer, dtype: np.dtype[Any]) -> Buffer:
    """Return a copy of two parts."""
    data: Buffer = np.empty(real.shape, dtype)
    data.real, data.imag = real, imag
    return data


def _whole_of(real: Buffer, imag: Buffer, dtype: np.dtype[Any]) -> Buffer:
    """Return the complex elements of two parts, a copy unless they are views of them."""
    whole = _common_memory(real, imag, dtype)
    return _joined(real, imag, dtype) if whole is None else whole


def _common_memory(real: Buffer, imag: Buffer, dtype: np.dtype[Any]) -> Buffer | None:
    """Return the complex elements, whole or a view, of two parts, else None."""
    base: Any = real.base
    if not isinstance(base, np.ndarray) or base.dtype != dtype or imag.base is not base:
        return None
    if all(map(_is_same_memory, (real, imag), (base.real, base.imag))):
        return base
    is_pair = imag.ctypes.data - real.ctypes.data == dtype.itemsize // 2
    layout = real.shape, real.strides
    if not is_pair or layout != (imag.shape, imag.strides) or not base.flags.c_contiguous:
        return None
    if not real.size or min(real.strides, default=0) < 0:
        return None
    return np.ndarray(real.shape, dtype, base, real.ctypes.data - base.ctypes.data, real.strides)


def of_whole(data: Buffer) -> ComplexArray:
    """Return the complex array of elements that nobody else sees."""
    result = ComplexArray.__new__(ComplexArray)
    is_own = data.base is None and data.flags.c_contiguous and data.flags.writeable
    result.whole = data if is_own else np.array(data, order="C")
    result._parts = None  # pyright: ignore[reportPrivateUsage]
    return result


def _part_of(data: Buffer) -> Array:
    """Return a part of an array that may be older than the recording in progress."""
    array = Array.__new__(Array)
    array.node, array.place = leaf(data.copy()), None
    return array


def _is_copied(items: tuple[Any, ...]) -> bool:
    """Return whether NumPy's x[items] is a copy: some are masks or positions."""
    return any(isinstance(item, np.ndarray) for item in items)


def pair(real: Any, imag: Any) -> ComplexArray:
    """Return the complex array of two parts, which broadcast and may be real numbers.

    The parts become float32 if neither needs more, else float64.  Raises ShapeError.
    """
    re, im = (number_or_value(x, "complex") for x in (real, imag))
    dtypes = [x.type.dtype for x in (re, im) if isinstance(x, Value)]
    dtype = PART_OF[promote(promote(dtypes[0], dtypes[-1]), c64) if dtypes else c128]
    if any(d.is_integer for d in dtypes):
        dtype = f64 if all(d.is_integer for d in dtypes) else dtype
    if isinstance(re, Value) and isinstance(im, Value) and shape_of(re) == shape_of(im):
        return _of(_own_part(re, dtype), _own_part(im, dtype))
    re, im = _broadcast(
        *(x if isinstance(x, Value) else number(x, dtype, "complex") for x in (re, im))
    )
    return _of(_own_part(re, dtype), _own_part(im, dtype))


def _own_part(node: Value, dtype: DType) -> Array:
    """Return a part of a result that no later write to an operand changes."""
    part = cast(node, dtype)
    return Array.of(copied(part) if part is node and node.shared else part)


def _broadcast(x: Value, y: Value) -> tuple[Value, Value]:
    a, b = complex_functions()["broadcast_real"](Array.of(x), Array.of(y))
    return a.node, b.node


def is_complex_like(x: Any) -> bool:
    """Return whether an array, a number or an item of nested lists is complex."""
    if isinstance(x, (complex, ComplexArray)):
        return True
    if isinstance(x, (list, tuple)):
        return any(map(is_complex_like, x))
    if isinstance(x, (Operators, Number, bool, int, float)):
        return False
    return getattr(getattr(x, "dtype", None), "kind", "") == "c" or (
        "complex" in str(getattr(x, "dtype", ""))
    )


def complex_array(x: Any) -> ComplexArray:
    """Return a number, an array or nested lists as a complex array.

    The imaginary parts of real ones are zeros.

    Raises ArgumentError for other objects.
    """
    if isinstance(x, ComplexArray):
        return x
    if isinstance(x, complex):
        return pair(Array.of(number(x.real, f64, "complex")), x.imag)
    if isinstance(x, (list, tuple)):
        if any(isinstance(item, (Array, list, tuple)) for item in x):
            return complex_functions()["stack"]([complex_array(item) for item in x])
        x = np.asarray(x)
    if not isinstance(x, Operators) and is_foreign_array(x) and is_complex_like(x):
        z = from_memory(as_buffer(x), isinstance(x, np.generic))
        is_recorded = STATE.scope is not None or STATE.tapes or not STATE.small_elements
        return z if is_recorded else held(z)
    return pair(x, 0.0)


def from_memory(data: Buffer, private: bool = False) -> ComplexArray:
    """Return a complex array that reads the memory of NumPy's.

    `private` memory is not written to by others.  Raises DTypeError for long double parts.
    """
    from_numpy(data.dtype)
    if not data.dtype.isnative:
        data, private = data.astype(data.dtype.newbyteorder("=")), True
    if private and STATE.small_elements and is_at_once():
        return of_whole(data)
    return _of(
        *(Array.of(leaf(p.copy()) if private else from_host(p)) for p in (data.real, data.imag))
    )


def held(x: Array) -> Any:
    """Return an array after noting whether it reads memory of other code, by NumPy's rules."""
    if isinstance(x, ComplexArray) and x.whole is not None:
        return x
    for part in x.parts if isinstance(x, ComplexArray) else (x,):
        node = part.node
        if node.shared and node.data is not None:
            hold(part, node.data.flags.writeable)
    return x


def _in_order(result: Any, *operands: Any) -> Any:
    """Give the parts of an elementwise result the order in memory that NumPy's has."""
    if not isinstance(result, ComplexArray) or result.whole is not None:
        return result  # NumPy gave it its order
    for k, part in enumerate(result.parts):
        keep_order(part, *[x.parts[k] if isinstance(x, ComplexArray) else x for x in operands])
    return result


def _is_operand(x: Any) -> bool:
    return isinstance(x, (Operators, Number, bool, int, float, complex, list, tuple, range)) or (
        is_foreign_array(x)
    )


_MATMUL: Final = SimpleNamespace(what="matmul")
_UFUNCS: Final[dict[Any, str]] = {np.power: "pow"} | {
    getattr(np, name): name
    for name in ("add", "subtract", "multiply", "divide", "matmul", "equal", "not_equal")
}
"""NumPy's function behind an operator with its array on the left -> function."""
_IN_PLACE: Final = frozenset(("add", "subtract", "multiply", "divide"))
"""Functions of NumPy that write their result to the elements of the operand on the left."""


for _type in (ComplexArray, np.complex64, np.complex128):
    register_pair(
        _type, lambda x: x.parts if isinstance(x, ComplexArray) else (x.real, x.imag), pair
    )
