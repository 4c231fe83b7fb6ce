"""Determine how a set of units would be computed as one kernel.

A region says at which position each unit is computed, along which axes, and after which reductions.
Lowering pulls values back from the outputs and assigns axes to roles; this module predicts the
outcome without building anything, so that the search can evaluate thousands of sets. A position
(`Position`) is given in axes of the region: for each dimension an axis number, `AT_ZERO` (0), or an
index expression.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,m]) {
...   v0 = reduce.max(x) {axes=(1,)}
...   v1 = reshape(v0) {shape=(n,1)}
...   v2 = sub(x, v1)
...   return v2
... }''')
>>> region = build_region(Units(graph), 0b110, 0b100)
>>> region.positions[2], region.positions[1], region.levels, region.fault
([(0, 1)], [(0,)], {1: 1, 2: 1}, None)
>>> region.grid, region.reduced_axes
(1, {1: 2})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import TypeAlias

from smelt.fusion.bitsets import bits, find_root
from smelt.fusion.plan import Cluster
from smelt.fusion.range_outputs import stored_parts
from smelt.fusion.trace import Term, reshape_index
from smelt.fusion.units import AT_ZERO, Edge, Unit, Units
from smelt.fusion.window_recompute import Window, windows_of
from smelt.ops.contract import bare_axis
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f32, f64
from smelt.types.expr import (
    Atom,
    Expr,
    Index,
    atoms,
    axes_of,
    axis,
    coefficient,
    map_variables,
    product,
    value,
)

Position: TypeAlias = tuple[Term, ...]
Positions: TypeAlias = dict[int, list[Position]]
Masks: TypeAlias = dict[int, list[int]]


@dataclass(slots=True, eq=False)
class Region:
    """The result of `build_region`. Sets of units, values and axes are bit masks."""

    members: int
    stored: int
    axes: list[int] = field(default_factory=list[int])
    """Extent numbers (of `Units.extents`) of the axes."""
    positions: Positions = field(default_factory=dict[int, list[Position]])
    """Positions at which each unit is computed; readers come before their operands."""
    masks: Masks = field(default_factory=dict[int, list[int]])
    """The axes of each of these positions."""
    loads: Positions = field(default_factory=dict[int, list[Position]])
    """Values from outside and the positions where they are read."""
    load_masks: Masks = field(default_factory=dict[int, list[int]])
    reduced_axes: dict[int, int] = field(default_factory=dict[int, int])
    """Axes that each reduction reduces."""
    levels: dict[int, int] = field(default_factory=dict[int, int])
    """Length of the longest chain of reductions up to and including a unit; empty if none."""
    grid: int = 0
    """Axes that every result has and no reduction reduces."""
    all_reduced: int = 0
    scanned: int = 0
    flat: bool = False
    """Whether every unit is computed once, at positions of one common space."""
    uniform: bool = False
    """Whether it is flat and nothing is broadcast inside: every unit at every position."""
    work: float = -1.0
    """Nanoseconds of arithmetic on one core; -1 until the model has computed it."""
    fault: str | None = None  # the reason why this is not a kernel
    fault_unit: int = -1  # the unit that the fault is about
    reduced_axis_order: dict[int, tuple[int, ...]] = field(
        default_factory=dict[int, tuple[int, ...]]
    )
    """The axes of `reduced_axes` in the order in which the reduction has them at its first
    position."""
    windows: dict[int, list[Window]] = field(default_factory=dict[int, "list[Window]"])
    """Windows through which reductions read each product that is computed once per position."""
    packing: float = 0.0
    """The part of `work` that packs operands of contractions repeatedly."""
    data_positions: dict[str, int] = field(default_factory=dict[str, int])
    """The axes of each data-dependent position."""
    parts: dict[int, int] = field(default_factory=dict[int, int])
    """Results that are ranges of another unit and are stored at its positions."""
    walked: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """Other shapes (extent numbers) than their own under which stored units are iterated over."""

    @property
    def all_axes(self) -> int:
        return (1 << len(self.axes)) - 1

    def elements_read(
        self, elements: Sequence[int], extents: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Iterate over values that are read, with the distinct elements read of each.

        `elements` are those of all values, `extents` those of all axes (`Units.extents`).
        """
        sizes = [extents[e] for e in self.axes]
        for v, masks in self.load_masks.items():
            yield v, min(elements[v], sum(prod([sizes[a] for a in bits(m)]) for m in masks))

    def refuse(self, reason: str, unit: int) -> Region:
        """Return this region with a fault."""
        self.fault, self.fault_unit = reason, unit
        return self


