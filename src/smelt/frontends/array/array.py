"""`sm.Array`: an n-dimensional array whose elements are computed when somebody reads them.

>>> x = Array.of(from_host(np.arange(3.0)))
>>> y = x * 2 + 1
>>> y
Array([1., 3., 5.])
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from smelt.errors import TracerError
from smelt.frontends.array.convert import from_host
from smelt.frontends.array.families import BINARY, UNARY, Binary, Unary
from smelt.frontends.array.flush import flush, realise
from smelt.frontends.array.number import Number, shown
from smelt.frontends.array.value import STATE, Buffer, Value
from smelt.types.dtype import DType

__all__ = ["Array", "from_host"]

PENDING_LIMIT = 512


class Array:
    """A lazy array of the array API standard (2024.12)."""

    __slots__ = ("__weakref__", "_node")
    __array_priority__ = 1000

    _node: Value

    @staticmethod
    def of(node: Value) -> Array:
        """The array that stands for a recorded value."""
        array = Array.__new__(Array)
        array._node = node
        if node.data is None and node.scope is None:
            pending = STATE.pending
            pending.append(weakref.ref(array))
            if len(pending) >= PENDING_LIMIT:
                flush()
        return array

    @property
    def dtype(self) -> DType:
        return self._node.type.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        node = self._node
        scope = node.scope
        if scope is None:
            return node.type.shape
        return tuple([shown(d, scope) for d in node.type.shape])

    @property
    def ndim(self) -> int:
        return len(self._node.type.shape)

    @property
    def device(self) -> str:
        return "cpu"

    def _read(self, use: str) -> Buffer:
        node = self._node
        if node.scope is not None:
            raise TracerError(use=use, value=str(node.type))
        return realise(node)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Buffer:
        data = self._read("np.asarray")
        return np.array(data, dtype=dtype, copy=copy)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        return sys.modules[__name__.partition(".")[0]]

    def __bool__(self) -> bool:
        return bool(self._read("bool"))

    def __float__(self) -> float:
        return float(self._read("float"))

    def __repr__(self) -> str:
        if self._node.scope is not None:
            return f"Array(<{self._node.type}>)"
        return np.array2string(self._read("repr"), prefix="Array(", separator=", ").join(
            ("Array(", ")")
        )  # fmt: skip


def _binary(family: Binary) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(self: Array, other: Any) -> Any:
        if other.__class__ is Array:
            return Array.of(family(self._node, other._node))
        y = operand(other)
        return y if y is NotImplemented else Array.of(family(self._node, y))

    def reflected(self: Array, other: Any) -> Any:
        x = operand(other)
        return x if x is NotImplemented else Array.of(family(x, self._node))

    return forward, reflected


def operand(x: Any) -> Any:
    """The other operand of a dunder: a value, a number, or NotImplemented."""
    if isinstance(x, Array):
        return x._node
    if isinstance(x, (bool, int, float, Number)):
        return x
    if isinstance(x, (np.ndarray, np.generic)):
        return from_host(x)
    return NotImplemented


def _unary(family: Unary) -> Callable[[Array], Array]:
    return lambda self: Array.of(family(self._node))


for _name, _what in (
    ("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("truediv", "divide"),
    ("floordiv", "floor_divide"), ("mod", "remainder"), ("pow", "pow"),
    ("and", "bitwise_and"), ("or", "bitwise_or"), ("xor", "bitwise_xor"),
    ("lshift", "bitwise_left_shift"), ("rshift", "bitwise_right_shift"),
):  # fmt: skip
    _forward, _reflected = _binary(BINARY[_what])
    setattr(Array, f"__{_name}__", _forward)
    setattr(Array, f"__r{_name}__", _reflected)
for _name, _what in (
    ("eq", "equal"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"),
    ("gt", "greater"), ("ge", "greater_equal"),
):  # fmt: skip
    setattr(Array, f"__{_name}__", _binary(BINARY[_what])[0])
for _name, _what in (("neg", "negative"), ("abs", "abs"), ("invert", "bitwise_invert")):
    setattr(Array, f"__{_name}__", _unary(UNARY[_what]))
