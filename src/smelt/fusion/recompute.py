"""Recompute large values between kernels from small statistics, in every kernel that reads them.

    k0: S = Q K', m = max(S), l = sum(exp(S - m)), stores S      k1: dV = (exp(S - m) / l)' dO
    ->  k0 stores m and l                                        k1: computes S again

Joining a producer with its readers fails here: the reductions of both are over different axes, so
that no kernel has them all. But what a reader needs of the producer are its products and other
operators; reductions with small results, which end the producer's rows, are stored and read. The
backward pass of attention has such kernels for blocks of queries and for blocks of keys.

A value counts that exceeds every cache. The exchange is decided for a producer and all its readers
at once, by the same objective as joins, in which such a value costs more than its traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from smelt.fusion.bitsets import bits, closure
from smelt.fusion.decide import Decisions
from smelt.fusion.state import SMALL_RATIO, Cluster, State, Verdict, topological_order

MAX_SLOWER = 2.0
"""Largest slowdown accepted where uncached values are computed again."""


def recompute_large_values(state: State, decisions: Decisions, slowdown: float) -> list[int]:
    """Replace clusters that store large values by some that recompute them; return these.

    Each exchange gains, or takes at most `slowdown` times as long.
    """
    before = {*state.clusters}
    for exchange in _exchanges(state, slowdown):
        decisions.refined(exchange.old, [v.key[0] for v in exchange.new], exchange.gain)
    return [c for c in state.clusters if c not in before]


class _Exchange(NamedTuple):
    old: Sequence[Cluster]
    new: Sequence[Verdict]
    gain: float


def _exchanges(state: State, slowdown: float) -> Iterator[_Exchange]:
    """Carry out and yield the exchanges that gain, or cost little enough."""
    pending = topological_order({c: state.successors(c) for c in state.clusters})
    while pending:
        c = pending.pop(0)
        if c not in state.clusters:
            continue
        large = state.clusters[c].stored & state.uncached_values
        for values in dict.fromkeys((large, *(1 << v for v in bits(large)))):
            numbers = _readers(state, c, values)
            new = _without(state, c, numbers, values)
            old = [state.clusters[k] for k in (c, *numbers)]
            old_ns, new_ns = _objective_ns(k.verdict for k in old), _objective_ns(new)
            kept = sum(v.key[1] for v in new[:1])
            gain = old_ns - new_ns + state.uncached_ns(values, kept)
            if not new or (gain <= 0 and new_ns > slowdown * old_ns):
                continue
            for k in (c, *numbers):
                state.remove(k)
            first = max((len(state.units.values), *(k + 1 for k in (*state.clusters, c, *numbers))))
            for k, verdict in enumerate(new, first):
                state.add_evaluated(k, verdict)
            pending += range(first, first + len(new))  # they may exchange other values
            yield _Exchange(old, new, gain)
            break


def _readers(state: State, c: int, values: int) -> list[int]:
    return [k for k in state.clusters if k != c and state.clusters[k].reads & values]


def _without(state: State, c: int, readers: Sequence[int], values: int) -> list[Verdict]:
    """Return the kernels of a cluster and its readers without some values between them.

    The first one is what remains of the cluster, if anything does. Empty if some are not kernels.
    """
    producer, units = state.clusters[c], state.units
    if not values or values & units.outputs or producer.members & (units.calls | units.scatters):
        return []
    largest = min(state.model.nbytes[v] for v in bits(values))
    new: list[Verdict] = []
    exchanged = 0
    for k in readers:
        kernels, read = _read_again(state, producer.members, state.clusters[k], values, largest)
        exchanged |= read
        new += kernels
    stored = producer.stored & ~values | exchanged
    if stored:
        members, _ = _needed(state, producer.members, stored, 0)
        new.insert(0, state.evaluate(members, stored))
    return new if all(map(_is_kernel, new)) else []


def _read_again(
    state: State, producer: int, reader: Cluster, values: int, largest: int
) -> tuple[list[Verdict], int]:
    """Return a reader's kernels without some values that it reads, and what they read instead.

    Results that no kernel has together, each computed from the values, become one each.
    """
    needed, read = _needed(state, producer, reader.reads & values, largest)
    whole = state.evaluate(reader.members | needed, reader.stored)
    apart: list[Verdict] = []
    read_apart = 0
    for u in bits(reader.stored):
        members, _ = _needed(state, reader.members, 1 << u, 0)
        needed, more = _needed(state, producer, state.reads(members) & values, largest)
        read_apart |= more
        apart.append(state.evaluate(members | needed, 1 << u))
    are_legal = all(map(_is_kernel, apart)) and not any(
        state.reads(v.key[0]) & reader.stored for v in apart
    )
    if not are_legal or (_is_kernel(whole) and _objective_ns([whole]) <= _objective_ns(apart)):
        return [whole], read
    return apart, read_apart


def _is_kernel(verdict: Verdict) -> bool:
    return verdict.cost is not None and verdict.refusal is None


def _objective_ns(kernels: Iterable[Verdict]) -> float:
    return sum(v.cost.objective_ns for v in kernels if v.cost is not None)


def _needed(state: State, members: int, values: int, largest: int) -> tuple[int, int]:
    """Return what computes some values, and the reductions with small results that it reads.

    A result is small if it is much smaller than `largest`; 0: none is.
    """
    needed = read = 0
    pending = values & members
    while pending:
        u = pending.bit_length() - 1
        pending ^= 1 << u
        is_small = SMALL_RATIO * state.model.nbytes[u] <= largest
        before = closure(1 << u, state.units.operands, members)
        if is_small and before & state.units.reductions:
            read |= 1 << u
            continue
        needed |= 1 << u
        pending |= state.units.operands[u] & members & ~needed
    return needed, read
