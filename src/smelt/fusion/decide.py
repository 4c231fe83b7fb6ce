"""Record the search's decisions: candidate, verdict, reason and numbers.

Times are those that the search compares: `Cost.objective_ns`. A decision names two values as the
graph's text does; its details hold their operators and the terms of both times. Nothing is decided
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Protocol

from smelt.fusion.bitsets import bits, least
from smelt.fusion.cost_model import Cost, CostModel
from smelt.fusion.legal import Refusal
from smelt.fusion.stream_axes import CarriedReduction
from smelt.graph.ir import Node
from smelt.graph.text import name_values
from smelt.journal.facts import Decision, Verdict
from smelt.python.caches import cached_property
from smelt.python.origin import Origin

Numbers = dict[str, float]


class Joinable(Protocol):
    """The part of a cluster that decisions need."""

    @property
    def members(self) -> int: ...
    @property
    def stored(self) -> int: ...
    @property
    def reads(self) -> int: ...
    @property
    def cost(self) -> Cost: ...


class Decisions:
    """Collects the decisions of one plan."""

    def __init__(self, model: CostModel, *, recording: bool) -> None:
        self.model, self.units = model, model.units
        self.recording = recording
        self.records: list[Decision] = []
        self.costly_copies: dict[tuple[int, int], tuple[int, float, float]] = {}
        """Pairs of a value and a reader in which it was not recomputed.

        With the number of readers, the time of separate kernels, and the time that would be lost.
        """

    @cached_property
    def node_names(self) -> dict[Node, str]:
        """Return the name of each node in the graph's text."""
        return name_values(self.units.graph)

    @cached_property
    def names(self) -> list[str]:
        """Return the name of each value, by number."""
        return [self.node_names[node] for node in self.units.values]

    def name(self, v: int) -> str:
        """Return the name of a value in the graph's text."""
        return self.names[v]

    def views(self) -> None:
        """Record for each view that it is inlined, with one of its readers."""
        if not self.recording:
            return
        recorded: set[Node] = set()
        for unit in self.units.units:
            for node in self.units.pulled(unit.number):
                if node.op.is_view and node not in recorded:
                    recorded.add(node)
                    pair, details = (node, unit.node), {"op": node.op.name}
                    self.records.append(
                        decision(self.node_names, *pair, "fused", "free-view", details)
                    )

    def off(self) -> None:
        """Record for each operator and reader that fusion is switched off."""
        if not self.recording:
            return
        for unit in self.units.units:
            for edge in unit.edges:
                if edge.producer >= len(self.units.inputs):
                    self._record(edge.producer, unit.number, "split", "fuse-off", {})

    def chain(self, last: int, after: Joinable) -> None:
        """Record values that joined their only readers, up to a last one.

        Separate kernels would take as many more launches, and the time to write and read the
        values.
        """
        if not self.recording:
            return
        model, fused = self.model, after.cost.objective_ns
        joined = [p for p in bits(after.members) if p != last]
        saved = [
            model.write_ns(p, model.cores)
            + model.read_ns(p, model.nbytes[p], model.cores)
            + after.cost.launch
            for p in joined
        ]
        for p, ns in zip(joined, saved, strict=True):
            c, nbytes = (self.units.users[p] & after.members).bit_length() - 1, 2 * model.nbytes[p]
            self._record(
                p,
                c,
                "fused",
                "saves-traffic",
                {"value": self.names[p], "bytes": nbytes},
                saves_bytes=nbytes,
                saves_ns=ns,
                fused_ns=fused,
                split_ns=fused + sum(saved),
            )

    def joined(
        self,
        producer: Joinable,
        reader: Joinable,
        after: Cost,
        stored: int,
        *,
        forced: bool,
        siblings: bool,
        axis: str = "",
    ) -> None:
        """Record that two clusters became one, perhaps streaming an axis of extent `axis`."""
        if not self.recording:
            return
        a, b, value = self._subjects(producer, reader, siblings)
        split_ns = producer.cost.objective_ns + reader.cost.objective_ns
        saved = producer.cost.moved + reader.cost.moved - after.moved
        details: dict[str, Any] = {"value": self.names[value], "bytes": saved}
        if forced:
            reason = "must-fuse"
        elif siblings:
            reason = "sibling"
        elif after.stream >= 0 and self._has_reductions(producer):
            reason = "cascade"
            details["axis"] = axis
        elif (
            after.sweeps > 0
            and after.row_bytes
            and self._has_reductions(producer)
            and not after.split
        ):
            reason = "row-in-fast-memory"
            level = self.model.machine.level(after.row_bytes, 1)
            details |= {"bytes": after.row_bytes, "level": level.upper(), "sweeps": after.times}
        elif stored >> value & 1:
            reason = "multi-output"
        elif saved <= 0 or 2 * producer.cost.launch > split_ns - after.objective_ns:
            reason = "saves-launch"
        else:
            reason = "saves-traffic"
        self._record(
            a,
            b,
            "fused",
            reason,
            details | {"terms": after.terms()},
            **_numbers(saved, split_ns, after.objective_ns),
        )

    def copied(
        self, producer: Joinable, readers: Sequence[tuple[Joinable, Cost]], gain: float
    ) -> None:
        """Record that a producer is recomputed in each of its readers."""
        if not self.recording:
            return
        split_ns = producer.cost.objective_ns + sum(r.cost.objective_ns for r, _ in readers)
        saved = producer.cost.moved
        extra_ns = sum(after.arithmetic for _, after in readers)
        extra_ns -= producer.cost.arithmetic + sum(r.cost.arithmetic for r, _ in readers)
        for reader, after in readers:
            saved += reader.cost.moved - after.moved
        for reader, _ in readers:
            a, b, value = self._subjects(producer, reader, siblings=False)
            details = {
                "value": self.names[value],
                "times": float(len(readers)),
                "cost_ns": max(extra_ns, 0.0),
                "store_ns": gain + max(extra_ns, 0.0),
            }
            self._record(
                a,
                b,
                "fused",
                "recompute-cheap",
                details,
                **_numbers(saved, split_ns, split_ns - gain),
            )

    def refined(self, before: Sequence[Joinable], after: Sequence[int], gain: float) -> None:
        """Record that several clusters were regrouped into sets of members `after`."""
        if not self.recording:
            return
        before_ns = sum(k.cost.objective_ns for k in before)
        saved_details: dict[str, Any] = {
            "saves_ns": gain,
            "split_ns": before_ns,
            "fused_ns": before_ns - gain,
        }
        lost_details = {"costs_ns": gain, "split_ns": before_ns - gain, "fused_ns": before_ns}
        members = 0
        for k in before:
            members |= k.members
        for v in bits(members):
            for c in bits(self.units.users[v] & members):
                pair = 1 << v | 1 << c
                was_together = any(k.members & pair == pair for k in before)
                is_together = any(members & pair == pair for members in after)
                if was_together and not is_together:
                    self._record(v, c, "split", "cost", {"slower_ns": gain}, **lost_details)
                elif is_together and not was_together:
                    nbytes = self.model.nbytes[v]
                    details = {"value": self.names[v], "bytes": nbytes}
                    self._record(
                        v, c, "fused", "saves-traffic", details, saves_bytes=nbytes, **saved_details
                    )
        for first, second in combinations(before, 2):
            if not first.reads & second.reads:
                continue
            a, b, value = self._subjects(first, second, siblings=True)
            if any(members >> a & members >> b & 1 for members in after):
                nbytes = self.model.nbytes[value]
                details = {"value": self.names[value], "bytes": nbytes}
                self._record(a, b, "fused", "sibling", details, saves_bytes=nbytes, **saved_details)

    def over(self, before: Joinable, after: Sequence[int], value: int, overwritten: int) -> None:
        """Record that a cluster was split so that a value overwrites another one."""
        if not self.recording:
            return
        details = {"value": self.names[value], "old": self.names[overwritten]}
        for v in bits(before.members):
            for c in bits(self.units.users[v] & before.members):
                pair = 1 << v | 1 << c
                if (v == value or c == value) and all(m & pair != pair for m in after):
                    self._record(
                        v, c, "split", "written-over", details, saves_bytes=self.model.nbytes[value]
                    )

    def record_costly_copy(
        self, producer: Joinable, readers: Sequence[Joinable], gain: float
    ) -> None:
        """Note that a producer is better stored than recomputed in each reader."""
        if not self.recording:
            return
        separate_ns = producer.cost.objective_ns + sum(
            reader.cost.objective_ns for reader in readers
        )
        for reader in readers:
            a, b, _ = self._subjects(producer, reader, siblings=False)
            self.costly_copies[a, b] = len(readers), separate_ns, -gain

    def carried(self, axis: str, dependencies: Iterable[CarriedReduction], ns: float) -> None:
        """Record how each dependency between reductions of a streamed axis is carried.

        `ns` is the time of the kernel.
        """
        if not self.recording:
            return
        for step in dependencies:
            details = {
                "value": self.names[step.reduction],
                "gauge": self.names[step.reads],
                "axis": axis,
                "how": step.how,
            }
            self._record(
                step.reads, step.reduction, "fused", step.reason, details, fused_ns=ns, split_ns=ns
            )

    def record_costly_copies(self, holders: Sequence[int]) -> None:
        """Record those of `record_costly_copy` whose two sides ended in different clusters."""
        for (a, b), (times, separate_ns, lost_ns) in self.costly_copies.items():
            if not holders[a] & holders[b]:
                details = {"value": self.names[a], "times": float(times), "cost_ns": lost_ns}
                # not written once and not read by each
                saved_bytes = (1 + times) * self.model.nbytes[a]
                self._record(
                    a,
                    b,
                    "split",
                    "recompute-dear",
                    details,
                    saves_bytes=saved_bytes,
                    costs_ns=lost_ns,
                    split_ns=separate_ns,
                    fused_ns=separate_ns + lost_ns,
                )

    def split(
        self,
        producer: Joinable,
        reader: Joinable,
        after: Cost | None,
        refusal: Refusal | None,
        gain: float = 0.0,
        *,
        siblings: bool,
    ) -> None:
        """Record that two clusters stay separate.

        `gain` is what the search would gain by joining them; two that start together save no
        launch.
        """
        if not self.recording:
            return
        a, b, value = self._subjects(producer, reader, siblings)
        split_ns = producer.cost.objective_ns + reader.cost.objective_ns
        if after is None or refusal is not None:
            refusal = refusal or Refusal("cost")
            fused = {} if after is None else {"fused_ns": after.objective_ns, "split_ns": split_ns}
            if after is None and siblings:
                fused = self._shared_numbers(producer, reader)
            self._record(a, b, "split", refusal.reason, dict(refusal.details), **fused)
            return
        saved = producer.cost.moved + reader.cost.moved - after.moved
        split_ns = after.objective_ns + gain
        reason, details = self._losing_reason(producer, reader, after, value, -gain, siblings)
        self._record(
            a,
            b,
            "split",
            reason,
            details | {"terms": after.terms()},
            **_numbers(saved, split_ns, after.objective_ns),
        )

    def share_little(self, first: Joinable, second: Joinable) -> None:
        """Record that siblings stay separate without a look at the time of one kernel.

        What they share is what one kernel would not read again.
        """
        if not self.recording:
            return
        a, b, _ = self._subjects(first, second, siblings=True)
        numbers = self._shared_numbers(first, second)
        self._record(a, b, "split", "no-shared-data", self._shared(first, second), **numbers)

    # ---- parts ---------------------------------------------------------------------------------

    def _losing_reason(
        self,
        producer: Joinable,
        reader: Joinable,
        after: Cost,
        value: int,
        slower: float,
        siblings: bool,
    ) -> tuple[str, dict[str, Any]]:
        """Return the reason why the joined kernel is slower, with details."""
        cores = self.model.machine.threads
        idle_ns = after.objective_ns * (1 - after.tasks / cores)
        most_tasks = max(producer.cost.tasks, reader.cost.tasks)
        if after.tasks < cores <= most_tasks and 0 < slower <= idle_ns:
            return "lost-parallelism", {"tasks": after.tasks, "threads": cores}
        producer_ns, reader_ns, joined_ns = (
            c.arithmetic - c.packing for c in (producer.cost, reader.cost, after)
        )
        extra_ns = joined_ns - producer_ns - reader_ns
        if extra_ns > 0 and extra_ns >= after.sweeps + after.scratch + after.streams:
            return "recompute-dear", {
                "value": self.names[value],
                "times": 1 + extra_ns / max(producer_ns, 1e-9),
                "cost_ns": extra_ns,
            }
        if siblings and slower <= 0:
            return "no-shared-data", self._shared(producer, reader)
        return "cost", {"slower_ns": max(slower, 0.0)}

    def _shared_numbers(self, first: Joinable, second: Joinable) -> dict[str, Any]:
        """Return bytes and time of what two kernels both read: one would not read it again."""
        nbytes, values = self.model.nbytes, bits(first.reads & second.reads)
        return {
            "saves_bytes": sum(nbytes[v] for v in values),
            "saves_ns": self.model.read_values_ns(values, self.model.cores),
        }

    def _shared(self, first: Joinable, second: Joinable) -> dict[str, Any]:
        """Return the details of how little two kernels share."""
        shared = sum(self.model.nbytes[v] for v in bits(first.reads & second.reads))
        least_read = min(sum(self.model.nbytes[v] for v in bits(c.reads)) for c in (first, second))
        return {"shared": f"{shared:,} of the {least_read:,} bytes that one of them reads"}

    def _subjects(self, first: Joinable, second: Joinable, siblings: bool) -> tuple[int, int, int]:
        """Return the two units that a decision is about, and the value between them."""
        if siblings:
            shared = least(first.reads & second.reads)
            first_readers = (u for u in bits(first.members) if self.units.operands[u] >> shared & 1)
            second_readers = (
                u for u in bits(second.members) if self.units.operands[u] >> shared & 1
            )
            return next(first_readers, 0), next(second_readers, 0), shared
        crossing = first.stored & second.reads
        value = least(crossing)
        if value < 0:
            value = least(second.stored & first.reads)
            first, second = second, first
        reader = next(u for u in bits(second.members) if self.units.operands[u] >> value & 1)
        return value, reader, value

    def _has_reductions(self, cluster: Joinable) -> bool:
        return any(self.units.unit(u).is_reduction for u in bits(cluster.members))

    def _record(
        self,
        a: int,
        b: int,
        verdict: Verdict,
        reason: str,
        details: Mapping[str, Any],
        **numbers: Any,
    ) -> None:
        pair = self.units.values[a], self.units.values[b]
        self.records.append(decision(self.node_names, *pair, verdict, reason, details, **numbers))


