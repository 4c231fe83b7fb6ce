"""What the user demands to be one kernel, checked on the finished clusters.

The search has joined what is demanded wherever that is legal; what is left apart has a decision
that says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.errors import REASONS, FusionError
from smelt.fusion.bitsets import bits, least
from smelt.fusion.decide import Decisions
from smelt.fusion.legal import Wishes
from smelt.journal import Decision
from smelt.origin import UNKNOWN


def require(wishes: Wishes, clusters: Sequence[int], decisions: Decisions) -> None:
    """Raises FusionError if a demanded pair of units shares none of the clusters (sets of units).

    Of two names that mean many operators each, every operator and its readers must share one; if
    none of them reads another, it is enough that some two share a kernel.
    """
    for first, second in wishes.required:
        for u, v in _apart(wishes, first, second, clusters):
            names, found = decisions.names, _reason(decisions, clusters, u, v)
            row = REASONS["no-shared-data" if found is None else found.reason]
            sentence = row.explain(**({} if found is None else found.details))
            node = wishes.units.values[v]
            raise FusionError(
                a=f"{wishes.units.values[u].op.name} {names[u]}",
                b=f"{node.op.name} {names[v]}",
                sentence=sentence,
                reason=f"{row.code} {row.name}",
                origin=node.origin or wishes.units.values[u].origin or UNKNOWN,
            )


def _apart(
    wishes: Wishes, first: int, second: int, clusters: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Pairs of units that share no kernel and have to."""
    units = wishes.units
    near = [
        (u, v)
        for one, other in ((first, second), (second, first))
        for u in bits(one)
        for v in bits(units.users[u] & other)
    ]
    for u, v in near:
        if not any(c >> u & c >> v & 1 for c in clusters):
            yield u, v
    if (
        first and first == second and len(clusters) > 1
    ):  # all of a program: also what shares no data
        yield least(clusters[0]), least(clusters[1] & ~clusters[0] or clusters[1])
    elif not near and first and second and not any(c & first and c & second for c in clusters):
        yield least(first), least(second)


def _reason(decisions: Decisions, clusters: Sequence[int], u: int, v: int) -> Decision | None:
    """The last refusal about two units, or else about their clusters."""
    names = decisions.names
    split = [d for d in reversed(decisions.found) if d.verdict == "split"]
    for d in split:
        if {d.a, d.b} == {names[u], names[v]}:
            return d
    homes = [{names[k] for c in clusters if c >> x & 1 for k in bits(c)} for x in (u, v)]
    for d in split:
        if (d.a in homes[0] and d.b in homes[1]) or (d.a in homes[1] and d.b in homes[0]):
            return d
    return split[0] if split else None
