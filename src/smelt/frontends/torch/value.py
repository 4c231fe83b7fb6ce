"""Define the values of lowering rules: graph nodes with Python arithmetic.

A composite operator (softmax, a norm, a loss) is written with them as in eager code, and becomes
primitives.

>>> from smelt.types.dtype import f32
>>> x = V(build.input("x", TensorType(f32, (4,))))
>>> (1 - x * x).node.type
TensorType(dtype=f32, shape=(4,))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from smelt.errors import UnsupportedError
from smelt.graph import build
from smelt.graph.ir import Node
from smelt.ops.contract import Contract
from smelt.ops.create import Constant, Iota, SizeOf
from smelt.ops.index import Gather
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Expand, Flip, Pad, Permute, Reshape, Slice
from smelt.python.origin import Origin
from smelt.types.dtype import DType, i64
from smelt.types.expr import Expr, Index, axis, mul
from smelt.types.tensor import Shape, TensorType

Number = bool | int | float


def _forward(name: str) -> Callable[[V, Any], V]:
    return lambda x, y: x.map(name, y)


def _reflected(name: str) -> Callable[[V, Any], V]:
    return lambda x, y: number(y, x.dtype, x.origin).map(name, x)


class V:
    """A graph node and the user's line that it comes from."""

    __slots__ = ("node", "origin")

    def __init__(self, node: Node, origin: Origin | None = None) -> None:
        self.node = node
        self.origin = origin

    @property
    def type(self) -> TensorType:
        return self.node.type

    @property
    def dtype(self) -> DType:
        return self.node.type.dtype

    @property
    def shape(self) -> Shape:
        return self.node.type.shape

    @property
    def rank(self) -> int:
        return len(self.node.type.shape)

    # Building

    def op(self, op: TensorOp, *others: V) -> V:
        """Apply `op` to this value and others."""
        node = build.apply(op, self.node, *(x.node for x in others), origin=self.origin)
        return V(node, self.origin)

    def map(self, name: str, *others: Any) -> V:
        """Apply a scalar operator; numbers and sizes become constants of this value's type."""
        nodes = [self.node, *(self._operand(x) for x in others)]
        return V(build.map(name, *nodes, origin=self.origin), self.origin)

    def _operand(self, x: Any) -> Node:
        return x.node if isinstance(x, V) else number(x, self.dtype, self.origin).node

    def cast(self, dtype: DType) -> V:
        return V(build.cast(self.node, dtype, self.origin), self.origin)

    def to_compute_type(self) -> V:
        """Cast to the type of arithmetic: float32 for half types."""
        return self.cast(self.dtype.compute)

    __add__, __radd__ = _forward("add"), _reflected("add")
    __sub__, __rsub__ = _forward("sub"), _reflected("sub")
    __mul__, __rmul__ = _forward("mul"), _forward("mul")
    __truediv__, __rtruediv__ = _forward("div"), _reflected("div")

    def __neg__(self) -> V:
        return self.map("neg")

    # Views

    def reshape(self, *shape: Index) -> V:
        return self if shape == self.shape else self.op(Reshape(shape))

    def permute(self, *perm: int) -> V:
        return self if perm == tuple(range(self.rank)) else self.op(Permute(perm))

    def transpose(self, a: int, b: int) -> V:
        perm = list(range(self.rank))
        perm[a], perm[b] = perm[b], perm[a]
        return self.permute(*perm)

    def expand(self, shape: Shape) -> V:
        return self if shape == self.shape else self.op(Expand(shape))

    def unsqueeze(self, position: int) -> V:
        """Insert a dimension of size 1 at `position` of the result.

        It is first the last dimension and then moved, which distinguishes it from a size that is 1
        now and varies (`graph.generalize_shapes`).
        """
        last = self.rank
        position += last + 1 if position < 0 else 0
        return self.reshape(*self.shape, 1).permute(*range(position), last, *range(position, last))

    def narrow(self, a: int, start: Index, count: Index, step: int = 1) -> V:
        """Slice `count` elements along an axis, from `start`."""
        if start == 0 and count == self.shape[a] and step == 1:
            return self
        starts: list[Index] = [0] * self.rank
        sizes, steps = list(self.shape), [1] * self.rank
        starts[a], sizes[a], steps[a] = start, count, step
        return self.op(Slice(tuple(starts), tuple(sizes), tuple(steps)))

    def respell(self, shape: Shape) -> V:
        """Respell dimensions as in `shape`, counted from the end, unless they are 1.

        For sizes that guards make equal, and that we cannot prove to be.
        """
        value = self
        for k in range(1, min(self.rank, len(shape)) + 1):
            if value.shape[-k] not in (1, shape[-k]):
                value = value.narrow(self.rank - k, 0, shape[-k])
        return value

    def pick(self, a: int, position: Index) -> V:
        """Return the slice at one position of an axis, without that axis."""
        slice_ = self.narrow(a, position, 1)
        return slice_.reshape(*self.shape[:a], *self.shape[a + 1 :])

    def flip(self, *axes: int) -> V:
        return self.op(Flip(tuple(sorted(axes)))) if axes else self

    def pad(self, low: Shape, high: Shape, value: Number) -> V:
        return self.op(Pad(low, high, value))

    # Reductions

    def reduce(self, combine: str, axes: Sequence[int], keep: bool = False) -> V:
        """Reduce `axes`, which stay as 1 with `keep`."""
        positions = tuple(sorted(a % self.rank if self.rank else 0 for a in axes))
        if not self.rank:
            return self.reshape(1).reduce(combine, (0,))
        result = self.op(Reduce(combine, positions))
        if not keep:
            return result
        return result.reshape(*(1 if a in positions else n for a, n in enumerate(self.shape)))

    def sum(self, axes: Sequence[int], keep: bool = False) -> V:
        return self.reduce("sum", axes, keep)

    def mean(self, axes: Sequence[int], keep: bool = False) -> V:
        """Return the average in this type, which must be a float."""
        total = self.reduce("sum", axes, keep)
        return total / self.count(axes)

    def count(self, axes: Sequence[int]) -> Index:
        """Return how many elements a reduction over `axes` takes."""
        total: Index = 1
        for a in {a % self.rank for a in axes} if self.rank else ():
            total = mul(total, self.shape[a])
        return total

    def scan(self, combine: str, a: int) -> V:
        return self.op(Scan(combine, a))


