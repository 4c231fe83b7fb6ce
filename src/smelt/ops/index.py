"""Data-dependent reads and writes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import DTypeError, ShapeError
from smelt.ops.create import Iota
from smelt.ops.elementwise import broadcast_index
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import Adjoint, Array, Cotangents, Definer, Operand, Sizes, TensorOp, V
from smelt.ops.view import Permute
from smelt.types.dtype import i64
from smelt.types.expr import Index, product
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

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], wanted: tuple[bool, ...]
    ) -> Cotangents[V]:
        """Adds g where it was read: by a choice of places where each is read at most once."""
        x, *index = inputs
        none = (None,) * len(index)
        if not wanted[0]:
            return (None, *none)
        chosen = self._chosen(a, g, x, index)
        return (self._scattered(a, g, x, index) if chosen is None else chosen, *none)

    def _scattered(self, a: Adjoint[V], g: V, x: V, index: list[V]) -> V:
        """Scatter writes to leading axes, so the indexed ones are brought there and back."""
        shape = a.type(x).shape
        middle = len(broadcast_shapes(*(a.type(j).shape for j in index)))
        lead = range(self.first, self.first + middle)
        rank = a.type(g).rank
        g = _permuted(a, g, (*lead, *(k for k in range(rank) if k not in lead)))
        taken = range(self.first, self.first + len(index))
        order = (*taken, *(k for k in range(len(shape)) if k not in taken))
        zero = a.constant(0.0, a.type(x).dtype)
        zeros = a.expand(zero, tuple(shape[k] for k in order))
        found = a.apply(Scatter("add"), zeros, g, *index)
        return _permuted(a, found, tuple(order.index(k) for k in range(len(order))))

    def _chosen(self, a: Adjoint[V], g: V, x: V, index: list[V]) -> V | None:
        """x̄[i, c] = g[i] where c is the position read, as for a label's logit.

        Possible where one axis alone is indexed freely, and all others run along with g.
        """
        shape, last = a.type(x).shape, a.type(g).shape
        middle = broadcast_shapes(*(a.type(j).shape for j in index))
        if len(middle) != len(index):
            return None
        free: list[int] = []
        for k, j in enumerate(index):
            extent = shape[self.first + k]
            if middle[k] != extent or not _along(a, j, k, extent, len(middle)):
                free.append(k)
        if len(free) != 1 or middle[free[0]] != 1 or len(last) != len(shape):
            return None
        (k,) = free
        at = self.first + k
        line = tuple(shape[at] if d == k else 1 for d in range(len(middle)))
        # read among the places: the only read that is left where nobody asks for the value
        place = a.apply(Gather(0), a.apply(Iota((shape[at],), 0, i64)), index[k])
        hit = a.map("eq", a.apply(Iota(line, k, i64)), place)
        hit = a.reshape(hit, (*a.type(hit).shape, *[1] * (len(shape) - self.first - len(index))))
        found = a.map("select", hit, g, a.constant(0.0, a.type(x).dtype))
        return a.expand(found, shape) if a.type(found).shape != shape else found


def _along(a: Adjoint[V], j: V, axis: int, extent: Index, rank: int) -> bool:
    """Whether an index array counts 0, 1, 2, .. along its own axis of the result."""
    shape = a.type(j).shape
    op = a.op(j)
    if len(shape) != rank:
        return False
    if isinstance(op, Iota):
        return op.axis == axis and shape[axis] == extent
    return extent == 1


def _permuted(a: Adjoint[V], x: V, perm: tuple[int, ...]) -> V:
    return x if perm == tuple(range(len(perm))) else a.apply(Permute(perm), x)


_AT = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class Scatter(TensorOp):
    """A copy of x with updates put (or added) at positions of its leading axes.

    scatter(x, updates, i, j, ..): out[i[p], j[p], ..rest] = updates[p.., ..rest].  For `put`, the
    last of equal positions wins; `add` and the others join in order of p.  Positions are inside, as
    those of a gather are.
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
        middle = broadcast_shapes(*(j.shape for j in index))
        wanted = (*middle, *x.shape[len(index) :])
        if broadcast_shapes(updates.shape, wanted) != wanted:
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
        # NumPy's `at` reads beyond updates of fewer dimensions than their places have.
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
            places = tuple(
                (j.at(*broadcast_index(j.type, p)), x.type.shape[k]) for k, j in enumerate(index)
            )
            return places, updates.at(*broadcast_index(updates.type, (*p, *rest)))

        return d.join(self.mode, x.at(*i), middle, element)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], wanted: tuple[bool, ...]
    ) -> Cotangents[V]:
        if self.mode in ("max", "min"):
            return self._of_extreme(a, g, out, inputs)
        if self.mode == "mul":
            return self._of_product(a, g, out, inputs)
        x, updates, *index = inputs
        shape, none = a.type(updates).shape, (None,) * len(index)
        read = a.sum_to(a.apply(Gather(0), g, *index), shape) if wanted[1] else None
        if self.mode == "add":
            return (g, read, *none)
        zero = a.constant(0.0, a.type(x).dtype)
        rest = None
        if wanted[0]:
            rest = a.apply(self, g, a.expand(zero, shape), *index)
        if wanted[1]:
            kept = a.map("select", self._lasting(a, x, index), a.apply(Gather(0), g, *index), zero)
            read = a.sum_to(kept, shape)
        return (rest, read, *none)

    def _of_extreme(self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...]) -> Cotangents[V]:
        """Equal extremes share evenly, as those of `max` along an axis; NaN has no derivative."""
        x, updates, *index = inputs
        dtype = a.type(x).dtype
        wide, read = dtype.compute, Gather(0)
        own = a.map("eq", x, out)
        hit = a.map("eq", updates, a.apply(read, out, *index))
        count = a.apply(Scatter("add"), a.cast(own, wide), a.cast(hit, wide), *index)
        share = a.cast(a.map("div", a.cast(g, wide), count), dtype)
        none = a.map("eq", count, a.constant(0.0, wide))
        rest = a.map("select", none, a.constant(float("nan"), dtype), a.constant(0.0, dtype))
        parts = a.map("select", hit, a.apply(read, share, *index), a.apply(read, rest, *index))
        given = a.sum_to(parts, a.type(updates).shape)
        return (a.map("select", own, share, rest), given, *(None,) * len(index))

    def _of_product(self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...]) -> Cotangents[V]:
        """The product of all other factors: the result over this one, and where this one is 0 the
        product of those that are not, if there is no other 0.

        Second derivatives are those of this formula: exact unless two factors are exactly 0.
        """
        x, updates, *index = inputs
        dtype, read = a.type(x).dtype, Gather(0)
        none, one = a.constant(0.0, dtype), a.constant(1.0, dtype)
        zero = [a.map("eq", v, none) for v in (x, updates)]
        plain = [a.map("select", z, one, v) for z, v in zip(zero, (x, updates), strict=True)]
        count = a.apply(Scatter("add"), *(a.cast(z, dtype.compute) for z in zero), *index)
        lone = a.map("eq", count, a.constant(1.0, dtype.compute))
        others = a.map("select", lone, a.apply(Scatter("mul"), *plain, *index), none)
        own = a.map("select", zero[0], others, a.map("div", out, plain[0]))
        part = a.map("div", a.apply(read, out, *index), plain[1])
        part = a.map("select", zero[1], a.apply(read, others, *index), part)
        part = a.sum_to(a.map("mul", a.apply(read, g, *index), part), a.type(updates).shape)
        return (a.map("mul", g, own), part, *(None,) * len(index))

    def _lasting(self, a: Adjoint[V], x: V, index: list[V]) -> V:
        """Which updates were not overwritten by a later one at the same position."""
        middle = broadcast_shapes(*(a.type(j).shape for j in index))
        rest = a.type(x).shape[len(index) :]
        count = product(middle)
        number = a.reshape(a.apply(Iota((count,), 0, i64)), middle)
        places = a.expand(a.constant(-1, i64), a.type(x).shape[: len(index)])
        winner = a.apply(Gather(0), a.apply(Scatter("put"), places, number, *index), *index)
        return a.reshape(a.map("eq", winner, number), (*middle, *[1] * len(rest)))
