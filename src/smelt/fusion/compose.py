"""The planner's verb: a plan of the whole graph, or one around a part that runs in rounds.

Where the plan of the whole would store values that no cache holds, and something is summed over
their rows, `chunking.py` takes the graph apart.  The parts are planned like any other graph, and
put together as one plan of the whole: kernels before, one cluster with a body that is a plan of its
own, kernels behind.  That is done for the memory; what it costs or saves in time is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from smelt import knobs
from smelt.blocks import DEPTH, FIRST_ROW, WHOLE, Cut, Rounds, even_rows
from smelt.fusion import memory, plan_single
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.checks import apart, together
from smelt.fusion.chunking import InRounds, Narrow, NotCut, Part, block, rows_within, split
from smelt.fusion.decide import renamed
from smelt.fusion.plan import NOTHING, Body, Cluster, Donated, Plan
from smelt.fusion.predict import costs, in_turns
from smelt.fusion.rematerialize import untangled
from smelt.fusion.state import SMALL
from smelt.fusion.trace import trace
from smelt.fusion.traffic import moved_in_rounds
from smelt.fusion.units import is_free
from smelt.fusion.verify import verify
from smelt.fusion.widen_accumulators import widened
from smelt.graph.ir import Graph, Node
from smelt.graph.text import name_values
from smelt.journal import Decision, Journal
from smelt.ops.create import Constant, Input
from smelt.target import Target
from smelt.types.expr import add
from smelt.types.expr import text as expr_text

__all__ = ["held", "kept_between", "plan"]

SHARE = 4
"""Into so many parts the last cache is thought to be cut in a round: what is larger counts as
beyond it.  Values of a round share it with one another and with the operands that stream by."""
WORTH = 1.04
"""By how much slower rounds may be that keep less."""
MOST_SLOWER = 2.0
"""The same where values are made twice that no cache holds, at most."""
PARTS = (4, 16, 64, 1)
"""Parts of what is kept that rounds may keep where those for the room that there is keep more."""
ALIGNED = 128
"""Bytes that the arenas of a plan and of its rounds take beyond what is in them, at most."""
BORDERS = 8
"""Keeping as many times the bytes of all operands and results costs as much as taking twice as
long."""


def plan(
    graph: Graph,
    target: Target,
    journal: Journal | None,
    hints: Mapping[str, int],
    *,
    fuse: bool = True,
    donated: Donated = NOTHING,
) -> Plan:
    """The plan of a graph, as `plan_single.plan` says, part of it in rounds where that saves
    memory.

    Nothing is cut without `fuse`, nor where operators are required to be one kernel.
    """
    found = apart(graph, Hints(hints)) if fuse else None
    if found is None:
        return _plan(graph, target, journal, hints, fuse=fuse, donated=donated)
    looked = plan_single.plan(found[1], target, Journal(keep=False), hints)
    read = {n for c in looked.clusters for n in c.inputs}  # after all others: nothing stands there
    donated = {n: to for n, to in donated.items() if n not in read}
    made = together(_plan(found[0], target, journal, hints, fuse=fuse, donated=donated), looked)
    if knobs.VERIFY.get():
        verify(made)
    return made


def _plan(
    graph: Graph,
    target: Target,
    journal: Journal | None,
    hints: Mapping[str, int],
    *,
    fuse: bool,
    donated: Donated,
) -> Plan:
    """That of a graph whose checks stay where they are."""
    whole = plan_single.plan(graph, target, journal, hints, fuse=fuse, donated=donated)
    known = Hints(hints)
    exact = knobs.ROUNDING.get() == "exact"  # sums over rows would be added to, block by block
    if not fuse or exact or knobs.REQUIRE_FUSED.get():
        return whole
    made = _least(whole, target, known, donated, _room(whole, known))
    if isinstance(made, Decision):
        return _told(whole, made, journal)
    if made is None:
        return whole
    if knobs.VERIFY.get():
        verify(made)
    last = made.decisions[-1]
    return _told(replace(made, decisions=made.decisions[:-1]), last, journal)


def _least(
    whole: Plan, target: Target, hints: Hints, donated: Donated, room: int | None
) -> Plan | Decision | None:
    """What `_tried` finds within the room that the user leaves; else, of plans that are the same
    for every limit, the first one that fits, or the one that keeps least: the error then tells what
    would do, since with that much it is found again."""
    if room is None:
        return _tried(whole, target, hints, donated, None)
    found = _tried(whole, target, hints, donated, room) if room > 0 else None
    if isinstance(found, Plan) and held(found, hints) + ALIGNED <= room:
        return found
    kept, least = held(whole, hints), None
    for part in PARTS:
        made = _tried(whole, target, hints, donated, max(kept // part, 1))
        if not isinstance(made, Plan):
            found = made or found
        elif held(made, hints) + ALIGNED <= room:
            return made
        elif least is None or held(made, hints) < held(least, hints):
            least = made
    return least or found


def _tried(
    whole: Plan, target: Target, hints: Hints, donated: Donated, room: int | None
) -> Plan | Decision | None:
    """The plan with rounds that keep no more than `room` bytes, or why there is none, if anybody
    would want to know; the last of its decisions tells of the rounds."""
    most = target.l3_bytes if room is None else min(max(room // SHARE, 1), target.l3_bytes)
    large = [
        s.node for s in whole.slots if s.offset is not None and at_hints(s.nbytes, hints) > most
    ]
    if not large:
        return None
    large.sort(key=lambda n: -at_hints(n.type.nbytes, hints))
    try:
        made = _in_rounds(whole, large, target, hints, donated, most, room)
    except NotCut as refused:
        if not _is_summed(whole.graph, large[0]):
            return None
        return _refused(whole, large[0], str(refused), hints)
    if made is None:
        return None
    return replace(made, decisions=(*made.decisions, _accepted(whole, made, large, target, hints)))


def _in_rounds(
    whole: Plan,
    large: Sequence[Node],
    target: Target,
    hints: Hints,
    donated: Donated,
    most: int,
    room: int | None,
) -> Plan | None:
    """The plan around a part that makes the `large` values in rounds, which have `most` bytes and
    more; None or NotCut as `split` says.  Where no more than `room` bytes may be kept, it is taken
    whatever its time."""
    graph, made, tangled = whole.graph, list(large), True
    while True:
        try:
            parts = split(graph, made, hints, most)
            break
        except Narrow as found:
            graph, new = widened(graph, found.sums)
            made = [new.get(n, n) for n in made]
        except NotCut:
            apart = untangled(graph, hints, at_hints(made[0].type.elements, hints))
            if not tangled or apart is graph or not {*made} & {*apart.nodes()}:
                raise
            graph, tangled = apart, False
            made = [n for n in made if n in {*apart.nodes()}]
    if parts is None:
        return None
    now = dict(zip(whole.graph.outputs, graph.outputs, strict=True))
    given = {n: to if to is None else now[to] for n, to in donated.items()}
    plan = _Composed(graph, parts, target, hints, most, room).plan(given)
    others = graph is not whole.graph or not {*made} <= {*parts.members}
    if others and held(plan, hints) >= held(whole, hints):
        raise NotCut("rounds would keep as much, in sums that are wider or values that stand apart")
    if parts.again and room is None:
        _is_worth(whole, plan, target, hints)
    return plan


def _room(whole: Plan, hints: Hints) -> int | None:
    """Bytes that the user leaves for what stands between kernels, if the plan keeps more; none or
    less where results alone are more than the limit."""
    limit = knobs.MAX_EXTRA_MEMORY.get()
    if limit is None:
        return None
    results = {n for n in whole.graph.outputs if not isinstance(n.op, Input)}
    room = limit - sum(at_hints(n.type.nbytes, hints) for n in results)
    return room if room < held(whole, hints) else None


def _is_worth(whole: Plan, made: Plan, target: Target, hints: Hints) -> None:
    """Raises NotCut unless rounds that compute something twice keep much less in time that pays:
    twice the time at most, and less where little is kept that no cache holds, beside what is read
    and written anyhow."""
    graph = whole.graph
    kept, keeps = held(whole, hints), held(made, hints)
    border = sum(at_hints(n.type.nbytes, hints) for n in {*graph.inputs, *graph.outputs})
    slower = sum(c.burden for c in costs(made, target, hints))
    slower /= sum(c.burden for c in costs(whole, target, hints))
    beyond = max(kept - target.l3_bytes, 0)
    worth = min(1 + beyond / (BORDERS * max(border, 1)), MOST_SLOWER)
    if 2 * keeps > kept or slower > max(worth, WORTH):
        raise NotCut(
            f"sums that rounds need of all rows would have to be made before, of the same value; "
            f"that takes {slower:.2f} times as long and keeps {keeps:,} instead of {kept:,} bytes, "
            f"which `max_extra_memory` asks for"
        )


def held(made: Plan, hints: Hints) -> int:
    """Bytes that a plan keeps between kernels, and its rounds between theirs."""
    inside = (
        kept_between(body.plan, Hints({**hints, body.rounds.rows: body.rounds.block}))
        for _, body in made.in_rounds
    )
    return kept_between(made, hints) + max(inside, default=0)


def _told(made: Plan, decision: Decision, journal: Journal | None) -> Plan:
    """A plan with one decision more."""
    if journal is not None:
        journal.record(decision)
    if journal is not None and not journal.keep:
        return made
    return replace(made, decisions=(*made.decisions, decision))


# ---- the parts as one plan -----------------------------------------------------------------------


class _Composed:
    """Plans the parts of a graph and puts them together."""

    def __init__(
        self,
        graph: Graph,
        parts: InRounds,
        target: Target,
        hints: Hints,
        most: int,
        room: int | None,
    ) -> None:
        self.graph, self.parts, self.target, self.hints = graph, parts, target, hints
        self.most, self.room = most, room
        """Bytes that a round keeps at most, about; and those that it may not go beyond."""
        self.names = name_values(graph)
        self.places = {n: k for k, n in enumerate(graph.nodes())}
        self.clusters: list[Cluster] = []
        self.launches: list[tuple[int, ...]] = []
        self.reuses: dict[Node, Sequence[Node]] = {}
        self.decisions: list[Decision] = []

    def plan(self, donated: Donated) -> Plan:
        """Before, rounds, behind."""
        parts = self.parts
        self._beside(parts.before)
        self._rounds()
        self._beside(parts.after)
        slots = memory.assign(
            self.graph, self.clusters, self.launches, self.hints, self.reuses, donated
        )
        return Plan(self.graph, self._marked(), tuple(self.launches), tuple(self.decisions), slots)

    def _marked(self) -> tuple[Cluster, ...]:
        """The clusters, told what others compute too."""
        times = Counter(n for c in self.clusters for n in c.nodes)
        return tuple(
            replace(c, recomputed=tuple(n for n in c.nodes if times[n] > 1 and not is_free(n)))
            for c in self.clusters
        )

    def _beside(self, part: Graph) -> None:
        """What runs once."""
        if not part.outputs:
            return
        made = self._planned(part)
        first = len(self.clusters)
        for k, c in enumerate(made.clusters):
            name = f"k{first + k}"
            self.clusters.append(
                Cluster(
                    name,
                    self._in_order(c.nodes),
                    self._nodes(c.inputs),
                    self._nodes(c.outputs),
                    self._nodes(c.recomputed),
                    c.shapes,
                    None if c.stream is None else (self._node(c.stream[0]), c.stream[1]),
                    None if c.body is None else _named(name, c.body),
                )
            )
        self.launches += [tuple(first + k for k in group) for group in made.launches]
        for slot in made.slots:
            if slot.reuses is not None:
                self.reuses[self._node(slot.node)] = (self._node(slot.reuses),)
        self._note(made)

    def _planned(self, part: Graph) -> Plan:
        """The plan of what runs once; before the rounds, there may be rounds again."""
        if part is self.parts.before and self.parts.again:
            whole = plan_single.plan(part, self.target, None, self.hints)
            room = self._room_before(whole)  # tried once: there may be rounds before these, too
            made = _tried(whole, self.target, self.hints, NOTHING, room)
            if not isinstance(made, Plan):
                return whole
            if made.graph is part:
                return replace(made, decisions=made.decisions[:-1])
        return plan_single.plan(part, self.target, None, self.hints)

    def _room_before(self, made: Plan) -> int | None:
        """The room for what runs before the rounds, if it takes more."""
        fits = self.room is None or held(made, self.hints) <= self.room
        return None if fits else self.room

    def _rounds(self) -> None:
        """The cluster with a body: the one that keeps least of those that are about as fast as the
        fastest."""
        name = f"k{len(self.clusters)}"
        found = [self._cluster(name, *made) for made in self._bodies(thrifty=False)]
        if any(map(self._keeps_several, found)):
            found += [self._cluster(name, *made) for made in self._bodies(thrifty=True)]
        if self.room is not None:
            small = [c for c in found if self._kept(c) <= self.room]
            found = small or [min(found, key=self._kept)]
        burdens = {c: self._burden(c) for c in found}
        most, step = WORTH * min(burdens.values()), max(self.most // SMALL, 1)
        fast = [c for c in found if burdens[c] <= most]
        cluster = min(fast, key=lambda c: (self._kept(c) // step, burdens[c]))
        assert cluster.body is not None
        body = cluster.body.plan
        self._note(body)
        self.launches.append((len(self.clusters),))
        made = replace(cluster.body, plan=replace(body, decisions=()))
        self.clusters.append(replace(cluster, body=made))

    def _bodies(self, *, thrifty: bool) -> Iterator[tuple[Plan, int]]:
        """Plans of the body, each with the rows of one round: those for which what it keeps fits
        (as many as the plan of the whole lets expect, and as many as that one leaves room for), and
        so many that it keeps about as much as it adds to, which every round reads and writes."""
        parts, budget = self.parts, self.most * 3 // 4
        rows = first = block(parts, self.hints, budget)
        half = even_rows(-(-at_hints(parts.extent, self.hints) // 2))
        made, kept = self._body(rows, thrifty)
        fit = min(rows_within(kept, rows, budget), max(half, first))
        yield made, fit
        if fit != rows:
            rows = fit
            made, kept = self._body(rows, thrifty)
            fit = min(rows_within(kept, rows, budget), max(half, first))
            yield made, fit
        sums = sum(at_hints(p.node.type.nbytes, self.hints) for p in parts.makes if p.combine)
        more = rows_within(kept, rows, sums + sums // 4)
        more = min(more - more % DEPTH if more > DEPTH else more, half)
        if more > fit:
            yield self._body(more, thrifty)[0], more

    def _body(self, rows: int, thrifty: bool) -> tuple[Plan, int]:
        """The body's plan for so many rows, and bytes that it keeps between its kernels."""
        parts, target = self.parts, self.target
        given = dict.fromkeys(p.given for p in parts.makes if p.given is not None)
        hints = Hints({**self.hints, parts.rows: rows})
        shared = replace(target, l3_bytes=target.l3_bytes // SHARE)
        made = plan_single.plan(parts.body, shared, None, hints, donated=given, thrifty=thrifty)
        return made, kept_between(made, hints)

    def _cluster(self, name: str, body: Plan, rows: int) -> Cluster:
        """The rounds of a body as a cluster."""
        parts = self.parts
        inputs = tuple(dict.fromkeys(p.node for p in parts.reads if p.axis != FIRST_ROW))
        outputs = tuple(p.node for p in parts.makes)
        reads = tuple(_cut(p, inputs) for p in parts.reads)
        makes = tuple(_cut(p, outputs) for p in parts.makes)
        rounds = Rounds(reads, makes, parts.extent, parts.rows, rows)
        inside = {n: parts.of[n] for n in parts.body.nodes() if n in parts.of}
        made = _named(name, Body(rounds, body, inside))
        return Cluster(name, parts.members, inputs, outputs, body=made)

    def _kept(self, cluster: Cluster) -> int:
        """Bytes that a round keeps between its kernels."""
        assert cluster.body is not None
        rows = cluster.body.rounds.block
        return kept_between(cluster.body.plan, Hints({**self.hints, self.parts.rows: rows}))

    def _keeps_several(self, cluster: Cluster) -> bool:
        """Whether a round keeps more than its largest value at some time."""
        assert cluster.body is not None
        body, rounds = cluster.body.plan, cluster.body.rounds
        hints = Hints({**self.hints, rounds.rows: rounds.block})
        kept = [at_hints(s.nbytes, hints) for s in body.slots if s.offset is not None]
        largest = max(kept, default=0)
        return kept_between(body, hints) - largest > largest // SMALL

    def _burden(self, cluster: Cluster) -> float:
        """Nanoseconds of all rounds of a cluster.  What each of them reads whole is packed while no
        arithmetic goes on, by every kernel that reads it."""
        assert cluster.body is not None
        rounds, body = cluster.body.rounds, cluster.body.plan
        turns = sum(1 for _ in rounds.each(self.hints))
        whole = {x for x, c in zip(body.graph.inputs, rounds.reads) if c.axis == WHOLE}
        again = sum(
            at_hints(x.type.nbytes, self.hints)
            for c in body.clusters
            for x in c.inputs
            if x in whole
        )
        waits = turns * self.target.transfer_ns(again, 0)
        return in_turns(cluster.body, self.target, self.hints).burden + waits

    def _node(self, node: Node) -> Node:
        return self.parts.of.get(node, node)

    def _nodes(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(map(self._node, nodes))

    def _in_order(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """The same in the order of the whole graph."""
        return tuple(sorted(self._nodes(nodes), key=self.places.__getitem__))

    def _note(self, made: Plan) -> None:
        """The decisions about a part, in the names of the whole."""
        own = name_values(made.graph)
        known = {
            name: self.names[self._node(n)]
            for n, name in own.items()
            if self._node(n) in self.names and not isinstance(n.op, Constant)
        }

        self.decisions += [
            renamed(d, lambda text: known.get(text, text), d.a_origin, d.origin)
            for d in made.decisions
        ]


def _named(name: str, body: Body) -> Body:
    """The rounds of a cluster of that name, their clusters called after it."""
    clusters = (replace(c, name=f"{name}_{k}") for k, c in enumerate(body.plan.clusters))
    return replace(body, plan=replace(body.plan, clusters=tuple(clusters)))


def kept_between(body: Plan, hints: Hints) -> int:
    """Bytes that a round keeps between its kernels."""
    return max(
        (
            at_hints(add(s.offset, s.nbytes), hints)
            for s in body.slots
            if s.offset is not None and s.within is None
        ),
        default=0,
    )


def _cut(part: Part, values: Sequence[Node]) -> Cut:
    place = -1 if part.axis == FIRST_ROW else values.index(part.node)
    return Cut(place, part.axis, part.combine)


# ---- the decision --------------------------------------------------------------------------------


def _reader(graph: Graph, value: Node) -> Node:
    """Who reads a value first."""
    return next(n for n in graph.nodes() if value in n.inputs)


def _is_summed(graph: Graph, value: Node) -> bool:
    """Whether a fold behind a value ends its rows: only then rounds come to mind."""
    rows = next((n for n in value.type.shape if n != 1), None)
    behind = {value}
    for node in graph.nodes():
        from_it = [x for x in node.inputs if x in behind]
        if any(rows in x.type.shape for x in from_it) and rows not in node.type.shape:
            found = trace(node.op, node.type, tuple((None, x.type, ()) for x in node.inputs))
            if found.folds or found.dots:
                return True
        if from_it:
            behind.add(node)
    return False


def _refused(whole: Plan, value: Node, how: str, hints: Hints) -> Decision:
    names, reader = name_values(whole.graph), _reader(whole.graph, value)
    nbytes = at_hints(value.type.nbytes, hints)
    details = {
        "value": names[value],
        "bytes": nbytes,
        "how": how,
        "a_op": value.op.name,
        "b_op": reader.op.name,
    }
    return Decision(
        names[value],
        names[reader],
        "split",
        "not-in-rounds",
        saves_bytes=2 * nbytes,
        a_origin=value.origin,
        origin=reader.origin,
        details=details,
    )


def _accepted(
    whole: Plan, made: Plan, large: Sequence[Node], target: Target, hints: Hints
) -> Decision:
    names, value = name_values(whole.graph), large[0]
    reader = _reader(whole.graph, value)
    *_, (number, body) = made.in_rounds
    cluster = made.clusters[number]
    stored = sum(at_hints(n.type.nbytes, hints) for n in large if n not in cluster.outputs)
    once = sum(at_hints(n.type.nbytes, hints) for n in (*cluster.inputs, *cluster.outputs))
    again = sum(n for side in moved_in_rounds(cluster, hints) for n in side) - once
    fused_ns, split_ns = (sum(c.burden for c in costs(p, target, hints)) for p in (made, whole))
    details = {
        "value": names[value],
        "bytes": stored,
        "rows": body.rounds.block,
        "extent": expr_text(body.rounds.extent),
        "again": again,
        "rounds": sum(1 for _ in body.rounds.each(hints)),
        "a_op": value.op.name,
        "b_op": reader.op.name,
    }
    return Decision(
        names[value],
        names[reader],
        "fused",
        "rounds",
        saves_bytes=2 * stored,
        saves_ns=max(split_ns - fused_ns, 0.0),
        costs_bytes=again,
        costs_ns=max(fused_ns - split_ns, 0.0),
        fused_ns=fused_ns,
        split_ns=split_ns,
        a_origin=value.origin,
        origin=reader.origin,
        details=details,
    )
