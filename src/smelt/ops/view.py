"""Define views: index maps from output to input positions, never kernels by themselves.

>>> split_groups((size("b"), size("h") * 8), (size("b"), size("h"), 8))
(((b,), (b,)), ((h*8,), (h, 8)))
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ops.spec import Adjoint, Array, Cotangents, Definer, Operand, Sizes, TensorOp, V, dims_at
from smelt.python.dataclass import dataclass
from smelt.types.dtype import number_text
from smelt.types.expr import Index, add, axis, floordiv, mod, mul, product, size, sub
from smelt.types.tensor import Shape, TensorType, shape_text

__all__ = [
    "Concat",
    "Expand",
    "Flip",
    "Pad",
    "Permute",
    "Reshape",
    "Shear",
    "Slice",
    "Stop",
    "Window",
    "size",
    "split_groups",
]


class View(TensorOp):
    """A tensor operator that moves elements and computes nothing."""

    is_view: ClassVar[bool] = True


@dataclass(frozen=True)
class Permute(View):
    """Reorder axes: axis k of the result is axis perm[k] of x."""

    doc: ClassVar[str] = "reorder axes"
    perm: tuple[int, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if sorted(self.perm) != list(range(x.rank)):
            raise ShapeError(f"permute: {self.perm} is not a permutation of the axes of {x}")
        return TensorType(x.dtype, tuple(x.shape[p] for p in self.perm))

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return np.transpose(inputs[0], self.perm)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        return inputs[0].at(*(i[self.perm.index(a)] for a in range(len(i))))

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        return (a.apply(Permute(tuple(self.perm.index(k) for k in range(len(self.perm)))), g),)


@dataclass(frozen=True)
class Reshape(View):
    """The elements in row-major order under another shape."""

    doc: ClassVar[str] = "another shape, same order"
    shape: Shape

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if product(self.shape) != x.elements:
            raise ShapeError(
                f"reshape: {x} does not have the elements of [{shape_text(self.shape)}]"
            )
        return TensorType(x.dtype, self.shape)

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return np.reshape(inputs[0], dims_at(self.shape, sizes))

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        (x,) = inputs
        indices: list[Index] = []
        first = 0
        for source, target in split_groups(x.type.shape, self.shape):
            part = i[first : first + len(target)]
            first += len(target)
            indices.extend(_source_indices(source, target, part))
        return x.at(*indices)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        return (a.reshape(g, a.type(inputs[0]).shape),)


@lru_cache(maxsize=1024)
def split_groups(source: Shape, target: Shape) -> tuple[tuple[Shape, Shape], ...]:
    """Return consecutive runs of both shapes with equal products, as short as can be proven."""
    groups: list[tuple[Shape, Shape]] = []
    s = t = first_s = first_t = 0
    left: Index = 1
    right: Index = 1
    while s < len(source) or t < len(target):
        if s < len(source) and (s == first_s or t == len(target) or _source_goes_next(left, right)):
            left, s = mul(left, source[s]), s + 1
        elif t < len(target):
            right, t = mul(right, target[t]), t + 1
        if left == right and s > first_s and t > first_t:
            groups.append((source[first_s:s], target[first_t:t]))
            first_s, first_t, left, right = s, t, 1, 1
    if s > first_s or t > first_t:
        groups.append((source[first_s:], target[first_t:]))
    return tuple(groups)


def merged_dims(source: Shape, target: Shape, a: int) -> tuple[int, ...] | None:
    """Return the dimensions of `source` merged into dimension `a` of `target`, or None.

    >>> merged_dims((2, 3, 4), (2, 12), 1)
    (1, 2)
    """
    target_first = source_first = 0
    for old, new in split_groups(source, target):
        if target_first <= a < target_first + len(new):
            non_unit = [b for b, n in enumerate(new, target_first) if n != 1]
            return tuple(range(source_first, source_first + len(old))) if non_unit == [a] else None
        target_first, source_first = target_first + len(new), source_first + len(old)
    return None


def _source_goes_next(left: Index, right: Index) -> bool:
    """Whether the source side should take its next dimension."""
    if left == 0:
        return False  # no elements: any split of the other side is right
    return sub(right, left) != 0 and floordiv(right, left) != 0 and mod(right, left) == 0


def _source_indices(source: Shape, target: Shape, part: tuple[Index, ...]) -> list[Index]:
    """Return source indices for the indices `part` of a group of target dimensions."""
    if len(source) == 1 and len(target) == 1:
        return [part[0]]
    flat: Index = 0
    for dim, j in zip(target, part, strict=True):
        flat = add(mul(flat, dim), 0 if dim == 1 else j)
    indices: list[Index] = []
    for k, dim in enumerate(source):
        inner = product(source[k + 1 :])
        position = floordiv(flat, inner) if inner != 0 else 0
        indices.append(
            0 if dim == 1 else position if k == 0 else mod(position, dim) if dim != 0 else 0
        )
    return indices


@dataclass(frozen=True)
class Expand(View):
    """Dimensions of size 1 repeat; new dimensions are added in front."""

    doc: ClassVar[str] = "broadcast to a shape"
    shape: Shape

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        tail = self.shape[len(self.shape) - x.rank :]
        if len(self.shape) < x.rank or any(a not in (1, b) for a, b in zip(x.shape, tail)):
            raise ShapeError(f"expand: {x} does not broadcast to [{shape_text(self.shape)}]")
        return TensorType(x.dtype, self.shape)

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return np.broadcast_to(inputs[0], dims_at(self.shape, sizes))

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        (x,) = inputs
        tail = i[len(i) - x.type.rank :]
        return x.at(*(0 if n == 1 else j for n, j in zip(x.type.shape, tail, strict=True)))

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        return (a.sum_to(g, a.type(inputs[0]).shape),)


@dataclass(frozen=True)
class Slice(View):
    """A strided box of x: out[i] = x[start + i*step].

    `sizes` are the extents of the result; steps are not zero.
    """

    doc: ClassVar[str] = "a strided box"
    starts: Shape
    sizes: Shape
    steps: tuple[int, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if not x.rank == len(self.starts) == len(self.sizes) == len(self.steps):
            raise ShapeError(f"slice: {len(self.sizes)} ranges for {x}")
        if 0 in self.steps:
            raise ShapeError(f"slice: a step of 0 in {self.steps}")
        return TensorType(x.dtype, self.sizes)

    def reads(self, *inputs: TensorType) -> tuple[tuple[Index, Index], ...]:
        ranges = zip(self.starts, self.sizes, self.steps, inputs[0].shape, strict=True)
        return tuple((add(a, mul(axis("i", k), step)), n) for a, k, step, n in ranges)

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        starts, counts = dims_at(self.starts, sizes), dims_at(self.sizes, sizes)
        out = inputs[0][tuple(map(_numpy_slice, starts, counts, self.steps))]
        if out.shape != counts:
            raise IndexError(f"a box of {counts} from {starts} is not inside {inputs[0].shape}")
        return out

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        ranges = zip(self.starts, i, self.steps, strict=True)
        return inputs[0].at(*(add(s, mul(j, step)) for s, j, step in ranges))

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        """Dilate by the steps with zeros, then pad with zeros."""
        shape = a.type(inputs[0]).shape
        starts = list(self.starts)
        backwards = tuple(k for k, step in enumerate(self.steps) if step < 0)
        for k in backwards:
            starts[k] = add(starts[k], mul(sub(self.sizes[k], 1), self.steps[k]))
        g = a.apply(Flip(backwards), g) if backwards else g
        for k, step in enumerate(self.steps):
            if abs(step) != 1:
                g = dilate(a, g, k, abs(step))
        counts = a.type(g).shape
        high: list[Index] = []
        for n, start, count, step in zip(shape, starts, counts, self.steps, strict=True):
            high.append(sub(sub(n, start), count) if abs(step) == 1 else n)
        g = pad_zeros(a, g, tuple(starts), tuple(high))
        if a.type(g).shape != shape:  # cut off zeros after the last element
            zeros = (0,) * len(shape)
            g = a.apply(Slice(zeros, shape, (1,) * len(shape)), g)
        return (g,)


def _numpy_slice(start: int, count: int, step: int) -> slice:
    """Return NumPy's slice of `count` positions."""
    stop = start + count * step
    return slice(start, None if stop < 0 else stop, step) if count else slice(0, 0)


