"""Check that the clusters fulfil the user's demands for single kernels.

The search has joined what is demanded wherever that is legal. Each demanded pair that remains
separate has a decision with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.errors import REASONS, FusionError
from smelt.fusion.bitsets import bits, least
from smelt.fusion.decide import Decisions
from smelt.fusion.legal import FusionConstraints
from smelt.graph.source_names import called_names, source_names
from smelt.graph.text import name_values
from smelt.journal.facts import Decision
from smelt.python.origin import UNKNOWN


def require(wishes: FusionConstraints, clusters: Sequence[int], decisions: Decisions) -> None:
    """Raise FusionError if a demanded pair of units shares no cluster.

    If the two names match several operators, every operator and its readers must share a cluster.
    If none of them reads another, it suffices that two of them share one.
    """
    for first, second in wishes.required:
        for u, v in _separated_pairs(wishes, first, second, clusters):
            refusal = _last_refusal(decisions, clusters, u, v)
            row = REASONS["no-shared-data" if refusal is None else refusal.reason]
            sentence = row.explain(
                **({"shared": "no data"} if refusal is None else refusal.details)
            )
            node, graph = wishes.units.values[v], wishes.units.graph
            shown = {**name_values(graph), **source_names(graph)}
            called = called_names(graph.nodes())
            raise FusionError(
                a=f"{called[wishes.units.values[u]][0]} {shown[wishes.units.values[u]]}",
                b=f"{called[node][0]} {shown[node]}",
                sentence=sentence,
                reason=f"{row.code} {row.name}",
                origin=node.origin or wishes.units.values[u].origin or UNKNOWN,
            )


def _separated_pairs(
    wishes: FusionConstraints, first: int, second: int, clusters: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Iterate over pairs of units that must share a kernel and do not."""
    units = wishes.units
    adjacent = [
        (u, v)
        for producers, readers in ((first, second), (second, first))
        for u in bits(producers)
        for v in bits(units.users[u] & readers)
    ]
    for u, v in adjacent:
        if not any(c >> u & c >> v & 1 for c in clusters):
            yield u, v
    # the whole program: parts without shared data too
    if first and first == second and len(clusters) > 1:
        yield least(clusters[0]), least(clusters[1] & ~clusters[0] or clusters[1])
    elif not adjacent and first and second and not any(c & first and c & second for c in clusters):
        yield least(first), least(second)


def _last_refusal(decisions: Decisions, clusters: Sequence[int], u: int, v: int) -> Decision | None:
    """Return the last refusal about two units, or else about their clusters."""
    names = decisions.names
    split = [d for d in reversed(decisions.records) if d.verdict == "split"]
    for d in split:
        if {d.a, d.b} == {names[u], names[v]}:
            return d
    homes = [{names[k] for c in clusters if c >> x & 1 for k in bits(c)} for x in (u, v)]
    for d in split:
        if (d.a in homes[0] and d.b in homes[1]) or (d.a in homes[1] and d.b in homes[0]):
            return d
    return split[0] if split else None