class ComputedNumber:
    """A Python float computed from sizes.

    Like a Python number it takes no part in promotion.
    """

    __slots__ = ("value",)

    def __init__(self, value: V) -> None:
        self.value = value


def number(x: Any, dtype: DType, origin: Origin | None = None) -> V:
    """Return a Python number or a size as a value of rank 0.

    Also a number computed from sizes. Raises UnsupportedError for others.
    """
    if isinstance(x, ComputedNumber):
        return x.value.cast(dtype)
    if isinstance(x, Expr):
        return V(build.apply(SizeOf(x, dtype), origin=origin), origin)
    if not isinstance(x, (bool, int, float)):
        raise UnsupportedError(f"a number known only at the call ({type(x).__name__})")
    value: Number = x
    if dtype.kind == "bool":
        value = bool(x)
    elif dtype.is_integer:
        value = int(x)
    elif dtype.is_float:
        value = float(x)
    return V(build.constant(value, dtype, origin), origin)


def iota(shape: Shape, a: int, dtype: DType, origin: Origin | None = None) -> V:
    """Return the positions along an axis of a shape."""
    return V(build.apply(Iota(shape, a, dtype), origin=origin), origin)


def is_zeros(x: V) -> bool:
    """Whether all elements are known to be 0, none of them -0."""
    node = x.node
    while isinstance(node.op, (Expand, Reshape)):
        (node,) = node.inputs
    return isinstance(node.op, Constant) and repr(node.op.value) in ("0", "0.0", "False")


def select(mask: V, a: V, b: V) -> V:
    """Return a where the mask is true, else b."""
    return mask.map("select", a, b)


def concat(parts: Sequence[V], a: int) -> V:
    """Concatenate values along an axis."""
    return parts[0] if len(parts) == 1 else parts[0].op(Concat(a), *parts[1:])


def wrap_negative(index: V, extent: Any) -> V:
    """Return positions counted from the front, where negative ones counted from the end."""
    position = index.cast(i64)
    return select(position.map("lt", 0), position + number(extent, i64, position.origin), position)


def gather(x: V, first: int, *index: V) -> V:
    """Gather elements; see `smelt.ops.index.Gather`."""
    return x.op(Gather(first), *index)


@lru_cache(maxsize=256)
def _contract(
    left: str, right: str, out: str, dtype: DType | None, factors: DType | None
) -> Contract:
    first, second = (tuple(axis(name, 0) for name in side) for side in (left, right))
    return Contract(first, second, tuple(out), dtype=dtype, factors=factors)


def contract(a: V, b: V, spec: str, dtype: DType | None = None) -> V:
    """Contract two operands: `contract(a, b, "mk,kn->mn")`, one letter for each dimension.

    If an operand has a half type, factors are rounded to that type, whatever the type of the sum
    is, as in PyTorch.
    """
    dtype = None if dtype == a.dtype == b.dtype else dtype
    halves = {x.dtype for x in (a, b) if x.dtype.compute != x.dtype and x.dtype.is_float}
    (factors,) = halves if len(halves) == 1 and {h.compute for h in halves} == {dtype} else (None,)
    sides, _, out = spec.partition("->")
    left, _, right = sides.partition(",")
    return a.op(_contract(left, right, out, dtype, factors), b)