def dilate(a: Adjoint[V], g: V, axis: int, step: int) -> V:
    """Insert `step` - 1 zeros after each element along an axis."""
    shape = a.type(g).shape
    split_shape = (*shape[: axis + 1], 1, *shape[axis + 1 :])
    zeros = (0,) * len(split_shape)
    after = tuple(step - 1 if k == axis + 1 else 0 for k in range(len(split_shape)))
    wide = a.apply(Pad(zeros, after, 0.0), a.reshape(g, split_shape))
    return a.reshape(wide, (*shape[:axis], mul(shape[axis], step), *shape[axis + 1 :]))


def pad_zeros(a: Adjoint[V], g: V, low: Shape, high: Shape) -> V:
    """Pad each axis with zeros."""
    return g if all(n == 0 for n in (*low, *high)) else a.apply(Pad(low, high, 0.0), g)


@dataclass(frozen=True)
class Flip(View):
    """The given axes in reverse order."""

    doc: ClassVar[str] = "reverse axes"
    axes: tuple[int, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if any(not 0 <= a < x.rank for a in self.axes):
            raise ShapeError(f"flip: axes {self.axes} do not fit {x}")
        return x

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return np.flip(inputs[0], self.axes)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        (x,) = inputs
        positions = (
            sub(sub(n, 1), j) if a in self.axes else j
            for a, (n, j) in enumerate(zip(x.type.shape, i, strict=True))
        )
        return x.at(*positions)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        return (a.apply(self, g),)


@dataclass(frozen=True)
class Window(View):
    """Sliding windows along an axis, in a new last dimension of `extent` positions.

    out[.., i, .., k] = x[.., i*step + k*dilation, ..]: the operand of a convolution or a pooling.
    Only complete windows count; `Pad` adds padding before.
    """

    doc: ClassVar[str] = "windows that slide along an axis"
    axis: int
    extent: int
    step: int = 1
    dilation: int = 1

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if not 0 <= self.axis < x.rank or min(self.extent, self.step, self.dilation) < 1:
            raise ShapeError(f"window: {self} does not fit {x}")
        reach = (self.extent - 1) * self.dilation + 1
        dim = x.shape[self.axis]
        if isinstance(dim, int) and dim < reach:
            raise ShapeError(f"window: {x} has no {reach} elements along axis {self.axis}")
        count = add(floordiv(sub(dim, reach), self.step), 1)
        return TensorType(
            x.dtype, (*x.shape[: self.axis], count, *x.shape[self.axis + 1 :], self.extent)
        )

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        (x,) = inputs
        reach = (self.extent - 1) * self.dilation + 1
        if x.shape[self.axis] < reach:
            shape = (*x.shape[: self.axis], 0, *x.shape[self.axis + 1 :], self.extent)
            return np.empty(shape, x.dtype)
        windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=self.axis)
        steps = (slice(None),) * self.axis + (slice(None, None, self.step),)
        return windows[..., :: self.dilation][steps]

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        a = self.axis
        at = add(mul(i[a], self.step), mul(i[-1], self.dilation))
        return inputs[0].at(*i[:a], at, *i[a + 1 : -1])

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        """Sum each element of x over the windows that contain it (col2im)."""
        shape, last = a.type(inputs[0]).shape, a.type(g).rank - 1
        if self.step > 1:
            g = dilate(a, g, self.axis, self.step)
        sheared = a.apply(Shear((*shape, self.extent), self.axis, self.dilation), g)
        return (a.reduce("sum", sheared, (last,)),)


