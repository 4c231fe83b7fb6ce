"""Whether what sums over windows make lies with its channels last, whatever the order it came in.

    conv(x: [b,c,h,w])  ->  permute(.. depthwise(conv(x): [b,h,w,o]) ..)    if that is predicted
                                                                            to be faster

`layouts` keeps the order of the data.  But nobody outside sees the values between kernels, and
kernels read and write the orders unequally well: sums over windows of each channel alone run along
channels without a partly filled vector, short lines (7 x 7 places) fill no vectors, and a line per
channel is a stream of memory for each.  With channels last weights are packed instead, in every
call unless they are kept.  So the whole graph is tried with its windows' results turned, where
their permutations meet no other they stay as kernels of their own, and what is predicted for both
graphs decides.

The prediction knows the sizes of the first call, and only what differs between the orders.  Where
sums over places give gradients of weights, values are read in the one order and in the other:
these graphs are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

from smelt import knobs
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import size_names
from smelt.journal import Journal, OrderChosen
from smelt.ops.contract import Contract
from smelt.ops.create import Input
from smelt.ops.reduce import Reduce
from smelt.ops.view import Permute, Window
from smelt.passes.propagate_layouts import CHANNELS_LAST, memory_order, travelled, turned_values
from smelt.types.expr import Index, axes_of, evaluate

__all__ = ["orders"]

Sizes = Mapping[str, int]

GUESS = 64
"""A size that nobody gives."""
LANES = 16
"""Elements of a vector, for what part of the last one is filled."""
WORTH = 0.95
"""Time of the turned graph, at most, as a part of the other's: predictions are not exact."""

# Nanoseconds of one core, from single kernels of networks (ResNet-18, MobileNetV2; batches of 1
# and 8; AVX-512).  In microseconds, channels first and last; the third is last with weights that
# are packed in the call:
#
#   each channel alone, 3 x 3     all channels, 1 x 1           all channels, 3 x 3
#   8x32 of 112²   1191  1004     8x16->96 of 112²  2802  1639  64 of 56²  1030  930  1011, 8x:
#   8x144 of 56²   1483  1390     8x32->16 of 112²  1265   552             8245 7673  8378
#   8x192 of 28²    372   339     8x24->144 of 56²   806   793  128 of 28²  978  894   944
#   8x576 of 14²/2  431   148     8x144->24 of 56²   982  1259             7669 7103  7165
#   8x960 of 7²     297   155     8x160->960 of 7²   791   490  256 of 14² 1013  856   972
#   96 of 56², 7x7  243   234     8x576->160 of 7²   465   302             7870 6782  6904
#   144 of 56²      194   151     160->960 of 7²     137    87  512 of 7²  1288  927  2043
#   576 of 14²/2     85    53     .. in the call             148             9485 6866  7947
#
# 3 colours to 64 channels, 7 x 7 by 2: 1074 and 976, 1219 from an image with its colours first;
# a batch of 8: 8432, 8123, 9402.
#
# The third column is of weights that lie apart.  In squares, on a machine of 0.42 of the speed, 512
# of 7² take 2850 instead of 6150, kept 2330; 256 of 14² 1980 instead of 3350, kept 1930; ResNet-18
# 37.0 ms in the call, 34.7 kept, and 46.5 with channels first.
FLOP = 1 / 270
"""A multiplication or an addition of a product."""
SUMS, WINDOWS = (1.10, 1.05), (1.08, 0.99)
"""What products take of that at full vectors, channels first and last, and those of windows."""
PARTLY = 0.75
"""What part of vectors is filled, at least, for products of windows: more lines share them."""
SUMS_BYTE, WINDOWS_BYTE = (0.022, 0.010), (0.040, 0.050)
"""A byte of such a product's data and results: lines apart are streams of their own."""
STENCIL = ((0.25, 0.0088), (0.12, 0.0115))
"""An element of a sum over a window of each channel alone, or of its data if these are more, and
each product in it."""
PACKED, RUNS, KEPT = (0.06, 0.11), 0.026, 0.01
"""A byte of weights of channels last: packed in the call (those of windows lie apart), the same
where all taps of a channel lie side by side and are packed in squares, or read from what is kept
packed."""
SEAM = 0.25
"""An element of a product of windows whose data has its channels first, and whose weights are
packed in the call: sums lie in lines of places and are gathered."""
SQUARE = 0.15
"""An element of such data where weights are kept packed, or channels are few: it is turned while it
is packed."""
COLOURS = 4
"""Channels, at most, that are few."""
TURNED = 0.4
"""An element that is turned."""


