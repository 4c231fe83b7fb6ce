"""Tabulate the monoids that reductions and scans combine elements with, one row each.

>>> from smelt.types.dtype import i8
>>> COMBINES["max"].identity(f32), COMBINES["sum"].result(i8)
(-inf, i64)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from smelt.errors import DTypeError
from smelt.ops import reduction_derivatives as derive
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, f32, i64, u64

__all__ = ["COMBINES", "Combine", "f32"]


@dataclass(frozen=True, slots=True)
class Combine:
    """A commutative monoid over element values, or over (value, position) pairs for arg kinds."""

    name: str
    doc: str
    scalar: str
    """The scalar operator that combines two elements."""
    grow: Literal["same", "integer", "bool", "position"]
    """Result type: the input's, at least 64 bits for integers, bool, or an i64 position."""
    unit: Callable[[DType], float | int | bool]
    """The identity element of a type."""
    reduce: Callable[..., Any]
    """The NumPy reference: reduce(array, axis, keepdims) on an accumulator-typed array."""
    idempotent: bool = False
    """op(x, x) = x."""
    kinds: tuple[str, ...] = ("bool", "int", "uint", "float")
    """Kinds of element types that it accepts."""
    wide: bool = False
    """Rounding errors accumulate: floats are reduced in double precision."""
    winner: str = ""
    """For positions: the monoid whose result stands there."""
    compensated: bool = False
    """The rounding error of a step can be accumulated separately (Knuth's two-sum)."""
    prefix: Callable[..., Any] | None = None
    """NumPy reference of the scan, if there is one."""
    pullback: Callable[..., Any] | None = None
    """Derivative of the reduction: (adjoint, g, result, x, axes) -> the cotangent of x."""
    scan_pullback: Callable[..., Any] | None = None
    """Derivative of the scan: (adjoint, g, result, x, axis) -> the cotangent of x."""

    @property
    def has_no_empty_value(self) -> bool:
        """Whether reducing no elements is an error (as for max) rather than the identity."""
        return self.grow in ("same", "position")

    @property
    def positional(self) -> bool:
        """Whether the result is the position of the winner, not its value."""
        return self.grow == "position"

    def identity(self, dtype: DType) -> float | int | bool:
        """Return the value that a reduction starts from."""
        return self.unit(dtype)

    def result(self, dtype: DType) -> DType:
        """Return the element type of the result.

        Raises DTypeError for kinds without this reduction.
        """
        if dtype.kind not in self.kinds:
            raise DTypeError(f"{self.name} is not defined for {dtype.long}")
        if self.grow == "integer" and dtype.kind in ("bool", "int", "uint"):
            return u64 if dtype.kind == "uint" else i64
        if self.grow == "bool":
            return bool_
        return i64 if self.grow == "position" else dtype


def _lowest(dtype: DType) -> float | int | bool:
    if dtype.kind == "float":
        return float("-inf")
    return False if dtype.kind == "bool" else int(np.iinfo(dtype.numpy).min)


def _highest(dtype: DType) -> float | int | bool:
    if dtype.kind == "float":
        return float("inf")
    return True if dtype.kind == "bool" else int(np.iinfo(dtype.numpy).max)


_ROWS = (
    Combine("sum", "sum of the elements", "add", "integer", lambda d: 0, np.add.reduce,
            wide=True, compensated=True, prefix=np.add.accumulate, pullback=derive.of_sum,
            scan_pullback=derive.of_running_sum),
    Combine("prod", "product of the elements", "mul", "integer", lambda d: 1, np.multiply.reduce,
            wide=True, prefix=np.multiply.accumulate, pullback=derive.of_prod,
            scan_pullback=derive.of_running_prod),
    Combine("max", "largest element; NaN wins", "max", "same", _lowest, np.maximum.reduce,
            idempotent=True, kinds=("int", "uint", "float"), prefix=np.maximum.accumulate,
            pullback=derive.of_extreme, scan_pullback=derive.of_running_extreme),
    Combine("min", "smallest element; NaN wins", "min", "same", _highest, np.minimum.reduce,
            idempotent=True, kinds=("int", "uint", "float"), prefix=np.minimum.accumulate,
            pullback=derive.of_extreme, scan_pullback=derive.of_running_extreme),
    Combine("any", "true if any element is", "or", "bool", lambda d: False, np.logical_or.reduce,
            idempotent=True),
    Combine("all", "true if every element is", "and", "bool", lambda d: True,
            np.logical_and.reduce, idempotent=True),
    Combine("argmax", "position of the largest element; the first of equals; NaN wins", "gt",
            "position", _lowest, np.argmax, idempotent=True, winner="max"),
    Combine("argmin", "position of the smallest element; the first of equals; NaN wins", "lt",
            "position", _highest, np.argmin, idempotent=True, winner="min"),
)  # fmt: skip
SUM_OF_PRODUCTS = ("sum", "mul")
"""A contraction: the monoid that it reduces with, and the scalar operator inside."""
FIRST = "min"
"""The monoid that picks the first of equal positions."""
ANY_FAILS = ("any", "not")
"""Whether any condition fails: the monoid, and the scalar operator on every condition."""
EXTREMES = ("min", "max")
"""The monoids of the minimum and the maximum."""
EQUAL = "eq"
"""The scalar operator that compares two values for equality."""
TIES_BEST = ("or", EQUAL, "ne")
"""Scalar operators that test whether a value ties with the best: equal to it, or NaN."""
BOTH = "and"
"""The scalar operator for conditions that must all hold."""
CHOICE = "select"
"""The scalar operator that selects one of two values by a condition."""
COMBINES: dict[str, Combine] = {row.name: row for row in _ROWS}
SCALAR_IDENTITIES = {row.scalar: row.identity for row in _ROWS if not row.positional}
"""Identity of each scalar operator that combines elements, as a function of the type."""
ROUNDING_OPERATORS = frozenset(row.scalar for row in _ROWS if row.wide)
"""Scalar operators whose rounding accumulates in a reduction."""

POWERS_OF_TWO = ("log2", "exp2_moved")
"""The binary logarithm, and the operator that rescales a sum from one power of 2 to another."""
