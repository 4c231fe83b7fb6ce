"""What depends on constant inputs alone, cut off from the graph: it is computed once, not per call.

A graph whose inputs are partly constant is two programs: a *prelude*, which reads nothing else, and
the rest, which reads the prelude's results as further inputs.

    graph f(x: f32[n,8], w: f32[4,8] constant) {        graph f(x, w, held: f32[4,8] constant) {
      a = exp(w)                                          c = contract(x, held)
      c = contract(x, a)                                  return c
      return c                                          }
    }                                                   and held = exp(w), once

A value is held where it is worth it: it stands for work, and holding it takes no more memory than
the constants it comes from (so that 4-bit weights stay 4-bit weights).  Views cost nothing and stay
where they are, unless they deal elements out in rounds (the taps of a transposed convolution).
What depends on sizes that a call tells is never held, nor what is `refused` because there is no
room for it; what that comes from may be held then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np

from smelt.dataclass import dataclass
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import map_indices, map_type, substitute_nodes
from smelt.ops.create import Input
from smelt.ops.elementwise import Cast
from smelt.ops.view import Pad, Permute, Reshape, Shear
from smelt.types.expr import Expr, Index, add, atoms, axis, floordiv, mul, size, sizes_of, sub
from smelt.types.tensor import TensorType

SMALL_BYTES = 1 << 16
"""A value up to this size may be larger than the constants it comes from."""
LEAST_WORK = 4096
"""Elements computed for a value below which it is not worth another argument."""


@dataclass(frozen=True, slots=True)
class Split:
    """A graph without its prelude, and the prelude: a graph with one output for each held value."""

    graph: Graph
    """Its inputs are those of the whole, then one for each part."""
    parts: tuple[Graph, ...]
    """Their inputs are constant inputs of the whole."""
    held: tuple[Node, ...] = ()
    """The values of the whole that the parts compute."""
    work: tuple[int, ...] = ()
    """Elements that each part reads and writes."""


def split(graph: Graph, refused: Collection[Node] = ()) -> Split:
    """Cuts off the prelude; a graph without constant inputs, or work on them, stays as it is.

    >>> from smelt.graph.text import parse, text
    >>> found = split(
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
    finder = _Finder(graph, refused)
    held = finder.held()
    if not held:
        return Split(graph, ())
    taken = {x.op.label for x in graph.inputs if isinstance(x.op, Input)}
    made: dict[Node, Node] = {}
    for node in held:
        label = next(n for k in range(len(taken) + 1) if (n := f"held{k}") not in taken)
        taken.add(label)
        made[node] = build.input(label, node.type, origin=node.origin, constant=True)
    rest = substitute_nodes(graph, made)
    rest = replace(rest, inputs=(*graph.inputs, *made.values()))
    parts = tuple(Graph("prelude", finder.sources(node), (node,)) for node in held)
    return Split(rest, parts, tuple(held), tuple(map(finder.work, held)))


class _Finder:
    """The values of a graph that depend on constant inputs alone."""

    def __init__(self, graph: Graph, refused: Collection[Node]) -> None:
        self.graph, self.refused = graph, refused
        self.masks: dict[Node, int] = {}
        """Those values, each with the constant inputs that it comes from, as bits."""
        outputs = set(graph.outputs)
        places = {x: k for k, x in enumerate(graph.inputs)}
        for node in graph.nodes():
            if node in places:
                if _is_constant(node):
                    self.masks[node] = 1 << places[node]
            elif node not in outputs and _is_fixed(node):
                masks = [self.masks.get(x, -1) for x in node.inputs]
                if -1 not in masks:
                    mask = 0
                    for m in masks:
                        mask |= m
                    self.masks[node] = mask

    def held(self) -> list[Node]:
        """The values to hold: what the rest reads, behind views."""
        found: dict[Node, None] = {}
        seen: set[Node] = set()
        pending = [x for n in self.graph.nodes() if n not in self.masks for x in n.inputs]
        while pending:
            node = pending.pop()
            if node in seen or not self.masks.get(node):
                continue
            seen.add(node)
            if not _is_free(node) and self._fits(node) and self.work(node) >= LEAST_WORK:
                found[node] = None
            else:
                pending += node.inputs
        order = self.graph.nodes()
        return [n for n in order if n in found]

    def sources(self, node: Node) -> tuple[Node, ...]:
        """The constant inputs that a value comes from, in the graph's order."""
        mask = self.masks[node]
        return tuple(x for k, x in enumerate(self.graph.inputs) if mask >> k & 1)

    def _fits(self, node: Node) -> bool:
        """Whether holding a value takes no more than what it comes from, and there is room."""
        if node in self.refused:
            return False
        before = sum(_nbytes(x.type) for x in self.sources(node))
        return _nbytes(node.type) <= max(before, SMALL_BYTES)

    def work(self, node: Node) -> int:
        """Elements that are computed for a value; a library call is never little."""
        total, seen, pending = 0, {node}, [node]
        while pending:
            here = pending.pop()
            if not here.op.fusible and here.inputs:
                return LEAST_WORK
            if here.inputs and not _is_free(here):
                total += _count(here.type) + sum(_count(x.type) for x in here.inputs)
            fresh = [x for x in here.inputs if x not in seen]
            seen.update(fresh)
            pending += fresh
        return total


def _is_constant(node: Node) -> bool:
    return isinstance(node.op, Input) and node.op.constant


def _is_free(node: Node) -> bool:
    """Whether a value is an input, or only names elements of one other value otherwise; an integer
    in more bits is still that integer, and products of short ones are better than of long ones."""
    if not node.inputs:
        return True
    return len(node.inputs) == 1 and (_widens(node) or (node.op.is_view and not _deals(node)))


def _deals(node: Node) -> bool:
    """Whether views deal out the elements of what they name in rounds: those that lie along an axis
    do not lie in even steps, so that nobody could read or pack them in runs."""

    def index(of: Node, at: tuple[Index, ...]) -> Index:
        """The place in memory of what is named; what is filled up is no longer only named."""
        if isinstance(of.op, Pad | Shear) or not (of.op.is_view and len(of.inputs) == 1):
            place: Index = 0
            for n, i in zip(of.type.shape, at, strict=True):
                place = add(mul(place, n), i)
            return place
        (source,) = of.inputs

        class Source:
            type = source.type

            def at(self, *index_: Index) -> Index:
                return index(source, index_)

        return cast("Index", of.op.define(cast("Any", None), at, cast("Any", Source())))

    here = tuple(axis(f"i{k}", n) for k, n in enumerate(node.type.shape))
    return any(a.kind in ("//", "%") for a in atoms(index(node, here)))


def _widens(node: Node) -> bool:
    """Whether a value is an integer that was one of fewer bits, or as many."""
    before, after = node.inputs[0].type.dtype, node.type.dtype
    if not (isinstance(node.op, Cast) and before.is_integer and after.is_integer):
        return False
    return np.can_cast(before.numpy, after.numpy, "safe")


def _is_fixed(node: Node) -> bool:
    """Whether nothing about a node depends on a size."""
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


def panelled(
    kind: TensorType,
    strides: tuple[int | None, ...] | None,
    across: int,
    along: int,
    width: int,
    group: int = 1,
) -> Graph:
    """An array laid out for a product's inner loop, for all sizes: panels of `width` positions of
    the dimension `across`, each with the dimension `along` from end to end, in groups of `group`
    neighbours, filled up with zeros.

    Dimensions of the result: the others in order, panels, `along`, `width`, and the group's where
    that is more than one.

    >>> from smelt.types.dtype import bf16, f32
    >>> panelled(TensorType(f32, (3072, 768)), None, 0, 1, 32).outputs[0].type
    TensorType(dtype=f32, shape=((d0 + 31)//32, d1, 32))
    >>> panelled(TensorType(bf16, (3072, 768)), None, 0, 1, 32, 2).outputs[0].type
    TensorType(dtype=bf16, shape=((d0 + 31)//32, (d1 + 1)//2, 32, 2))
    """
    shape: tuple[Index, ...] = tuple(size(f"d{a}") for a in range(kind.rank))
    x = build.input("w", TensorType(kind.dtype, shape), strides)
    steps = {across: width, along: group}
    counts = {a: floordiv(add(shape[a], n - 1), n) for a, n in steps.items()}
    more = {a: sub(mul(counts[a], n), shape[a]) for a, n in steps.items()}
    high = tuple(more.get(a, 0) for a in range(kind.rank))
    padded = build.apply(Pad((0,) * kind.rank, high, 0.0 if kind.dtype.is_float else 0), x)
    cut: list[Index] = []
    place: list[int] = []
    for a, n in enumerate(shape):
        place.append(len(cut))
        cut += [counts[a], steps[a]] if a in steps else [n]
    parts = build.apply(Reshape(tuple(cut)), padded)
    order = [place[a] for a in range(kind.rank) if a not in steps]
    order += [place[across], place[along], place[across] + 1, place[along] + 1]
    turned = build.apply(Permute(tuple(order)), parts)
    if group == 1:
        turned = build.apply(Reshape(turned.type.shape[:-1]), turned)
    return Graph("panels", (x,), (turned,))


__all__ = ["Split", "panelled", "split"]
