"""The clusters of a plan as a report lists them: those of rounds behind all others.

What runs in rounds is one entry, with what all rounds do; the kernels of one round are entries of
their own, in the names of the whole graph and with the sizes of the first round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from smelt.dataclass import dataclass
from smelt.explain.compiled import Compiled
from smelt.explain.predict import predict
from smelt.explain.traffic import Touched, Traffic
from smelt.explain.work import Work, work
from smelt.fusion.plan import Body, Cluster
from smelt.fusion.traffic import moved_in_rounds
from smelt.graph.ir import Node
from smelt.kernel.ir import Kernel
from smelt.types.expr import evaluate

__all__ = ["Entry", "entries", "in_turns", "moved"]

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """A cluster with nodes of the whole graph, its kernel, and the sizes it is told at."""

    number: int
    cluster: Cluster
    kernel: Kernel | None
    sizes: Sizes
    predicted_ns: float
    within: int | None = None
    rounds: int = 1
    work: Work | None = None
    """For what runs in rounds, the work of all of them."""


def entries(compiled: Compiled, sizes: Sizes) -> list[Entry]:
    """One entry for each of `plan.every`, in order."""
    plan, kernels = compiled.plan, compiled.kernels
    times = [c.total for c in predict(plan, compiled.target, sizes)]
    found = [Entry(k, c, kernels[k], sizes, times[k]) for k, c in enumerate(plan.clusters)]
    for number, body in plan.in_rounds:
        first = len(found)
        own = kernels[first : first + len(body.plan.clusters)]
        turns = Counter(high - low for low, high in body.rounds.each(sizes))
        rows = max(turns, default=0)
        at = {**sizes, body.rounds.rows: rows}
        times = [c.total for c in predict(body.plan, compiled.target, at)]
        for k, c in enumerate(body.plan.clusters):
            found.append(
                Entry(first + k, _as_whole(c, body), own[k], at, times[k], number, turns.total())
            )
        found[number] = replace(
            found[number],
            rounds=turns.total(),
            work=sum((in_turns(k, body, sizes) for k in own if k is not None), Work()),
        )
    return found


def in_turns(kernel: Kernel, body: Body, sizes: Sizes) -> Work:
    """The work of a kernel in all rounds of a body."""
    done = Work()
    for rows, count in Counter(high - low for low, high in body.rounds.each(sizes)).items():
        one = work(kernel, {**sizes, body.rounds.rows: rows})
        done += Work(one.flops * count, one.transcendentals * count)
    return done


def moved(cluster: Cluster, sizes: Sizes) -> Traffic:
    """What a library call moves, its operands and results whole; or what rounds do."""

    def touched(nodes: tuple[Node, ...], nbytes: tuple[int, ...] | None) -> dict[str, Touched]:
        whole = [int(evaluate(n.type.nbytes, sizes)) for n in nodes]
        return {
            str(k): Touched(int(evaluate(n.type.elements, sizes)), seen)
            for k, (n, seen) in enumerate(zip(nodes, nbytes or whole, strict=True))
        }

    read, written = (None, None) if cluster.body is None else moved_in_rounds(cluster, sizes)
    return Traffic(touched(cluster.inputs, read), touched(cluster.outputs, written))


def _as_whole(cluster: Cluster, body: Body) -> Cluster:
    """A cluster of a round with the nodes of the whole graph that its own stand for; those that
    stand for none are left out of what it computes."""

    def nodes(own: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(body.of[n] for n in own if n in body.of))

    inputs, outputs = (
        tuple(body.of[n] for n in side) for side in (cluster.inputs, cluster.outputs)
    )
    return replace(
        cluster,
        nodes=nodes(cluster.nodes),
        inputs=inputs,
        outputs=outputs,
        recomputed=nodes(cluster.recomputed),
        shapes=(),
        stream=None,
    )
