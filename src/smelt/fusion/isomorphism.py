"""Share verdicts between isomorphic sets of units, such as the layers of a network.

Two sets are isomorphic if their units, in order, do the same work along axes of equal sizes, read
one another and values from outside in the same way, and are stored alike, and if those values are
of equal size and rest at the same level of memory. Then everything that the model says about one
set holds for the other, with other numbers. The names of sizes do not matter unless an index
expression contains them.

>>> from smelt.fusion.bitsets import Hints
>>> from smelt.fusion.units import Units
>>> from smelt.graph.text import parse
>>> from smelt.fusion.cost import Model
>>> from smelt.machine.target import Target
>>> units = Units(
...     parse('''graph f(x: f32[n], y: f32[n]) {
...   v0 = exp(x)
...   v1 = mul(v0, y)
...   v2 = exp(v1)
...   v3 = mul(v2, y)
...   return v3
... }''')
... )
>>> alike = Isomorphism(units, Model(units, Target.for_isa("avx2"), Hints(n=1000)))
>>> one, other = alike.signature(0b1100, 0b1000), alike.signature(0b110000, 0b100000)
>>> one.form == other.form, one.values, other.values
(True, [0, 2, 1, 3], [3, 4, 1, 5])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from smelt.fusion.bitsets import bits
from smelt.fusion.cost_model import CostModel
from smelt.fusion.region import Position, Positions, Region
from smelt.fusion.units import Unit, Units, is_free
from smelt.graph.ir import Node
from smelt.python.dataclass import dataclass
from smelt.types.expr import Atom, Expr, Index, atoms, map_variables, value

T = TypeVar("T")


@dataclass(slots=True)
class Signature:
    """The signature of a set of units."""

    form: tuple[int, ...]
    """Equal for isomorphic sets."""
    values: list[int]
    """Its units and the values that it reads, in order of appearance."""
    extents: list[int]
    """The extents of its axes in order of appearance; empty if they must be identical."""

    def translate(self, other: Signature, v: int) -> int:
        """Return the value of an isomorphic set that corresponds to a value of this set."""
        return other.values[self.values.index(v)]


class Isomorphism:
    """Computes signatures of sets of units of one graph."""

    def __init__(self, units: Units, model: CostModel) -> None:
        self.units, self.model = units, model
        self.known: dict[tuple[Any, ...], int] = {}
        self.outer = [self._outer(v) for v in range(len(units.values))]
        """For each value, a number for its properties as an operand of a kernel."""
        self.inner = [-1] * len(units.inputs) + [self._inner(unit) for unit in units.units]
        """For each unit, a number for its properties within the kernel that computes it."""
        self.axes = [-1] * len(units.inputs) + [self._number(u.axes, "") for u in units.units]
        """For each unit, a number for the extents of its axes."""
        self.shapes = [self._number(*node.type.shape) for node in units.values]
        """For each value, a number for its shape."""
        self.producers: list[tuple[int, ...]] = [()] * len(units.inputs)
        self.producers += [tuple([e.producer for e in unit.edges]) for unit in units.units]
        self.strict = self.none = 0
        """Units whose reads name extents of their axes; `none`: units without a signature."""
        for unit in units.units:
            if unit.is_scatter or unit.is_library:
                self.none |= 1 << unit.number
            elif not all(e.simple for e in unit.edges):
                self.strict |= 1 << unit.number

    def _number(self, *key: Any) -> int:
        return self.known.setdefault(key, len(self.known))

    def _outer(self, v: int) -> int:
        model = self.model
        return self._number(
            model.nbytes[v],
            model.itemsize[v],
            model.resting_level[v],
            v in self.units.strided_inputs,
            v in self.units.constants,
        )

    def _inner(self, unit: Unit) -> int:
        u, traced = unit.number, unit.trace
        return self._number(
            self.outer[u],
            self.model.step_ns[u],
            self.model.families[u],
            unit.rank,
            unit.scan_axis,
            traced.cost,
            traced.size,
            traced.dots,
            traced.guards,
            traced.positional,
            tuple([e.terms for e in unit.edges]),
            traced.data_positions,
            _operator_key(unit.node),
        )

    def signature(self, members: int, stored: int) -> Signature | None:
        """Return the signature of a set of units; None if it has none."""
        if members & self.none:
            return None
        inner, outer, axes, producers = self.inner, self.outer, self.axes, self.producers
        value_shapes = self.shapes
        strict = bool(members & self.strict)
        value_indices: dict[int, int] = {}
        axes_indices: dict[int, int] = {}
        extents: dict[int, int] = {}
        form: list[int] = [strict]
        for u in bits(members):
            form.append(~inner[u] if stored >> u & 1 else inner[u])
            index = axes_indices.get(axes[u])
            if index is None:
                axes_indices[axes[u]] = len(axes_indices)
                self._append_extents(u, extents, form, strict)
            else:
                form.append(index)
            for v in producers[u]:
                index = value_indices.get(v)
                if index is None:
                    index = value_indices[v] = len(value_indices)
                    form += (index, outer[v])
                    if strict:
                        form.append(value_shapes[v])
                else:
                    form.append(index)
            value_indices[u] = len(value_indices)
        return Signature(tuple(form), list(value_indices), [] if strict else list(extents))

    def alone(self, u: int) -> tuple[int, ...]:
        """Return the signature of an elementwise unit by itself."""
        return (self.inner[u], *[self.outer[v] for v in bits(self.units.operands[u])])

    def _append_extents(
        self, u: int, extents: dict[int, int], form: list[int], strict: bool
    ) -> None:
        """Append the extents of a unit's axes to a signature."""
        form.append(-1)
        for e in self.units.unit(u).axes:
            index = extents.get(e)
            if index is None:
                index = extents[e] = len(extents)
                form += (index, e if strict or e == self.units.one else -self.model.extents[e])
            else:
                form.append(index)


