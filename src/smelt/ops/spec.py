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
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import GradientError
from smelt.types.dtype import DType
from smelt.types.expr import Index, evaluate
from smelt.types.tensor import TensorType

if TYPE_CHECKING:
    from smelt.ops.combine import Combine
    from smelt.ops.spec_scalar import Partial, ScalarOp

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


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

    def reduce(
        self,
        combine: Combine,
        dtype: DType,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], V],
    ) -> V:
        """Reduce body(j) by `combine` over all positions j inside `extents`, to type `dtype`."""
        ...

    def scan(
        self,
        combine: Combine,
        dtype: DType,
        extent: Index,
        at: Index,
        body: Callable[[Index], V],
    ) -> V:
        """Reduce body(j) by `combine` for j = 0 .. at (inclusive), `at` < extent."""
        ...

    def join(
        self,
        how: str,
        first: V,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], tuple[tuple[tuple[V, Index], ...], V]],
    ) -> V:
        """Combine `first` with every update written to this position: a scatter-reduce.

        body(j), for j inside `extents` in order, returns where update j is written, and its value:
        a (computed integer, extent) for each leading dimension; other dimensions are those of this
        position. Updates written here are combined by the scalar operator `how` (or replace the
        value for `put`).
        """
        ...

    def inside(
        self, limits: tuple[tuple[Index, Index], ...], value: Callable[[], V], other: V
    ) -> V:
        """Return value() where 0 <= e < limit for every pair (e, limit), else `other`."""
        ...

    def dot(
        self,
        dtype: DType,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], tuple[V, V]],
    ) -> V:
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

    def fold(self, combine: str, x: V, axes: tuple[int, ...]) -> V: ...

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

    def attributes(self) -> dict[str, Any]:
        """Return the fields, in order, for the printer."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def infer(self, *inputs: TensorType) -> TensorType:
        raise NotImplementedError  # pragma: no cover - every row overrides

    def reads(self, *inputs: TensorType) -> tuple[tuple[Index, Index], ...]:
        """Return (index, extent) of reads that only the sizes of a call bring into an operand.

        Operators whose `infer` guarantees that all positions are inside return none.
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
        is no derivative.
        """
        raise GradientError(op=self.name, reason="the operator has no derivative")


def dims_at(shape: tuple[Index, ...], sizes: Sizes) -> tuple[int, ...]:
    """Evaluate a symbolic shape."""
    return tuple(int(evaluate(d, sizes)) for d in shape)