def decision(
    names: Mapping[Node, str],
    a: Node,
    b: Node,
    verdict: Verdict,
    reason: str,
    details: Mapping[str, Any],
    **numbers: Any,
) -> Decision:
    """Return a decision about two values of a graph, which `names` names."""
    details = {"a_op": a.op.name, "b_op": b.op.name, **details}
    origins = {"a_origin": a.origin, "origin": b.origin}
    return Decision(names[a], names[b], verdict, reason, details=details, **origins, **numbers)


def rename_decision(
    d: Decision, name: Callable[[str], str], a_origin: Origin | None, origin: Origin | None
) -> Decision:
    """Return a decision about the same values under other names and origins."""
    details = {
        k: name(v) if isinstance(v, str) and not k.endswith("op") else v
        for k, v in d.details.items()
    }
    return replace(d, a=name(d.a), b=name(d.b), a_origin=a_origin, origin=origin, details=details)


def _numbers(saved: int, split_ns: float, fused_ns: float) -> dict[str, Any]:
    saved_bytes = {"saves_bytes": max(saved, 0), "costs_bytes": max(-saved, 0)}
    return saved_bytes | compared_times(split_ns, fused_ns)


def compared_times(split_ns: float, fused_ns: float) -> dict[str, Any]:
    """Return the nanoseconds of a decision between two totals."""
    gain = split_ns - fused_ns
    return {
        "saves_ns": max(gain, 0.0),
        "costs_ns": max(-gain, 0.0),
        "fused_ns": fused_ns,
        "split_ns": split_ns,
    }
