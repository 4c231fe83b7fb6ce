"""Find which dimensions of which values are the same axis.

Elementwise operators and broadcasting equate dimensions, permutations move them, reductions end
them. No operator is known here: `define` runs with a probe that records how it indexes its
operands. Each (node, dimension) gets a class number; equal numbers mean one axis. Views that split
or merge a dimension start a new class.

>>> from smelt.graph import build
>>> from smelt.ops.view import Permute
>>> from smelt.types.dtype import f32
>>> from smelt.types.tensor import TensorType
>>> x = build.input("x", TensorType(f32, (4, 5)))
>>> y = build.apply(Permute((1, 0)), x)
>>> classes = axis_classes((x, y))
>>> classes[y, 0] == classes[x, 1], classes[y, 0] == classes[x, 0]
(True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from itertools import permutations
from typing import Any

from smelt.graph.ir import Node
from smelt.ops.combine import Combine
from smelt.ops.contract import bare_axis
from smelt.ops.spec import Element, Indices, Limits, ScalarOp, TensorOp, Update
from smelt.ops.view import split_groups
from smelt.types.dtype import DType
from smelt.types.expr import Index, add, axis, floordiv, mod, mul, product
from smelt.types.tensor import Shape, TensorType

Dim = tuple[Node, int]
Reads = tuple[tuple[int, tuple[Index, ...]], ...]


class _Probe:
    """A definer whose values are empty and whose reads are recorded."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, tuple[Index, ...]]] = []
        self.ended = 0

    def apply(self, op: ScalarOp, *args: None) -> None: ...

    def cast(self, value: None, dtype: DType) -> None: ...

    def constant(self, value: float | int | bool, dtype: DType) -> None: ...

    def index(self, position: Index, dtype: DType) -> None: ...

    def position(self, value: None, extent: Index) -> Index:
        return self._fresh(extent)

    def reduce(self, combine: Combine, dtype: DType, extents: Indices, body: Element[None]) -> None:
        body(tuple(self._fresh(e) for e in extents))

    def dot(self, dtype: DType, extents: Indices, body: Element[tuple[None, None]]) -> None:
        body(tuple(self._fresh(e) for e in extents))

    def scan(
        self,
        combine: Combine,
        dtype: DType,
        extent: Index,
        at: Index,
        body: Callable[[Index], None],
    ) -> None:
        body(at)

    def join(self, how: str, first: None, extents: Indices, body: Update[None]) -> None:
        body(tuple(self._fresh(e) for e in extents))

    def inside(self, limits: Limits, value: Callable[[], None], other: None) -> None:
        value()

    def _fresh(self, extent: Index) -> Index:
        self.ended += 1
        return axis(f"e{self.ended}", extent)


class _ProbeOperand:
    def __init__(self, probe: _Probe, number: int, type_: TensorType) -> None:
        self.probe, self.number, self.type = probe, number, type_

    def at(self, *index: Index) -> None:
        self.probe.reads.append((self.number, index))


@lru_cache(maxsize=1024)
def reads_of(op: TensorOp, out: TensorType, inputs: tuple[TensorType, ...]) -> Reads:
    """Return how `op` indexes its operands, as pairs (operand, index).

    The axes are o0, o1, .. of the output and e1, e2, .. which are reduced. Empty for operators
    without `define`.
    """
    if not op.fusible:
        return ()
    probe = _Probe()
    position = tuple(axis(f"o{k}", n) for k, n in enumerate(out.shape))
    op.define(probe, position, *(_ProbeOperand(probe, k, t) for k, t in enumerate(inputs)))
    return tuple(probe.reads)


def reads(node: Node) -> Reads:
    """Return `reads_of` a node."""
    return reads_of(node.op, node.type, tuple(x.type for x in node.inputs))


