"""Which units become one kernel."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion import memory
from smelt.fusion.assemble import Group, bits, clusters_of
from smelt.fusion.plan import Plan
from smelt.fusion.units import Units
from smelt.graph.ir import Graph
from smelt.journal import Journal
from smelt.target import Target


def plan(
    graph: Graph,
    target: Target,
    journal: Journal | None,
    hints: Mapping[str, int],
    *,
    fuse: bool = True,
) -> Plan:
    """The plan of a graph.  `hints` are sizes seen at the first call; they decide costs only."""
    units = Units(graph)
    owner = {u.number: u.number for u in units.units}
    members = {u.number: 1 << u.number for u in units.units}
    if fuse:
        for unit in reversed(units.units):
            _collapse(units, unit.number, owner, members)
    groups: list[Group] = []
    for mask in members.values():
        stored = 0
        for u in bits(mask):
            outside = units.users[u] & ~mask
            if outside or units.outputs >> u & 1 or not units.users[u]:
                stored |= 1 << u
        groups.append(Group(mask, stored))
    clusters, launches = clusters_of(units, groups, hints)
    slots = memory.assign(graph, clusters, launches, hints)
    return Plan(graph, clusters, launches, (), slots)


def _collapse(units: Units, p: int, owner: dict[int, int], members: dict[int, int]) -> None:
    users = list(bits(units.users[p]))
    unit = units.unit(p)
    if len(users) != 1 or unit.is_library or units.outputs >> p & 1 or unit.is_fold:
        return
    user = units.unit(users[0])
    edges = [e for e in user.edges if e.producer == p]
    if user.is_library or user.along >= 0 or unit.along >= 0:
        return
    if not all(e.simple for e in edges) or sorted(edges[0].terms) != list(range(len(user.extents))):
        return
    home = owner[users[0]]
    members[home] |= members.pop(p)
    owner[p] = home