@dataclass(frozen=True)
class Shear(View):
    """Windows sheared back along their axis, the operand of a col2im sum.

    out[.., p, .., k] = x[.., p - k*dilation, .., k] where that is in bounds, else 0.  `shape` is
    that of the result.  Summed over k this is the transpose of `Window` (col2im); the transpose of
    a shear is the shear with the opposite dilation.
    """

    doc: ClassVar[str] = "windows laid back along an axis"
    shape: Shape
    axis: int
    dilation: int

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        pairs = enumerate(zip(x.shape, self.shape))
        matches = all(n == m for k, (n, m) in pairs if k != self.axis)
        if x.rank != len(self.shape) or not 0 <= self.axis < x.rank - 1 or not matches:
            raise ShapeError(f"shear: {x} does not fit [{shape_text(self.shape)}]")
        return TensorType(x.dtype, self.shape)

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        (x,) = inputs
        out = np.zeros(dims_at(self.shape, sizes), x.dtype)
        source, target = (np.moveaxis(y, self.axis, 0) for y in (x, out))
        for k in range(x.shape[-1]):
            shift = k * self.dilation
            low, high = max(shift, 0), min(len(target), len(source) + shift)
            if low < high:
                target[low:high, ..., k] = source[low - shift : high - shift, ..., k]
        return out

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        (x,) = inputs
        a = self.axis
        at = sub(i[a], mul(i[-1], self.dilation))
        other = d.constant(0, x.type.dtype)
        limits = ((at, x.type.shape[a]),)
        return d.inside(limits, lambda: x.at(*i[:a], at, *i[a + 1 :]), other)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        return (a.apply(Shear(a.type(inputs[0]).shape, self.axis, -self.dilation), g),)


