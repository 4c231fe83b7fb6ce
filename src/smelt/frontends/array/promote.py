"""Convert operands of elementwise functions to values of a common type, by a module's rules.

Arrays promote by the array API's table, or by NumPy's in modules that import `smelt.numpy`.  A
Python number takes the dtype of the array operand, or that of its own kind if the kind is higher.

>>> from smelt.frontends.array.convert import from_host
>>> x = from_host(np.ones(3, np.float32))
>>> [v.type.dtype for v in promote_operands("add", x, 2)]
[f32, f32]
>>> follows_numpy({"__name__": "user", "sm": ModuleType("smelt")})
False
"""

from __future__ import annotations

import math
import sys
from functools import cache, reduce
from types import ModuleType
from typing import Any, Final, Protocol

import numpy as np

from smelt.errors import DTypeError, RangeError
from smelt.frontends.array.convert import number_dtype
from smelt.frontends.array.value import STATE, Value, constant, record
from smelt.ops.elementwise import Cast
from smelt.python.origin import user_frame
from smelt.types.dtype import DTYPES, DType, bf16, f64, from_numpy, i64, promote, u64

NUMPY: Final = "smelt.numpy"
_PACKAGE: Final = "smelt"
_RULES: dict[int, tuple[dict[str, Any], int, bool]] = {}
_RULES_LIMIT = 1024


def follows_numpy(names: dict[str, Any]) -> bool:
    """Return whether code with these globals has NumPy's rules for views.

    It has if it imports `smelt.numpy`, and if it imports nothing of Smelt, while another module
    imports `smelt.numpy`.
    """
    entry = _RULES.get(id(names))
    if entry is not None and (entry[2] or entry[1] == len(names)):
        return entry[2]
    if len(_RULES) >= _RULES_LIMIT:
        _RULES.clear()
    rule = NUMPY in sys.modules and _imports_numpy(names)
    _RULES[id(names)] = names, len(names), rule
    return rule


def user_follows_numpy() -> bool:
    """Return whether the innermost code outside of Smelt has NumPy's rules."""
    frame = user_frame(2) if NUMPY in sys.modules else None
    return frame is not None and follows_numpy(frame.f_globals)


def forget_rules() -> None:
    """Look at modules again: one has imported `smelt.numpy`."""
    _RULES.clear()


def _imports_numpy(names: dict[str, Any]) -> bool:
    name = names.get("__name__", "")
    if name == _PACKAGE or name.startswith(f"{_PACKAGE}."):
        return False  # our functions make views where NumPy's do, with `alias`
    origins = [_module_of(x) for name, x in list(names.items()) if name != _PACKAGE]
    # The name `smelt` may come from `import smelt.numpy`, so it says nothing.
    if any(o == NUMPY or o.startswith(f"{NUMPY}.") for o in origins):
        return True
    return not any(o == _PACKAGE or o.startswith(f"{_PACKAGE}.") for o in origins)


def _module_of(x: Any) -> str:
    if isinstance(x, ModuleType):
        return x.__name__
    module = getattr(x, "__module__", None) if callable(x) else None
    return module if isinstance(module, str) else ""


_CASTS = {d: Cast(d) for d in DTYPES}
_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2}


def cast(x: Value, dtype: DType) -> Value:
    """Cast `x` to `dtype`; return itself if it has that dtype."""
    return x if x.type.dtype is dtype else record(_CASTS[dtype], (x,))


class Symbolic(Protocol):
    """Number that is unknown while recording (`smelt.frontends.array.number`)."""

    @property
    def dtype(self) -> DType: ...

    def node(self, dtype: DType) -> Value: ...

    def value(self) -> int | float: ...


Number = bool | int | float | Symbolic


def promote_with_number(dtype: DType, number: Number) -> DType:
    """Return the dtype of an operation between an array of `dtype` and a Python number."""
    number_type = number_dtype(number) if isinstance(number, (bool, int, float)) else number.dtype
    if _RANK[number_type.kind] <= _RANK[dtype.kind]:
        return dtype
    return number_type if number_type.kind != "float" else f64


def number(value: Number, dtype: DType, what: str) -> Value:
    """Return a Python number as a value of `dtype`.

    Raises RangeError for a number that the dtype cannot hold.
    """
    if not isinstance(value, (bool, int, float)):
        return value.node(dtype)
    if dtype.is_integer:
        if not _holds(dtype, value):
            raise range_error(what, value, dtype)
        return constant(int(value), dtype)
    if not dtype.is_float:
        return constant(bool(value), dtype)
    try:
        return constant(float(value), dtype)
    except OverflowError:
        raise range_error(what, value, dtype) from None


