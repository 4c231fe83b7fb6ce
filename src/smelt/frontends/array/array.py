"""Define `sm.Array`, an n-dimensional array that is computed lazily.

Operators only record.  Reading elements (`print`, `float`, `np.asarray`, `if x:`) compiles and runs
everything that is pending, fused.  Arrays share memory with NumPy and, through DLPack, with other
libraries.  Writing (`x[0] = 1`, `x += y`) gives the array a new version; results computed from the
old version do not change.

>>> x = Array.of(from_host(np.arange(3.0)))
>>> y = x * 2 + 1
>>> y
Array([1., 3., 5.])
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from smelt.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    GradientError,
    ShapeError,
    TracerError,
    UnsupportedError,
)
from smelt.frontends.array.aliasing import Key, alias, hold, own, part
from smelt.frontends.array.assign import At, cast_same_kind, has_wider_kind, put
from smelt.frontends.array.complex_calls import ComplexOperand, call_complex
from smelt.frontends.array.convert import export_array, from_host, is_foreign_array
from smelt.frontends.array.evaluate_pending import (
    evaluate,
    flush_if_many,
    flush_readers,
    present_value,
    written_elements,
)
from smelt.frontends.array.masked_select import (
    MaskedSelection,
    UpdateSelection,
    select_for_update,
    select_masked,
    write_masked,
    write_update,
)
from smelt.frontends.array.number import user_dim
from smelt.frontends.array.numpy_hints import missing_attribute
from smelt.frontends.array.operators import (
    Operators,
    apply_ufunc,
    is_complex,
    numpys_own,
    operand,
    small_product,
)
from smelt.frontends.array.promote import (
    cast,
    default_value,
    follows_numpy,
    number,
    user_follows_numpy,
)
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.subscript import (
    VIEWING,
    copied_elements,
    get,
    hashable_key,
    is_element,
    plain_key,
)
from smelt.frontends.array.ufuncs import IN_PLACE, OPERATORS, is_in_place, rebind_obstacle
from smelt.frontends.array.value import (
    STATE,
    Buffer,
    CopiedOperand,
    Value,
    copied,
    is_at_once,
    is_differentiated,
    leaf,
    private_data,
    unshared_node,
)
from smelt.frontends.array.views import permute
from smelt.ops.create import Constant
from smelt.python.imports import fork_safe_import
from smelt.python.origin import Origin
from smelt.types.dtype import DType, counterpart
from smelt.types.expr import product

PENDING_LIMIT = 64
"""A thread computes its pending operators, unread, once there are this many."""
DEVICE = "cpu"
_AS_NUMPY = "np.asarray(x)"
_RECORDED = (
    "Functions of smelt are recorded, those of NumPy need values: sm.exp(x) in place of np.exp(x)."
)
_new = object.__new__
_reference = weakref.ref
_OF_SCALARS = frozenset(("as_integer_ratio", "bit_count", "hex", "is_integer"))
"""Methods of Python's numbers that NumPy's scalars have, and arrays of rank 0."""
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")


class Array(Operators):
    """Lazy array with the interface of the array API standard (2024.12).

    Create arrays with `sm.asarray` or any other function of the package, never by calling the
    class.

    An operator with Python numbers or other arrays promotes dtypes by the standard's table and
    broadcasts shapes.  Inside `sm.jit` an array has a dtype and a symbolic shape but no elements:
    reading them raises TracerError.
    """

    __slots__ = ()
    __array_priority__ = 1000  # for libraries that use NumPy's protocol before __array_ufunc__

    @staticmethod
    def of(node: Value) -> Array:
        """Return the array that stands for a recorded value."""
        array = _new(Array)
        if node.op.__class__ is Constant:
            node = unshared_node(node)
        array.node = node
        array.place = None
        if node.scope is None:
            scope = STATE.scope
            if scope is not None:
                scope.created[id(array)] = weakref.ref(array)
            if node.data is None:  # `_wait`, without a call
                pending = STATE.pending
                pending.append(_reference(array))
                STATE.trail.append(node.origin)
                if len(pending) >= STATE.review_at:
                    flush_if_many(PENDING_LIMIT)
            elif node.__class__ is CopiedOperand:
                array.node = node.as_operand()  # a result, which no write changes
        elif node.scope is not (scope := STATE.scope) and scope is not None:
            scope.created[id(array)] = weakref.ref(array)  # a step computed it around its loop
        return array

    @staticmethod
    def unread() -> Array:
        """Return an array without a value, which has to get a place."""
        return _new(Array)

    def handed_out(self) -> Any:
        """Return this small result as NumPy's own array or scalar; views stay as they are."""
        return numpys_own(self)

    def _wait(self) -> None:
        state = STATE
        pending = state.pending
        pending.append(_reference(self))
        state.trail.append(self.node.origin)
        if len(pending) >= state.review_at:
            flush_if_many(PENDING_LIMIT)

    def replace_value(self, node: Value) -> None:
        """Make `node` the newest version of this array.

        Raises TracerError in a recording, for an array that was created outside of it.
        """
        place = self.place
        old = self.node if place is None else place.memory.node
        scope, current = node.scope, STATE.scope
        is_outside = old.scope is None
        if current is not None and current.is_step:
            scope, is_outside = current, old.scope is not current
        del old  # a write at once counts who refers to it
        if (
            scope is not None
            and is_outside
            and not (scope.has_created(self) if place is None else place.memory.creator is scope)
        ):
            where = "a step of a loop" if scope.is_step else "sm.jit"
            raise TracerError(
                f"an array from outside is written inside {where} ({scope.name})",
                hint="Return the new value; the function would write only while it is recorded.",
            )
        node = unshared_node(node)
        if place is None or place.write(self, node):
            self.renew(node)

    def renew(self, node: Value) -> None:
        """Make `node` the newest version, whatever other arrays share the memory."""
        self.node = node
        if node.data is None and node.scope is None:
            self._wait()

    def forget(self) -> None:
        """Leave the value of a view to be derived again, since its memory was written."""
        if present_value(self) is not None:
            del self.node

    # Attributes

    @property
    def dtype(self) -> DType:
        """Dtype of the elements."""
        return self.node.type.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes of the dimensions; inside `jit` they are symbolic integers."""
        node = self.node
        scope = node.scope
        if scope is None:
            return node.type.shape
        if (origin := Origin.of_caller()) is not None:
            scope.shape_reads.append((origin, node.type.shape))
        return tuple([user_dim(d, scope) for d in node.type.shape])

    @property
    def type_text(self) -> str:
        """Type for messages: `f32[3,4]`."""
        return self.node.type_text

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.node.type.shape)

    @property
    def size(self) -> Any:
        """Number of elements."""
        return user_dim(product(shape_of(self.node)), self.node.scope)

    @property
    def device(self) -> str:
        """Device that holds the elements: always "cpu"."""
        return DEVICE

    @property
    def mT(self) -> Array:
        """Transpose of each matrix in the last two dimensions.

        Raises ShapeError below rank 2.
        """
        names = sys._getframe(1).f_globals  # pyright: ignore[reportPrivateUsage]
        return self.matrix_transpose(follows_numpy(names))

    def matrix_transpose(self, is_view: bool) -> Array:
        """Return the transpose of each matrix, as a view if NumPy's rules hold."""
        rank = self.ndim
        if rank < 2:
            raise ShapeError.of("mT", "it has fewer than two dimensions", self.node)
        result = Array.of(permute(self.node, (*range(rank - 2), rank - 1, rank - 2)))
        return alias(self, result) if is_view else result

    # Reading

    def _read(self, use: str) -> Buffer:
        node = self.node
        if self.place is not None and node.is_pending:
            self._copy_computed(node)
        if node.scope is not None and node.scope.check_open(node.type_text):
            hint = _RECORDED if use == _AS_NUMPY else None
            raise TracerError(use=use, value=node.type_text, hint=hint)
        return evaluate(node)

    def _copy_computed(self, node: Value) -> None:
        """Copy the elements of a view whose owner is computed: that needs no kernel."""
        place = self.place
        data = place.memory.node.data
        if data is None or not place.is_derivable or STATE.tapes or not data.flags.c_contiguous:
            return
        node.set_elements(np.array(place.of(data), order="C"))

    def exported(self, use: str, frame: Any) -> Buffer:
        """Return the elements in memory that other code may write to from now on.

        By NumPy's rules, if code of `frame` has them, operators go on reading its elements.
        """
        data = self._read(use)
        if follows_numpy(frame.f_globals):
            hold(self)
        if self.place is not None:
            return self.place.export()
        flush_readers(data)  # the caller may write: pending operators must read this first
        self.node.share()
        return data

    def _number(self, use: str) -> Any:
        data = self._read(use)
        if data.size != 1 or data.ndim:
            raise ArgumentError(f"{use} needs an array of rank 0, not {self.type_text}")
        return data.item() if data.dtype.kind != "V" else float(data)

    def __bool__(self) -> bool:
        return bool(self._number("bool(x), as in `if x:`,"))

    def __int__(self) -> int:
        return int(self._number("int(x)"))

    def __float__(self) -> float:
        return float(self._number("float(x)"))

    def __complex__(self) -> complex:
        return complex(self._number("complex(x)"))

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise DTypeError(f"{self.node.type_text} is not an integer and cannot be an index")
        return operator.index(self._number("an index"))

    def item(self) -> bool | int | float:
        """Return the only element as a Python number.

        Raises ArgumentError unless there is exactly one element, TracerError inside `jit`.
        """
        data = self._read("item()")
        if data.size != 1:
            raise ArgumentError(f"item() needs one element, not {self.type_text}")
        return data.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers.

        Raises TracerError inside `jit`.
        """
        return self._read("tolist()").tolist()

    def _check_may_leave(self, use: str) -> None:
        """Raise GradientError if elements would leave a function under differentiation."""
        if STATE.tapes and self.node.scope is None and is_differentiated(self.node):
            raise GradientError(
                op=use,
                reason="the way back would end here: the array depends on what is"
                " differentiated by",
                hint="Use functions of smelt, or sm.stop_gradient(x) for a constant.",
            )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Buffer:
        self._check_may_leave(_AS_NUMPY)
        if copy or (dtype is not None and self.dtype.numpy != dtype):
            return np.array(self._read(_AS_NUMPY), dtype=dtype, copy=copy)
        return self.exported(_AS_NUMPY, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = method == "__call__" and ufunc in OPERATORS
        if plain and is_complex(inputs[0]):
            if not options:
                result = OPERATORS[ufunc](call_complex("asarray", inputs[0]), inputs[1])
                return _for_caller(result, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            plain = False
        if plain and isinstance(inputs[0], (np.ndarray, np.generic)):
            if counterpart(inputs[0].dtype) is None and user_follows_numpy():
                plain = False  # dates and the like are NumPy's
        if plain and not isinstance(inputs[0], Array):  # else it is not one of NumPy's operators
            if not options:
                caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
                is_product = ufunc is np.matmul and inputs[0].__class__ is np.ndarray
                product = small_product(inputs[0], self, caller) if is_product else None
                if product is not None:
                    return product
                result = apply_ufunc(ufunc, *inputs)
                if result is None:
                    first = Array.of(from_host(inputs[0]))
                    if STATE.small_elements:
                        hold(first)
                    result = OPERATORS[ufunc](first, inputs[1])
                return _for_caller(result, caller)
            if is_in_place(ufunc, inputs, options) and self._has_no_values():
                use = rebind_obstacle(ufunc, inputs, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
                if use:
                    self._refuse_buffer_write(use)
                result = IN_PLACE[ufunc](Array.of(from_host(inputs[0])), inputs[1])
                if STATE.scope is not None:
                    STATE.scope.replacements.append(weakref.ref(result))
                return result
        return self._by_numpy(ufunc, method, inputs, options, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def _by_numpy(
        self, ufunc: Any, method: str, inputs: Sequence[Any], options: dict[str, Any], frame: Any
    ) -> Any:
        """Call NumPy's function on elements; by its rules it writes to arrays of ours."""
        out: tuple[Any, ...] = options.get("out", ())
        if any(isinstance(x, Array) for x in out):
            if not follows_numpy(frame.f_globals):
                return NotImplemented
            options["out"] = tuple([_elements(x, frame) for x in out])
        written = frame if method == "at" else None
        values = [_elements(x, None if k else written) for k, x in enumerate(inputs)]
        options.update({k: _elements(x, None) for k, x in options.items()})
        result = getattr(ufunc, method)(*values, **options)
        return result if not out else out[0] if len(out) == 1 else out

    def _has_no_values(self) -> bool:
        """Return whether reading would end a recording, or break a gradient's tape."""
        node = self.node
        return node.scope is not None or bool(STATE.tapes and is_differentiated(node))

    def _refuse_buffer_write(self, use: str) -> None:
        """Raise TracerError or GradientError: NumPy's buffer would not get the values."""
        hint = "Write `buffer = buffer + x`, or start from an array of smelt (sm.zeros)."
        if self.node.scope is not None:
            raise TracerError(use=use, value=self.node.type_text, hint=hint)
        raise GradientError(op=use.rstrip(","), reason="NumPy's memory has no way back", hint=hint)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if stream is not None:
            raise UnsupportedError(f"stream={stream!r}: the CPU has no streams")
        arguments = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        options = {name: value for name, value in arguments.items() if value is not None}
        self._check_may_leave("a DLPack export")
        data = self.exported("a DLPack export", sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        if options.get("copy") is not False and min(data.strides, default=0) < 0:
            data = data.copy()  # PyTorch aborts the process on negative strides
        try:
            return export_array(data, **options)
        except BufferError:
            if options.get("copy") is False or data.flags.writeable:
                raise
            return export_array(data.copy(), **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        if api_version is not None and api_version not in VERSIONS:
            raise ArgumentError.of(
                "__array_namespace__", "api_version", api_version, f"one of {', '.join(VERSIONS)}"
            )
        return sys.modules[__name__.partition(".")[0]]

    def to_device(self, device: Any, /, *, stream: Any = None) -> Any:
        """Return the array itself for "cpu", a copy on the GPU for "cuda:0".

        Raises DeviceError for other devices, UnsupportedError for a stream, and the errors of
        `sm.asarray` for a GPU.
        """
        if names_gpu(device) and stream is None:
            module = fork_safe_import("smelt.frontends.array.device_array")
            return module.to_device(self, device)
        check_device(device)
        if stream is not None:
            raise UnsupportedError(f"stream={stream!r}: the CPU has no streams")
        return self

    def __repr__(self) -> str:
        node = self.node
        if node.scope is not None:
            return f"Array(<{node.type}>)"
        data = self._read("repr(x)")
        body = np.array2string(data, prefix="Array(", separator=", ", threshold=1000)
        plain = data.dtype.kind == "b" or data.dtype in (np.float64, np.int64)
        return f"Array({body})" if plain and data.size else f"Array({body}, dtype={self.dtype})"

    def __str__(self) -> str:
        """Return the elements as NumPy prints them; inside `jit` the type."""
        return str(self._read("str(x)")) if self._is_readable() else repr(self)

    def _is_readable(self) -> bool:
        return self.node.scope is None

    def __format__(self, spec: str) -> str:
        return format(self._number("format"), spec) if spec else str(self)

    # Parts

    def __len__(self) -> int:
        if not self.ndim:
            raise ArgumentError("len(x) of an array of rank 0")
        return operator.index(self.shape[0])

    def __iter__(self) -> Iterator[Array]:
        if not self.ndim:
            raise ArgumentError("iteration over an array of rank 0")
        if self.ndim == 1 and not self._has_no_values() and STATE.scope is None:
            return (self._read("iteration")[k] for k in range(len(self)))  # NumPy's scalars
        is_view = follows_numpy(sys._getframe(1).f_globals)  # pyright: ignore[reportPrivateUsage]
        return (self.part(k, is_view) for k in range(len(self)))

    def __contains__(self, x: Any) -> bool:
        return bool((self == x)._read("x in array").any())

    def __getitem__(self, key: Any) -> Any:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        is_view = follows_numpy(frame.f_globals)
        kind = key.__class__
        if is_view and kind is not slice and STATE.small_elements and not STATE.following:
            few = self._few(key)
            if few is not None:
                return few
        if kind is int and self.ndim == 1:  # an element, which is never a view
            return _for_caller(Array.of(get(self.node, key)), frame)
        if kind is Array:
            update: Any = select_for_update(self.node, key, frame, _read_masked)
            if update is not None:
                return update
        result = self.part(key, is_view)
        is_place = result.__class__ is Array and result.place is not None
        return result if is_place else _for_caller(result, frame)

    def _few(self, key: Any) -> Any:
        """Return an element of a computed array, or those that a key copies, else None."""
        indices = key if key.__class__ is tuple else (key,)
        is_one = is_element(indices)
        if not is_one and VIEWING.issuperset(map(type, indices)):
            return None
        place = self.place
        node = self.node if place is None else place.memory.node
        data = None if node.scope is not None else node.current_buffer()
        if data is None or data.dtype.kind == "V":
            return None
        try:
            data = data if place is None else place.of(data)
            if is_one:
                return data[key] if data.ndim == len(indices) else None
            nbytes = copied_elements(data.shape, key) * data.itemsize
            if 0 <= nbytes <= 8 * STATE.small_elements:
                return data[key]
            is_mask = key.__class__ is np.ndarray and key.dtype.kind == "b"
            if nbytes < 0 or is_mask or not is_at_once():
                return None
            return copy_of(data[key])
        except (IndexError, ValueError):  # ours is raised, or the elements are in another order
            return None

    def part(self, key: Any, is_view: bool) -> Any:
        """Return x[key], as a view if NumPy's rules hold and the key allows it."""
        view = part(self, key) if is_view else None
        if view is not None:
            return view
        try:
            return Array.of(get(self.node, key))
        except TracerError:  # a mask without values: the selection may still be written back
            selection: Any = select_masked(self.node, key)
            if selection is None:
                raise
            return selection

    def __setitem__(self, key: Any, x: Any) -> None:
        if x.__class__ is MaskedSelection:
            self.replace_value(write_masked(self.node, key, x))
            return
        if x.__class__ is UpdateSelection:
            updated = write_update(self.node, key, x)
            if updated is not None:
                self.replace_value(updated)
                return
            x = _read_masked(x.values, x.mask)  # the right side has changed the mask
        elif x.__class__ is Array and x.place is not None and self._is_part(key, x.place):
            return  # as in x[key] += y, whose view was written
        if is_at_once() and self._put(key, x):
            return
        try:
            v = number_or_value(x, "x[key] = value")
        except ComplexOperand:
            if not user_follows_numpy():
                raise
            v = self._real_value(x)
        if isinstance(v, Value):
            dtype = (self.node if self.place is None else self.place.memory.node).type.dtype
            if has_wider_kind(v, dtype) and follows_numpy(sys._getframe(1).f_globals):  # pyright: ignore[reportPrivateUsage]
                v = cast(v, dtype)
        if not (is_at_once() and self._write_at_once(key, v)):
            self.replace_value(put(self.node, key, v))

    def _real_value(self, x: Any) -> Value:
        """Return what a write stores of complex elements by NumPy's rules: their real parts.

        Raises ComplexOperand for Python's complex numbers, which NumPy does not convert either.
        """
        if isinstance(x, complex) and not isinstance(x, np.generic) and self.dtype.kind != "bool":
            raise ComplexOperand(f"writing a complex number into {self.node.type_text}")
        return call_complex("as_real", x, self.dtype).node

    def _put(self, key: Any, x: Any) -> bool:
        """Write elements in memory into a view or its owner; return whether that was possible."""
        place = self.place
        if place is None or hashable_key(key) is None:
            return False
        kind = x.__class__
        if kind is Array:
            x = x.node.data if x.place is None else x.place.elements()
        elif kind is not np.ndarray and kind is not float:
            return False
        dtype = place.memory.node.type.dtype.numpy
        if dtype.kind != "f" if kind is float else x is None or x.dtype != dtype:
            return False
        try:
            return place.write_at_once(key, x)
        except (ValueError, IndexError):
            return False  # the error is that of a recorded write

    def _write_at_once(self, key: Any, v: Value | Any) -> bool:
        """Write into the array's memory; return whether that was possible.

        What waits is computed: the recorded write would be a pass over the whole array.
        """
        place = self.place
        whole = present_value(self) if place is None else place.memory.node
        if whole is None or whole.scope is not None or (whole.shared and place is None):
            return False  # it is a view that has to be derived, or others see its memory
        v = v if isinstance(v, Value) else number(v, whole.type.dtype, "x[key] = value")
        items = plain_key(key)
        if v.scope is not None or items is None:
            return False
        elements = written_elements(cast_same_kind(v, whole))
        evaluate(whole)
        try:
            if place is not None:
                del whole  # whose references are counted
                return place.write_at_once(items, elements)
            data = private_data(whole, 2)  # the array's reference, and the one here
            if data is None:
                assert whole.data is not None
                data = whole.data.copy()
                self.replace_value(leaf(data))
            data[items] = elements
        except (ValueError, TypeError, IndexError):
            return False  # the error is that of a recorded write
        return True

    def _is_part(self, key: Any, place: Any) -> bool:
        """Return whether a view is just what x[key] is a view of."""
        mine = self.place
        if mine is None or mine.memory is not place.memory or not place.links:
            return False
        return (*mine.links, Key(hashable_key(key), key)) == place.links

    @property
    def at(self) -> At:
        """Return the interface for updated copies: `x.at[key].add(value)`; see `Place`."""
        return At(self, number_or_value)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError with the nearest name; `methods` attaches what there is."""
        if name == "place":  # an array that native code made
            self.place = None
            return None
        if name == "node" and self.place is not None:
            return self._derive()
        if name.startswith("__"):  # a protocol's probe, as NumPy's in every np.asarray
            raise AttributeError(f"'Array' object has no attribute {name!r}", name=name)
        if name in _OF_SCALARS and not self.node.type.shape and self._is_readable():
            return getattr(self._read(name)[()], name)
        raise missing_attribute("'Array' object", name, type(self))

    def _derive(self) -> Value:
        """Return the elements of a view whose memory was written since they were read last."""
        place = self.place
        node = place.derive()
        if place.is_derivable:
            self.renew(node)
        return node

    def __copy__(self) -> Array:
        return Array.of(copied(self.node))

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return Array.of(copied(self.node))

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (self._read("pickling").copy(),)


def _elements(x: Any, frame: Any) -> Any:
    """Return the elements of an array of ours: in shared memory if code of `frame` writes them."""
    if not isinstance(x, Array):
        return x
    x._check_may_leave(_AS_NUMPY)  # pyright: ignore[reportPrivateUsage]
    if frame is None:
        data = x.computed()
        return x._read(_AS_NUMPY) if data is None else data  # pyright: ignore[reportPrivateUsage]
    return x.exported(_AS_NUMPY, frame)  # pyright: ignore[reportPrivateUsage]


def copy_of(part: Buffer) -> Array:
    """Return an array of copied elements, with the order that they have in memory."""
    array = Array.of(leaf(np.ascontiguousarray(part)))
    if not part.flags.c_contiguous:
        place = own(array)
        order = sorted(range(part.ndim), key=lambda axis: -abs(part.strides[axis]))
        place.memory.order, place.is_permuted = tuple(order), True
    return array


def _for_caller(result: Any, frame: Any) -> Any:
    """Return a result for code of a frame: small ones as NumPy's own where it has NumPy's rules."""
    is_ours = isinstance(result, Array) and result.is_small
    return result.handed_out() if is_ours and follows_numpy(frame.f_globals) else result


def _read_masked(x: Value, mask: Value) -> Array:
    return Array.of(get(x, Array.of(mask)))


def _revive(data: Buffer) -> Array:
    return Array.of(from_host(data))


def names_gpu(device: Any) -> bool:
    """Return whether a device is a GPU: "cuda", "cuda:0", torch's device, DLPack's pair."""
    return device is not None and (
        str(device).partition(":")[0] == "cuda"
        or (isinstance(device, tuple) and device[:1] == (2,))
    )


def check_device(device: Any) -> None:
    """Raise DeviceError for any device but "cpu" and None."""
    if device is not None and device != DEVICE:
        made_here = 'Make it on the CPU, then move it: sm.asarray(x, device="cuda:0").'
        hint = made_here if names_gpu(device) else None
        raise DeviceError(device=device, known=DEVICE, hint=hint)


def number_or_value(x: Any, what: str) -> Any:
    """Return an argument as a `Value`, or as itself if it is a number.

    Raises ArgumentError for anything that is neither an array nor a number, ComplexOperand for
    complex ones.
    """
    try:
        result = operand(x)
        if result is not NotImplemented:
            return result
        if is_foreign_array(x):
            return from_host(x)
    except ComplexOperand:
        raise ComplexOperand(f"{what} of complex numbers") from None
    raise ArgumentError(
        op=what, argument="an operand", value=type(x).__name__, expected="an array or a number"
    )


def value(x: Any, what: str) -> Value:
    """Return the `Value` of an argument that must be an array.

    NumPy scalars and Python numbers count as arrays of rank 0, nested lists as arrays.  Raises
    ArgumentError for anything else.
    """
    if x.__class__ is Array:
        return x.node
    if isinstance(x, np.generic):  # before `float`, of which np.float64 is a subclass
        return from_host(x)
    result = number_or_value(x, what)
    return result if isinstance(result, Value) else default_value(result, what)