def orders(graph: Graph, sizes: Sizes | None = None, journal: Journal | None = None) -> Graph:
    """The graph, or the one with the channels of its windows' results last.

    >>> from smelt.graph.text import parse, text
    >>> graph = parse('''graph f(x: f32[8,16,58,58], k: f32[16,3,3], w: f32[256,16]) {
    ...   v0 = window(x) {axis=2, extent=3}
    ...   v1 = window(v0) {axis=3, extent=3}
    ...   v2 = contract(v1, k) {spec="b,c,u,v,i,j; c,i,j -> b,c,u,v"}
    ...   v3 = contract(v2, w) {spec="b,c,u,v; o,c -> b,o,u,v"}
    ...   v4 = reduce.max(v3) {axes=(2, 3)}
    ...   return v4
    ... }''')
    >>> [line.split('"')[1] for line in text(orders(graph)).splitlines() if "spec" in line]
    ['b,c,u,v,i,j; c,i,j -> b,u,v,c', 'b,c,u,v; o,c -> b,u,v,o']
    """
    windowed = [x for x in graph.nodes() if isinstance(x.op, Contract) and _windowed(x)]
    if not _is_read(graph, windowed) or any(all(map(_is_computed, x.inputs)) for x in windowed):
        return graph
    turned = travelled(graph, CHANNELS_LAST)
    if turned is graph:
        return graph
    at = dict.fromkeys(size_names(graph), GUESS) | dict(sizes or {})
    first, last = (_predicted(x, at) for x in (graph, turned))
    chosen = last < WORTH * first
    if journal is not None:
        journal.record(OrderChosen(len(windowed), chosen, first, last))
    return turned if chosen else graph


def _is_read(graph: Graph, windowed: Sequence[Node]) -> bool:
    """Whether a sum or fold reads what windows make: else nothing of it lies between kernels, and
    the one that makes it writes it in the order that is asked for."""
    made = {*windowed}
    for node in graph.nodes() if made else ():
        if not made.isdisjoint(node.inputs):
            if isinstance(node.op, (Contract, Reduce)):
                return True
            made.add(node)
    return False


def _predicted(graph: Graph, at: Sizes) -> float:
    """Nanoseconds of what takes another time in another order.  How much may be kept between calls
    is only known from a plan, but for what the settings allow."""
    extra = knobs.CONSTANTS_EXTRA.get()
    held = (x.type for x in graph.inputs if _is_constant(x))
    kept = extra is None or sum(_count(t.shape, at) * t.dtype.itemsize for t in held) <= extra
    total = sum(TURNED * _count(x.type.shape, at) for x in turned_values(graph))
    for node in graph.nodes():
        if isinstance(node.op, Contract):
            total += _contraction(node, at, kept=kept)
    return total


