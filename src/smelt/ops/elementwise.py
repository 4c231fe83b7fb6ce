"""Define elementwise operators: scalar operators over broadcast operands, and casts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ClassVar, Generic

import numpy as np

from smelt.errors import GradientError
from smelt.ops.cast import cast_reference
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import (
    Adjoint,
    Array,
    Cotangents,
    Definer,
    Operand,
    ScalarOp,
    Sizes,
    TensorOp,
    V,
)
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index
from smelt.types.tensor import TensorType, broadcast_shapes


@dataclass(frozen=True)
class Map(TensorOp):
    """out[i] = scalar(x[i], y[i], ...), with operands broadcast as in the array API."""

    doc: ClassVar[str] = "a scalar operator on every element"
    scalar: str

    @property
    def name(self) -> str:
        return self.scalar

    @property
    def row(self) -> ScalarOp:
        return SCALARS[self.scalar]

    def attributes(self) -> dict[str, object]:
        return {}

    def infer(self, *inputs: TensorType) -> TensorType:
        dtype = self.row.result(*(x.dtype for x in inputs))
        return TensorType(dtype, broadcast_shapes(*(x.shape for x in inputs)))

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return np.asarray(self.row.numpy(*inputs))

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        values = [x.at(*broadcast_index(x.type, i)) for x in inputs]
        lead = inputs[self.row.rule.lead].type.dtype
        if self.row.depends_on_spacing and lead.compute != lead:
            return self.row.lower(_DefinerMachine(d), lead, *values)
        return d.apply(self.row, *values)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        """Apply the chain rule with the partial derivatives of the scalar row."""
        partials = self.row.derivative or (None,) * len(inputs)
        cotangents: list[V | None] = []
        for k, (partial, x) in enumerate(zip(partials, inputs, strict=True)):
            if not needed[k]:
                cotangents.append(None)
            elif partial is None:
                raise GradientError(op=self.name, reason=f"no derivative by operand {k + 1}")
            else:
                cotangents.append(a.chain(g, partial, inputs, out, x))
        return cotangents


class _DefinerMachine(Generic[V]):
    """A `Machine` for the lowering of a `depends_on_spacing` row, whose instructions are a
    definer's operators.

    Missing methods are scalar rows of the same name.
    """

    def __init__(self, definer: Definer[V]) -> None:
        self.definer = definer

    def __getattr__(self, name: str) -> Callable[..., V]:
        return functools.partial(self.definer.apply, SCALARS[name])

    def compare(self, predicate: str, a: V, b: V) -> V:
        return self.definer.apply(SCALARS[predicate], a, b)

    def const(self, dtype: DType, value: float) -> V:
        return self.definer.constant(value, dtype)

    def round_half(self, a: V, dtype: DType) -> V:
        return self.definer.cast(a, dtype)


def broadcast_index(operand: TensorType, i: tuple[Index, ...]) -> tuple[Index, ...]:
    """Return where output position `i` reads an operand: dimensions of size 1 read 0."""
    tail = i[len(i) - operand.rank :]
    return tuple(
        [
            0 if isinstance(dim, int) and dim == 1 else j
            for dim, j in zip(operand.shape, tail, strict=True)
        ]
    )


@dataclass(frozen=True)
class Cast(TensorOp):
    """out[i] = x[i] converted to another element type."""

    doc: ClassVar[str] = "conversion to another element type"
    dtype: DType

    def infer(self, *inputs: TensorType) -> TensorType:
        return TensorType(self.dtype, inputs[0].shape)

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return cast_reference(inputs[0], self.dtype)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        return d.cast(inputs[0].at(*i), self.dtype)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        return (a.cast(g, a.type(inputs[0]).dtype),)
