"""Split off the subgraph that depends on constant inputs alone, so that it runs once.

A graph whose inputs are partly constant becomes two programs: *preludes*, which read constant
inputs only, and the rest, which reads the preludes' results as further inputs.

    graph f(x: f32[n,8], w: f32[4,8] constant) {        graph f(x, w, held: f32[4,8] constant) {
      a = exp(w)                                          c = contract(x, held)
      c = contract(x, a)                                  return c
      return c                                          }
    }                                                   and held = exp(w), once

A value is hoisted where that pays: it stands for enough work, and takes no more memory than the
constants it comes from (so that 4-bit weights stay 4-bit weights).  Values that are cheap to
compute must not take more together, as both halves of each byte would.  Views cost nothing and
stay in the graph, unless they interleave elements (the taps of a transposed convolution).  Values
that depend on symbolic sizes are never hoisted, nor those in `refused`, for which there is no room;
their own constant operands may still be. Operands of loops and calls are arrays, so that a view of
them would be written in every call: it is hoisted too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import map_indices, map_type, reachable, substitute_nodes
from smelt.ops.create import Input
from smelt.ops.elementwise import Cast, Map
from smelt.ops.view import Pad, Permute, Reshape, Shear
from smelt.python.dataclass import dataclass
from smelt.types.expr import Expr, Index, add, atoms, axis, floordiv, mul, size, sizes_of, sub
from smelt.types.tensor import TensorType

SMALL_BYTES = 1 << 16
"""A value of at most so many bytes may be larger than the constants it comes from."""
RECOMPUTE_CYCLES = 6.0
"""Maximum cycles for an element of a value computed again rather than read from more memory."""
MIN_WORK_ELEMENTS = 4096
"""Minimum elements read and written for a value that is worth an argument of its own."""


@dataclass(frozen=True, slots=True)
class Split:
    """A graph without its constant subgraph, and a prelude for each hoisted value."""

    graph: Graph
    """The rest: inputs of the original graph, then one for each prelude."""
    parts: tuple[Graph, ...]
    """The preludes; their inputs are constant inputs of the original graph."""
    hoisted: tuple[Node, ...] = ()
    """The values of the original graph that the preludes compute."""
    work: tuple[int, ...] = ()
    """Elements that each prelude reads and writes."""


def split_constant_subgraph(graph: Graph, refused: Collection[Node] = ()) -> Split:
    """Hoist work on constant inputs into preludes; a graph without such work is unchanged.

    >>> from smelt.graph.text import parse, text
    >>> found = split_constant_subgraph(
    ...     parse('''graph f(x: f32[n,80], w: f32[80,80] constant) {
    ...   a = exp(w)
    ...   c = contract(x, a) {spec="m,k; k,j -> m,j"}
    ...   return c
    ... }''')
    ... )
    >>> found.graph.inputs[-1].type, [text(p).splitlines()[1].strip() for p in found.parts]
    (TensorType(dtype=f32, shape=(80, 80)), ['v0 = exp(w) : f32[80,80]'])
    """
    if not any(_is_constant(x) for x in graph.inputs):
        return Split(graph, ())
    finder = _ConstantValues(graph, refused)
    hoisted = finder.held()
    if not hoisted:
        return Split(graph, ())
    labels = {x.op.label for x in graph.inputs if isinstance(x.op, Input)}
    inputs: dict[Node, Node] = {}
    for node in hoisted:
        label = next(n for k in range(len(labels) + 1) if (n := f"held{k}") not in labels)
        labels.add(label)
        inputs[node] = build.input(label, node.type, origin=node.origin, constant=True)
    rest = substitute_nodes(graph, inputs)
    rest = replace(rest, inputs=(*graph.inputs, *inputs.values()))
    parts = tuple(Graph("prelude", finder.sources(node), (node,)) for node in hoisted)
    return Split(rest, parts, tuple(hoisted), tuple(map(finder.work, hoisted)))


class _ConstantValues:
    """The values of a graph that depend on constant inputs alone."""

    def __init__(self, graph: Graph, refused: Collection[Node]) -> None:
        self.graph, self.refused = graph, refused
        self.masks: dict[Node, int] = {}
        """Those values, each with a bit mask of the constant inputs that it comes from."""
        outputs = set(graph.outputs)
        positions = {x: k for k, x in enumerate(graph.inputs)}
        for node in graph.nodes():
            if node in positions:
                if _is_constant(node):
                    self.masks[node] = 1 << positions[node]
            elif node not in outputs and _has_static_shape(node):
                masks = [self.masks.get(x, -1) for x in node.inputs]
                if -1 not in masks:
                    mask = 0
                    for m in masks:
                        mask |= m
                    self.masks[node] = mask
        self.stored = {
            x
            for node in graph.nodes()
            if node not in self.masks and not node.op.fusible
            for x in node.inputs
            if x.op.is_view
        }
        """Views that are written to memory for their reader."""

    def held(self) -> list[Node]:
        """Return the values to hoist, such that together they do not grow what is read."""
        recomputed: set[Node] = set()
        while True:
            hoisted = self._candidates(recomputed)
            more = self._growing(hoisted)
            if not more:
                return hoisted
            recomputed |= more

    def _growing(self, hoisted: Sequence[Node]) -> set[Node]:
        """Return the values that are cheaper computed again than read.

        Those that share constants and take more memory together, such as both halves of each byte.
        """
        groups: list[tuple[int, list[Node]]] = []
        for node in hoisted:
            mask, members = self.masks[node], [node]
            for group in [g for g in groups if g[0] & mask]:
                groups.remove(group)
                mask, members = mask | group[0], [*group[1], *members]
            groups.append((mask, members))
        growing: set[Node] = set()
        for mask, members in groups:
            before = sum(_nbytes(x.type) for x in self._inputs(mask))
            members = [x for x in members if x not in self.stored]  # in memory in any case
            if sum(_nbytes(x.type) for x in members) > max(before, SMALL_BYTES):
                growing.update(x for x in members if self._is_cheap(x))
        return growing

    def _is_cheap(self, node: Node) -> bool:
        """Whether a value takes few cycles an element to compute from constant inputs."""
        cycles = 0.0
        for value in reachable([node], lambda x: x.inputs):
            if value.inputs and not (value.op.is_view or isinstance(value.op, Cast | Map)):
                return False
            if isinstance(value.op, Map):
                cycles += value.op.row.cost * _count(value.type)
        return cycles <= RECOMPUTE_CYCLES * _count(node.type)

    def _candidates(self, recomputed: Collection[Node]) -> list[Node]:
        """Return what the rest reads, behind views, and is worth hoisting alone."""
        hoisted: dict[Node, None] = {}
        seen: set[Node] = set()
        pending = [x for n in self.graph.nodes() if n not in self.masks for x in n.inputs]
        while pending:
            node = pending.pop()
            if node in seen or not self.masks.get(node):
                continue
            seen.add(node)
            if (
                (node in self.stored or not _costs_nothing(node))
                and node not in recomputed
                and self._fits(node)
                and self.work(node) >= MIN_WORK_ELEMENTS
            ):
                hoisted[node] = None
            else:
                pending += node.inputs
        order = self.graph.nodes()
        return [n for n in order if n in hoisted]

    def sources(self, node: Node) -> tuple[Node, ...]:
        """Return the constant inputs that a value comes from, in the graph's order."""
        return self._inputs(self.masks[node])

    def _inputs(self, mask: int) -> tuple[Node, ...]:
        return tuple(x for k, x in enumerate(self.graph.inputs) if mask >> k & 1)

    def _fits(self, node: Node) -> bool:
        """Whether a hoisted value takes no more memory than its constants, and is not refused."""
        if node in self.refused:
            return False
        before = sum(_nbytes(x.type) for x in self.sources(node))
        return _nbytes(node.type) <= max(before, SMALL_BYTES)

    def work(self, node: Node) -> int:
        """Return the elements read and written for a value; a library call is always enough."""
        total = 0
        for value in reachable([node], lambda x: x.inputs):
            if not value.op.fusible and value.inputs:
                return MIN_WORK_ELEMENTS
            if value.inputs and (value in self.stored or not _costs_nothing(value)):
                total += _count(value.type) + sum(_count(x.type) for x in value.inputs)
        return total


