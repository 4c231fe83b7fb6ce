"""Build the graph nodes of derivatives, simplified as they are made.

The derivative columns (`pullback`, `derivative`) are written against `smelt.ops.spec.Adjoint` and
know no graph. Here a product with 1 is not an operator, a select between constants is moved out of
a product, and factors that are constant along a reduced axis are applied after the sum.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n]) {\\n v0 = exp(x)\\n return v0\\n}")
>>> b, (x,) = Builder(), graph.inputs
>>> b.scale(x, b.constant(1.0, x.type.dtype)) is x
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from smelt.autodiff.sums import Sums, same_value, scalar_operator
from smelt.autodiff.tape import Step
from smelt.errors import ShapeError
from smelt.graph import build
from smelt.graph.ir import Node
from smelt.graph.walk import map_indices
from smelt.ops.create import Constant, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import Partial, TensorOp
from smelt.ops.view import Expand, Permute, Reshape
from smelt.python.origin import Origin
from smelt.types.dtype import DType, bool_
from smelt.types.expr import Index, product
from smelt.types.tensor import Shape, TensorType, broadcast_shapes

Emit = Callable[[TensorOp, tuple[Node, ...], Origin | None], Node]


def apply_operator(op: TensorOp, inputs: tuple[Node, ...], origin: Origin | None) -> Node:
    """Return a node of a finished graph."""
    return build.apply(op, *inputs, origin=origin)


def same_type(kind: TensorType) -> TensorType:
    """Return the type unchanged: types of a finished graph are final."""
    return kind


class Builder:
    """An `Adjoint` over graph nodes; `origin` is the line that new nodes belong to.

    A front end passes its own way to make a node, and to look up a type: sizes may prove to be
    equal after a node was made.
    """

    def __init__(
        self, emit: Emit = apply_operator, seen: Callable[[TensorType], TensorType] = same_type
    ) -> None:
        self._emit = emit
        self._type_of = seen
        self.origin: Origin | None = None
        self._sums = Sums(self.type, self.size)

    def record_steps(self, steps: Iterable[Step]) -> None:
        """Record operators whose results exist and may be used again."""
        self._sums.record_contractions(steps)

    # Inspection

    def type(self, x: Node, /) -> TensorType:
        return self._type_of(x.type)

    def op(self, x: Node, /) -> TensorOp:
        return self.resolve_sizes(x.op)

    def size(self, n: Index) -> Index:
        """Return a size in terms of the sizes that remain after unification."""
        return self._type_of(TensorType(bool_, (n,))).shape[0]

    def resolve_sizes(self, op: TensorOp) -> TensorOp:
        """Return an operator with its sizes resolved."""
        return op if self._type_of is same_type else map_indices(op, self.size)

    def operands(self, x: Node, /) -> tuple[Node, ...]:
        return x.inputs

    def number(self, x: Node) -> float | None:
        """Return the number that every element is, if that is visible.

        A reshape to the same shape hides it: with one, front ends mark the values that are
        differentiated by.
        """
        while type(x.op) in (Expand, Reshape) and x.inputs and x.type != x.inputs[0].type:
            (x,) = x.inputs
        return x.op.value if isinstance(x.op, Constant) else None

    # Construction

    def apply(self, op: TensorOp, /, *inputs: Node) -> Node:
        return self._emit(op, inputs, self.origin)

    def map(self, scalar: str, /, *inputs: Node) -> Node:
        return self.apply(Map(scalar), *inputs)

    def constant(self, value: float | int | bool, dtype: DType) -> Node:
        return build.constant(value, dtype, self.origin)

    def cast(self, x: Node, dtype: DType) -> Node:
        return x if x.type.dtype == dtype else self.apply(Cast(dtype), x)

    def reduce(self, combine: str, x: Node, axes: tuple[int, ...]) -> Node:
        return self.apply(Reduce(combine, axes), x)

    def scan(self, combine: str, x: Node, axis: int) -> Node:
        return self.apply(Scan(combine, axis), x)

    def reshape(self, x: Node, shape: Shape) -> Node:
        if self.type(x).shape == shape:
            return x
        masked = self._masked_value(x)
        if masked is None:
            return self.apply(Reshape(shape), x)
        current = self.type(x).shape
        mask, value = (self.reshape(self.expand(part, current), shape) for part in masked)
        return self._apply_mask(mask, value)

    def expand(self, x: Node, shape: Shape) -> Node:
        if self.type(x).shape == shape:
            return x
        masked = self._masked_value(x)
        if masked is None:
            return self.apply(Expand(shape), x)
        mask, value = masked
        return self._apply_mask(self.expand(mask, shape), self.expand(value, shape))

    def sum_to(self, x: Node, shape: Shape) -> Node:
        """Sum x over the axes along which `shape` broadcasts to its shape."""
        current = self.type(x).shape
        if current == shape:
            return x
        new = len(current) - len(shape)
        axes = tuple(
            k for k, n in enumerate(current) if k < new or (shape[k - new] == 1 and n != 1)
        )
        return self.reshape(self._sum_over(x, axes) if axes else x, shape)

    def _sum_over(self, x: Node, axes: tuple[int, ...]) -> Node:
        """Sum over axes, by a cheaper identity if there is one (`smelt.autodiff.sums`)."""
        repeated = self._repeat_count(x, axes)
        if repeated is not None:
            inner, times = repeated
            return self.map("mul", inner, self._size(times, x.type.dtype))
        part, positive = self._sums.nonzero_part(x, axes)
        remaining = tuple(n for k, n in enumerate(self.type(x).shape) if k not in axes)
        if part is None:
            return self.expand(self.constant(0.0, x.type.dtype), remaining)
        swap = self._sums.swap(part, axes)
        if swap is None:
            total = self.reduce("sum", part, axes)
        else:
            result = swap.known
            if swap.perm != tuple(range(len(swap.perm))):
                result = self.apply(Permute(swap.perm), result)
            total = self.reduce("sum", self.map("mul", swap.other, result), swap.axes)
        return total if positive else self.map("neg", total)

    def _repeat_count(self, x: Node, axes: tuple[int, ...]) -> tuple[Node, Index] | None:
        """Return the operand of a broadcast and its repetitions, if `axes` are exactly those."""
        if not isinstance(x.op, Expand) or not x.inputs:
            return None
        (y,) = x.inputs
        outer, inner = self.type(x).shape, self.type(y).shape
        new = len(outer) - len(inner)
        broadcast_axes = tuple(
            k for k, n in enumerate(outer) if k < new or (inner[k - new] == 1 and n != 1)
        )
        return (y, product(outer[k] for k in axes)) if broadcast_axes == axes else None

    def _size(self, size: Index, dtype: DType) -> Node:
        if isinstance(size, int):
            return self.constant(float(size), dtype)
        return self.apply(SizeOf(size, dtype))

    def add(self, x: Node, y: Node) -> Node:
        """Add two cotangents of one value; values under the same mask stay under it."""
        x_masked, y_masked = self._masked_value(x), self._masked_value(y)
        if x_masked is not None and y_masked is not None and same_value(x_masked[0], y_masked[0]):
            return self._apply_mask(x_masked[0], self.map("add", x_masked[1], y_masked[1]))
        return self.map("add", x, y)

    # The chain rule

    def chain(
        self, g: Node, partial: Partial, inputs: tuple[Node, ...], out: Node, x: Node
    ) -> Node | None:
        """Return g times a partial derivative, summed to the shape of operand x.

        None if it is 0. If g is a value under a mask, so is the product: an infinite derivative
        cannot spoil masked-out elements.
        """
        shape, out_shape = self.type(x).shape, self.type(out).shape
        slope = partial(_Formulas(self, x.type.dtype), *inputs, out)
        masked = self._masked_value(g)
        mask, g = (None, g) if masked is None else masked
        deferred: list[tuple[str, Node]] = []
        if shape != out_shape:
            slope, deferred = self._split_factors(slope, shape, out)
        product = self.scale(g, slope)
        if product is None:
            return None
        if mask is not None:
            product = self._apply_mask(mask, product)
        product = self.sum_to(self.expand(product, out_shape), shape)
        for name, factor in deferred:
            product = self.map(name, product, factor)
        return product

    def _masked_value(self, g: Node) -> tuple[Node, Node] | None:
        """Return mask and value, if g selects between a value and 0."""
        if scalar_operator(g) == "select":
            mask, value, other = g.inputs
            if self.number(other) == 0:
                return mask, value
        return None

    def _apply_mask(self, mask: Node, value: Node) -> Node:
        return self.map("select", mask, value, self.constant(0.0, value.type.dtype))

    def _split_factors(
        self, slope: Node, shape: Shape, out: Node
    ) -> tuple[Node, list[tuple[str, Node]]]:
        """Split a derivative into factors that vary along reduced axes, and later ones."""
        deferred: list[tuple[str, Node]] = []
        rest = slope
        while rest is not out and (form := scalar_operator(rest)) in ("mul", "div", "neg"):
            if form == "neg":
                deferred.append(("mul", self.constant(-1.0, rest.type.dtype)))
                (rest,) = rest.inputs
                continue
            a, b = rest.inputs
            if self._is_constant_along(b, shape):
                deferred.append((form, b))
                rest = a
            elif form == "mul" and self._is_constant_along(a, shape):
                deferred.append(("mul", a))
                rest = b
            else:
                break
        return rest, [(name, f) for name, f in reversed(deferred) if self.number(f) != 1]

    def _is_constant_along(self, factor: Node, shape: Shape) -> bool:
        """Whether a factor is constant along everything that is summed to get `shape`."""
        factor_shape = self.type(factor).shape
        try:
            return broadcast_shapes(factor_shape, shape) == shape
        except ShapeError:
            return False

    def scale(self, g: Node, slope: Node) -> Node | None:
        """Return g times a derivative in as few operators as possible.

        None if it is 0.
        """
        number = self.number(slope)
        if number is not None:
            return self._scale_by_number(g, number)
        if self.number(g) == 1 and self.type(slope).dtype == g.type.dtype:
            return slope
        rule = _SCALE_RULES.get(scalar_operator(slope))
        scaled = None if rule is None else rule(self, g, slope.inputs)
        return self.map("mul", g, slope) if scaled is None else scaled

    def _scale_by_number(self, g: Node, number: float) -> Node | None:
        if number == 0:
            return None
        if abs(number) == 1:
            return g if number == 1 else self.map("neg", g)
        return self.map("mul", g, self.constant(number, g.type.dtype))

    def is_choice(self, slope: Node) -> bool:
        """Whether a derivative only selects between numbers."""
        if self.number(slope) is not None:
            return True
        return scalar_operator(slope) == "select" and all(
            self.is_choice(x) for x in slope.inputs[1:]
        )


def _scale_by_select(b: Builder, g: Node, parts: tuple[Node, ...]) -> Node | None:
    mask, *options = parts
    if not all(b.is_choice(x) for x in options):
        return None
    if b.number(options[0]) == 0:  # keep zero last, where `_masked_value` looks for it
        mask, options = b.map("not", mask), options[::-1]
    one, other = (b.scale(g, x) or b.constant(0.0, g.type.dtype) for x in options)
    return b.map("select", mask, one, other)


def _scale_by_negative(b: Builder, g: Node, parts: tuple[Node, ...]) -> Node | None:
    scaled = b.scale(g, parts[0])
    return None if scaled is None else b.map("neg", scaled)


def _scale_by_reciprocal(b: Builder, g: Node, parts: tuple[Node, ...]) -> Node | None:
    return b.map("div", g, parts[0])


def _scale_by_product(b: Builder, g: Node, parts: tuple[Node, ...]) -> Node | None:
    x, y = parts
    if b.number(x) is None:
        x, y = y, x
    number = b.number(x)
    if number is None:
        return None
    scaled = b.scale(g, y)
    return None if scaled is None else b.scale(scaled, x)


_SCALE_RULES: dict[str, Callable[[Builder, Node, tuple[Node, ...]], Node | None]] = {
    "select": _scale_by_select,
    "neg": _scale_by_negative,
    "reciprocal": _scale_by_reciprocal,
    "mul": _scale_by_product,
}


class _Formulas:
    """The `Algebra` of derivative columns: one method for each scalar row; folds constants."""

    def __init__(self, builder: Builder, dtype: DType) -> None:
        self._builder = builder
        self._dtype = dtype

    def const(self, value: float) -> Node:
        return self._builder.constant(value, self._dtype)

    def __getattr__(self, name: str) -> Callable[..., Node]:
        row, b = SCALARS[name], self._builder

        def apply(*args: Node) -> Node:
            numbers = [b.number(x) for x in args]
            if name == "select" and numbers[0] is not None:
                return args[1] if numbers[0] else args[2]
            if all(n is not None for n in numbers):
                arrays = [np.asarray(n, x.type.dtype.numpy) for n, x in zip(numbers, args)]
                dtype = row.result(*(x.type.dtype for x in args))
                return b.constant(_item(row.numpy(*arrays)), dtype)
            return b.map(name, *args)

        return apply


def _item(x: Any) -> float | int | bool:
    exact = x.astype(np.float64) if x.dtype.kind not in "biu" else x
    number: float | int | bool = exact.item()
    return number
