"""Merge the regions of two flat sets of units without rebuilding them.

A flat region computes every unit once at the positions of one space. If one region reads the other
at its own positions, the two spaces are the same up to the order of axes: loads and stores are
united, and work adds up.

>>> from smelt.fusion.region import build_region
>>> from smelt.fusion.units import Units
>>> from smelt.graph.text import parse
>>> units = Units(
...     parse('''graph f(x: f32[n,m], y: f32[m,n]) {
...   v0 = exp(x)
...   v1 = permute(v0) {perm=(1, 0)}
...   v2 = mul(v1, y)
...   return v2
... }''')
... )
>>> found = join_flat(
...     build_region(units, 0b100, 0b100), build_region(units, 0b1000, 0b1000), 0b1000
... )
>>> found.loads, found.loads == build_region(units, 0b1100, 0b1000).loads
({1: [(0, 1)], 0: [(1, 0)]}, True)
"""

from __future__ import annotations

from smelt.fusion.bitsets import bits
from smelt.fusion.region import Position, Region


def join_flat(one: Region, other: Region, stored: int) -> Region | None:
    """Return the region of two flat ones together.

    `other` may read `one`, the reverse, or neither (siblings). None if the two spaces are not seen
    to be the same, or in other unusual cases, which `look` handles. Only stored units have
    positions in the result.
    """
    axis_map = _axis_map(one, other)
    common = one.members & other.members
    if axis_map is None or (common and not (one.uniform and other.uniform)):
        return None
    merged = Region(one.members | other.members, stored, list(other.axes))
    for region, renaming in ((other, None), (one, axis_map)):
        for u in bits(region.stored & stored):
            if u not in merged.positions:
                (position,) = region.positions[u]
                merged.positions[u] = [_renamed_axes(position, renaming)]
                merged.masks[u] = [merged.all_axes]
        if not _add_loads(merged, region, renaming):
            return None
    merged.data_positions = one.data_positions | other.data_positions
    merged.grid, merged.flat, merged.uniform = merged.all_axes, True, one.uniform and other.uniform
    return merged


def _axis_map(one: Region, other: Region) -> tuple[int, ...] | None:
    """Return for each axis of `one` the axis of `other` that it corresponds to."""
    if len(one.axes) != len(other.axes):
        return None
    axis_map: tuple[int, ...] | None = None
    values = [v for v in other.loads if one.stored >> v & 1]
    pairs = [(one.positions[v], other.loads[v]) for v in values]
    pairs += [(one.loads[v], other.positions[v]) for v in one.loads if other.stored >> v & 1]
    for first_positions, second_positions in pairs:
        candidate = _match_positions(first_positions, second_positions, len(one.axes))
        if candidate is None or (axis_map is not None and candidate != axis_map):
            return None
        axis_map = candidate
    if axis_map is None:
        for v, first_positions in one.loads.items():
            second_positions = other.loads.get(v)
            candidate = (
                None
                if second_positions is None
                else _match_positions(first_positions, second_positions, len(one.axes))
            )
            if candidate is not None:
                return candidate
    return axis_map


def _match_positions(
    first_positions: list[Position], second_positions: list[Position], rank: int
) -> tuple[int, ...] | None:
    """Return the renaming of all axes that maps one position to another, if any."""
    if len(first_positions) != 1 or len(second_positions) != 1:
        return None
    axis_map = [-1] * rank
    for a, b in zip(first_positions[0], second_positions[0], strict=True):
        if not isinstance(a, int) or not isinstance(b, int) or (a < 0) != (b < 0):
            return None
        if a >= 0:
            axis_map[a] = b
    return tuple(axis_map) if sorted(axis_map) == list(range(rank)) else None


def _renamed_axes(position: Position, axis_map: tuple[int, ...] | None) -> Position:
    if axis_map is None:
        return position
    return tuple([axis_map[t] if isinstance(t, int) and t >= 0 else t for t in position])


def _add_loads(merged: Region, region: Region, axis_map: tuple[int, ...] | None) -> bool:
    """Add the loads of a region, axes renamed; return whether that is possible."""
    unchanged = axis_map is None or axis_map == tuple(range(len(axis_map)))
    for v, positions in region.loads.items():
        if merged.members >> v & 1:
            continue
        if not unchanged and any(not isinstance(t, int) for p in positions for t in p):
            return False
        merged_positions = merged.loads.setdefault(v, [])
        masks = merged.load_masks.setdefault(v, [])
        for position, mask in zip(positions, region.load_masks[v], strict=True):
            renamed = position if unchanged else _renamed_axes(position, axis_map)
            if renamed not in merged_positions:
                merged_positions.append(renamed)
                masks.append(mask if unchanged else _mask(renamed))
    return True


def _mask(position: Position) -> int:
    axes = 0
    for t in position:
        if isinstance(t, int) and t >= 0:
            axes |= 1 << t
    return axes
