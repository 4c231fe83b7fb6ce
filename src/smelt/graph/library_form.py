"""Nodes that a numerical library computes by one call: matrix products and convolutions.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[2,8,9,9], w: f32[4,8,3,3]) {
...   v0 = pad(x) {low=(0,0,1,1), high=(0,0,1,1), value=0.0}
...   v1 = window(v0) {axis=2, extent=3, step=2, dilation=1}
...   v2 = window(v1) {axis=3, extent=3, step=2, dilation=1}
...   v3 = contract(v2, w) {spec="b,c,x,y,u,v; o,c,u,v -> b,o,x,y"}
...   return v3
... }''')
>>> (node,) = graph.outputs
>>> found = convolution_form(node)
>>> [x.op.label for x in found.operands], found.window.steps, found.window.padding
(['x', 'w'], (2, 2), (1, 1))
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from smelt.graph.ir import Node
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.extern import Extern
from smelt.ops.library_product import (
    DTYPES,
    Provider,
    WindowedProduct,
    convolution_call,
    product_call,
    product_form,
)
from smelt.ops.view import Pad, Window
from smelt.types.expr import Index, product


class LibraryForm(NamedTuple):
    """A call of a library, with its sizes as a matrix product."""

    op: Extern
    operands: tuple[Node, ...]
    kind: Literal["product", "convolution"]
    batch: Index
    rows: Index
    columns: Index
    terms: Index


class ConvolutionForm(NamedTuple):
    """A convolution's image and filter, and how they are stored and visited."""

    operands: tuple[Node, Node]
    window: WindowedProduct


def library_form(node: Node, library: Provider) -> LibraryForm | None:
    """Return the library call that computes a node, or None."""
    types = tuple(x.type for x in node.inputs)
    form = product_form(node.op, *types)
    if form is not None:
        sizes = form.batch, form.rows, form.columns, form.terms
        return LibraryForm(product_call(form, library), node.inputs, "product", *sizes)
    windowed = None if library.convolve is None else convolution_form(node)
    if windowed is None:
        return None
    image, weight = windowed.operands
    op = convolution_call(windowed.window, library)
    if op.infer(image.type, weight.type) != node.type:
        return None
    shape, filters = node.type.shape, weight.type.shape
    to_image, to_filter = windowed.window.result_axes, windowed.window.filter_axes
    rows = product((shape[to_image[0]], *(shape[a] for a in to_image[2:])))
    terms = product(tuple(filters[a] for a in to_filter[1:]))
    return LibraryForm(op, (image, weight), "convolution", 1, rows, shape[to_image[1]], terms)


def convolution_form(node: Node) -> ConvolutionForm | None:
    """Return a contraction of a windowed, padded image with a filter as a convolution."""
    if not isinstance(node.op, Contract) or node.op.extents or node.op.padded or node.op.packed:
        return None
    if node.type.dtype not in DTYPES or any(x.type.dtype != node.type.dtype for x in node.inputs):
        return None
    image, weight = node.inputs
    windows: list[Window] = []
    while isinstance(image.op, Window):
        windows.insert(0, image.op)
        (image,) = image.inputs
    padding: dict[int, int] = {}
    if windows and isinstance(image.op, Pad):
        sides = _equal_margins(image.op)
        if sides is None:
            return None
        padding = sides
        (image,) = image.inputs
    left, right = ([bare_axis(t) for t in side] for side in (node.op.left, node.op.right))
    rank = image.type.rank
    axes = [w.axis for w in windows]
    if not windows or None in left or None in right or len(left) != rank + len(windows):
        return None
    names, window_names = left[:rank], left[rank:]
    spatial = [names[a] for a in axes if a < rank]
    others = [n for n in names if n not in spatial]
    summed = [n for n in others if n in right and n not in node.op.out]
    rows = [n for n in others if n in node.op.out and n not in right]
    columns = [n for n in right if n not in left]
    out = list(node.op.out)
    if (len(summed), len(rows), len(columns), len(others)) != (1, 1, 1, 2):
        return None
    if sorted(map(str, out)) != sorted(map(str, (*rows, *columns, *spatial))):
        return None
    if sorted(map(str, right)) != sorted(map(str, (*columns, *summed, *window_names))):
        return None
    if len(set(axes)) != len(axes) or not set(padding) <= set(axes):
        return None
    window = WindowedProduct(
        tuple(names.index(n) for n in (*rows, *summed, *spatial)),
        tuple(right.index(n) for n in (*columns, *summed, *window_names)),
        tuple(out.index(n) for n in (*map(str, rows), *map(str, columns), *map(str, spatial))),
        tuple(w.step for w in windows),
        tuple(w.dilation for w in windows),
        tuple(padding.get(a, 0) for a in axes),
    )
    return ConvolutionForm((image, weight), window)


def _equal_margins(pad: Pad) -> dict[int, int] | None:
    """Return the zeros on both sides of each axis, or None if they differ."""
    if isinstance(pad.value, bool) or pad.value != 0:
        return None
    margins: dict[int, int] = {}
    for a, (low, high) in enumerate(zip(pad.low, pad.high, strict=True)):
        if low != high or not isinstance(low, int) or low < 0:
            return None
        if low:
            margins[a] = low
    return margins
