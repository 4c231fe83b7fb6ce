"""What the derivative columns of the rows build with: graph nodes, kept small as they are made.

The columns (`pullback`, `derivative`) are written against `smelt.ops.spec.Adjoint` and know no
graph.  Here a product with 1 is no operator, a choice between numbers moves the choice outside of
the product, and factors that are constant along a summed axis wait until the sum is taken.

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

from smelt.autodiff.sums import Sums, alike, form_of
from smelt.autodiff.tape import Step
from smelt.errors import ShapeError
from smelt.graph import build
from smelt.graph.ir import Node
from smelt.graph.walk import map_indices
from smelt.ops.create import Constant, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import TensorOp
from smelt.ops.spec_scalar import Partial
from smelt.ops.view import Expand, Permute, Reshape
from smelt.origin import Origin
from smelt.types.dtype import DType, bool_
from smelt.types.expr import Index, product
from smelt.types.tensor import Shape, TensorType, broadcast_shapes

Emit = Callable[[TensorOp, tuple[Node, ...], Origin | None], Node]


def plainly(op: TensorOp, inputs: tuple[Node, ...], origin: Origin | None) -> Node:
    """A node of a finished graph."""
    return build.apply(op, *inputs, origin=origin)


def as_it_is(known: TensorType) -> TensorType:
    """Types of a finished graph are final."""
    return known


class Builder:
    """An `Adjoint` over graph nodes; `origin` is the line that new nodes belong to.

    A front end passes its own way to make a node, and to see a type (sizes may have been found to
    be equal after a node was made).
    """

    def __init__(
        self, emit: Emit = plainly, seen: Callable[[TensorType], TensorType] = as_it_is
    ) -> None:
        self._emit = emit
        self._seen = seen
        self.origin: Origin | None = None
        self._sums = Sums(self.type, self.size)

    def learn(self, steps: Iterable[Step]) -> None:
        """Operators whose results are there to be used again."""
        self._sums.learn(steps)

    # Looking

    def type(self, x: Node, /) -> TensorType:
        return self._seen(x.type)

    def op(self, x: Node, /) -> TensorOp:
        return self.settled(x.op)

    def size(self, n: Index) -> Index:
        """A size in terms of those that are left."""
        return self._seen(TensorType(bool_, (n,))).shape[0]

    def settled(self, op: TensorOp) -> TensorOp:
        """An operator with such sizes."""
        return op if self._seen is as_it_is else map_indices(op, self.size)

    def operands(self, x: Node, /) -> tuple[Node, ...]:
        return x.inputs

    def number(self, x: Node) -> float | None:
        """The number that every element is, if that can be seen.

        A reshape that changes nothing hides it: so front ends mark what is differentiated by.
        """
        while type(x.op) in (Expand, Reshape) and x.inputs and x.type != x.inputs[0].type:
            (x,) = x.inputs
        return x.op.value if isinstance(x.op, Constant) else None

    # Making

    def apply(self, op: TensorOp, /, *inputs: Node) -> Node:
        return self._emit(op, inputs, self.origin)

    def map(self, scalar: str, /, *inputs: Node) -> Node:
        return self.apply(Map(scalar), *inputs)

    def constant(self, value: float | int | bool, dtype: DType) -> Node:
        return build.constant(value, dtype, self.origin)

    def cast(self, x: Node, dtype: DType) -> Node:
        return x if x.type.dtype == dtype else self.apply(Cast(dtype), x)

    def fold(self, combine: str, x: Node, axes: tuple[int, ...]) -> Node:
        return self.apply(Reduce(combine, axes), x)

    def scan(self, combine: str, x: Node, axis: int) -> Node:
        return self.apply(Scan(combine, axis), x)

    def reshape(self, x: Node, shape: Shape) -> Node:
        if self.type(x).shape == shape:
            return x
        inside = self._masked(x)
        if inside is None:
            return self.apply(Reshape(shape), x)
        own = self.type(x).shape
        mask, value = (self.reshape(self.expand(part, own), shape) for part in inside)
        return self._mask(mask, value)

    def expand(self, x: Node, shape: Shape) -> Node:
        if self.type(x).shape == shape:
            return x
        inside = self._masked(x)
        if inside is None:
            return self.apply(Expand(shape), x)
        mask, value = inside
        return self._mask(self.expand(mask, shape), self.expand(value, shape))

    def sum_to(self, x: Node, shape: Shape) -> Node:
        """x summed over the axes along which `shape` broadcasts to its own."""
        own = self.type(x).shape
        if own == shape:
            return x
        new = len(own) - len(shape)
        axes = tuple(k for k, n in enumerate(own) if k < new or (shape[k - new] == 1 and n != 1))
        return self.reshape(self._summed(x, axes) if axes else x, shape)

    def _summed(self, x: Node, axes: tuple[int, ...]) -> Node:
        """The sum over axes, by a cheaper way where there is one."""
        repeated = self._repeated(x, axes)
        if repeated is not None:
            inner, times = repeated
            return self.map("mul", inner, self._size(times, x.type.dtype))
        part, positive = self._sums.needed(x, axes)
        kept = tuple(n for k, n in enumerate(self.type(x).shape) if k not in axes)
        if part is None:
            return self.expand(self.constant(0.0, x.type.dtype), kept)
        swap = self._sums.swap(part, axes)
        if swap is None:
            found = self.fold("sum", part, axes)
        else:
            known = swap.known
            if swap.perm != tuple(range(len(swap.perm))):
                known = self.apply(Permute(swap.perm), known)
            found = self.fold("sum", self.map("mul", swap.other, known), swap.axes)
        return found if positive else self.map("neg", found)

    def _repeated(self, x: Node, axes: tuple[int, ...]) -> tuple[Node, Index] | None:
        """The operand of a broadcast and how often it is repeated, if `axes` are just that."""
        if not isinstance(x.op, Expand) or not x.inputs:
            return None
        (y,) = x.inputs
        own, inner = self.type(x).shape, self.type(y).shape
        new = len(own) - len(inner)
        grown = tuple(k for k, n in enumerate(own) if k < new or (inner[k - new] == 1 and n != 1))
        return (y, product(own[k] for k in axes)) if grown == axes else None

    def _size(self, size: Index, dtype: DType) -> Node:
        if isinstance(size, int):
            return self.constant(float(size), dtype)
        return self.apply(SizeOf(size, dtype))

    def add(self, x: Node, y: Node) -> Node:
        """Two cotangents of one value; choices by one mask stay a choice."""
        one, other = self._masked(x), self._masked(y)
        if one is not None and other is not None and alike(one[0], other[0]):
            return self._mask(one[0], self.map("add", one[1], other[1]))
        return self.map("add", x, y)

    # The chain rule

    def chain(
        self, g: Node, partial: Partial, inputs: tuple[Node, ...], out: Node, x: Node
    ) -> Node | None:
        """g times a partial derivative, summed to the shape of the operand x; None if it is 0.

        Where g is a choice between something and 0, so is the product: what was not chosen cannot
        spoil it by an infinite derivative.
        """
        shape, whole = self.type(x).shape, self.type(out).shape
        slope = partial(_Formulas(self, x.type.dtype), *inputs, out)
        inside = self._masked(g)
        mask, g = (None, g) if inside is None else inside
        late: list[tuple[str, Node]] = []
        if shape != whole:
            slope, late = self._split(slope, shape, out)
        found = self.scale(g, slope)
        if found is None:
            return None
        if mask is not None:
            found = self._mask(mask, found)
        found = self.sum_to(self.expand(found, whole), shape)
        for name, factor in late:
            found = self.map(name, found, factor)
        return found

    def _masked(self, g: Node) -> tuple[Node, Node] | None:
        """Mask and value, if g is a choice between a value and 0."""
        if form_of(g) == "select":
            mask, value, other = g.inputs
            if self.number(other) == 0:
                return mask, value
        return None

    def _mask(self, mask: Node, value: Node) -> Node:
        return self.map("select", mask, value, self.constant(0.0, value.type.dtype))

    def _split(self, slope: Node, shape: Shape, out: Node) -> tuple[Node, list[tuple[str, Node]]]:
        """A derivative's factors that vary along summed axes, and those to apply after the sum."""
        late: list[tuple[str, Node]] = []
        rest = slope
        while rest is not out and (form := form_of(rest)) in ("mul", "div", "neg"):
            if form == "neg":
                late.append(("mul", self.constant(-1.0, rest.type.dtype)))
                (rest,) = rest.inputs
                continue
            a, b = rest.inputs
            if self._fits(b, shape):
                late.append((form, b))
                rest = a
            elif form == "mul" and self._fits(a, shape):
                late.append(("mul", a))
                rest = b
            else:
                break
        return rest, [(name, f) for name, f in reversed(late) if self.number(f) != 1]

    def _fits(self, factor: Node, shape: Shape) -> bool:
        """Whether a factor is constant along everything that is summed to get `shape`."""
        own = self.type(factor).shape
        try:
            return broadcast_shapes(own, shape) == shape
        except ShapeError:
            return False

    def scale(self, g: Node, slope: Node) -> Node | None:
        """g times a derivative, in as few operators as its form allows; None if it is 0."""
        number = self.number(slope)
        if number is not None:
            return self._scaled(g, number)
        if self.number(g) == 1 and self.type(slope).dtype == g.type.dtype:
            return slope
        rule = _FORMS.get(form_of(slope))
        found = None if rule is None else rule(self, g, slope.inputs)
        return self.map("mul", g, slope) if found is None else found

    def _scaled(self, g: Node, number: float) -> Node | None:
        if number == 0:
            return None
        if abs(number) == 1:
            return g if number == 1 else self.map("neg", g)
        return self.map("mul", g, self.constant(number, g.type.dtype))

    def is_choice(self, slope: Node) -> bool:
        """Whether a derivative only chooses between numbers."""
        if self.number(slope) is not None:
            return True
        return form_of(slope) == "select" and all(self.is_choice(x) for x in slope.inputs[1:])


