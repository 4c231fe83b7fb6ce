"""Iteration spaces: which dimensions of which values are the same axis.

Elementwise use and broadcasting make dimensions equal, permutations move them, reductions end them.
Nothing here knows an operator: `define` is run with a probe that notes how it indexes its operands.
Each (node, dimension) gets a class number; equal numbers mean one axis.  Views that cut or join a
dimension start a new class.

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
from smelt.ops.spec import TensorOp
from smelt.ops.spec_scalar import ScalarOp
from smelt.ops.view import split_groups
from smelt.types.dtype import DType
from smelt.types.expr import Index, add, axis, floordiv, mod, mul, product
from smelt.types.tensor import Shape, TensorType

Dim = tuple[Node, int]
Reads = tuple[tuple[int, tuple[Index, ...]], ...]


class _Probe:
    """Plays the definer: values are nothing, reads are written down."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, tuple[Index, ...]]] = []
        self.ended = 0

    def apply(self, op: ScalarOp, *args: None) -> None: ...

    def cast(self, value: None, dtype: DType) -> None: ...

    def constant(self, value: float | int | bool, dtype: DType) -> None: ...

    def index(self, position: Index, dtype: DType) -> None: ...

    def position(self, value: None, extent: Index) -> Index:
        return self._fresh(extent)

    def reduce(
        self,
        combine: Combine,
        dtype: DType,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], None],
    ) -> None:
        body(tuple(self._fresh(e) for e in extents))

    def dot(
        self,
        dtype: DType,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], tuple[None, None]],
    ) -> None:
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

    def join(
        self,
        how: str,
        first: None,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], tuple[tuple[tuple[None, Index], ...], None]],
    ) -> None:
        body(tuple(self._fresh(e) for e in extents))

    def inside(
        self, limits: tuple[tuple[Index, Index], ...], value: Callable[[], None], other: None
    ) -> None:
        value()

    def _fresh(self, extent: Index) -> Index:
        self.ended += 1
        return axis(f"e{self.ended}", extent)


class _ProbeOperand:
    def __init__(self, probe: _Probe, number: int, type_: TensorType) -> None:
        self.probe, self.number, self.type = probe, number, type_

    def at(self, *index: Index) -> None:
        self.probe.reads.append((self.number, index))


@lru_cache(maxsize=8192)
def reads_of(op: TensorOp, out: TensorType, inputs: tuple[TensorType, ...]) -> Reads:
    """How `op` indexes its operands: (operand, index) with output axes o0, o1, .. and axes that
    end here e1, e2, ..; nothing for operators without `define`."""
    if not op.fusible:
        return ()
    probe = _Probe()
    at = tuple(axis(f"o{k}", n) for k, n in enumerate(out.shape))
    op.define(probe, at, *(_ProbeOperand(probe, k, t) for k, t in enumerate(inputs)))
    return tuple(probe.reads)


def reads(node: Node) -> Reads:
    """`reads_of` a node."""
    return reads_of(node.op, node.type, tuple(x.type for x in node.inputs))


class AxisClasses:
    """A partition of dimensions, grown by uniting."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}

    def find(self, item: Any) -> Any:
        """The representative of the class of `item`."""
        parent = self._parent.setdefault(item, item)
        while parent is not self._parent[parent]:
            parent = self._parent[parent]
        self._parent[item] = parent
        return parent

    def unite(self, a: Any, b: Any) -> None:
        """Puts `a` and `b` into one class."""
        self._parent[self.find(b)] = self.find(a)


def axis_classes(nodes: Iterable[Node]) -> dict[Dim, int]:
    """Class number of every dimension of the nodes and of their operands."""
    partition = AxisClasses()
    dims: dict[Dim, None] = {}
    for node in nodes:
        for d in range(node.type.rank):
            dims[node, d] = None
        named: dict[str, Any] = {f"o{d}": (node, d) for d in range(node.type.rank)}
        for operand, index in reads(node):
            x = node.inputs[operand]
            for d, term in enumerate(index):
                dims[x, d] = None
                name = bare_axis(term)
                if name is not None:
                    partition.unite(named.setdefault(name, (x, d)), (x, d))
    numbers: dict[Any, int] = {}
    return {dim: numbers.setdefault(partition.find(dim), len(numbers)) for dim in dims}


def own_classes(
    nodes: Collection[Node],
) -> tuple[dict[tuple[Node, str], int], set[tuple[int, int]]]:
    """Class number of every axis of the nodes (o0, o1, .., and e1, e2, .. which end there) by what
    they read of one another, and the pairs of classes that some node has beside one another with
    one extent, both ways: these are two axes, however alike.  What is made of nothing, such as the
    positions that a mask compares with themselves, ties no axes together."""
    partition, inside = AxisClasses(), set(nodes)
    axes: dict[Node, dict[str, Index]] = {}
    for node in nodes:
        own = axes[node] = {f"o{d}": n for d, n in enumerate(node.type.shape)}
        for operand, index in reads(node):
            x = node.inputs[operand]
            for d, term in enumerate(index):
                name = bare_axis(term)
                if name is not None:
                    own.setdefault(name, x.type.shape[d])
                    if x in inside and x.inputs:
                        partition.unite((node, name), (x, f"o{d}"))
    numbers: dict[Any, int] = {}
    found: dict[tuple[Node, str], int] = {}
    beside: set[tuple[int, int]] = set()
    for node, own in axes.items():
        for name in own:
            kind = numbers.setdefault(partition.find((node, name)), len(numbers))
            found[node, name] = kind
        beside |= {
            (found[node, a], found[node, b])
            for a, b in permutations(own, 2)
            if own[a] == own[b] != 1
        }
    return found, beside


def regrouped(walked: Shape, shape: Shape, at: tuple[Index, ...]) -> tuple[Index, ...]:
    """The position in `shape` of what row-major order puts at position `at` of `walked`.

    >>> i, j = axis("i", 6), axis("j", 4)
    >>> regrouped((6, 4), (2, 3, 4), (i, j)), regrouped((2, 3, 4), (6, 4), (axis("g", 2), i % 3, j))
    ((i//3, i%3, j), (g*3 + i%3, j))
    """
    found: list[Index] = []
    start = 0
    for target, source in split_groups(shape, walked):
        part = at[start : start + len(source)]
        start += len(source)
        if target == source:
            found.extend(part)
            continue
        flat: Index = 0
        for dim, place in zip(source, part, strict=True):
            flat = add(mul(flat, dim), place)
        for k, dim in enumerate(target):
            inner = product(target[k + 1 :])
            place = 0 if inner == 0 else floordiv(flat, inner)
            found.append(0 if dim in (0, 1) else place if k == 0 else mod(place, dim))
    return tuple(found)