def _is_constant(node: Node) -> bool:
    return isinstance(node.op, Input) and node.op.constant


def _costs_nothing(node: Node) -> bool:
    """Whether a value is an input, a plain view or a widening integer cast.

    Widening is left to the kernels: products of narrow integers are faster.
    """
    if not node.inputs:
        return True
    return len(node.inputs) == 1 and (
        _is_widening_cast(node) or (node.op.is_view and not _interleaves(node))
    )


def _interleaves(node: Node) -> bool:
    """Whether views interleave elements, so that an axis has no constant stride.

    Nothing could then read or pack the value in contiguous runs.
    """

    def index(of: Node, at: tuple[Index, ...]) -> Index:
        """Return the row-major offset in the viewed array; padded values end the chain of views."""
        if isinstance(of.op, Pad | Shear) or not (of.op.is_view and len(of.inputs) == 1):
            offset: Index = 0
            for n, i in zip(of.type.shape, at, strict=True):
                offset = add(mul(offset, n), i)
            return offset
        (source,) = of.inputs

        class Source:
            type = source.type

            def at(self, *index_: Index) -> Index:
                return index(source, index_)

        return cast("Index", of.op.define(cast("Any", None), at, cast("Any", Source())))

    indices = tuple(axis(f"i{k}", n) for k, n in enumerate(node.type.shape))
    return any(a.kind in ("//", "%") for a in atoms(index(node, indices)))


