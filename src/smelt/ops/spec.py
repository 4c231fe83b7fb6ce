"""What an operator row is: the columns that every stage reads.

A tensor operator is a frozen dataclass whose fields are its attributes.  `infer` is its type rule,
`reference` its meaning in NumPy, and `define` says how one element is computed in terms of whatever
it is given: lowering passes symbolic operands and gets kernel values; that is the only thing that
makes an operator fusible.  An operator without `define` is *extern*: one call, a barrier.

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
    """An input as `define` sees it: its type, and its element at a position."""

    @property
    def type(self) -> TensorType: ...

    def at(self, *index: Index) -> V_co:
        """The element at a position."""
        ...


class Definer(Protocol[V]):
    """What `define` may build values with."""

    def apply(self, op: ScalarOp, *args: V) -> V: ...

    def cast(self, value: V, dtype: DType) -> V: ...

    def constant(self, value: float | int | bool, dtype: DType) -> V: ...

    def index(self, position: Index, dtype: DType) -> V:
        """An integer expression over sizes and axes as a value."""
        ...

    def position(self, value: V, extent: Index) -> Index:
        """A computed integer as a position along a dimension of `extent` (a gather's index)."""
        ...

    def reduce(
        self,
        combine: Combine,
        dtype: DType,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], V],
    ) -> V:
        """`combine` of body(j) over all positions j inside `extents`, with result type `dtype`."""
        ...

    def scan(
        self,
        combine: Combine,
        dtype: DType,
        extent: Index,
        at: Index,
        body: Callable[[Index], V],
    ) -> V:
        """`combine` of body(j) for j = 0 .. at (inclusive), `at` < extent."""
        ...

    def join(
        self,
        how: str,
        first: V,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], tuple[tuple[tuple[V, Index], ...], V]],
    ) -> V:
        """`first`, which by the scalar operator `how` (or `put`) each value of body(j) joins, in
        order of j inside `extents`, whose places are here: (computed integer, extent) for each of
        the leading dimensions, the same positions as here along the others."""
        ...

    def inside(
        self, limits: tuple[tuple[Index, Index], ...], value: Callable[[], V], other: V
    ) -> V:
        """value() where 0 <= e < limit for every pair (e, limit), else `other`."""
        ...

    def dot(
        self,
        dtype: DType,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], tuple[V, V]],
    ) -> V:
        """Sum of products of the two values of body(j) over all j inside `extents`."""
        ...


class Adjoint(Protocol[V]):
    """What `pullback` may build values with; a value is opaque but for its type and operator."""

    def type(self, x: V, /) -> TensorType: ...

    def op(self, x: V, /) -> TensorOp: ...

    def operands(self, x: V, /) -> tuple[V, ...]: ...

    def apply(self, op: TensorOp, /, *inputs: V) -> V: ...

    def map(self, scalar: str, /, *inputs: V) -> V:
        """A scalar operator on every element, operands broadcast."""
        ...

    def constant(self, value: float | int | bool, dtype: DType) -> V: ...

    def cast(self, x: V, dtype: DType) -> V: ...

    def reshape(self, x: V, shape: tuple[Index, ...]) -> V: ...

    def expand(self, x: V, shape: tuple[Index, ...]) -> V: ...

    def fold(self, combine: str, x: V, axes: tuple[int, ...]) -> V: ...

    def scan(self, combine: str, x: V, axis: int) -> V: ...

    def sum_to(self, x: V, shape: tuple[Index, ...]) -> V:
        """x summed over the axes along which `shape` broadcasts to its own."""
        ...

    def chain(self, g: V, partial: Partial, inputs: tuple[V, ...], out: V, x: V) -> V | None:
        """g times a partial derivative, summed to the shape of the operand x; None if it is 0."""
        ...


Cotangents = Sequence[V | None]
"""One for each operand: what the result's cotangent makes of it, None where that is 0."""


@dataclass(frozen=True)
class TensorOp:
    """Common faces of all tensor operators."""

    doc: ClassVar[str] = ""
    is_view: ClassVar[bool] = False
    """Moves elements without computing: an index map, never a kernel by itself."""
    is_source: ClassVar[bool] = False
    """Has no tensor inputs and costs nothing to recompute."""
    fusible: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The spelling in the text form."""
        return type(self).__name__.lower()

    def attributes(self) -> dict[str, Any]:
        """The fields, in order, for the printer."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def infer(self, *inputs: TensorType) -> TensorType:
        raise NotImplementedError  # pragma: no cover - every row overrides

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        raise NotImplementedError  # pragma: no cover - every row overrides

    def computed(self, place: Array | None, sizes: Sizes, *inputs: Array) -> Array:
        """What `reference` gives; it lies at `place`, if there is one, where the operator can write
        its result there."""
        return self.reference(sizes, *inputs)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        raise NotImplementedError  # pragma: no cover - fusible rows override

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], wanted: tuple[bool, ...]
    ) -> Cotangents[V]:
        """The derivative, transposed: cotangents of the operands from g, that of the result.

        `out` is the result itself; `wanted` says of which operands a cotangent is needed.  Raises
        GradientError where there is no derivative.
        """
        raise GradientError(op=self.name, reason="the operator has no derivative")


def dims_at(shape: tuple[Index, ...], sizes: Sizes) -> tuple[int, ...]:
    """A symbolic shape as numbers."""
    return tuple(int(evaluate(d, sizes)) for d in shape)