def _operator_key(node: Node) -> tuple[Any, ...]:
    """Return an operator with the constants it is applied to, which carried reductions depend on.

    Of views only the kind counts; their index maps are in the reads.
    """
    constants = [_operator_key(x) for x in node.inputs if is_free(x)]
    return (type(node.op) if node.op.is_view else node.op, *constants)


def rename_region(region: Region, source: Signature, target: Signature) -> Region:
    """Return the region of a set with signature `target`, from that of an isomorphic set."""
    values = dict(zip(source.values, target.values, strict=True))
    extents = dict(zip(source.extents, target.extents, strict=True))

    def keys(mapping: Mapping[int, T]) -> dict[int, T]:
        return {values[k]: value for k, value in mapping.items()}

    def places(mapping: Positions) -> Positions:
        if picks:
            mapping = {k: [_with_positions(p, picks) for p in v] for k, v in mapping.items()}
        return keys(mapping)

    picks = {name: _renamed_position(name, values) for name in region.data_positions}
    members = sum([1 << values[u] for u in bits(region.members)])
    stored = sum([1 << values[u] for u in bits(region.stored)])
    return Region(
        members,
        stored,
        [extents[e] for e in region.axes] if extents else region.axes,
        places(region.positions),
        keys(region.masks),
        places(region.loads),
        keys(region.load_masks),
        keys(region.reduced_axes),
        keys(region.levels),
        region.grid,
        region.all_reduced,
        region.scanned,
        region.flat,
        region.uniform,
        region.work,
        region.fault,
        values[region.fault_unit] if region.fault_unit >= 0 else -1,
        keys(region.reduced_axis_order),
        keys(region.windows),
        region.packing,
        {picks[name]: axes for name, axes in region.data_positions.items()},
        walked=keys(region.walked),
    )


def _renamed_position(name: str, values: Mapping[int, int]) -> str:
    """Return the name of a data-dependent position at another unit (see `region`)."""
    word, number, nth = name.split(".")
    return f"{word}.{values[int(number)]}.{nth}"


def _with_positions(position: Position, picks: Mapping[str, str]) -> Position:
    """Return a position with its data-dependent parts renamed."""

    def leaf(atom: Atom) -> Index:
        if atom.kind == "value":
            return value(picks[atom.name], atom.extent)
        return Expr((((atom,), 1),))

    return tuple(
        [
            map_variables(t, leaf)
            if isinstance(t, Expr) and any(a.kind == "value" for a in atoms(t))
            else t
            for t in position
        ]
    )
