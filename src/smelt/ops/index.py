"""Define gather and scatter: reads and writes at computed positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from smelt.errors import DTypeError, ShapeError
from smelt.ops.create import Iota
from smelt.ops.elementwise import broadcast_index
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import Adjoint, Array, Cotangents, Definer, Operand, Sizes, TensorOp, V
from smelt.ops.view import Permute
from smelt.python.dataclass import dataclass
from smelt.types.dtype import i64
from smelt.types.expr import Index, product
from smelt.types.tensor import Shape, TensorType, broadcast_shapes


@dataclass(frozen=True)
class Gather(TensorOp):
    """Reads of x at integer-array positions, as `x[.., i, j, ..]` with adjacent indices.

    Axes first .. first+k-1 of x are indexed by the k index arrays (broadcast together), whose
    common shape takes their place.  Positions are non-negative and in bounds; a front end wraps
    negative ones. A position out of bounds is an IndexError in the reference.
    """

    doc: ClassVar[str] = "read at computed positions"
    first: int

    def infer(self, *inputs: TensorType) -> TensorType:
        x, *index = inputs
        if not index or self.first < 0 or self.first + len(index) > x.rank:
            raise ShapeError(f"gather: {len(index)} index arrays from axis {self.first} of {x}")
        _check_integers("gather", index)
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

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        """Add g where x was read.

        If each element is read at most once, this is a select by position.
        """
        x, *index = inputs
        none = (None,) * len(index)
        if not needed[0]:
            return (None, *none)
        selected = self._select_gradient(a, g, x, index)
        return (self._scatter_gradient(a, g, x, index) if selected is None else selected, *none)

    def _scatter_gradient(self, a: Adjoint[V], g: V, x: V, index: list[V]) -> V:
        """Scatter-add g to the positions that were read.

        `Scatter` writes to leading axes, so the indexed axes are moved there and back.
        """
        shape = a.type(x).shape
        middle = len(broadcast_shapes(*(a.type(j).shape for j in index)))
        lead = range(self.first, self.first + middle)
        rank = a.type(g).rank
        g = _permute(a, g, (*lead, *(k for k in range(rank) if k not in lead)))
        indexed = range(self.first, self.first + len(index))
        order = (*indexed, *(k for k in range(len(shape)) if k not in indexed))
        scattered = scatter_sums(a, g, tuple(shape[k] for k in order), *index)
        return _permute(a, scattered, tuple(order.index(k) for k in range(len(order))))

    def _select_gradient(self, a: Adjoint[V], g: V, x: V, index: list[V]) -> V | None:
        """Return the gradient as a select: x̄[i, c] = g[i] where c is read.

        Possible if one axis alone is indexed freely, as by a label, and all other indices count
        along axes of g; otherwise None.
        """
        shape, g_shape = a.type(x).shape, a.type(g).shape
        middle = broadcast_shapes(*(a.type(j).shape for j in index))
        if len(middle) != len(index):
            return None
        free_indices: list[int] = []
        for k, j in enumerate(index):
            extent = shape[self.first + k]
            if middle[k] != extent or not _counts_along(a, j, k, extent, len(middle)):
                free_indices.append(k)
        if len(free_indices) != 1 or middle[free_indices[0]] != 1 or len(g_shape) != len(shape):
            return None
        (k,) = free_indices
        at = self.first + k
        axis_shape = tuple(shape[at] if d == k else 1 for d in range(len(middle)))
        # Gather from an iota, so that bounds are still checked if the forward gather is dropped.
        position = a.apply(Gather(0), a.apply(Iota((shape[at],), 0, i64)), index[k])
        mask = a.map("eq", a.apply(Iota(axis_shape, k, i64)), position)
        mask = a.reshape(mask, (*a.type(mask).shape, *[1] * (len(shape) - self.first - len(index))))
        selected = a.map("select", mask, g, a.constant(0.0, a.type(x).dtype))
        return a.expand(selected, shape) if a.type(selected).shape != shape else selected


def _check_integers(name: str, index: Sequence[TensorType]) -> None:
    """Check the element types of index arrays; raise DTypeError."""
    for j in index:
        if not j.dtype.is_integer:
            raise DTypeError(f"{name}: an index array of {j.dtype.name}, not of integers")


def scatter_sums(a: Adjoint[V], g: V, shape: Shape, *index: V) -> V:
    """Return zeros with `g` added at positions; sums of half types are rounded once."""
    dtype = a.type(g).dtype
    zeros = a.expand(a.constant(0.0, dtype.compute), shape)
    return a.cast(a.apply(Scatter("add"), zeros, a.cast(g, dtype.compute), *index), dtype)


def _counts_along(a: Adjoint[V], j: V, axis: int, extent: Index, rank: int) -> bool:
    """Whether an index array counts 0, 1, 2, .. along its own axis of the result."""
    shape = a.type(j).shape
    op = a.op(j)
    if len(shape) != rank:
        return False
    if isinstance(op, Iota):
        return op.axis == axis and shape[axis] == extent
    return extent == 1


def _permute(a: Adjoint[V], x: V, perm: tuple[int, ...]) -> V:
    return x if perm == tuple(range(len(perm))) else a.apply(Permute(perm), x)


_AT = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class Scatter(TensorOp):
    """A copy of x with updates written (or combined) at positions of its leading axes.

    scatter(x, updates, i, j, ..): out[i[p], j[p], ..rest] = updates[p.., ..rest].  For `put`, the
    last of equal positions wins; `add` and the others combine in order of p.  Positions are in
    bounds, as for `Gather`.
    """

    doc: ClassVar[str] = "write at computed positions"
    mode: str

    @property
    def name(self) -> str:
        return f"scatter.{self.mode}"

    def attributes(self) -> dict[str, Any]:
        return {}

    def infer(self, *inputs: TensorType) -> TensorType:
        x, updates, *index = inputs
        _check_integers("scatter", index)
        if not 0 < len(index) <= x.rank:
            raise ShapeError(f"scatter: {len(index)} index arrays for {x}")
        middle = broadcast_shapes(*(j.shape for j in index))
        update_shape = (*middle, *x.shape[len(index) :])
        if broadcast_shapes(updates.shape, update_shape) != update_shape:
            raise ShapeError(f"scatter: updates {updates} do not fit {x}")
        if updates.dtype != x.dtype:
            raise DTypeError(f"scatter: {updates.dtype.name} goes to {x.dtype.name}")
        if self.mode != "put":
            SCALARS[self.mode].result(x.dtype, x.dtype)
        return x

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        x, updates, *index = inputs
        out = np.array(x, copy=True)
        middle = np.broadcast_shapes(*(j.shape for j in index))
        # NumPy's `at` reads out of bounds if updates have fewer dimensions than their positions.
        updates = np.broadcast_to(updates, (*middle, *x.shape[len(index) :]))
        if self.mode == "put":
            out[tuple(index)] = updates
        else:
            with np.errstate(all="ignore"):
                _AT[self.mode].at(out, tuple(index), updates)
        return out

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        x, updates, *index = inputs
        middle = broadcast_shapes(*(j.type.shape for j in index))
        rest = i[len(index) :]

        def element(p: tuple[Index, ...]) -> tuple[tuple[tuple[V, Index], ...], V]:
            positions = tuple(
                (j.at(*broadcast_index(j.type, p)), x.type.shape[k]) for k, j in enumerate(index)
            )
            return positions, updates.at(*broadcast_index(updates.type, (*p, *rest)))

        return d.join(self.mode, x.at(*i), middle, element)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        if self.mode in ("max", "min"):
            return self._of_extreme(a, g, out, inputs)
        if self.mode == "mul":
            return self._of_product(a, g, out, inputs)
        x, updates, *index = inputs
        shape, no_cotangents = a.type(updates).shape, (None,) * len(index)
        updates_cotangent = a.sum_to(a.apply(Gather(0), g, *index), shape) if needed[1] else None
        if self.mode == "add":
            return (g, updates_cotangent, *no_cotangents)
        zero = a.constant(0.0, a.type(x).dtype)
        x_cotangent = None
        if needed[0]:
            x_cotangent = a.apply(self, g, a.expand(zero, shape), *index)
        if needed[1]:
            lasting = a.map(
                "select", self._is_last_write(a, x, index), a.apply(Gather(0), g, *index), zero
            )
            updates_cotangent = a.sum_to(lasting, shape)
        return (x_cotangent, updates_cotangent, *no_cotangents)

    def _of_extreme(self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...]) -> Cotangents[V]:
        """Differentiate scatter max or min: equal extremes share g evenly.

        NaN has no derivative.
        """
        x, updates, *index = inputs
        dtype = a.type(x).dtype
        wide, read = dtype.compute, Gather(0)
        x_wins = a.map("eq", x, out)
        update_wins = a.map("eq", updates, a.apply(read, out, *index))
        count = a.apply(Scatter("add"), a.cast(x_wins, wide), a.cast(update_wins, wide), *index)
        share = a.cast(a.map("div", a.cast(g, wide), count), dtype)
        no_winner = a.map("eq", count, a.constant(0.0, wide))
        elsewhere = a.map(
            "select", no_winner, a.constant(float("nan"), dtype), a.constant(0.0, dtype)
        )
        parts = a.map(
            "select", update_wins, a.apply(read, share, *index), a.apply(read, elsewhere, *index)
        )
        updates_cotangent = a.sum_to(parts, a.type(updates).shape)
        return (a.map("select", x_wins, share, elsewhere), updates_cotangent, *(None,) * len(index))

    def _of_product(self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...]) -> Cotangents[V]:
        """Differentiate scatter mul: g times the product of all other factors.

        That is the result divided by the factor; for a factor of 0 it is the product of the nonzero
        factors, if there is no other 0.  Second derivatives are those of this formula: exact unless
        two factors are exactly 0.
        """
        x, updates, *index = inputs
        dtype, read = a.type(x).dtype, Gather(0)
        zero_value, one = a.constant(0.0, dtype), a.constant(1.0, dtype)
        is_zero = [a.map("eq", v, zero_value) for v in (x, updates)]
        nonzero = [a.map("select", z, one, v) for z, v in zip(is_zero, (x, updates), strict=True)]
        count = a.apply(Scatter("add"), *(a.cast(z, dtype.compute) for z in is_zero), *index)
        single_zero = a.map("eq", count, a.constant(1.0, dtype.compute))
        others = a.map("select", single_zero, a.apply(Scatter("mul"), *nonzero, *index), zero_value)
        other_factors = a.map("select", is_zero[0], others, a.map("div", out, nonzero[0]))
        updates_cotangent = a.map("div", a.apply(read, out, *index), nonzero[1])
        updates_cotangent = a.map(
            "select", is_zero[1], a.apply(read, others, *index), updates_cotangent
        )
        updates_cotangent = a.sum_to(
            a.map("mul", a.apply(read, g, *index), updates_cotangent), a.type(updates).shape
        )
        return (a.map("mul", g, other_factors), updates_cotangent, *(None,) * len(index))

    def _is_last_write(self, a: Adjoint[V], x: V, index: list[V]) -> V:
        """Return the mask of updates that no later one at the same position overwrites."""
        middle = broadcast_shapes(*(a.type(j).shape for j in index))
        rest = a.type(x).shape[len(index) :]
        count = product(middle)
        number = a.reshape(a.apply(Iota((count,), 0, i64)), middle)
        unwritten = a.expand(a.constant(-1, i64), a.type(x).shape[: len(index)])
        winner = a.apply(Gather(0), a.apply(Scatter("put"), unwritten, number, *index), *index)
        return a.reshape(a.map("eq", winner, number), (*middle, *[1] * len(rest)))
