"""Define what a tensor operator is: the methods that every stage uses.

A tensor operator is a frozen dataclass whose fields are its attributes.  `infer` is its type rule,
`reference` its meaning in NumPy, and `define` expresses one element in terms of abstract operands:
lowering passes symbolic operands and gets kernel values.  That alone makes an operator fusible.  An
operator without `define` is *extern*: one call, a barrier.

    class Permute(TensorOp):
        perm: tuple[int, ...]
        def infer(self, x): return TensorType(x.dtype, tuple(x.shape[p] for p in self.perm))
        def reference(self, env, x): return np.transpose(x, self.perm)
        def define(self, d, i, x): return x.at(*(i[self.perm.index(a)] for a in range(len(i))))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from smelt.errors import DTypeError, GradientError
from smelt.ops.machine import Machine
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, Kind, bool_
from smelt.types.expr import Index, evaluate
from smelt.types.tensor import TensorType

if TYPE_CHECKING:
    from smelt.ops.combine import Combine


Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

Indices: TypeAlias = tuple[Index, ...]
"""Indices along several axes, or their extents."""
Element: TypeAlias = Callable[[Indices], V]
"""What an element is computed from, by its indices."""
Update: TypeAlias = Callable[[Indices], tuple[tuple[tuple[V, Index], ...], V]]
"""Where an update is written, as (computed integer, extent) per dimension, and its value."""
Limits: TypeAlias = tuple[tuple[Index, Index], ...]
"""Pairs of an index and its limit."""


class Operand(Protocol[V_co]):
    """An operand of `define`: its type, and its element at a position."""

    @property
    def type(self) -> TensorType: ...

    def at(self, *index: Index) -> V_co:
        """Return the element at a position."""
        ...


class Definer(Protocol[V]):
    """The operations that `define` may build values with."""

    def apply(self, op: ScalarOp, *args: V) -> V: ...

    def cast(self, value: V, dtype: DType) -> V: ...

    def constant(self, value: float | int | bool, dtype: DType) -> V: ...

    def index(self, position: Index, dtype: DType) -> V:
        """Return an integer expression over sizes and axes as a value."""
        ...

    def position(self, value: V, extent: Index) -> Index:
        """Return a computed integer as an index along a dimension of `extent` (for a gather)."""
        ...

    def reduce(self, combine: Combine, dtype: DType, extents: Indices, body: Element[V]) -> V:
        """Reduce body(j) by `combine` over all positions j inside `extents`, to type `dtype`."""
        ...

    def scan(
        self, combine: Combine, dtype: DType, extent: Index, at: Index, body: Callable[[Index], V]
    ) -> V:
        """Reduce body(j) by `combine` for j = 0 .. at (inclusive), `at` < extent."""
        ...

    def join(self, how: str, first: V, extents: Indices, body: Update[V]) -> V:
        """Combine `first` with every update written to this position: a scatter-reduce.

        body(j), for j inside `extents` in order, returns where update j is written, and its value:
        a (computed integer, extent) for each leading dimension; other dimensions are those of this
        position. Updates written here are combined by the scalar operator `how` (or replace the
        value for `put`).
        """
        ...

    def inside(self, limits: Limits, value: Callable[[], V], other: V) -> V:
        """Return value() where 0 <= e < limit for every pair (e, limit), else `other`."""
        ...

    def dot(self, dtype: DType, extents: Indices, body: Element[tuple[V, V]]) -> V:
        """Sum the products of the two values of body(j) over all j inside `extents`."""
        ...


class Adjoint(Protocol[V]):
    """The operations that `pullback` may build values with.

    Values are opaque except for their type and operator.
    """

    def type(self, x: V, /) -> TensorType: ...

    def op(self, x: V, /) -> TensorOp: ...

    def operands(self, x: V, /) -> tuple[V, ...]: ...

    def apply(self, op: TensorOp, /, *inputs: V) -> V: ...

    def map(self, scalar: str, /, *inputs: V) -> V:
        """Apply a scalar operator to every element, operands broadcast."""
        ...

    def constant(self, value: float | int | bool, dtype: DType) -> V: ...

    def cast(self, x: V, dtype: DType) -> V: ...

    def reshape(self, x: V, shape: tuple[Index, ...]) -> V: ...

    def expand(self, x: V, shape: tuple[Index, ...]) -> V: ...

    def reduce(self, combine: str, x: V, axes: tuple[int, ...]) -> V: ...

    def scan(self, combine: str, x: V, axis: int) -> V: ...

    def sum_to(self, x: V, shape: tuple[Index, ...]) -> V:
        """Sum x over the axes along which `shape` broadcasts to its shape."""
        ...

    def chain(self, g: V, partial: Partial, inputs: tuple[V, ...], out: V, x: V) -> V | None:
        """Multiply g by a partial derivative, summed to the shape of operand x.

        None if it is 0.
        """
        ...


Cotangents = Sequence[V | None]
"""The cotangent of each operand; None where it is 0."""


@dataclass(frozen=True)
class TensorOp:
    """The interface of all tensor operators."""

    doc: ClassVar[str] = ""
    is_view: ClassVar[bool] = False
    """Moves elements without computing: an index map, never a kernel by itself."""
    is_source: ClassVar[bool] = False
    """Has no tensor inputs and costs nothing to recompute."""
    fusible: ClassVar[bool] = True
    """Can be computed inside a kernel, by `define`."""

    @property
    def name(self) -> str:
        """Return the name in the text form."""
        return type(self).__name__.lower()

    @property
    def plain_name(self) -> str:
        """Return the name in reports, for what no call of the program names."""
        return self.name

    def attributes(self) -> dict[str, Any]:
        """Return the fields, in order, for the printer."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def infer(self, *inputs: TensorType) -> TensorType:
        raise NotImplementedError  # pragma: no cover - every row overrides

    def reads(self, *inputs: TensorType) -> tuple[tuple[Index, Index], ...]:
        """Return (index, extent) of reads that are in bounds only for some sizes.

        The sizes of a call have to bring them into the operand.  Operators whose `infer` guarantees
        that all positions are inside return none.
        """
        return ()

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        raise NotImplementedError  # pragma: no cover - every row overrides

    def compute_into(self, destination: Array | None, sizes: Sizes, *inputs: Array) -> Array:
        """Compute `reference`, in `destination` if given and if the operator can write there."""
        return self.reference(sizes, *inputs)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        raise NotImplementedError  # pragma: no cover - fusible rows override

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        """Return cotangents of the operands from g, that of the result `out` (a VJP).

        `needed` has True for each operand whose cotangent is needed.  Raises GradientError if there
        is not a derivative.
        """
        raise GradientError(op=self.name, reason="the operator has no derivative")