@dataclass(frozen=True)
class Pad(View):
    """x with `low` and `high` elements of `value` added on the sides of each axis."""

    doc: ClassVar[str] = "a margin of one value"
    low: Shape
    high: Shape
    value: float | int | bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pad) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Shape, Shape, str]:
        """Distinguish -0.0, 0.0, 0 and False; NaN equals NaN of its sign."""
        return self.low, self.high, number_text(self.value)

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if not x.rank == len(self.low) == len(self.high):
            raise ShapeError(f"pad: {len(self.low)} margins for {x}")
        sides = zip(self.low, x.shape, self.high, strict=True)
        return TensorType(x.dtype, tuple(add(add(a, n), b) for a, n, b in sides))

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        (x,) = inputs
        low, high = dims_at(self.low, sizes), dims_at(self.high, sizes)
        shape = tuple(a + n + b for a, n, b in zip(low, x.shape, high, strict=True))
        out = np.full(shape, self.value, x.dtype)
        out[tuple(slice(a, a + n) for a, n in zip(low, x.shape, strict=True))] = x
        return out

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        (x,) = inputs
        at = tuple(sub(j, a) for j, a in zip(i, self.low, strict=True))
        paddings = zip(at, x.type.shape, self.low, self.high, strict=True)
        limits = tuple((j, n) for j, n, a, b in paddings if (a, b) != (0, 0))
        other = d.constant(self.value, x.type.dtype)
        return d.inside(limits, lambda: x.at(*at), other)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        shape = a.type(inputs[0]).shape
        return (a.apply(Slice(self.low, shape, (1,) * len(shape)), g),)


@dataclass(frozen=True)
class Concat(View):
    """Arrays one after another along an axis."""

    doc: ClassVar[str] = "join along an axis"
    axis: int

    def infer(self, *inputs: TensorType) -> TensorType:
        first, a = inputs[0], self.axis
        total: Index = 0
        for x in inputs:
            fits = x.rank == first.rank and x.dtype == first.dtype and 0 <= a < x.rank
            if not fits or any(x.shape[k] != first.shape[k] for k in range(x.rank) if k != a):
                raise ShapeError(f"concat along axis {a}: {first} and {x} do not fit together")
            total = add(total, x.shape[a])
        return TensorType(first.dtype, (*first.shape[:a], total, *first.shape[a + 1 :]))

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return np.concatenate(inputs, axis=self.axis)

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        a = self.axis
        out = d.constant(0, inputs[0].type.dtype)
        end: Index = 0
        for x in inputs:
            begin, end = end, add(end, x.type.shape[a])
            out = self._piece(d, i, x, sub(i[a], begin), out)
        return out

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        cotangents: list[V | None] = []
        end: Index = 0
        for x, is_needed in zip(inputs, needed, strict=True):
            shape = a.type(x).shape
            begin, end = end, add(end, shape[self.axis])
            starts = tuple(begin if k == self.axis else 0 for k in range(len(shape)))
            cotangents.append(
                a.apply(Slice(starts, shape, (1,) * len(shape)), g) if is_needed else None
            )
        return cotangents

    def _piece(self, d: Definer[V], i: tuple[Index, ...], x: Operand[V], at: Index, other: V) -> V:
        a = self.axis
        return d.inside(((at, x.type.shape[a]),), lambda: x.at(*i[:a], at, *i[a + 1 :]), other)


@dataclass(frozen=True)
class Stop(View):
    """x itself, treated as a constant in differentiation."""

    doc: ClassVar[str] = "a value that counts as constant when differentiated"

    def infer(self, *inputs: TensorType) -> TensorType:
        return inputs[0]

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return inputs[0]

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        return inputs[0].at(*i)

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        return (None,)
