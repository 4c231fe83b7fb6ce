"""Decisions as facts: every candidate that was looked at, its verdict, its reason and its numbers.

Times are what the search compares:
`Cost.burden`.  A decision names two values as the graph's text does; their operators and the terms
of both times are in its details.  Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any, Protocol

from smelt.fusion.bitsets import bits, least
from smelt.fusion.cost import Cost, Model
from smelt.fusion.legal import Refusal
from smelt.fusion.reduction_notes import Step
from smelt.graph.ir import Node
from smelt.graph.text import name_values
from smelt.journal import Decision, Verdict
from smelt.origin import Origin

Numbers = dict[str, float]


class Joinable(Protocol):
    """A cluster of the search, as far as decisions need it."""

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

    def __init__(self, model: Model, *, recording: bool) -> None:
        self.model, self.units = model, model.units
        self.recording = recording
        self.found: list[Decision] = []
        self.dears: dict[tuple[int, int], tuple[int, float, float]] = {}
        """Pairs of a value and a reader in which it was not computed again: times, the time of what
        is apart, and what would be lost."""

    @cached_property
    def known(self) -> dict[Node, str]:
        """What the graph's text calls each node."""
        return name_values(self.units.graph)

    @cached_property
    def names(self) -> list[str]:
        """The name of each value, by number."""
        return [self.known[node] for node in self.units.values]

    def name(self, v: int) -> str:
        """What the graph's text calls a value."""
        return self.names[v]

    def views(self) -> None:
        """Views are index maps of whoever reads them: one decision for each, with a reader."""
        if not self.recording:
            return
        seen: set[Node] = set()
        for unit in self.units.units:
            for node in self.units.pulled(unit.number):
                if node.op.is_view and node not in seen:
                    seen.add(node)
                    details = {"a_op": node.op.name, "b_op": unit.node.op.name, "op": node.op.name}
                    self.found.append(
                        Decision(
                            self.known[node],
                            self.names[unit.number],
                            "fused",
                            "free-view",
                            details=details,
                            a_origin=node.origin,
                            origin=unit.node.origin,
                        )
                    )

    def off(self) -> None:
        """Fusion is switched off: one decision for each operator and its reader."""
        if not self.recording:
            return
        for unit in self.units.units:
            for edge in unit.edges:
                if edge.producer >= len(self.units.inputs):
                    self._record(edge.producer, unit.number, "split", "fuse-off", {})

    def chain(self, last: int, after: Joinable) -> None:
        """Values that joined their only readers, up to a last one.  Apart they would have taken as
        many more starts, and what writing and reading them takes."""
        if not self.recording:
            return
        model, fused = self.model, after.cost.burden
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
        beside: bool,
        axis: str = "",
    ) -> None:
        """Two clusters became one, perhaps streaming an axis of that extent."""
        if not self.recording:
            return
        a, b, value = self._subjects(producer, reader, beside)
        split_ns = producer.cost.burden + reader.cost.burden
        saved = producer.cost.moved + reader.cost.moved - after.moved
        details: dict[str, Any] = {"value": self.names[value], "bytes": saved}
        if forced:
            reason = "must-fuse"
        elif beside:
            reason = "sibling"
        elif after.stream >= 0 and self._folds(producer):
            reason = "cascade"
            details["axis"] = axis
        elif after.sweeps > 0 and after.row_bytes and self._folds(producer) and not after.split:
            reason = "row-in-fast-memory"
            level = self.model.target.level(after.row_bytes, 1)
            details |= {"bytes": after.row_bytes, "level": level.upper(), "sweeps": after.times}
        elif stored >> value & 1:
            reason = "multi-output"
        elif saved <= 0 or 2 * producer.cost.launch > split_ns - after.burden:
            reason = "saves-launch"
        else:
            reason = "saves-traffic"
        self._record(
            a,
            b,
            "fused",
            reason,
            details | {"terms": after.terms()},
            **_numbers(saved, split_ns, after.burden),
        )

    def copied(
        self, producer: Joinable, readers: Sequence[tuple[Joinable, Cost]], gain: float
    ) -> None:
        """A producer is computed again in each of its readers."""
        if not self.recording:
            return
        split_ns = producer.cost.burden + sum(r.cost.burden for r, _ in readers)
        saved = producer.cost.moved
        again = sum(after.arithmetic for _, after in readers)
        again -= producer.cost.arithmetic + sum(r.cost.arithmetic for r, _ in readers)
        for reader, after in readers:
            saved += reader.cost.moved - after.moved
        for reader, _ in readers:
            a, b, value = self._subjects(producer, reader, beside=False)
            details = {
                "value": self.names[value],
                "times": float(len(readers)),
                "cost_ns": max(again, 0.0),
                "store_ns": gain + max(again, 0.0),
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
        """Several clusters became others at once, sets of members `after`: what stands together
        only now, and what does not any more."""
        if not self.recording:
            return
        total = sum(k.cost.burden for k in before)
        saved: dict[str, Any] = {"saves_ns": gain, "split_ns": total, "fused_ns": total - gain}
        lost = {"costs_ns": gain, "split_ns": total - gain, "fused_ns": total}
        inside = 0
        for k in before:
            inside |= k.members
        for v in bits(inside):
            for c in bits(self.units.users[v] & inside):
                pair = 1 << v | 1 << c
                was = any(k.members & pair == pair for k in before)
                now = any(members & pair == pair for members in after)
                if was and not now:
                    self._record(v, c, "split", "cost", {"slower_ns": gain}, **lost)
                elif now and not was:
                    nbytes = self.model.nbytes[v]
                    details = {"value": self.names[v], "bytes": nbytes}
                    self._record(
                        v, c, "fused", "saves-traffic", details, saves_bytes=nbytes, **saved
                    )
        for one, other in combinations(before, 2):
            if not one.reads & other.reads:
                continue
            a, b, value = self._subjects(one, other, beside=True)
            if any(members >> a & members >> b & 1 for members in after):
                nbytes = self.model.nbytes[value]
                details = {"value": self.names[value], "bytes": nbytes}
                self._record(a, b, "fused", "sibling", details, saves_bytes=nbytes, **saved)

    def over(self, before: Joinable, after: Sequence[int], value: int, old: int) -> None:
        """A cluster was taken apart so that a value is written over another one."""
        if not self.recording:
            return
        details = {"value": self.names[value], "old": self.names[old]}
        for v in bits(before.members):
            for c in bits(self.units.users[v] & before.members):
                pair = 1 << v | 1 << c
                if (v == value or c == value) and all(m & pair != pair for m in after):
                    self._record(
                        v, c, "split", "written-over", details, saves_bytes=self.model.nbytes[value]
                    )

    def dear(self, producer: Joinable, readers: Sequence[Joinable], gain: float) -> None:
        """A producer is better stored than computed again in each reader."""
        if not self.recording:
            return
        apart = producer.cost.burden + sum(reader.cost.burden for reader in readers)
        for reader in readers:
            a, b, _ = self._subjects(producer, reader, beside=False)
            self.dears[a, b] = len(readers), apart, -gain

    def carried(self, axis: str, found: Iterable[Step], ns: float) -> None:
        """Folds of a streamed axis that read others: what becomes of each dependency in a kernel
        of that time."""
        if not self.recording:
            return
        for step in found:
            details = {
                "value": self.names[step.fold],
                "gauge": self.names[step.reads],
                "axis": axis,
                "how": step.how,
            }
            self._record(
                step.reads, step.fold, "fused", step.reason, details, fused_ns=ns, split_ns=ns
            )

    def keep_dear(self, holders: Sequence[int]) -> None:
        """Records those of `dear` whose two sides ended in different clusters."""
        for (a, b), (times, apart, lost) in self.dears.items():
            if not holders[a] & holders[b]:
                details = {"value": self.names[a], "times": float(times), "cost_ns": lost}
                saved = (1 + times) * self.model.nbytes[a]  # neither written nor read
                self._record(
                    a,
                    b,
                    "split",
                    "recompute-dear",
                    details,
                    saves_bytes=saved,
                    costs_ns=lost,
                    split_ns=apart,
                    fused_ns=apart + lost,
                )

    def split(
        self,
        producer: Joinable,
        reader: Joinable,
        after: Cost | None,
        refusal: Refusal | None,
        gain: float = 0.0,
        *,
        beside: bool,
    ) -> None:
        """Two clusters stay apart.  `gain` is what the search would have of joining them: two that
        start together anyway save no launch."""
        if not self.recording:
            return
        a, b, value = self._subjects(producer, reader, beside)
        split_ns = producer.cost.burden + reader.cost.burden
        if after is None or refusal is not None:
            refusal = refusal or Refusal("cost")
            fused = {} if after is None else {"fused_ns": after.burden, "split_ns": split_ns}
            self._record(a, b, "split", refusal.reason, dict(refusal.details), **fused)
            return
        saved = producer.cost.moved + reader.cost.moved - after.moved
        split_ns = after.burden + gain
        reason, details = self._losing(producer, reader, after, value, -gain, beside)
        self._record(
            a,
            b,
            "split",
            reason,
            details | {"terms": after.terms()},
            **_numbers(saved, split_ns, after.burden),
        )

    # ---- parts ---------------------------------------------------------------------------------

    def _losing(
        self,
        producer: Joinable,
        reader: Joinable,
        after: Cost,
        value: int,
        slower: float,
        beside: bool,
    ) -> tuple[str, dict[str, Any]]:
        """The term that makes the joined kernel slower, by so much."""
        cores = self.model.cores
        idle = after.burden * (1 - after.tasks / cores)
        most = max(producer.cost.tasks, reader.cost.tasks)
        if after.tasks < cores <= most and 0 < slower <= idle:
            return "lost-parallelism", {"tasks": after.tasks, "threads": cores}
        alone, own, joined = (c.arithmetic - c.packing for c in (producer.cost, reader.cost, after))
        more = joined - alone - own
        if more > 0 and more >= after.sweeps + after.scratch + after.streams:
            return "recompute-dear", {
                "value": self.names[value],
                "times": 1 + more / max(alone, 1e-9),
                "cost_ns": more,
            }
        if beside and slower <= 0:
            return "no-shared-data", {}
        return "cost", {"slower_ns": max(slower, 0.0)}

    def _subjects(self, one: Joinable, other: Joinable, beside: bool) -> tuple[int, int, int]:
        """The two units a decision is about, and the value between them."""
        if beside:
            shared = least(one.reads & other.reads)
            first = (u for u in bits(one.members) if self.units.operands[u] >> shared & 1)
            second = (u for u in bits(other.members) if self.units.operands[u] >> shared & 1)
            return next(first, 0), next(second, 0), shared
        crossing = one.stored & other.reads
        value = least(crossing)
        if value < 0:
            value = least(other.stored & one.reads)
            one, other = other, one
        reader = next(u for u in bits(other.members) if self.units.operands[u] >> value & 1)
        return value, reader, value

    def _folds(self, cluster: Joinable) -> bool:
        return any(self.units.unit(u).is_fold for u in bits(cluster.members))

    def _record(
        self,
        a: int,
        b: int,
        verdict: Verdict,
        reason: str,
        details: Mapping[str, Any],
        **numbers: Any,
    ) -> None:
        one, other = self.units.values[a], self.units.values[b]
        named = {"a_op": one.op.name, "b_op": other.op.name, **details}
        self.found.append(
            Decision(
                self.names[a],
                self.names[b],
                verdict,
                reason,
                details=named,
                a_origin=one.origin,
                origin=other.origin,
                **numbers,
            )
        )


def renamed(
    d: Decision, name: Callable[[str], str], a_origin: Origin | None, origin: Origin | None
) -> Decision:
    """The same decision about values of other names, which come from elsewhere."""
    details = {
        k: name(v) if isinstance(v, str) and not k.endswith("op") else v
        for k, v in d.details.items()
    }
    return Decision(
        name(d.a),
        name(d.b),
        d.verdict,
        d.reason,
        d.saves_bytes,
        d.saves_ns,
        d.costs_bytes,
        d.costs_ns,
        d.fused_ns,
        d.split_ns,
        a_origin,
        origin,
        details,
    )


def _numbers(saved: int, split_ns: float, fused_ns: float) -> dict[str, Any]:
    gain = split_ns - fused_ns
    return {
        "saves_bytes": max(saved, 0),
        "costs_bytes": max(-saved, 0),
        "saves_ns": max(gain, 0.0),
        "costs_ns": max(-gain, 0.0),
        "fused_ns": fused_ns,
        "split_ns": split_ns,
    }
