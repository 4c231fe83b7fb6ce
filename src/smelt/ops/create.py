"""Define sources: operators without tensor operands."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ops.spec import Array, Definer, Operand, Sizes, TensorOp, V, dims_at
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, number_text
from smelt.types.expr import Index, evaluate
from smelt.types.tensor import Shape, TensorType, check_bytes, shape_text


@dataclass(frozen=True)
class Input(TensorOp):
    """A tensor that the caller passes; `label` is its name in the text form.

    `strides` None means C-contiguous; otherwise one entry per dimension: 0 or 1 (in elements) where
    that is fixed, None where it is passed at the call.  A `constant` input has the same elements in
    every call: what depends on such inputs alone is computed once.
    """

    doc: ClassVar[str] = "a tensor from the caller"
    is_source: ClassVar[bool] = True
    fusible: ClassVar[bool] = False
    label: str
    type: TensorType
    strides: tuple[int | None, ...] | None = None
    constant: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        return self.type


@dataclass(frozen=True)
class Constant(TensorOp):
    """A number as a tensor of rank 0.

    Its sign is kept, also that of NaN: NaN equals NaN of its sign here, and -0 is not 0. The
    payload of NaN is not kept, and arithmetic may give NaN any sign and payload.
    """

    doc: ClassVar[str] = "a number"
    is_source: ClassVar[bool] = True
    value: float | int | bool
    dtype: DType

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        if isinstance(self.value, float):
            nan = math.isnan(self.value)
            return self.dtype.name, number_text(self.value) if nan else self.value.hex()
        return self.dtype.name, self.value

    def infer(self, *inputs: TensorType) -> TensorType:
        return TensorType(self.dtype)

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return np.asarray(self.value).astype(self.dtype.numpy)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        return d.constant(self.value, self.dtype)


@dataclass(frozen=True)
class Iota(TensorOp):
    """out[i] = i[axis], counting from 0 along one axis of a shape."""

    doc: ClassVar[str] = "positions along an axis"
    is_source: ClassVar[bool] = True
    shape: Shape
    axis: int
    dtype: DType

    def infer(self, *inputs: TensorType) -> TensorType:
        if not 0 <= self.axis < len(self.shape):
            raise ShapeError(f"iota: axis {self.axis} of [{shape_text(self.shape)}]")
        return check_bytes(TensorType(self.dtype, self.shape))

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        shape = dims_at(self.shape, sizes)
        positions = np.arange(shape[self.axis]).astype(self.dtype.numpy)
        axis_shape = [1] * len(shape)
        axis_shape[self.axis] = shape[self.axis]
        return np.broadcast_to(positions.reshape(axis_shape), shape)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        return d.index(i[self.axis], self.dtype)


@dataclass(frozen=True)
class SizeOf(TensorOp):
    """A size (or an expression over sizes) as a number of rank 0."""

    doc: ClassVar[str] = "a size as a value"
    is_source: ClassVar[bool] = True
    expr: Index
    dtype: DType

    @property
    def name(self) -> str:
        return "size"

    def infer(self, *inputs: TensorType) -> TensorType:
        return TensorType(self.dtype)

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return np.asarray(evaluate(self.expr, sizes)).astype(self.dtype.numpy)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        return d.index(self.expr, self.dtype)
