"""Choose between channels-first (NCHW) and channels-last (NHWC) results of windowed contractions.

    conv(x: [b,c,h,w])  ->  permute(.. depthwise(conv(x): [b,h,w,o]) ..)    if predicted faster

`smelt.passes.propagate_layouts` keeps the order of the data.  But callers do not see intermediate
values, and kernels are not equally fast in both orders.  Depthwise convolutions vectorise along
channels without a partly filled vector, whereas short image rows (7 x 7 pixels) fill no vectors,
and with channels first each channel's row is a memory stream of its own.  Channels last costs
packing of the weights instead, in every call unless they are prepacked.  So the pass builds the
graph with channels-last windowed results, keeps permutations that do not cancel as kernels of their
own, and compares the predicted times of both graphs.

The prediction uses the sizes of the first call and the machine's figures (`image_costs`), and
counts only costs that differ between the orders. Graphs that contract computed values over pixels
(gradients of weights) read values in both orders and are left unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

from smelt import knobs
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import input_size_names
from smelt.journal.facts import Journal, OrderChosen
from smelt.machine.image_costs import ImageCosts
from smelt.machine.tiling import CPU_TILING
from smelt.ops.contract import Contract
from smelt.ops.create import Input
from smelt.ops.reduce import Reduce
from smelt.ops.view import Permute, Window
from smelt.passes.propagate_layouts import (
    CHANNELS_LAST_RULES,
    memory_order,
    permuted_values,
    propagate_permutations,
)
from smelt.types.expr import Index, axes_of, evaluate

Sizes = Mapping[str, int]

ASSUMED_IMAGE_SIZE = 64
"""Value of a size that is not known."""
MAX_TIME_RATIO = 0.95
"""Choose channels last if its predicted time is at most this part of the other: predictions err."""


def choose_image_layout(
    graph: Graph,
    sizes: Sizes | None = None,
    journal: Journal | None = None,
    costs: ImageCosts | None = CPU_TILING.image_costs,
) -> Graph:
    """Move channels of windowed results last if that is predicted to be faster.

    `sizes` are those of the first call. Without `costs` the order is kept.

    >>> from smelt.graph.text import parse, text
    >>> graph = parse('''graph f(x: f32[8,16,58,58], k: f32[16,3,3], w: f32[256,16]) {
    ...   v0 = window(x) {axis=2, extent=3}
    ...   v1 = window(v0) {axis=3, extent=3}
    ...   v2 = contract(v1, k) {spec="b,c,u,v,i,j; c,i,j -> b,c,u,v"}
    ...   v3 = contract(v2, w) {spec="b,c,u,v; o,c -> b,o,u,v"}
    ...   v4 = reduce.max(v3) {axes=(2, 3)}
    ...   return v4
    ... }''')
    >>> [
    ...     line.split('"')[1]
    ...     for line in text(choose_image_layout(graph)).splitlines()
    ...     if "spec" in line
    ... ]
    ['b,c,u,v,i,j; c,i,j -> b,u,v,c', 'b,c,u,v; o,c -> b,u,v,o']
    """
    if costs is None:
        return graph
    windowed = [x for x in graph.nodes() if isinstance(x.op, Contract) and _windowed(x)]
    if not _is_read(graph, windowed) or any(all(map(_is_computed, x.inputs)) for x in windowed):
        return graph
    channels_last = propagate_permutations(graph, CHANNELS_LAST_RULES)
    if channels_last is graph:
        return graph
    known_sizes = dict.fromkeys(input_size_names(graph), ASSUMED_IMAGE_SIZE) | dict(sizes or {})
    first, last = (_predicted(x, known_sizes, costs) for x in (graph, channels_last))
    chosen = last < MAX_TIME_RATIO * first
    if journal is not None:
        journal.record(OrderChosen(len(windowed), chosen, first, last))
    return channels_last if chosen else graph


def _is_read(graph: Graph, windowed: Sequence[Node]) -> bool:
    """Whether a contraction or reduction reads what the windowed contractions compute.

    Otherwise no such value is stored between kernels, and the kernel that computes it writes
    whatever order is wanted.
    """
    derived = {*windowed}
    for node in graph.nodes() if derived else ():
        if not derived.isdisjoint(node.inputs):
            if isinstance(node.op, (Contract, Reduce)):
                return True
            derived.add(node)
    return False


def _predicted(graph: Graph, sizes: Sizes, costs: ImageCosts) -> float:
    """Return the predicted ns of everything whose cost depends on the order.

    Which constants are prepacked is known only after planning; here the knob CONSTANTS_EXTRA
    decides.
    """
    extra = knobs.CONSTANTS_EXTRA.get()
    constants = (x.type for x in graph.inputs if _is_constant(x))
    prepacked = (
        extra is None or sum(_count(t.shape, sizes) * t.dtype.itemsize for t in constants) <= extra
    )
    total = sum(costs.permute_ns * _count(x.type.shape, sizes) for x in permuted_values(graph))
    for node in graph.nodes():
        if isinstance(node.op, Contract):
            total += _contraction(node, sizes, costs, prepacked=prepacked)
    return total


def _contraction(node: Node, sizes: Sizes, costs: ImageCosts, *, prepacked: bool) -> float:
    """Return the predicted ns of a contraction, or 0 where the order makes no difference."""
    op = node.op
    assert isinstance(op, Contract)
    sides = list(zip((op.left, op.right), node.inputs, strict=True))
    names = [{a for t in terms for a in axes_of(t)} for terms, _ in sides]
    extents = {
        a: _extent(n, sizes) for a, n in op.axis_extents(*(x.type for x in node.inputs)).items()
    }

    def count(axes: Sequence[str] | set[str]) -> int:
        return prod(extents[a] for a in axes)

    for data in (0, 1):  # which operand is the image
        (terms, x), data_axes, other = sides[data], names[data], names[1 - data]
        pixels = [a for a in op.out if a in data_axes - other]
        if len(pixels) < _MIN_PIXEL_AXES:
            continue
        product_terms, out_channels = count(op.reduction_axes()), count(set(op.out) - data_axes)
        shared_channels, channels = count(data_axes & other & {*op.out}), op.out[-1] not in pixels
        vector_length = (
            count(_trailing_axes(op.out, pixels))
            if not channels
            else max(out_channels, shared_channels)
        )
        filled = (
            vector_length / (ceil(vector_length / costs.lanes) * costs.lanes)
            if vector_length
            else 1.0
        )
        inner = axes_of(terms[memory_order(x)[-1]])
        read = _count(_source(x).type.shape, sizes)
        across = channels and _windowed(node) and bool(set(inner) & set(pixels))
        if {*op.out} <= data_axes:  # depthwise
            element_ns = costs.depthwise_element_ns[channels]
            term_ns = costs.depthwise_term_ns[channels]
            elements = max(read, count(op.out))
            return (
                elements * element_ns / filled
                + count(op.out) * term_ns * product_terms
                + costs.permute_ns * read * across
            )
        weights, windowed = sides[1 - data][1], _windowed(node)
        if windowed:
            filled = max(filled, costs.min_window_fill)
        rates, byte = (
            (costs.window_flop_factors, costs.window_byte_ns)
            if windowed
            else (costs.contract_flop_factors, costs.contract_byte_ns)
        )
        time = 2 * count(op.out) * product_terms * costs.flop_ns * rates[channels] / filled
        nbytes = node.type.dtype.itemsize
        time += byte[channels] * nbytes * (read + count(op.out))
        if not channels:
            return time
        is_prepacked = prepacked and _is_constant(weights)
        if across:
            transposes = is_prepacked or product_terms <= costs.few_channels * _taps(x)
            time += (
                costs.transposed_read_ns * read
                if transposes
                else costs.gathered_store_ns * count(op.out)
            )
        taps = {a for d in {*range(len(terms))} - {*memory_order(x)} for a in axes_of(terms[d])}
        runs = windowed and _has_contiguous_taps(*sides[1 - data], {*op.reduction_axes()}, taps)
        rate = costs.transposed_packed_byte_ns if runs else costs.packed_byte_ns[windowed]
        rate = costs.prepacked_byte_ns if is_prepacked else rate
        return time + rate * nbytes * _count(weights.type.shape, sizes)
    return 0.0


def _has_contiguous_taps(
    terms: tuple[Index, ...], weights: Node, summed: set[str], taps: set[str]
) -> bool:
    """Whether weights are contiguous along the reduction axes, with the taps innermost."""
    order = [a for d in memory_order(weights) for a in axes_of(terms[d])]
    innermost = order[-len(summed) :]
    return {*innermost} == summed and {*innermost[1:]} == taps


_MIN_PIXEL_AXES = 2
"""Minimum number of result axes of the image alone: a batch and what a window slides along."""


def _trailing_axes(out: tuple[str, ...], pixels: list[str]) -> list[str]:
    """Return the axes at the end of a result that are all pixels.

    Vectors span these merged rows.
    """
    axes: list[str] = []
    for a in reversed(out):
        if a not in pixels:
            break
        axes.append(a)
    return axes


def _window(x: Node) -> Node | None:
    """Return the window view that a value is, behind permutations."""
    while isinstance(x.op, Permute):
        x = x.inputs[0]
    return x if isinstance(x.op, Window) else None


def _source(x: Node) -> Node:
    while isinstance(x.op, (Window, Permute)):
        x = x.inputs[0]
    return x


def _taps(x: Node) -> int:
    """Return the number of positions in a window."""
    count = 1
    while isinstance(x.op, (Window, Permute)):
        count *= x.op.extent if isinstance(x.op, Window) else 1
        x = x.inputs[0]
    return count


def _windowed(node: Node) -> bool:
    return any(_window(x) is not None for x in node.inputs)


def _root(x: Node) -> Node:
    """Return the value behind all views (their first operand where they have several)."""
    while x.op.is_view and x.inputs:
        x = x.inputs[0]
    return x


def _is_computed(x: Node) -> bool:
    return not _root(x).op.is_source


def _is_constant(x: Node) -> bool:
    root = _root(x)
    return isinstance(root.op, Input) and root.op.constant


def _count(shape: Sequence[Index], at: Sizes) -> int:
    return prod(_extent(n, at) for n in shape)


def _extent(n: Index, at: Sizes) -> int:
    return n if isinstance(n, int) else int(evaluate(n, at))