def dims_at(shape: tuple[Index, ...], sizes: Sizes) -> tuple[int, ...]:
    """Evaluate a symbolic shape."""
    return tuple(int(evaluate(d, sizes)) for d in shape)


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
    hardware: Lower | None = None
    """Emits the operator for float32 with a GPU's approximate instructions, if there are any."""
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
    of_exponent: str = ""
    """Row for b^(e - 127) of a byte e, in float32."""
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

    def integer_bounds(self, *operands: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return bounds of an integer result from those of the operands, or None.

        Before it wraps: they may exceed its type.
        """
        bounds = [b for b in (operands[1:] if self.is_select else operands) if b is not None]
        if self.is_select and len(bounds) == 2:
            return min(b[0] for b in bounds), max(b[1] for b in bounds)
        is_steady = bool(self.monotone) and 0 not in self.monotone
        is_bilinear = bool(self.linear) or self.powers == (1,) * self.arity
        if len(bounds) < self.arity or not (is_steady or is_bilinear):
            return None
        corners = [np.array(corner, np.int64) for corner in zip(*product(*bounds), strict=True)]
        extremes = self.numpy(*corners)
        return int(extremes.min()), int(extremes.max())

    def result(self, *dtypes: DType) -> DType:
        """Return the element type of the result.

        Raises DTypeError for a wrong number of operands, a kind that the row does not accept, or
        operands whose types differ although the row needs one (callers promote).
        """
        return _result(self, dtypes)

    def apply(self, machine: Machine[Any], dtypes: Sequence[DType], args: Sequence[Any]) -> Any:
        """Emit the operator on register values of the given operand types."""
        self.result(*dtypes)
        return self.lower(machine, dtypes[self.rule.lead], *args)

    def __repr__(self) -> str:
        return self.name


@cache
def _result(op: ScalarOp, dtypes: tuple[DType, ...]) -> DType:
    """Find `ScalarOp.result`."""
    rule = op.rule
    if len(dtypes) != op.arity:
        raise DTypeError(f"{op.name} takes {op.arity} operands, not {len(dtypes)}")
    lead = dtypes[rule.lead]
    for position, (dtype, kinds) in enumerate(zip(dtypes, rule.accepts, strict=True)):
        if dtype.kind not in kinds:
            raise DTypeError(
                f"{op.name} is not defined for {dtype.long}"
                f" (operand {position + 1} takes: {', '.join(kinds)})"
            )
        must_match = kinds == rule.accepts[rule.lead] and position not in rule.free
        if must_match and dtype != lead:
            raise DTypeError(
                f"{op.name} wants operands of one type, not {lead.long} and {dtype.long}"
            )
    for position, dtype in rule.fixed:
        if dtypes[position] != dtype:
            raise DTypeError(
                f"{op.name} takes {dtype.long} as operand {position + 1},"
                f" not {dtypes[position].long}"
            )
    if rule.result == "same":
        return lead
    return bool_ if rule.result == "bool" else rule.result