class AxisClasses:
    """A union-find partition of dimensions."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}

    def find(self, item: Any) -> Any:
        """Return the representative of the class of `item`."""
        parent = self._parent.setdefault(item, item)
        while parent is not self._parent[parent]:
            parent = self._parent[parent]
        self._parent[item] = parent
        return parent

    def unite(self, a: Any, b: Any) -> None:
        """Merge the classes of `a` and `b`."""
        self._parent[self.find(b)] = self.find(a)


def axis_classes(nodes: Iterable[Node]) -> dict[Dim, int]:
    """Return the class number of every dimension of the nodes and of their operands."""
    partition = AxisClasses()
    dims: dict[Dim, None] = {}
    for node in nodes:
        for d in range(node.type.rank):
            dims[node, d] = None
        first_dim: dict[str, Any] = {f"o{d}": (node, d) for d in range(node.type.rank)}
        for operand, index in reads(node):
            x = node.inputs[operand]
            for d, term in enumerate(index):
                dims[x, d] = None
                name = bare_axis(term)
                if name is not None:
                    partition.unite(first_dim.setdefault(name, (x, d)), (x, d))
    numbers: dict[Any, int] = {}
    return {dim: numbers.setdefault(partition.find(dim), len(numbers)) for dim in dims}


def inner_classes(
    nodes: Collection[Node],
) -> tuple[dict[tuple[Node, str], int], set[tuple[int, int]]]:
    """Return the class numbers of the nodes' axes, by their reads of each other.

    Axes are o0, o1, .. of a result and e1, e2, .. which are reduced. The second result holds pairs
    of classes, in both orders, that some node has as two axes of equal extent: these are different
    axes. Nodes without operands, such as the positions that a mask compares, relate no axes.
    """
    partition, inside = AxisClasses(), set(nodes)
    axes: dict[Node, dict[str, Index]] = {}
    for node in nodes:
        node_axes = axes[node] = {f"o{d}": n for d, n in enumerate(node.type.shape)}
        for operand, index in reads(node):
            x = node.inputs[operand]
            for d, term in enumerate(index):
                name = bare_axis(term)
                if name is not None:
                    node_axes.setdefault(name, x.type.shape[d])
                    if x in inside and x.inputs:
                        partition.unite((node, name), (x, f"o{d}"))
    numbers: dict[Any, int] = {}
    class_numbers: dict[tuple[Node, str], int] = {}
    distinct: set[tuple[int, int]] = set()
    for node, node_axes in axes.items():
        for name in node_axes:
            number = numbers.setdefault(partition.find((node, name)), len(numbers))
            class_numbers[node, name] = number
        distinct |= {
            (class_numbers[node, a], class_numbers[node, b])
            for a, b in permutations(node_axes, 2)
            if node_axes[a] == node_axes[b] != 1
        }
    return class_numbers, distinct


def reshape_index(walked: Shape, shape: Shape, position: tuple[Index, ...]) -> tuple[Index, ...]:
    """Return the index in `shape` of the element at row-major `position` of `walked`.

    >>> i, j = axis("i", 6), axis("j", 4)
    >>> (
    ...     reshape_index((6, 4), (2, 3, 4), (i, j)),
    ...     reshape_index((2, 3, 4), (6, 4), (axis("g", 2), i % 3, j)),
    ... )
    ((i//3, i%3, j), (g*3 + i%3, j))
    """
    index: list[Index] = []
    start = 0
    for target, source in split_groups(shape, walked):
        part = position[start : start + len(source)]
        start += len(source)
        if target == source:
            index.extend(part)
            continue
        flat: Index = 0
        for dim, coordinate in zip(source, part, strict=True):
            flat = add(mul(flat, dim), coordinate)
        for k, dim in enumerate(target):
            inner = product(target[k + 1 :])
            coordinate = 0 if inner == 0 else floordiv(flat, inner)
            index.append(0 if dim in (0, 1) else coordinate if k == 0 else mod(coordinate, dim))
    return tuple(index)