def _by_choice(b: Builder, g: Node, parts: tuple[Node, ...]) -> Node | None:
    mask, *options = parts
    if not all(b.is_choice(x) for x in options):
        return None
    if b.number(options[0]) == 0:  # zero stands last, where it is looked for
        mask, options = b.map("not", mask), options[::-1]
    one, other = (b.scale(g, x) or b.constant(0.0, g.type.dtype) for x in options)
    return b.map("select", mask, one, other)


def _by_opposite(b: Builder, g: Node, parts: tuple[Node, ...]) -> Node | None:
    found = b.scale(g, parts[0])
    return None if found is None else b.map("neg", found)


def _by_quotient(b: Builder, g: Node, parts: tuple[Node, ...]) -> Node | None:
    return b.map("div", g, parts[0])


def _by_product(b: Builder, g: Node, parts: tuple[Node, ...]) -> Node | None:
    x, y = parts
    if b.number(x) is None:
        x, y = y, x
    number = b.number(x)
    if number is None:
        return None
    found = b.scale(g, y)
    return None if found is None else b.scale(found, x)


_FORMS: dict[str, Callable[[Builder, Node, tuple[Node, ...]], Node | None]] = {
    "select": _by_choice,
    "neg": _by_opposite,
    "reciprocal": _by_quotient,
    "mul": _by_product,
}


class _Formulas:
    """The `Algebra` of derivative columns: a method for each scalar row, numbers calculated."""

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
                given = [np.asarray(n, x.type.dtype.numpy) for n, x in zip(numbers, args)]
                dtype = row.result(*(x.type.dtype for x in args))
                return b.constant(_item(row.numpy(*given)), dtype)
            return b.map(name, *args)

        return apply


def _item(x: Any) -> float | int | bool:
    wide = x.astype(np.float64) if x.dtype.kind not in "biu" else x
    found: float | int | bool = wide.item()
    return found