def _holds(dtype: DType, number: float) -> bool:
    """Return whether a number, truncated, is within the range of an integer dtype."""
    info = np.iinfo(dtype.numpy)
    return abs(number) < math.inf and info.min <= int(number) <= info.max


def range_error(what: str, value: float, dtype: DType) -> RangeError:
    """Return the error of a number that a dtype cannot hold."""
    bits = value.bit_length() if isinstance(value, int) else 0
    shown = f"an integer of {bits} bits" if bits > 256 else value
    return RangeError(
        op=what, argument="operand", value=shown, expected=f"a number that {dtype} holds"
    )


def common(what: str, *dtypes: DType) -> DType:
    """Return the promoted dtype.

    Integers with floats, and uint64 with signed integers, have the dtype that the user's module has
    the rules of: NumPy's, or the array API's.  Raises DTypeError, naming the operation `what`, if
    there is none.
    """
    promoted = dtypes[0]
    if _is_ruled(dtypes) and has_numpys_rules():
        return from_numpy(np.result_type(*[d.numpy for d in dtypes]))
    try:
        for d in dtypes[1:]:
            promoted = promote(promoted, d)
    except DTypeError as error:
        raise DTypeError(f"{what}({', '.join(d.long for d in dtypes)}): {error.detail}") from None
    return promoted


def has_numpys_rules() -> bool:
    """Return whether a result has NumPy's dtype; it is not cached then for other modules."""
    STATE.rules_read += 1
    return user_follows_numpy()


@cache
def _is_ruled(dtypes: tuple[DType, ...]) -> bool:
    """Return whether modules differ in the common dtype of these."""
    if bf16 in dtypes:
        return False
    try:
        return reduce(promote, dtypes) is not from_numpy(np.result_type(*[d.numpy for d in dtypes]))
    except DTypeError:  # one of the two has none
        return True


def promote_operands(what: str, x: Value | Number, y: Value | Number) -> tuple[Value, Value]:
    """Return two operands in their common dtype; either may be a Python number.

    Raises DTypeError, RangeError.
    """
    if not isinstance(x, Value):
        if not isinstance(y, Value):
            return promote_operands(what, default_value(x, what), default_value(y, what))
        dtype = promote_with_number(y.type.dtype, x)
        return number(x, dtype, what), cast(y, dtype)
    if not isinstance(y, Value):
        dtype = promote_with_number(x.type.dtype, y)
        return cast(x, dtype), number(y, dtype, what)
    dtype = common(what, x.type.dtype, y.type.dtype)
    return cast(x, dtype), cast(y, dtype)


def promote_comparison(what: str, x: Value | Number, y: Value | Number) -> tuple[Value, Value]:
    """Return the operands of a comparison, in which any integer is allowed.

    A number beyond the range of an integer array compares as an infinity.

    >>> from smelt.frontends.array.convert import from_host
    >>> x = from_host(np.ones(3, np.uint8))
    >>> [v.type.dtype for v in promote_comparison("less", x, 300)]
    [f64, f64]
    """
    if isinstance(x, Value) and isinstance(y, Value):
        kinds = {x.type.dtype.kind, y.type.dtype.kind}
        if kinds == {"int", "uint"}:
            promote(x.type.dtype, y.type.dtype)  # raises: floats would not tell all of them apart
    elif isinstance(x, Value):
        dtype = x.type.dtype
        if dtype.is_integer and isinstance(y, int) and not _holds(dtype, y):
            return cast(x, f64), constant(np.inf if y > 0 else -np.inf, f64)
        if dtype.is_integer and not isinstance(y, (int, float)) and y.dtype is i64 is not dtype:
            if dtype is not u64:
                return cast(x, i64), y.node(i64)
            try:
                return x, y.node(dtype)
            except RangeError:
                return promote_comparison(what, x, y.value())
    elif isinstance(y, Value):
        swapped = promote_comparison(what, y, x)
        return swapped[1], swapped[0]
    return promote_operands(what, x, y)


def default_value(x: Number, what: str) -> Value:
    """Return a number as a value of its default dtype."""
    return number(x, number_dtype(x) if isinstance(x, (bool, int, float)) else x.dtype, what)
