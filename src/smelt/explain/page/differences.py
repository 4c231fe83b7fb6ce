"""Compare values of a run, in full, with those of the program without fusion.

Dimensions of a value in registers are matched with those of the operator's result by their
extents. A value with no such match, and a carried value, is not compared.

>>> a, b = np.float32([0.1, 0.2]), np.float32([0.1, 0.20000002])
>>> difference_of(a, b).cells
(1,)
>>> difference_of(a, a) is None
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations, permutations
from typing import Any

import numpy as np

from smelt.explain.page_data import Difference, Number
from smelt.fusion.plan import Cluster
from smelt.graph.ir import Node
from smelt.kernel.evaluate import Tile
from smelt.kernel.ir import Kernel, Let, Reduce, Ref, Update
from smelt.kernel.walk import statements, visit
from smelt.ops.reduce import Reduce as ReduceOp

RELATIVE, ABSOLUTE = 1e-2, 1e-3
"""Values this close differ by rounding only, also in half types."""
MAX_AXES = 5
"""Maximum dimensions that are matched."""

Array = np.ndarray[Any, Any]
Ranges = Mapping[str, tuple[int, int]]


def difference_of(fused: Array, unfused: Array) -> Difference | None:
    """Return how two arrays of one shape differ; None if all bits are equal."""
    a, b = fused.reshape(-1), unfused.reshape(-1)
    unequal = (a != b) & ~((a != a) & (b != b))
    cells = np.flatnonzero(unequal)
    if not len(cells):
        return None
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        distance = np.abs(a[cells].astype(wide) - b[cells].astype(wide))
        worst = int(np.argmax(np.nan_to_num(distance, nan=np.inf)))
    return Difference(
        kind="rounding" if _close(a, b) else "interim",
        cells=tuple(int(c) for c in cells),
        largest=_number(distance[worst]),
        fused=_number(a[cells[worst]]),
        unfused=_number(b[cells[worst]]),
    )


def unfused_tile(
    tile: Tile, kernel: Kernel, node: Node, result: Array, ranges: Ranges
) -> Array | None:
    """Return the part of an operator's result that a tile has.

    None without a sure match.

    `ranges` are those of the grid's block: the result may have dimensions along which a block has
    one position. The number of a part is not a position of a result. Where several orders of the
    dimensions fit, the one with close values is right.
    """
    dims = [(k, d) for k, d in enumerate(node.type.shape) if d != 1]
    extents = {a.name: a.extent for a in kernel.axes}
    if len(dims) > MAX_AXES or not extents.keys() >= {*tile.axes}:
        return None
    tile_axes = [
        (extents[a], slice(s, s + n))
        for a, s, n in zip(tile.axes, tile.start, tile.data.shape, strict=True)
    ]
    single = [
        (extents[a], slice(*r))
        for a, r in ranges.items()
        if a in extents and a not in tile.axes and r[1] - r[0] == 1
    ]
    parts: list[Array] = []
    for more in combinations(single, max(len(dims) - len(tile_axes), 0)):
        axes = [*tile_axes, *more]
        for order in permutations(dims):
            if [d for _, d in order] == [e for e, _ in axes]:
                places = dict(zip([k for k, _ in order], [s for _, s in axes], strict=True))
                part = result[tuple(places.get(k, 0) for k in range(result.ndim))]
                rank = np.argsort(np.argsort([k for k, _ in order]))
                parts.append(np.transpose(part, rank).reshape(tile.data.shape))
    if len(parts) > 1:
        parts = [p for p in parts if _close(tile.data, p)]
    return parts[0] if parts else None


def final_values(kernel: Kernel) -> frozenset[str]:
    """Return the names of the last value of each operator."""
    names = {s.origin: s.name for s in statements(kernel) if isinstance(s, Let) and s.origin >= 0}
    return frozenset(names.values())


def reduced_nodes(kernel: Kernel, cluster: Cluster) -> dict[str, Node]:
    """Return the reduction that each carried value accumulates, where its update says so.

    `v7' = max(v7, max(v6 over n))` accumulates the operator that reduces what `v6` is.
    """
    origins = {s.name: s.origin for s in statements(kernel) if isinstance(s, Let)}
    reductions: dict[str, Node] = {}
    for s in statements(kernel):
        if not isinstance(s, Update):
            continue
        for v in visit(s.value):
            if isinstance(v, Reduce) and isinstance(v.arg, Ref):
                origin = origins.get(v.arg.name, -1)
                reads = cluster.nodes[origin] if origin >= 0 else None
                nodes = [
                    n
                    for n in cluster.nodes
                    if isinstance(n.op, ReduceOp)
                    and n.op.combine == v.combine
                    and n.inputs[0] is reads
                ]
                if len(nodes) == 1:
                    reductions[s.state] = nodes[0]
    return reductions


def _close(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    return bool(np.allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True))


def _number(x: Any) -> Number:
    """Return a number with all its digits, for JSON."""
    value = x.item()
    if isinstance(value, bool | int):
        return value
    if isinstance(value, complex):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    return float(np.format_float_scientific(x)) if np.asarray(x).dtype.kind == "f" else value
