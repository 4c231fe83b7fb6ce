"""A part of a choice by positions, where all of the part was chosen from one side, is that side's.

Writing into an array is recorded as a choice: the new elements at the positions that are written,
the old ones elsewhere.  A loop that writes a row and reads it in the next turn asks for parts of
such choices, each on top of all before; which side a part comes from is known while compiling, as
long as it lies at known positions.  Else every read would stay a choice between all that was ever
written, and a loop of n turns a program of n squared operators.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from smelt.graph import build
from smelt.graph.interp import Array
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.create import Iota
from smelt.ops.elementwise import Cast, Map
from smelt.ops.view import Expand, Slice
from smelt.passes.compose import settle, splat
from smelt.types.tensor import Shape

Box: TypeAlias = tuple[tuple[int, int, int], ...]
"""First position, count and step of a part along each dimension."""
Known: TypeAlias = dict[tuple[Node, Box], Array | None]

LIMIT = 4096
"""Positions of a part that are looked at while compiling."""


def decided(graph: Graph) -> Graph:
    """Slices of choices by positions become slices of what was chosen.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         decided(
    ...             parse('''graph f(x: f32[5,n], y: f32[n]) {
    ...   i = iota() {shape=(5, 1), axis=0, dtype=i64}
    ...   m = eq(i, 2:i64)
    ...   z = select(m, y, x)
    ...   r = slice(z) {starts=(1, 0), sizes=(1, n), steps=(1, 1)}
    ...   return r
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[5,n], y: f32[n]) {
      v0 = slice(x) {starts=(1, 0), sizes=(1, n), steps=(1, 1)} : f32[1,n]
      return v0
    }
    """
    known: Known = {}
    with np.errstate(all="ignore"):
        return rebuild(graph, lambda node: _chosen(node, known))


def _chosen(node: Node, known: Known) -> Node:
    """A slice of a choice as one of what was chosen, as deep as that goes; else the node itself."""
    op = node.op
    while isinstance(op, Slice):
        (x,) = node.inputs
        if not isinstance(x.op, Map) or not x.op.row.chooses:
            break
        mask, *sides = x.inputs
        box = _box(op, x.type.shape, mask.type.shape)
        hit = None if box is None else _elements(mask, box, known)
        if hit is None or hit.size == 0 or (hit.any() and not hit.all()):
            break
        z = sides[0] if hit.all() else sides[1]
        if z.type.dtype != x.type.dtype:
            break
        if z.type.shape != x.type.shape:
            return _part(node, op, x, z)
        node = build.apply(op, z, origin=node.origin)
    return node


def _part(node: Node, op: Slice, x: Node, z: Node) -> Node:
    """The slice of an operand that is broadcast to the shape of the choice."""
    whole = build.apply(Expand(x.type.shape), z, origin=x.origin)
    return settle(build.apply(op, whole, origin=node.origin))


def _box(op: Slice, shape: Shape, own: Shape) -> Box | None:
    """The part that a slice of something of a shape takes of an operand; None if that is not known
    in numbers, or too much."""
    found: list[tuple[int, int, int]] = []
    lead = len(shape) - len(own)
    for a, n in enumerate(own, lead):
        start, size = op.starts[a], op.sizes[a]
        if n == 1:
            start, size = 0, 1
        if not isinstance(start, int) or not isinstance(size, int):
            return None
        found.append((start, size, op.steps[a]))
    return tuple(found) if math.prod(size for _, size, _ in found) <= LIMIT else None


def _elements(x: Node, box: Box, known: Known) -> Array | None:
    """The elements of a part of a value that positions and numbers alone decide."""
    key = x, box
    if key not in known:
        known[key] = _computed(x, box, known)
    return known[key]


def _computed(x: Node, box: Box, known: Known) -> Array | None:
    op = x.op
    if isinstance(op, Iota):
        start, size, step = box[op.axis]
        line = (start + step * np.arange(size)).astype(op.dtype.numpy)
        return line.reshape([size if a == op.axis else 1 for a in range(len(box))])
    if not isinstance(op, (Map, Cast)):
        number = splat(x)
        return None if number is None else number.op.reference({})
    operands: list[Array] = []
    for z in x.inputs:
        lead = len(box) - z.type.rank
        part = [(0, 1, 1) if n == 1 else box[a] for a, n in enumerate(z.type.shape, lead)]
        found = _elements(z, tuple(part), known)
        if found is None:
            return None
        operands.append(found)
    return np.asarray(op.reference({}, *operands))
