"""`sm.Array`: an n-dimensional array whose elements are computed when somebody reads them.

Operators record; reading (`print`, `float`, `np.asarray`, `if x:`) computes everything that is
pending, fused.  Arrays share memory with NumPy and with other libraries through DLPack.  Writing
(`x[0] = 1`, `x += y`) gives the array a new version: what was computed from the old one stays.

>>> x = Array.of(from_host(np.arange(3.0)))
>>> y = x * 2 + 1
>>> y
Array([1., 3., 5.])
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Iterator
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
from smelt.frontends.array.assign import put
from smelt.frontends.array.at import At
from smelt.frontends.array.convert import from_host, is_foreign_array
from smelt.frontends.array.dlpack import leave
from smelt.frontends.array.evaluate_pending import flush, realise, review
from smelt.frontends.array.masked_select import Chosen, choose, written
from smelt.frontends.array.number import Number, shown
from smelt.frontends.array.numpy_hints import METHODS, Elsewhere
from smelt.frontends.array.operators import Operators, operand
from smelt.frontends.array.subscript import get
from smelt.frontends.array.ufuncs import IN_PLACE, OPERATORS, in_place, unseen
from smelt.frontends.array.value import STATE, Buffer, Value, copied, is_differentiated, owned
from smelt.frontends.array.views import permute, shape_of
from smelt.types.dtype import DType
from smelt.types.expr import product

__all__ = ["Array", "operand", "value"]

PENDING_LIMIT = 64
"""So many pending operators in a thread are computed without being read."""
DEVICE = "cpu"
_AS_NUMPY = "np.asarray(x)"
_RECORDED = (
    "Functions of smelt are recorded, those of NumPy need values: sm.exp(x) in place of np.exp(x)."
)
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")


class Array(Operators):
    """A lazy array of the array API standard (2024.12).

    Made by `sm.asarray` and by every function of this package; never by calling the class.
    """

    __slots__ = ()
    __array_priority__ = 1000  # for libraries that ask as NumPy did before __array_ufunc__

    @staticmethod
    def of(node: Value) -> Array:
        """The array that stands for a recorded value."""
        array = Array.__new__(Array)
        array.node = node = owned(node)
        if node.scope is None:
            if STATE.scope is not None:
                STATE.scope.made[id(array)] = weakref.ref(array)
            if node.data is None:
                array._wait()
        return array

    def _wait(self) -> None:
        pending = STATE.pending
        pending.append(weakref.ref(self))
        if len(pending) >= STATE.due:
            review(PENDING_LIMIT)

    def renew(self, node: Value) -> None:
        """Make `node` the newest version of this array."""
        scope = node.scope
        if scope is not None and self.node.scope is None and not scope.has_made(self):
            raise TracerError(
                f"an array from outside is written inside sm.jit ({scope.name})",
                hint="Return the new value; the function would write only while it is recorded.",
            )
        self.node = node = owned(node)
        if node.data is None and node.scope is None:
            self._wait()

    # Attributes

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.node.type.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes of the dimensions; inside `jit` they calculate symbolically."""
        node = self.node
        scope = node.scope
        if scope is None:
            return node.type.shape
        return tuple([shown(d, scope) for d in node.type.shape])

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.node.type.shape)

    @property
    def size(self) -> Any:
        """The number of elements."""
        return shown(product(shape_of(self.node)), self.node.scope)

    @property
    def device(self) -> str:
        """Where the elements are: always "cpu"."""
        return DEVICE

    @property
    def T(self) -> Array:
        """The transpose of a matrix.  Raises ShapeError for other ranks."""
        if self.ndim != 2:
            raise ShapeError(
                op="T", operands=self.node.told, reason="only a matrix has it; use .mT"
            )
        return self.mT

    @property
    def mT(self) -> Array:
        """The transpose of every matrix in the last two dimensions."""
        rank = self.ndim
        if rank < 2:
            raise ShapeError(
                op="mT", operands=self.node.told, reason="it has fewer than two dimensions"
            )
        return Array.of(permute(self.node, (*range(rank - 2), rank - 1, rank - 2)))

    # Reading

    def _read(self, use: str) -> Buffer:
        node = self.node
        if node.scope is not None and node.scope.alive(node.told):
            hint = _RECORDED if use == _AS_NUMPY else None
            raise TracerError(use=use, value=node.told, hint=hint)
        return realise(node)

    def _number(self, use: str) -> Any:
        data = self._read(use)
        if data.size != 1 or data.ndim:
            raise ArgumentError(f"{use} needs an array of rank 0, not {self.node.told}")
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
            raise DTypeError(f"{self.node.told} is no integer and cannot be an index")
        return operator.index(self._number("an index"))

    def item(self) -> bool | int | float:
        """The only element as a Python number."""
        data = self._read("item()")
        if data.size != 1:
            raise ArgumentError(f"item() needs one element, not {self.node.told}")
        return data.item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self._read("tolist()").tolist()

    def _leave(self, use: str) -> None:
        """Raises GradientError where elements would leave a function that is differentiated."""
        if STATE.tapes and self.node.scope is None and is_differentiated(self.node):
            raise GradientError(
                op=use,
                reason="the way back would end here: the array depends on what is"
                " differentiated by",
                hint="Use functions of smelt, or sm.stop_gradient(x) for a constant.",
            )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Buffer:
        self._leave(_AS_NUMPY)
        data = self._read(_AS_NUMPY)
        if copy or (dtype is not None and data.dtype != dtype):
            return np.array(data, dtype=dtype, copy=copy)
        flush()  # memory that others can write must have been read by what is pending
        self.node.share()
        return data

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = method == "__call__" and ufunc in OPERATORS
        if plain and not isinstance(inputs[0], Array):  # else no operator of NumPy's has asked
            if not options:
                return OPERATORS[ufunc](Array.of(from_host(inputs[0])), inputs[1])
            if in_place(ufunc, inputs, options) and self._has_no_values():
                use = unseen(ufunc, inputs, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
                if use:
                    self._not_written(use)
                made = IN_PLACE[ufunc](Array.of(from_host(inputs[0])), inputs[1])
                if STATE.scope is not None:
                    STATE.scope.instead.append(weakref.ref(made))
                return made
        if any(isinstance(x, Array) for x in options.get("out", ())):
            return NotImplemented
        values = [np.asarray(x) if isinstance(x, Array) else x for x in inputs]
        return getattr(ufunc, method)(*values, **options)

    def _has_no_values(self) -> bool:
        """Whether reading would end a recording, or the way back of what is differentiated."""
        node = self.node
        return node.scope is not None or bool(STATE.tapes and is_differentiated(node))

    def _not_written(self, use: str) -> None:
        """Raises TracerError or GradientError: a buffer of NumPy's would not get the values."""
        hint = "Write `buffer = buffer + x`, or start from an array of smelt (sm.zeros)."
        if self.node.scope is not None:
            raise TracerError(use=use, value=self.node.told, hint=hint)
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
        asked = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        options = {name: value for name, value in asked.items() if value is not None}
        self._leave("a DLPack export")
        data = self._read("a DLPack export")
        if options.get("copy") is not False and min(data.strides, default=0) < 0:
            data = data.copy()  # PyTorch ends the process over negative strides
        flush()
        self.node.share()
        try:
            return leave(data, **options)
        except BufferError:
            if options.get("copy") is False or data.flags.writeable:
                raise
            return leave(data.copy(), **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        if api_version is not None and api_version not in VERSIONS:
            raise ArgumentError(
                op="__array_namespace__",
                argument="api_version",
                value=repr(api_version),
                expected=f"one of {', '.join(VERSIONS)}",
            )
        return sys.modules[__name__.partition(".")[0]]

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """The array itself: there is one device.  Raises DeviceError for another one."""
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
        return (self[k] for k in range(len(self)))

    def __contains__(self, x: Any) -> bool:
        return bool((self == x)._read("x in array").any())

    def __getitem__(self, key: Any) -> Array:
        try:
            return Array.of(get(self.node, key))
        except TracerError:  # of a mask: what it chooses may be written back
            chosen: Any = choose(self.node, key)
            if chosen is None:
                raise
            return chosen

    def __setitem__(self, key: Any, x: Any) -> None:
        if x.__class__ is Chosen:
            self.renew(written(self.node, key, x))
            return
        self.renew(put(self.node, key, number_or_value(x, "x[key] = value")))

    @property
    def at(self) -> At:
        """Copies with some elements changed: `x.at[key].add(value)`; see `Place`."""
        return At(self, number_or_value)

    def __copy__(self) -> Array:
        return Array.of(copied(self.node))

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return Array.of(copied(self.node))

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (self._read("pickling").copy(),)


for _name, _function in METHODS.items():
    setattr(Array, _name, Elsewhere(_name, _function))


def _revive(data: Buffer) -> Array:
    return Array.of(from_host(data))


def check_device(device: Any) -> None:
    """Raises DeviceError for anything but "cpu"."""
    if device is not None and device != DEVICE:
        raise DeviceError(device=device, known=DEVICE)


def number_or_value(x: Any, what: str) -> Any:
    """An argument that may be an array or a number.  Raises ArgumentError for anything else."""
    found = operand(x)
    if found is not NotImplemented:
        return found
    if is_foreign_array(x):
        return from_host(x)
    raise ArgumentError(
        op=what, argument="an operand", value=type(x).__name__, expected="an array or a number"
    )


def value(x: Any, what: str) -> Value:
    """An argument that must be an array, or an element of one that NumPy gave.  Raises
    ArgumentError for Python's numbers and anything else."""
    if x.__class__ is Array:
        return x.node
    if isinstance(x, np.generic):  # of which float64 is a Python number too
        return from_host(x)
    found = None if isinstance(x, (bool, int, float)) else number_or_value(x, what)
    if isinstance(found, Number):
        return found.node(found.dtype)
    if not isinstance(found, Value):
        raise ArgumentError(
            op=what,
            argument="x",
            value=repr(x),
            expected="an array",
            hint="sm.asarray(number) makes one; Python's math has functions of numbers.",
        )
    return found
