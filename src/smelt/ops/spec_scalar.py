"""Define what a scalar operator is: type rule, NumPy meaning, algebra, lowering, derivative.

A row is data that every stage reads: shape inference calls `result`, the interpreters call `numpy`,
simplification reads the algebra columns, the cost model reads `cost`, automatic differentiation
reads `derivative`, and code generation calls `lower` with its own `Machine`.

    square = ScalarOp("square", 1, "x * x", NUMERIC, np.square, lambda m, d, x: m.mul(x, x),
                      cost=0.5, derivative=(lambda a, x, r: a.mul(a.const(2.0), x),))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import DTypeError
from smelt.ops.machine import Machine
from smelt.types.dtype import DType, Kind, bool_

Array = np.ndarray[Any, Any]
Number = float | int | bool
Lower = Callable[..., Any]
"""lower(machine, dtype, *args): `dtype` is the type of the row's leading operand (see `Rule`)."""


class Algebra(Protocol):
    """The operations that derivatives are written with: one method per row, by the row's name.

    Values are opaque (graph nodes, arrays, dual numbers).  `const` makes a constant of the type of
    the operand that is differentiated; `a.mul(x, y)`, `a.select(c, x, y)` and so on apply the row
    of that name.  All rows that derivatives use have names that Python accepts.
    """

    def const(self, value: float) -> Any: ...

    def __getattr__(self, name: str) -> Callable[..., Any]: ...


Partial = Callable[..., Any]
"""partial(algebra, *args, result): d result / d one argument, element by element."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The element types that a row accepts and returns.

    accepts[i] are the kinds of operand i.  Operand `lead` determines the type that the row computes
    in; all operands that accept the same kinds must have that very type, except those in `free`.
    `fixed` gives operands that have one type, whatever the leading one is.
    """

    accepts: tuple[tuple[Kind, ...], ...]
    result: Literal["same", "bool"] | DType = "same"
    lead: int = 0
    free: tuple[int, ...] = ()
    fixed: tuple[tuple[int, DType], ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class ScalarOp:
    """An elementwise operator; `SCALARS` in `smelt.ops.scalar` lists them all."""

    name: str
    arity: int
    doc: str
    rule: Rule
    numpy: Callable[..., Array]
    """Reference on arrays of the operands' types: no warnings, wraps integers, never raises."""
    lower: Lower
    """Emits the operator on a `Machine`."""
    cost: float = 1.0
    """Approximate cycles for 16 float32 lanes on a core with 512-bit vectors."""
    commutative: bool = False
    associative: bool = False
    """Holds for real numbers and for wrapping integers; floats only up to rounding."""
    idempotent: bool = False
    identity: Callable[[DType], Number | None] | None = None
    """The e with op(e, x) = op(x, e) = x, if that type has one (of either sign of zero)."""
    annihilator: Callable[[DType], Number | None] | None = None
    """The z with op(z, x) = op(x, z) = z for every x of the type, NaN and infinities included."""
    monotone: tuple[int, ...] = ()
    """For each operand, how the result changes as it grows.

    +1: never decreases, -1: never increases, 0: neither or unknown."""
    linear: tuple[int, ...] = ()
    """Coefficients, if the result is a linear combination of the operands."""
    powers: tuple[int, ...] = ()
    """Exponents, if the result is a product of powers of the operands."""
    base: float = 0.0
    """The b of b^x: f(x + y) = f(x) · f(y).  0 for rows without that law."""
    over: tuple[str, ...] = ()
    """Rows for sums of `base`^x divided by a power of 2, see `smelt.ops.approximate`.

    They compute: the part of x that n cannot represent, n from x, b^x / 2^n, and the factor from
    the n of one x to that of another."""
    is_select: bool = False
    """The result is one of the later operands, selected by the first."""
    depends_on_spacing: bool = False
    """Depends on the spacing of its type, so that a wider type gives another function.

    Kernels hold half types as float32, so `lower` for a half type is arithmetic that rounds at its
    end."""
    infix: str | None = None
    """The printer's symbol between (or before) operands."""
    derivative: tuple[Partial | None, ...] | None = None
    """One partial derivative per operand; None for operands without one.

    None as a whole: the row has no derivative (integers, masks, bits)."""

    def result(self, *dtypes: DType) -> DType:
        """Return the element type of the result.

        Raises DTypeError for a wrong number of operands, a kind that the row does not accept, or
        operands whose types differ although the row needs one (callers promote).
        """
        rule = self.rule
        if len(dtypes) != self.arity:
            raise DTypeError(f"{self.name} takes {self.arity} operands, not {len(dtypes)}")
        lead = dtypes[rule.lead]
        for position, (dtype, kinds) in enumerate(zip(dtypes, rule.accepts, strict=True)):
            if dtype.kind not in kinds:
                raise DTypeError(
                    f"{self.name} is not defined for {dtype.long}"
                    f" (operand {position + 1} takes: {', '.join(kinds)})"
                )
            must_match = kinds == rule.accepts[rule.lead] and position not in rule.free
            if must_match and dtype != lead:
                raise DTypeError(
                    f"{self.name} wants operands of one type, not {lead.long} and {dtype.long}"
                )
        for position, dtype in rule.fixed:
            if dtypes[position] != dtype:
                raise DTypeError(
                    f"{self.name} takes {dtype.long} as operand {position + 1},"
                    f" not {dtypes[position].long}"
                )
        if rule.result == "same":
            return lead
        return bool_ if rule.result == "bool" else rule.result

    def apply(self, machine: Machine[Any], dtypes: Sequence[DType], args: Sequence[Any]) -> Any:
        """Emit the operator on register values of the given operand types."""
        self.result(*dtypes)
        return self.lower(machine, dtypes[self.rule.lead], *args)

    def __repr__(self) -> str:
        return self.name