def _is_widening_cast(node: Node) -> bool:
    """Whether a value is a lossless cast from integers to integers."""
    before, after = node.inputs[0].type.dtype, node.type.dtype
    if not (isinstance(node.op, Cast) and before.is_integer and after.is_integer):
        return False
    return np.can_cast(before.numpy, after.numpy, "safe")


def _has_static_shape(node: Node) -> bool:
    """Whether no shape or attribute of a node depends on a symbolic size."""
    symbolic = False

    def note(e: Expr) -> Index:
        nonlocal symbolic
        symbolic = symbolic or bool(sizes_of(e))
        return e

    map_type(node.type, note)
    map_indices(node.op, note)
    return not symbolic


def _count(kind: TensorType) -> int:
    return prod(d for d in kind.shape if isinstance(d, int))


def _nbytes(kind: TensorType) -> int:
    return _count(kind) * kind.dtype.itemsize


def pack_panels(
    kind: TensorType,
    strides: tuple[int | None, ...] | None,
    across: int,
    along: int,
    width: int,
    group: int = 1,
) -> Graph:
    """Build the graph that packs a GEMM operand into panels, for all sizes.

    A panel has `width` positions of dimension `across` and all of dimension `along`, which is
    interleaved in groups of `group` (as VNNI wants them); both are padded with zeros.  Dimensions
    of the result: the others in order, panels, `along`, `width`, and `group` if it is more than 1.
    `strides` are those of the array.

    >>> from smelt.types.dtype import bf16, f32
    >>> pack_panels(TensorType(f32, (3072, 768)), None, 0, 1, 32).outputs[0].type
    TensorType(dtype=f32, shape=((d0 + 31)//32, d1, 32))
    >>> pack_panels(TensorType(bf16, (3072, 768)), None, 0, 1, 32, 2).outputs[0].type
    TensorType(dtype=bf16, shape=((d0 + 31)//32, (d1 + 1)//2, 32, 2))
    """
    shape: tuple[Index, ...] = tuple(size(f"d{a}") for a in range(kind.rank))
    x = build.input("w", TensorType(kind.dtype, shape), strides)
    steps = {across: width, along: group}
    counts = {a: floordiv(add(shape[a], n - 1), n) for a, n in steps.items()}
    padding = {a: sub(mul(counts[a], n), shape[a]) for a, n in steps.items()}
    high = tuple(padding.get(a, 0) for a in range(kind.rank))
    padded = build.apply(Pad((0,) * kind.rank, high, 0.0 if kind.dtype.is_float else 0), x)
    split_shape: list[Index] = []
    positions: list[int] = []
    for a, n in enumerate(shape):
        positions.append(len(split_shape))
        split_shape += [counts[a], steps[a]] if a in steps else [n]
    parts = build.apply(Reshape(tuple(split_shape)), padded)
    order = [positions[a] for a in range(kind.rank) if a not in steps]
    order += [positions[across], positions[along], positions[across] + 1, positions[along] + 1]
    permuted = build.apply(Permute(tuple(order)), parts)
    if group == 1:
        permuted = build.apply(Reshape(permuted.type.shape[:-1]), permuted)
    return Graph("panels", (x,), (permuted,))