MAX_READS = 256
"""Maximum reads of a unit unrolled at its positions.

A kernel may have twice as many at all positions beyond the first of each unit: nested short sums
multiply them, neighbours add up.
"""


def build_region(
    units: Units, members: int, stored: int, walked: Mapping[int, tuple[int, ...]] | None = None
) -> Region:
    """Build the region of units `members`, of which `stored` are stored.

    `walked` gives stored units another shape (extent numbers) to iterate over: a result [n, c]
    whose reductions live in [n, g, c//g] is computed group by group and stored as it is.
    """
    return _RegionBuilder(units, Region(members, stored, walked=walked or {})).run()


def region_of(units: Units, cluster: Cluster) -> Region:
    """Return the region of a cluster of a finished plan."""
    members = sum(1 << units.number[node] for node in cluster.nodes if units.is_unit(node))
    stored = [units.number[node] for node in cluster.outputs]
    walked = {
        u: tuple(map(units.extent_number, shape))
        for u, node, shape in zip(stored, cluster.outputs, cluster.shapes)
        if shape != node.type.shape
    }
    return build_region(units, members, sum(1 << u for u in stored), walked)


class _RegionBuilder:
    """Pulls values back from the stored units."""

    def __init__(self, units: Units, region: Region) -> None:
        self.units, self.region, self.walked = units, region, region.walked
        self.origins: list[int] = []
        self.classes: dict[int, int] | None = None
        self.own: dict[int, int] | None = None
        self.beside: set[tuple[int, int]] = set()
        """Pairs of axis classes that some member has as two axes of its own, in both orders."""
        self.square = region.members & units.repeated_extents
        # their position names mean other axes in other regions
        picked = region.members & units.gathers
        self.known_masks: dict[Position, int] = {} if picked else units.masks
        self.expressed = units.expression_positions
        self.odd = 0
        """Units computed at several positions, or at one with index expressions."""
        self.seen: set[tuple[int, Position]] = set()
        """Known positions of units and loads: chains of shifts have hundreds."""

    def run(self) -> Region:
        region, units = self.region, self.units
        if not self.walked and region.stored & units.views:
            region.parts = stored_parts(units, region.members, region.stored)
        for u in bits(region.stored):
            position = self._own_position(units.unit(region.parts.get(u, u)))
            region.positions[u] = [position]
            if (full_unit := region.parts.get(u)) is not None:
                region.positions[full_unit] = [position]
                self.seen.add((full_unit, position))
            self.seen.add((u, position))
            if position in self.expressed:
                self.odd |= 1 << u
        pending, extra_reads = region.members, 0
        while pending:
            u = pending.bit_length() - 1
            pending ^= 1 << u
            positions = region.positions.get(u)
            if positions is not None:  # else nothing in the region needs it
                unit = units.unit(u)
                extra_reads += (len(positions) - 1) * len(unit.edges)
                if (
                    len(positions) > 1
                    and max(extra_reads / 2, len(positions) * len(unit.edges)) > MAX_READS
                ):
                    return region.refuse("code-size", u)
                if self.odd >> u & 1 and units.reductions >> u & 1 and not self._is_once(unit):
                    return region.refuse("reduction-crossing", u)
                region.masks[u] = []
                for position in positions:
                    if u in region.parts:  # it is stored where the full value is computed
                        region.masks[u].append(self.mask(position))
                    else:
                        self._propagate(unit, position)
        self._levels()
        return self._classify()

    # ---- axes ----------------------------------------------------------------------------------

    def _own_position(self, unit: Unit) -> Position:
        used = 0
        position: list[Term] = []
        shape = self.walked.get(unit.number)
        for d, extent in enumerate(shape or unit.axes[: unit.rank]):
            if extent == self.units.one:
                position.append(AT_ZERO)
                continue
            a = self._axis(extent, used, unit.number * 32 + d, in_class=shape is None)
            used |= 1 << a
            position.append(a)
        return tuple(position) if shape is None else self._reshaped(unit, shape, position)

    def _reshaped(self, unit: Unit, shape: tuple[int, ...], position: list[Term]) -> Position:
        """Return the position of a unit that is iterated over under another shape."""
        key = (unit.number, shape, *position)
        reshaped = self.units.reshaped_positions.get(key)
        if reshaped is None:
            extents = self.units.extents
            own_shape = tuple(extents[e] for e in unit.axes[: unit.rank])
            index = tuple(map(self._index, position))
            flat = reshape_index(tuple(extents[e] for e in shape), own_shape, index)
            reshaped = tuple(self._term(e, dim) for e, dim in zip(flat, own_shape, strict=True))
            self.units.reshaped_positions[key] = reshaped
        return self._recorded(reshaped)

    def _recorded(self, position: Position) -> Position:
        """Return `position`, remembering it if it has index expressions."""
        for t in position:
            if not isinstance(t, int):
                self.expressed.add(position)
                break
        return position

    def _axis(self, extent: int, used: int, key: int, *, in_class: bool = True) -> int:
        """Return an unused axis of an extent, of the same class if there are several."""
        axes = self.region.axes
        free = [a for a, e in enumerate(axes) if e == extent and not used >> a & 1]
        if free and self.square and in_class:
            free = self._same_class_axes(free, key)
        if not free:
            axes.append(extent)
            self.origins.append(key)
            return len(axes) - 1
        if len(free) > 1:
            if self.classes is None:
                self.classes = self._classes(self.units.all_values)
            kind = find_root(self.classes, key)
            for a in free:
                if find_root(self.classes, self.origins[a]) == kind:
                    return a
        return free[0]

    def _same_class_axes(self, free: list[int], key: int) -> list[int]:
        """Return the axes of the same class by the edges between members.

        If there are none, those that no member has together with that class: attention with as many
        queries as keys still has two axes.
        """
        if self.own is None:
            with_operands = sum(
                1 << u for u in bits(self.region.members) if self.units.unit(u).edges
            )
            self.own = self._classes(with_operands)  # units without operands relate no axes
            for u in bits(self.square):
                pairs_of_axes = combinations(enumerate(self.units.unit(u).axes), 2)
                pairs = [(u * 32 + d, u * 32 + k) for (d, e), (k, n) in pairs_of_axes if e == n]
                for left, right in pairs:
                    a, b = find_root(self.own, left), find_root(self.own, right)
                    self.beside |= {(a, b), (b, a)}
        kind = find_root(self.own, key)
        kinds = {a: find_root(self.own, self.origins[a]) for a in free}
        same_class = [a for a in free if kinds[a] == kind]
        return same_class or [a for a in free if (kinds[a], kind) not in self.beside]

    def _classes(self, producers: int) -> dict[int, int]:
        """Return which dimensions are the same axis by the edges from `producers` to members.

        A union-find forest.
        """
        parent: dict[int, int] = {}
        ties = self.units.axis_links
        for u in bits(self.region.members):
            for v, pairs in ties[u]:
                if producers >> v & 1:
                    for left, right in pairs:
                        a, b = find_root(parent, left), find_root(parent, right)
                        if a != b:
                            parent[b] = a
        return parent

    # ---- positions -----------------------------------------------------------------------------

    def _propagate(self, unit: Unit, position: Position) -> None:
        region = self.region
        used = self.mask(position)
        region.masks[unit.number].append(used)
        full_position = position
        if unit.is_reduction:
            ended = 0
            reduced_axes: list[Term] = []
            for k in range(unit.rank, len(unit.axes)):
                a = self._axis(unit.axes[k], used | ended, unit.number * 32 + k)
                ended |= 1 << a
                reduced_axes.append(a)
            region.reduced_axes[unit.number] = region.reduced_axes.get(unit.number, 0) | ended
            region.reduced_axis_order.setdefault(
                unit.number, tuple([a for a in reduced_axes if isinstance(a, int)])
            )
            full_position = (*position, *reduced_axes)
        members, positions, loads, seen = region.members, region.positions, region.loads, self.seen
        for edge in unit.edges:
            if edge.same:
                read_at = position
            elif edge.simple:
                plain: tuple[int, ...] = edge.terms  # type: ignore[assignment]
                read_at = tuple([full_position[t] if t >= 0 else AT_ZERO for t in plain])
                if position in self.expressed:
                    self._recorded(read_at)
            else:
                read_at = self._recorded(self._read_position(unit, edge, full_position))
            v = edge.producer
            count = len(seen)
            seen.add((v, read_at))
            if len(seen) == count:
                continue
            if members >> v & 1:
                of_operand = positions.setdefault(v, [])
                of_operand.append(read_at)
                if len(of_operand) > 1 or read_at in self.expressed:
                    self.odd |= 1 << v
                continue
            loads.setdefault(v, []).append(read_at)
            region.load_masks.setdefault(v, []).append(self.mask(read_at))

    def _read_position(self, unit: Unit, edge: Edge, position: Position) -> Position:
        """Return the position that an edge with index expressions reads."""
        axes, shape = self.region.axes, self.units.values[edge.producer].type.shape
        key = (edge.terms, shape, position, *[axes[a] for a in bits(self.mask(position))])
        composed = None if unit.trace.data_positions else self.units.composed_positions.get(key)
        if composed is None:
            composed = tuple(
                [
                    self._term(map_variables(term, self._leaf(unit, position)), dim)
                    if isinstance(term, Expr)
                    else position[term]
                    if term >= 0
                    else AT_ZERO
                    for term, dim in zip(edge.terms, shape, strict=True)
                ]
            )
            if not unit.trace.data_positions:  # else its names differ at each position of the unit
                self.units.composed_positions[key] = composed
        return composed

    def _leaf(self, unit: Unit, position: Position) -> Callable[[Atom], Index]:
        """Return the function that replaces the variables of an edge's expression at a position."""

        def leaf(atom: Atom) -> Index:
            if atom.kind == "axis":
                return self._index(position[int(atom.name[1:])])
            if atom.kind == "value":
                return self._data_position(unit, atom, position)
            return Expr((((atom,), 1),))

        return leaf

    def _index(self, term: Term) -> Index:
        if isinstance(term, Expr):
            return term
        return (
            0 if term == AT_ZERO else axis(f"a{term}", self.units.extents[self.region.axes[term]])
        )

    def _term(self, e: Index, dim: Index) -> Term:
        if isinstance(e, int):
            return AT_ZERO if e == 0 else Expr((((), e),))
        name = bare_axis(e)
        if name is not None and self.units.extents[self.region.axes[int(name[1:])]] == dim:
            return int(name[1:])
        return e

    def _data_position(self, unit: Unit, atom: Atom, position: Position) -> Index:
        """Return a data-dependent position, named uniquely for each position of the unit."""
        axes = dict(unit.trace.data_positions)[atom.name]
        nth = self.region.positions[unit.number].index(position[: unit.rank])
        name = f"{atom.name}.{unit.number}.{nth}"
        self.region.data_positions[name] = self.mask(tuple(position[a] for a in axes))
        return value(name, atom.extent)

    def mask(self, position: Position) -> int:
        """Return the axes that a position depends on."""
        axes = self.known_masks.get(position)
        if axes is None:
            axes = 0
            for term in position:
                if not isinstance(term, int):
                    axes |= self._expr_mask(term)
                elif term >= 0:
                    axes |= 1 << term
            self.known_masks[position] = axes
        return axes

    def _expr_mask(self, e: Expr) -> int:
        axes = 0
        for atom in atoms(e):
            if atom.kind == "axis":
                axes |= 1 << int(atom.name[1:])
            elif atom.kind == "value":
                axes |= self.region.data_positions[atom.name]
        return axes

    # ---- verdict -------------------------------------------------------------------------------

    def _levels(self) -> None:
        region = self.region
        if not region.reduced_axes:
            return
        levels = region.levels
        for u in reversed(region.masks):  # operands before readers
            unit = self.units.unit(u)
            below = 0
            for edge in unit.edges:
                below = max(below, levels.get(edge.producer, 0))
            levels[u] = below + unit.is_reduction
        for mask in region.reduced_axes.values():
            region.all_reduced |= mask

    def _blocking_reductions(self) -> list[int]:
        """Return the contractions, or all reductions if there are none.

        Contractions dominate the cost of a kernel.
        """
        ended = self.region.reduced_axes
        return [u for u in ended if self.units.unit(u).trace.dots] or list(ended)

    def _classify(self) -> Region:
        """Determine the grid, or the fault."""
        region = self.region
        scatters = region.members & self.units.scatters
        if scatters & (scatters - 1) or (scatters and scatters != region.stored):
            return region.refuse("scatter-root", scatters.bit_length() - 1)
        for u in bits(region.members & self.units.reductions):
            unit = self.units.unit(u)
            if unit.scan_axis >= 0 and u in region.positions:
                scan_axis = region.positions[u][0][unit.scan_axis]
                # a single element of the scan is read
                if not isinstance(scan_axis, int) or scan_axis < 0:
                    return region.refuse("reduction-crossing", u)
                region.scanned |= 1 << scan_axis
                if region.scanned.bit_count() != 1:
                    return region.refuse("reduction-crossing", u)
        common = region.all_axes
        all_axes = 0
        for u in bits(region.stored):
            common &= region.masks[u][0]
            all_axes |= region.masks[u][0]
        for u in self._blocking_reductions():  # they would be repeated along axes that they lack
            common &= region.masks[u][0] | region.reduced_axes[u]
        region.grid = common & ~region.all_reduced & ~region.scanned
        region.flat = not self.odd and not region.reduced_axes and region.grid == region.all_axes
        region.uniform = region.flat and all(m == [region.grid] for m in region.masks.values())
        return region if common == all_axes else self._check_related()

    def _is_once(self, unit: Unit) -> bool:
        """Return whether a reduction at a position with expressions is computed once per result.

        The expressions may combine axes of the region, but not split any.
        """
        (position, *others) = self.region.positions[unit.number]
        if others or unit.scan_axis >= 0:
            return False
        if unit.trace.dots and self._is_peeked(unit, position):
            return True
        extents = self.units.extents
        positions = product(extents[self.region.axes[a]] for a in bits(self.mask(position)))
        if unit.trace.dots and not self._is_blocked(position):
            return False
        elements = self.units.values[unit.number].type.elements
        return positions == elements or _is_injective(position)

    def _is_peeked(self, unit: Unit, position: Position) -> bool:
        """Return whether reductions, and no other contraction, read it through windows."""
        units, region = self.units, self.region
        taps = excluded = 0
        for u, ended in region.reduced_axes.items():
            if units.unit(u).trace.dots:
                excluded |= ended
            else:
                taps |= ended
        windows = windows_of(position, taps & ~excluded, lambda a: units.extents[region.axes[a]])
        if not windows or units.values[unit.number].type.dtype.compute not in (f32, f64):
            return False
        region.windows[unit.number] = windows
        return True

    def _is_blocked(self, position: Position) -> bool:
        """Return whether a contraction may be blocked along the axes of a position.

        They must be its readers' own, and none may be split.
        """
        reduced = 0
        for mask in self.region.reduced_axes.values():
            reduced |= mask
        factors = [a for t in position if not isinstance(t, int) for a in atoms(t)]
        return not self.mask(position) & reduced and all(a.kind not in ("//", "%") for a in factors)

    def _check_related(self) -> Region:
        """Refuse results over different axes unless computing them iterates over a common axis."""
        region = self.region
        iterated: dict[int, int] = {}
        for u in reversed(region.masks):
            axes = region.masks[u][0] | region.reduced_axes.get(u, 0)
            for edge in self.units.unit(u).edges:
                axes |= iterated.get(edge.producer, 0)
            iterated[u] = axes
        seen: list[int] = []
        for u in bits(region.stored):
            for other in seen:
                if not iterated[u] & other and iterated[u] | other:
                    return region.refuse("different-axes", u)
            seen.append(iterated[u])
        return region


def _is_injective(position: Position) -> bool:
    """Return whether different positions read different elements, as where a part is read.

    Every term must move along an axis that no other term has.
    """
    seen = set[int]()
    for term in position:
        axes = () if term == AT_ZERO else axis_numbers(term)
        step = coefficient(term, f"a{axes[0]}") if isinstance(term, Expr) and axes else 1
        if len(axes) > 1 or seen & {*axes} or not isinstance(step, int) or step == 0:
            return False
        seen.update(axes)
    return True


@lru_cache(maxsize=4096)
def axis_numbers(term: Term) -> tuple[int, ...]:
    """Return the axis numbers in a term; `AT_ZERO` counts as one."""
    return (term,) if isinstance(term, int) else tuple(int(name[1:]) for name in axes_of(term))


@lru_cache(maxsize=4096)
def axes_mask(term: Term) -> int:
    """Return the axes in a term as a mask."""
    return sum([1 << a for a in axis_numbers(term) if a >= 0])


# ---- merging flat regions -----------------------------------------------------------------------


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
