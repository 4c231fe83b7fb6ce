"""Data-dependent reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ops.elementwise import broadcast_index
from smelt.ops.spec import Array, Definer, Operand, Sizes, TensorOp, V
from smelt.types.expr import Index
from smelt.types.tensor import TensorType, broadcast_shapes


@dataclass(frozen=True)
class Gather(TensorOp):
    """x read at positions given by integer arrays, as `x[.., i, j, ..]` with adjacent indices.

    Axes first .. first+k-1 of x are indexed by the k index arrays (broadcast together), whose
    common shape takes their place.  Positions are non-negative and inside the axis; a front end
    wraps negative ones.  A position outside is an IndexError in the reference.
    """

    doc: ClassVar[str] = "read at computed positions"
    first: int

    def infer(self, *inputs: TensorType) -> TensorType:
        x, *index = inputs
        if not index or self.first + len(index) > x.rank:
            raise ShapeError(f"gather: {len(index)} index arrays from axis {self.first} of {x}")
        middle = broadcast_shapes(*(j.shape for j in index))
        rest = x.shape[self.first + len(index) :]
        return TensorType(x.dtype, (*x.shape[: self.first], *middle, *rest))

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        x, *index = inputs
        return np.asarray(x[(*(slice(None),) * self.first, *index)])

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        x, *index = inputs
        rank = len(broadcast_shapes(*(j.type.shape for j in index)))
        middle = i[self.first : self.first + rank]
        picks = [
            d.position(j.at(*broadcast_index(j.type, middle)), x.type.shape[self.first + k])
            for k, j in enumerate(index)
        ]
        return x.at(*i[: self.first], *picks, *i[self.first + rank :])


@dataclass(frozen=True)
class Scatter(TensorOp):
    """A copy of x with updates put (or added) at positions of its leading axes.

    scatter(x, updates, i, j, ..): out[i[p], j[p], ..rest] = updates[p.., ..rest].  For `put`, the
    last of equal positions wins; `add` accumulates in order of p.
    """

    doc: ClassVar[str] = "write at computed positions"
    fusible: ClassVar[bool] = False
    mode: str

    @property
    def name(self) -> str:
        return f"scatter.{self.mode}"

    def attributes(self) -> dict[str, Any]:
        return {}

    def infer(self, *inputs: TensorType) -> TensorType:
        x, updates, *index = inputs
        middle = broadcast_shapes(*(j.shape for j in index))
        wanted = (*middle, *x.shape[len(index) :])
        if broadcast_shapes(updates.shape, wanted) != wanted:
            raise ShapeError(f"scatter: updates {updates} do not fit {x}")
        return x

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        x, updates, *index = inputs
        out = np.array(x, copy=True)
        if self.mode == "add":
            with np.errstate(all="ignore"):
                np.add.at(out, tuple(index), updates)
        else:
            out[tuple(index)] = updates
        return out
