"""Layered layout of a graph: layers by longest path, order within layers by barycentres.

After Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System
Structures" (1981). An edge over several layers has a dummy node in each, so that it passes between
nodes.

>>> drawn = layout_graph({0: (), 1: (0,), 2: (0,)}, {0: "x", 1: "exp", 2: "log"})
>>> [(p.node, p.y) for p in drawn.nodes]
[(0, 40.0), (1, 124.0), (2, 124.0)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from smelt.explain.data import NodeData
from smelt.explain.page_data import Layout, PlacedEdge, PlacedNode

ROW = 84.0
"""Distance of layers in pixels."""
GAP = 28.0
"""Minimum space between neighbours in a layer, in pixels."""
MARGIN = 40.0
CHARACTER = 7.6
"""Width of a character in pixels."""
SWEEPS = 6
DUMMY = 8.0
"""Width of a dummy node in pixels."""
WIDEST = 230.0
"""Largest width of a node; longer names are cut."""


def layout_of(nodes: Sequence[NodeData]) -> Layout:
    """Return the layout of a report's graph, without constants and scalars made of sizes."""
    hidden = {n.id for n in nodes if n.kind == "constant"}
    for n in nodes:
        if not n.output and not n.dims and n.kind != "input" and set(n.inputs) <= hidden:
            hidden.add(n.id)
    shown = [n for n in nodes if n.id not in hidden]
    return layout_graph(
        {n.id: tuple(x for x in dict.fromkeys(n.inputs) if x not in hidden) for n in shown},
        {n.id: max((n.label, f"{n.dtype}[{n.shape}]"), key=len) for n in shown},
    )


def layout_graph(inputs: Mapping[int, Sequence[int]], labels: Mapping[int, str]) -> Layout:
    """Place nodes in layers by topological order; edges lead downwards."""
    layers = _layers(inputs)
    widths = {n: min(WIDEST, 30 + CHARACTER * len(label)) for n, label in labels.items()}
    routes, upper = _insert_dummies(inputs, layers)
    widths |= {n: DUMMY for layer in layers for n in layer if n < 0}
    lower: dict[int, list[int]] = {n: [] for layer in layers for n in layer}
    for node, operands in upper.items():
        for x in operands:
            lower[x].append(node)
    centres = _centres(layers, upper, lower, widths)
    left = min((centres[n] - widths[n] / 2 for n in centres), default=0.0) - MARGIN
    right = max((centres[n] + widths[n] / 2 for n in centres), default=0.0) + MARGIN
    at = {
        n: (round(centres[n] - left, 1), MARGIN + ROW * k)
        for k, layer in enumerate(layers)
        for n in layer
    }
    return Layout(
        width=round(right - left, 1),
        height=2 * MARGIN + ROW * max(len(layers) - 1, 0),
        nodes=tuple(
            PlacedNode(node=n, x=at[n][0], y=at[n][1], width=round(widths[n], 1)) for n in inputs
        ),
        edges=tuple(
            PlacedEdge(producer=x, reader=n, points=tuple(at[k] for k in route))
            for (x, n), route in routes.items()
        ),
    )


def _centres(
    layers: Sequence[Sequence[int]],
    upper: Mapping[int, Sequence[int]],
    lower: Mapping[int, Sequence[int]],
    widths: Mapping[int, float],
) -> dict[int, float]:
    """Return horizontal centres: each node near the mean of its neighbours."""
    orders = [list(layer) for layer in layers]
    centres = {
        n: x for layer in orders for n, x in _spread(layer, dict.fromkeys(layer, 0.0), widths)
    }
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for order in orders if downwards else reversed(orders):
            near = upper if downwards else lower
            wishes = {n: _mean([centres[x] for x in near.get(n, ())], centres[n]) for n in order}
            order.sort(key=lambda n: wishes[n])
            centres.update(_spread(order, wishes, widths))
    return centres


def _insert_dummies(
    inputs: Mapping[int, Sequence[int]], layers: list[list[int]]
) -> tuple[dict[tuple[int, int], list[int]], dict[int, list[int]]]:
    """Add negative numbers to the layers that edges pass.

    Returns the nodes of each edge from end to end, and the upper neighbours of each node.
    """
    depth = {n: k for k, layer in enumerate(layers) for n in layer}
    routes: dict[tuple[int, int], list[int]] = {}
    upper: dict[int, list[int]] = {}
    dummy = 0
    for node, operands in inputs.items():
        for x in operands:
            route = [x]
            for k in range(depth[x] + 1, depth[node]):
                dummy -= 1
                layers[k].append(dummy)
                route.append(dummy)
            route.append(node)
            routes[x, node] = route
            for above, below in pairwise(route):
                upper.setdefault(below, []).append(above)
    return routes, upper


def _layers(inputs: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the nodes of each layer; inputs move down to just above their first reader."""
    depth: dict[int, int] = {}
    for node, operands in inputs.items():
        depth[node] = max((depth[x] + 1 for x in operands), default=0)
    first_reader: dict[int, int] = {}
    for node, operands in inputs.items():
        for x in operands:
            first_reader[x] = min(first_reader.get(x, depth[node]), depth[node])
    for node, operands in inputs.items():
        if not operands and node in first_reader:
            depth[node] = first_reader[node] - 1
    layers: list[list[int]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in inputs:
        layers[depth[node]].append(node)
    return layers


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _spread(
    layer: Sequence[int], wishes: Mapping[int, float], widths: Mapping[int, float]
) -> list[tuple[int, float]]:
    """Place a layer's nodes in order, without overlaps, close to the wished positions.

    Runs of nodes that touch move together to the mean of their wishes.
    """
    runs: list[tuple[list[int], float]] = []  # nodes, and the centre of the whole run
    for node in layer:
        runs.append(([node], wishes[node]))
        while len(runs) > 1 and _right(runs[-2], widths) + GAP > _left(runs[-1], widths):
            nodes = runs[-2][0] + runs[-1][0]
            runs[-2:] = [(nodes, _balanced(nodes, wishes, widths))]
    placed: list[tuple[int, float]] = []
    for nodes, centre in runs:
        at = centre - _length(nodes, widths) / 2
        for n in nodes:
            placed.append((n, at + widths[n] / 2))
            at += widths[n] + GAP
    return placed


def _length(nodes: Sequence[int], widths: Mapping[int, float]) -> float:
    return sum(widths[n] for n in nodes) + GAP * (len(nodes) - 1)


def _left(run: tuple[list[int], float], widths: Mapping[int, float]) -> float:
    return run[1] - _length(run[0], widths) / 2


def _right(run: tuple[list[int], float], widths: Mapping[int, float]) -> float:
    return run[1] + _length(run[0], widths) / 2


def _balanced(
    nodes: Sequence[int], wishes: Mapping[int, float], widths: Mapping[int, float]
) -> float:
    """Return the centre of a run at which its nodes' mean distance is zero.

    That is the distance to their wished positions, with sign.
    """
    at, shifts = -_length(nodes, widths) / 2, 0.0
    for n in nodes:
        shifts += wishes[n] - (at + widths[n] / 2)
        at += widths[n] + GAP
    return shifts / len(nodes)
