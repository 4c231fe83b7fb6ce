"""Define contractions in index notation: matmuls, two-operand einsums and convolutions.

>>> Contract.parse("b,m,k; b,k,n -> b,m,n").infer(
...     TensorType(f32, (2, 3, 4)), TensorType(f32, (2, 4, 5))
... )
TensorType(dtype=f32, shape=(2, 3, 5))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product as positions
from typing import Any, ClassVar

import numpy as np

from smelt.errors import DTypeError, GradientError, ShapeError
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import Adjoint, Array, Cotangents, Definer, Operand, Sizes, TensorOp, V, dims_at
from smelt.ops.view import dilate
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f32, from_numpy
from smelt.types.expr import (
    Expr,
    Index,
    axes_of,
    axis,
    coefficient,
    evaluate,
    mul,
    product,
    sub,
    substitute,
    text,
)
from smelt.types.tensor import Shape, TensorType
from smelt.types.text import parse as parse_index

__all__ = ["Contract", "f32"]

Terms = tuple[Index, ...]

UNROLL_TERMS = 64
"""Maximum products of a sum that is written out as scalar operators.

Applies where each result has a factor of its own. The limits fix the order of summation, and with
it the result, for every machine alike.
"""
UNROLL_STRIDED_TERMS = 12
"""As `UNROLL_TERMS`, where an operand's rows end in the summed axis and are better read along it.
"""
UNROLL_TAPS = 9
"""As `UNROLL_TERMS`, for sums over several axes."""


@dataclass(frozen=True)
class Contract(TensorOp):
    """out[axes] = sum over the other axes of left[...] * right[...].

    Each operand dimension is indexed by an affine expression over named axes.  An axis that is a
    dimension by itself somewhere takes its extent from there; `extents` gives the others (a
    convolution's output positions and windows).  Half types accumulate in float32, small integers
    in int32 if `dtype` says so.

    Positions out of bounds read 0 if `padded`.  If a float32 sum may use products of a half type,
    `factors` is that type: dot-product instructions may round wider operands to it, and flush
    denormals.  A short sum of products is unrolled into scalar operators, unless it is `packed`:
    then its operand is packed once.
    """

    doc: ClassVar[str] = "sum of products over named axes"
    left: Terms
    right: Terms
    out: tuple[str, ...]
    extents: tuple[tuple[str, Index], ...] = ()
    dtype: DType | None = None
    padded: bool = False
    factors: DType | None = None
    packed: bool = False

    @property
    def plain_name(self) -> str:
        return "matmul"

    @staticmethod
    def parse(spec: str, **options: Any) -> Contract:
        """Parse a spec such as `m,k; k,n -> m,n`."""
        operands, _, out = spec.partition("->")
        sides = [
            tuple(parse_index(t, lambda name: axis(name, 0)) for t in side.split(",") if t.strip())
            for side in operands.split(";")
        ]
        names = tuple(t.strip() for t in out.split(",") if t.strip())
        return Contract(sides[0], sides[1], names, **options)

    def spec(self) -> str:
        """Return the text that `parse` reads."""
        left, right = (",".join(text(t) for t in side) for side in (self.left, self.right))
        return f"{left}; {right} -> {','.join(self.out)}"

    def attributes(self) -> dict[str, Any]:
        more: dict[str, Any] = {"spec": self.spec()}
        if self.extents:
            more["extents"] = self.extents
        if self.dtype is not None:
            more["dtype"] = self.dtype
        if self.padded:
            more["padded"] = True
        if self.factors is not None:
            more["factors"] = self.factors
        if self.packed:
            more["packed"] = True
        return more

    def axis_extents(self, *inputs: TensorType) -> dict[str, Index]:
        """Return the extent of each axis, in the operands' order.

        Raises ShapeError if two disagree.
        """
        extents: dict[str, Index] = dict(self.extents)
        for terms, x in zip((self.left, self.right), inputs, strict=True):
            if len(terms) != x.rank:
                raise ShapeError(f"contract {self.spec()}: {x} has {x.rank} dimensions")
            for term, dim in zip(terms, x.shape, strict=True):
                name = bare_axis(term)
                if name is None:
                    continue
                if extents.setdefault(name, dim) != dim and name not in dict(self.extents):
                    raise ShapeError(
                        f"contract {self.spec()}: axis {name} is {text(extents[name])} in one "
                        f"operand and {text(dim)} in the other ({inputs[0]}, {inputs[1]})"
                    )
        return extents

    def infer(self, *inputs: TensorType) -> TensorType:
        extents = self.axis_extents(*inputs)
        dtype = self.dtype or inputs[0].dtype
        if self.factors is not None and (self.factors.compute, dtype) != (f32, f32):
            raise DTypeError(
                f"contract {self.spec()}: factors of {self.factors} have float32 sums, not {dtype}"
            )
        unknown = [name for name in self.out if name not in extents]
        if unknown:
            raise ShapeError(
                f"contract {self.spec()}: {unknown[0]!r} is not an axis of the operands"
            )
        return TensorType(dtype, tuple(extents[name] for name in self.out))

    def reads(self, *inputs: TensorType) -> tuple[tuple[Index, Index], ...]:
        """Return all positions unless padded: `extents` may reach beyond a dimension."""
        if self.padded:
            return ()
        axes = {name: axis(name, n) for name, n in self.axis_extents(*inputs).items()}
        pairs = zip((self.left, self.right), inputs, strict=True)
        terms = [(t, n) for side, x in pairs for t, n in zip(side, x.shape, strict=True)]
        return tuple((substitute(t, axes), n) for t, n in terms)

    def reduction_axes(self) -> tuple[str, ...]:
        """Return the reduction axes, in order of appearance."""
        used = [a for term in (*self.left, *self.right) for a in axes_of(term)]
        return tuple(a for a in dict.fromkeys(used) if a not in self.out)

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        out = self.infer(*(TensorType(_dtype_of(x), x.shape) for x in inputs)).dtype
        wide = (out.compute if out.kind != "bool" else out).numpy
        if all(bare_axis(t) is not None for t in (*self.left, *self.right)):
            a, b = (x.astype(wide, copy=False) for x in inputs)
            return self._matmul(a, b).astype(out.numpy, copy=False)
        return self._direct_sum(sizes, wide, *inputs).astype(out.numpy)

    def _matmul(self, a: Array, b: Array) -> Array:
        """Compute a batched matmul, with axes sorted into batch, rows, columns and reduction."""
        left, right = ([bare_axis(t) or "" for t in side] for side in (self.left, self.right))
        if len(set(left)) < len(left) or len(set(right)) < len(right):
            names = {n: k for k, n in enumerate(dict.fromkeys((*left, *right)))}
            sides = [[names[n] for n in side] for side in (left, right)]
            return np.asarray(np.einsum(a, sides[0], b, sides[1], [names[n] for n in self.out]))
        batch = [n for n in self.out if n in left and n in right]
        rows = [n for n in self.out if n in left and n not in right]
        columns = [n for n in self.out if n in right and n not in left]
        reduced = [n for n in left if n in right and n not in self.out]
        a, left = _reduce_private_axes(a, left, {*batch, *rows, *reduced})
        b, right = _reduce_private_axes(b, right, {*batch, *columns, *reduced})
        extent = dict(zip(left, a.shape, strict=True)) | dict(zip(right, b.shape, strict=True))
        a = np.transpose(a, [left.index(n) for n in (*batch, *rows, *reduced)])
        b = np.transpose(b, [right.index(n) for n in (*batch, *reduced, *columns)])
        shape = [extent[n] for n in batch]
        m, n, k = (math.prod(extent[x] for x in part) for part in (rows, columns, reduced))
        result = np.matmul(a.reshape(*shape, m, k), b.reshape(*shape, k, n))
        order = (*batch, *rows, *columns)
        result = result.reshape([extent[x] for x in order])
        return np.transpose(result, [order.index(x) for x in self.out])

    def _direct_sum(self, sizes: Sizes, wide: Any, *inputs: Array) -> Array:
        """Compute every product of the iteration space, then one sum: the general case."""
        types = tuple(TensorType(_dtype_of(x), x.shape) for x in inputs)
        extents = self.axis_extents(*types)
        order = (*self.out, *self.reduction_axes())
        grid = np.ogrid[tuple(slice(n) for n in dims_at(tuple(extents[a] for a in order), sizes))]
        grid_positions = dict(zip(order, grid, strict=True))
        products: Any = 1
        for terms, x in zip((self.left, self.right), inputs, strict=True):
            at = [np.asarray(evaluate(t, sizes, grid_positions)) for t in terms]
            ok: Any = True
            for j, n in zip(at, x.shape, strict=True):
                ok = ok & (j >= 0) & (j < n)
            clipped = tuple(np.clip(j, 0, max(n - 1, 0)) for j, n in zip(at, x.shape, strict=True))
            products = products * np.where(ok, x[clipped].astype(wide), 0)
        return np.sum(products, axis=tuple(range(len(self.out), len(order))))

    def define(self, d: Definer[V], i: tuple[Index, ...], *inputs: Operand[V]) -> V:
        extents = self.axis_extents(*(x.type for x in inputs))
        summed = self.reduction_axes()
        out_positions = dict(zip(self.out, i, strict=True))
        out = self.infer(*(x.type for x in inputs)).dtype

        def factors(j: Shape) -> tuple[V, V]:
            axis_values = out_positions | dict(zip(summed, j, strict=True))
            left, right = (
                self._read(d, x, tuple(substitute(t, axis_values) for t in terms))
                for terms, x in zip((self.left, self.right), inputs, strict=True)
            )
            return left, right

        counts = tuple(extents[a] for a in summed)
        if self.is_short(counts) and not self.packed:
            return _unroll(d, out, counts, factors, inputs)
        return d.dot(self.factors or out, counts, factors)

    def is_short(self, counts: Shape) -> bool:
        """Whether the sum is unrolled, as in a depthwise convolution.

        It has few terms and nothing to block, since one factor differs for each result.  The limit
        is lower if rows of an operand end in a reduction axis, as those are better read as vectors
        along it.
        """
        left, right = (
            {a for t in side for a in axes_of(t)} & {*self.out} for side in (self.left, self.right)
        )
        count = product(counts)
        if not (isinstance(count, int) and count > 0 and (left <= right or right <= left)):
            return False
        rows = any(
            axes >= left | right and bare_axis(side[-1]) in self.reduction_axes()
            for side, axes in ((self.left, left), (self.right, right))
        )
        limit = UNROLL_TAPS if len(counts) > 1 else UNROLL_STRIDED_TERMS if rows else UNROLL_TERMS
        return count <= limit

    def _read(self, d: Definer[V], x: Operand[V], at: Shape) -> V:
        if not self.padded:
            return x.at(*at)
        limits = tuple(zip(at, x.type.shape, strict=True))
        return d.inside(limits, lambda: x.at(*at), d.constant(0, x.type.dtype))

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        """Contract g with the other operand, over the axes that this operand lacks."""
        sides = (self.left, self.right)
        extents = self.axis_extents(*(a.type(x) for x in inputs))
        return [
            self._transposed(a, g, extents, (sides[k], inputs[k]), (sides[1 - k], inputs[1 - k]))
            if is_needed
            else None
            for k, is_needed in enumerate(needed)
        ]

    def _transposed(
        self,
        a: Adjoint[V],
        g: V,
        known_extents: dict[str, Index],
        operand: tuple[Terms, V],
        partner: tuple[Terms, V],
    ) -> V:
        (terms, x), (factor, y) = operand, partner
        x_type = a.type(x)
        if a.type(y).dtype != a.type(g).dtype:
            y = a.cast(y, a.type(g).dtype)
        read = tuple(axis(name, 0) for name in self.out)
        extents, names, padded = dict(known_extents), list[str](), self.padded
        for dim, (term, extent) in enumerate(zip(terms, x_type.shape, strict=True)):
            name = bare_axis(term)
            if name is None:
                name, old = f"_{dim}", self._axis_to_solve(term, factor)
                g, read, factor = self._substitute_axis(a, g, read, factor, (term, old, name))
                padded = True
            if name in names:
                raise GradientError(op=self.name, reason=f"axis {name} twice in one operand")
            names.append(name)
            extents[name] = extent
        used = {n for t in (*read, *factor) for n in axes_of(t)}
        out_names = tuple(n for n in names if n in used)
        free_extents = tuple(
            (n, extents[n]) for n in sorted(used) if not _is_bare_dim(n, read, factor)
        )
        gradient = a.apply(Contract(read, factor, out_names, free_extents, None, padded), g, y)
        shape = tuple(d if n in used else 1 for n, d in zip(names, x_type.shape, strict=True))
        gradient = a.expand(a.reshape(gradient, shape), x_type.shape)
        return a.cast(gradient, x_type.dtype)

    def _axis_to_solve(self, term: Index, factor: Terms) -> str:
        """Return the axis of the result for which an operand's index expression is solved."""
        for name in axes_of(term):
            step = coefficient(term, name)
            others = {n for t in factor for n in axes_of(t)}
            if name in self.out and isinstance(step, int) and step >= 1:
                if step == 1 or name not in others:
                    return name
        raise GradientError(op=self.name, reason=f"no axis of the result steps along {text(term)}")

    def _substitute_axis(
        self, a: Adjoint[V], g: V, read: Terms, factor: Terms, index: tuple[Index, str, str]
    ) -> tuple[V, Terms, Terms]:
        """Solve position = step·old + rest for `old`, and substitute it.

        old = (position - rest) / step, so g is dilated by `step` with zeros.
        """
        term, old, name = index
        step = coefficient(term, old)
        assert isinstance(step, int)
        if step > 1:
            g = dilate(a, g, self.out.index(old), step)
        at = sub(axis(name, 0), sub(term, mul(axis(old, 0), step)))
        reads = tuple(substitute(t, {old: at}) for t in read)
        return g, reads, tuple(substitute(t, {old: at}) for t in factor)


def _unroll(
    d: Definer[V],
    out: DType,
    counts: Shape,
    factors: Callable[[Shape], tuple[V, V]],
    inputs: tuple[Operand[V], ...],
) -> V:
    """Unroll a short sum of products into scalar operators, added in pairs."""
    times, plus = (SCALARS[name] for name in (SUM_OF_PRODUCTS[1], COMBINES["sum"].scalar))
    accumulator_type = out.compute
    terms: list[V] = []
    for at in positions(*(range(n) for n in counts if isinstance(n, int))):
        pair = (
            v if x.type.dtype.compute == accumulator_type else d.cast(v, accumulator_type)
            for v, x in zip(factors(at), inputs, strict=True)
        )
        terms.append(d.apply(times, *pair))
    while len(terms) > 1:
        pairs = [d.apply(plus, a, b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[2 * len(pairs) :]]
    return terms[0]


def _reduce_private_axes(
    x: Array, names: list[str], remaining: set[str]
) -> tuple[Array, list[str]]:
    """Sum over axes that only this operand has and that are not in the result."""
    private_axes = tuple(k for k, n in enumerate(names) if n not in remaining)
    return (np.sum(x, axis=private_axes) if private_axes else x), [
        n for n in names if n in remaining
    ]


def _is_bare_dim(name: str, left: Terms, right: Terms) -> bool:
    """Whether an axis is a dimension by itself in either operand."""
    return any(bare_axis(t) == name for t in (*left, *right))


def bare_axis(term: Index) -> str | None:
    """Return the name of a term that is a single axis, else None."""
    if isinstance(term, Expr) and len(term.terms) == 1:
        atoms, c = term.terms[0]
        if c == 1 and len(atoms) == 1 and atoms[0].kind == "axis":
            return atoms[0].name
    return None


def _dtype_of(x: Array) -> DType:
    return from_numpy(x.dtype)