def _contraction(node: Node, at: Sizes, *, kept: bool) -> float:
    op = node.op
    assert isinstance(op, Contract)
    sides = list(zip((op.left, op.right), node.inputs, strict=True))
    names = [{a for t in terms for a in axes_of(t)} for terms, _ in sides]
    extents = {a: _at(n, at) for a, n in op.axis_extents(*(x.type for x in node.inputs)).items()}

    def count(axes: Sequence[str] | set[str]) -> int:
        return prod(extents[a] for a in axes)

    for data in (0, 1):
        (terms, x), own, other = sides[data], names[data], names[1 - data]
        places = [a for a in op.out if a in own - other]
        if len(places) < _PLACES:
            continue
        summed, fresh = count(op.summed()), count(set(op.out) - own)
        each, channels = count(own & other & {*op.out}), op.out[-1] not in places
        line = count(_last_run(op.out, places)) if not channels else max(fresh, each)
        filled = line / (ceil(line / LANES) * LANES) if line else 1.0
        inner = axes_of(terms[memory_order(x)[-1]])
        read = _count(_source(x).type.shape, at)
        across = channels and _windowed(node) and bool(set(inner) & set(places))
        if {*op.out} <= own:  # of each channel alone
            once, tap = STENCIL[channels]
            most = max(read, count(op.out))
            return most * once / filled + count(op.out) * tap * summed + TURNED * read * across
        weights, windowed = sides[1 - data][1], _windowed(node)
        if windowed:
            filled = max(filled, PARTLY)
        rates, byte = (WINDOWS, WINDOWS_BYTE) if windowed else (SUMS, SUMS_BYTE)
        time = 2 * count(op.out) * summed * FLOP * rates[channels] / filled
        nbytes = node.type.dtype.itemsize
        time += byte[channels] * nbytes * (read + count(op.out))
        if not channels:
            return time
        held = kept and _is_constant(weights)
        if across:
            turned = held or summed <= COLOURS * _taps(x)
            time += SQUARE * read if turned else SEAM * count(op.out)
        taps = {a for d in {*range(len(terms))} - {*memory_order(x)} for a in axes_of(terms[d])}
        runs = windowed and _lies_in_runs(*sides[1 - data], {*op.summed()}, taps)
        rate = RUNS if runs else PACKED[windowed]
        rate = KEPT if held else rate
        return time + rate * nbytes * _count(weights.type.shape, at)
    return 0.0


def _lies_in_runs(
    terms: tuple[Index, ...], weights: Node, summed: set[str], taps: set[str]
) -> bool:
    """Whether weights lie channel by channel along the sum, all taps of each side by side."""
    order = [a for d in memory_order(weights) for a in axes_of(terms[d])]
    run = order[-len(summed) :]
    return {*run} == summed and {*run[1:]} == taps


_PLACES = 2
"""Axes that the data alone has, at least: a batch and what a window slides along."""


def _last_run(out: tuple[str, ...], places: list[str]) -> list[str]:
    """The axes that end the result, all of them places: lines are merged."""
    run: list[str] = []
    for a in reversed(out):
        if a not in places:
            break
        run.append(a)
    return run


def _window(x: Node) -> Node | None:
    """The window that a value is, turned or not."""
    while isinstance(x.op, Permute):
        x = x.inputs[0]
    return x if isinstance(x.op, Window) else None


def _source(x: Node) -> Node:
    while isinstance(x.op, (Window, Permute)):
        x = x.inputs[0]
    return x


def _taps(x: Node) -> int:
    """Positions of the windows that a value is of."""
    found = 1
    while isinstance(x.op, (Window, Permute)):
        found *= x.op.extent if isinstance(x.op, Window) else 1
        x = x.inputs[0]
    return found


def _windowed(node: Node) -> bool:
    return any(_window(x) is not None for x in node.inputs)


def _root(x: Node) -> Node:
    """What a view is a view of, its first operand where it has several."""
    while x.op.is_view and x.inputs:
        x = x.inputs[0]
    return x


def _is_computed(x: Node) -> bool:
    return not _root(x).op.is_source


def _is_constant(x: Node) -> bool:
    root = _root(x)
    return isinstance(root.op, Input) and root.op.constant


def _count(shape: Sequence[Index], at: Sizes) -> int:
    return prod(_at(n, at) for n in shape)


def _at(n: Index, at: Sizes) -> int:
    return n if isinstance(n, int) else int(evaluate(n, at))
