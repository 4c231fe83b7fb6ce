"""May a set of units be one kernel?  The answer is a reason of `smelt.errors.REASONS`, or none.

What makes a kernel wrong is found by `region` (folds read where they are not computed, axes that
have nothing to do with one another) and by `reach` (a kernel that waits for itself).  This module
adds what would make it unusable: rows beyond fast memory, too many arrays, too much code, library
calls, and what the user forbids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from smelt.dataclass import dataclass
from smelt.fusion.cost import Cost, Model
from smelt.fusion.fusion_barriers import Barriers
from smelt.fusion.region import MOST_READS, Region
from smelt.fusion.units import Units
from smelt.graph.text import name_values
from smelt.knobs.values import Pairs

CROSSING = "reduction-crossing"
FAST_MEMORY = "fast-memory"
OPERANDS = 64
"""Arrays that a kernel may read and write (ALGORITHMS 2.4, F6)."""
CODE = 1200
"""Scalar operations, dear ones counted by their cost, that a kernel may hold."""
FAST_SHARE = 0.5
"""Part of the second-level cache that values kept between sweeps may fill."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not: the name of a reason and the fields of its sentence."""

    reason: str
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Wishes:
    """The pairs of `must_fuse` and `never_fuse` as sets of units."""

    def __init__(self, units: Units, must: Pairs, never: Pairs, required: Pairs = ()) -> None:
        self.units = units
        self.names: dict[str, int] | None = None
        self.required = [(self._named(a), self._named(b)) for a, b in required]
        """Those of them that a plan is refused without."""
        self.must = [(self._named(a), self._named(b)) for a, b in must] + self.required
        self.never = [(self._named(a), self._named(b)) for a, b in never]

    def _named(self, name: str) -> int:
        """Units that an operator's name (with or without what stands before its dot), its name and
        number, a value's name, `file:line` or `*` (all) means."""
        if name == "*":
            return sum(1 << unit.number for unit in self.units.units)
        if self.names is None:
            self.names = {}
            values = name_values(self.units.graph)
            for unit in self.units.units:
                node = unit.node
                op, value = node.op.name, values[node]
                spelled = [op, value, op.rpartition(".")[2], f"{op}#{value[1:]}"]
                if node.origin is not None:
                    whole = str(node.origin)
                    spelled += [whole, whole.rpartition("/")[2]]
                for word in dict.fromkeys(spelled):
                    self.names[word] = self.names.get(word, 0) | 1 << unit.number
        return self.names.get(name, 0)

    def forbid(self, members: int) -> bool:
        """Whether a set holds both of a pair that must stay apart."""
        return any(_both(members, a, b) for a, b in self.never)

    def demand(self, one: int, other: int) -> bool:
        """Whether two sets hold one each of a pair that must be together."""
        return any((one & a and other & b) or (one & b and other & a) for a, b in self.must)


def _both(members: int, a: int, b: int) -> bool:
    first, second = members & a, members & b
    return bool(first and second and (first | second).bit_count() > 1)


def refuse_sets(
    units: Units, members: int, size: float, wishes: Wishes, barriers: Barriers
) -> Refusal | None:
    """What can be said without looking at axes; `size` counts scalar operations."""
    if members & units.calls and members.bit_count() > 1:
        number = (members & units.calls).bit_length() - 1
        return Refusal("extern-barrier", {"op": units.values[number].op.name})
    found = members & units.joined
    if found and members != found:
        last = found.bit_length() - 1
        if units.users[last] & members or members & units.folds & ~(1 << last):
            return Refusal("scatter-root", {"op": units.values[last].op.name})
    if wishes.never and wishes.forbid(members):
        return Refusal("never-fuse")
    if size > CODE:
        return Refusal("code-size", {"size": int(size), "limit": CODE})
    product = barriers.product(members)
    return None if product < 0 else refuse_fault(units, CROSSING, product)


def refuse_torn(units: Units, fold: int) -> Refusal:
    """A fold that is read at several places is computed once, and stored."""
    return refuse_fault(units, CROSSING, fold)


def refuse_fault(units: Units, reason: str, number: int) -> Refusal:
    """What makes a set no kernel, and the unit that it is about.  A product is an array to who
    wrote it: a reader does not wait for its sums, but reads it otherwise than one by one."""
    if reason == CROSSING and units.unit(number).trace.dots:
        reason = "read-elsewhere"
    op = units.values[number].op.name
    details = {
        "axis": _ended(units, number),
        "op": op,
        "a_axes": "",
        "b_axes": "",
        "size": f"over {MOST_READS}",
        "limit": MOST_READS,
    }
    return Refusal(reason, details)


def refuse_region(units: Units, region: Region) -> Refusal | None:
    """What axes and operands forbid."""
    if region.fault is not None:
        return refuse_fault(units, region.fault, region.at)
    count = len(region.loads) + region.stored.bit_count()
    if count > OPERANDS:
        return Refusal("too-many-operands", {"operands": count, "limit": OPERANDS})
    return None


def refuse_cost(model: Model, cost: Cost) -> Refusal | None:
    """What the schedule needs beyond what there is."""
    capacity = int(model.target.l2_bytes * FAST_SHARE)
    if cost.kept_bytes > capacity:
        return Refusal(FAST_MEMORY, {"bytes": cost.kept_bytes, "capacity": capacity})
    return None


def _ended(units: Units, number: int) -> str:
    """The extents that a fold ends, for a sentence."""
    unit = units.unit(number)
    if unit.along >= 0:
        return str(units.extents[unit.axes[unit.along]])
    return "*".join(str(units.extents[e]) for e in unit.ended)
