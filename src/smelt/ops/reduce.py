"""Define reductions and scans over a monoid of `smelt.ops.combine`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ops.combine import COMBINES, Combine
from smelt.ops.spec import Adjoint, Array, Cotangents, Definer, Operand, Sizes, TensorOp, V
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f64, from_numpy
from smelt.types.expr import Index
from smelt.types.tensor import TensorType


@dataclass(frozen=True)
class Reduce(TensorOp):
    """Reduce the given axes (in increasing order) and drop them.

    Sums of floats accumulate in the type of `accumulator`; an arg kind reduces exactly one axis, or
    all of them to a row-major position.
    """

    doc: ClassVar[str] = "reduce axes with a monoid"
    combine: str
    axes: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"reduce.{self.combine}"

    @property
    def plain_name(self) -> str:
        return self.combine

    @property
    def row(self) -> Combine:
        return COMBINES[self.combine]

    def attributes(self) -> dict[str, Any]:
        return {"axes": self.axes}

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if list(self.axes) != sorted(set(self.axes)) or any(not 0 <= a < x.rank for a in self.axes):
            raise ShapeError(f"{self.name}: axes {self.axes} do not fit {x}")
        if self.row.has_no_empty_value and any(x.shape[a] == 0 for a in self.axes):
            raise ShapeError(f"{self.combine} of an empty axis of {x} has no value")
        shape = tuple(d for a, d in enumerate(x.shape) if a not in self.axes)
        return TensorType(self.row.result(x.dtype), shape)

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        (x,) = inputs
        out = self.infer(_type_of(x))
        if self.row.positional:
            return _arg_reduce(self.row, x, self.axes)
        with np.errstate(all="ignore"):
            operand = (
                x if out.dtype.kind == "bool" else x.astype(accumulator(self.row, out.dtype).numpy)
            )
            return np.asarray(self.row.reduce(operand, axis=self.axes)).astype(out.dtype.numpy)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        (x,) = inputs
        out = self.infer(x.type)

        def element(j: tuple[Index, ...]) -> V:
            outer, inner = iter(i), iter(j)
            position = (next(inner) if a in self.axes else next(outer) for a in range(x.type.rank))
            return x.at(*position)

        return d.reduce(self.row, out.dtype, tuple(x.type.shape[a] for a in self.axes), element)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        """Differentiate by the monoid's `pullback`, with reduced axes kept as dimensions of 1."""
        (x,) = inputs
        shape = a.type(x).shape
        kept_shape = tuple(1 if k in self.axes else n for k, n in enumerate(shape))
        g, out = a.reshape(g, kept_shape), a.reshape(out, kept_shape)
        derive = self.row.pullback
        if derive is None:
            return super().pullback(a, g, out, inputs, needed)
        return (derive(a, g, out, x, self.axes),)


def accumulator(row: Combine, dtype: DType) -> DType:
    """Return the type in which a reduction accumulates: double where errors add up.

    `dtype` is the type of its result.
    """
    return f64 if row.wide and dtype.is_float else dtype.compute


def _type_of(x: Array) -> TensorType:
    return TensorType(from_numpy(x.dtype), tuple(int(n) for n in x.shape))


def _arg_reduce(row: Combine, x: Array, axes: tuple[int, ...]) -> Array:
    transposed = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
    shape = transposed.shape[: x.ndim - len(axes)]
    if transposed.size == 0:
        return np.zeros(shape, np.int64)
    flat = transposed.reshape(*shape, -1)
    if flat.dtype.kind not in "biuf":  # ml_dtypes' bfloat16 has no argmax of its own
        flat = flat.astype(np.float32)
    return np.asarray(row.reduce(flat, axis=-1), np.int64)


@dataclass(frozen=True)
class Scan(TensorOp):
    """out[.., j, ..] = combine of x[.., 0..j, ..] along one axis (inclusive)."""

    doc: ClassVar[str] = "scan (running reduction) along an axis"
    combine: str
    axis: int

    @property
    def name(self) -> str:
        return f"scan.{self.combine}"

    @property
    def row(self) -> Combine:
        return COMBINES[self.combine]

    def attributes(self) -> dict[str, Any]:
        return {"axis": self.axis}

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if not 0 <= self.axis < x.rank or self.row.prefix is None:
            raise ShapeError(f"{self.name}: axis {self.axis} does not fit {x}")
        return TensorType(self.row.result(x.dtype), x.shape)

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        (x,) = inputs
        out = self.infer(_type_of(x)).dtype
        assert self.row.prefix is not None
        with np.errstate(all="ignore"):
            operand = x.astype(accumulator(self.row, out).numpy)
            return np.asarray(self.row.prefix(operand, axis=self.axis)).astype(out.numpy)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        (x,) = inputs
        a = self.axis

        def element(j: Index) -> V:
            return x.at(*i[:a], j, *i[a + 1 :])

        return d.scan(self.row, self.infer(x.type).dtype, x.type.shape[a], i[a], element)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        derive = self.row.scan_pullback
        if derive is None:
            return super().pullback(a, g, out, inputs, needed)
        return (derive(a, g, out, inputs[0], self.axis),)
