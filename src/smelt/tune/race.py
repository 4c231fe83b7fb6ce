"""The race: which decisions are turned over, and which plan is the fastest.

Times of two plans are taken in turns, since a machine's speed changes by more than what is looked
for; what counts is the median of the ratios of neighbours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from time import perf_counter, perf_counter_ns
from typing import Any, Literal, Protocol

import numpy as np

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.errors import SmeltError
from smelt.fusion.plan import Plan
from smelt.fusion.text import text as plan_text
from smelt.journal import Decision, Journal, Measured
from smelt.ops.spec import dims_at
from smelt.runtime.prelude import Run
from smelt.target import Target
from smelt.tune.arrays import Array, agree, random_array
from smelt.tune.memory import Program, Settings, recall, remember

_LOG = logging.getLogger("smelt.tune")

UNSURE = 0.1
"""Two times nearer than this part of the larger are one to the model."""
CONTENDERS = 8
"""Most plans that race for one program."""
ROUNDS = 15
"""Most turns of two plans."""
CLEAR = 0.97
"""The ratio of times below which a plan is the faster one."""
MEMORY = 1 << 30
"""Bytes of inputs above which nothing is raced."""


class Contender(Protocol):
    """A compiled program."""

    @property
    def plan(self) -> Plan: ...
    @property
    def size_names(self) -> tuple[str, ...]: ...

    def held(self, arrays: Sequence[Array]) -> Run | None: ...
    def run(
        self,
        arrays: Sequence[Array],
        sizes: tuple[int, ...],
        out: Sequence[Array | None] | None = None,
        held: Run | None = None,
    ) -> list[Array]: ...


@dataclass(frozen=True, slots=True)
class Flip:
    """A decision turned over."""

    wish: Literal["must_fuse", "never_fuse"]
    pair: tuple[str, str]
    ns: float
    """What is at stake by the model's figures."""

    def applied(self, settings: Settings) -> Settings:
        """The settings with this wish."""
        return {**settings, self.wish: (*settings[self.wish], self.pair)}


def choose(
    program: Program, build: Callable[[], Contender], target: Target, journal: Journal
) -> Settings:
    """The settings under which the program is planned: those of a race now or of an earlier one, as
    the setting `tune` says; empty if the model's plan stands.

    `build` compiles the program under the settings in force.
    """
    found = recall(program, target)
    if found is not None or knobs.TUNE.get() != "race" or not knobs.FUSE.get():
        return found or {}
    given = {"must_fuse": knobs.MUST_FUSE.get(), "never_fuse": knobs.NEVER_FUSE.get()}
    raced = Race(program, build, journal).run(given)
    if raced is None:
        return {}
    remember(program, target, *raced)
    return raced[0]


def _ready(c: Contender, arrays: list[Array], sizes: tuple[int, ...]) -> Callable[[], object]:
    """A call of a contender, whose constant inputs have been worked on already."""
    held = c.held(arrays)
    return lambda: c.run(arrays, sizes, None, held)


def close_calls(decisions: Sequence[Decision]) -> list[Flip]:
    """The decisions that the model is unsure of, those about the most time first."""
    found: dict[tuple[str, str], Flip] = {}
    for d in decisions:
        if d.fused_ns is None or d.split_ns is None or d.reason == "free-view":
            continue
        larger = max(d.fused_ns, d.split_ns)
        if larger <= 0 or abs(d.fused_ns - d.split_ns) > UNSURE * larger:
            continue
        wish = "never_fuse" if d.verdict == "fused" else "must_fuse"
        found[d.a, d.b] = Flip(wish, (d.a, d.b), larger)
    return sorted(found.values(), key=lambda f: -f.ns)[:CONTENDERS]


class Race:
    """Plans of one program against one another."""

    def __init__(self, program: Program, build: Callable[[], Contender], journal: Journal) -> None:
        self.program, self.build, self.journal = program, build, journal

    def run(self, given: Settings) -> tuple[Settings, float] | None:
        """The fastest settings and their gain over `given`; None where nothing can be raced."""
        best = self.built(given)
        if best is None:
            return None
        flips = close_calls(best.plan.decisions)
        sizes = {n: max(self.program.sizes.get(n, 1), 0) for n in best.size_names}
        if not flips or self._nbytes(sizes) > MEMORY:
            return given, 1.0
        arrays = [random_array(x.type, sizes, k) for k, x in enumerate(self.program.graph.inputs)]
        call = arrays, tuple(sizes[n] for n in best.size_names)
        expected = best.run(*call)
        settings, gain = given, 1.0
        seen = {plan_text(best.plan)}
        ends = perf_counter() + knobs.TUNE_SECONDS.get()
        for flip in flips:
            wished = flip.applied(settings)
            contender = self.built(wished)
            if contender is None or plan_text(contender.plan) in seen:
                continue
            seen.add(plan_text(contender.plan))
            if not all(map(agree, expected, contender.run(*call))):
                _LOG.warning("a plan gives other numbers and is left out: %s %s", *flip.pair)
                continue
            ratio = compare(_ready(best, *call), _ready(contender, *call), ends)
            self._note(flip, ratio)
            if ratio < CLEAR:
                best, settings, gain = contender, wished, gain / ratio
            if perf_counter() > ends:
                break
        return settings, gain

    def built(self, settings: Settings) -> Contender | None:
        """The program under settings; None if it cannot be planned so."""
        with knobs.config(dict(settings), tune="off"):
            try:
                return self.build()
            except SmeltError as error:
                _LOG.info("a plan is left out: %s", error)
                return None

    def _nbytes(self, sizes: Mapping[str, int]) -> int:
        inputs = self.program.graph.inputs
        return sum(prod(dims_at(x.type.shape, sizes)) * x.type.dtype.itemsize for x in inputs)

    def _note(self, flip: Flip, ratio: float) -> None:
        verb = "apart" if flip.wish == "never_fuse" else "together"
        self.journal.record(Measured(f"{' and '.join(flip.pair)} {verb}", ratio, "of the time"))


def compare(one: Callable[[], Any], other: Callable[[], Any], ends: float) -> float:
    """The time of `other` over that of `one`: the median over turns, until the clock shows `ends`.

    >>> from time import sleep
    >>> compare(lambda: sleep(0.002), lambda: sleep(0.004), perf_counter() + 1) > 1.5
    True
    """
    one()
    other()
    ratios: list[float] = []
    for turn in _turns(ends):
        times = dict.fromkeys((False, True), 0)
        for late in (turn % 2 == 0, turn % 2 == 1):
            start = perf_counter_ns()
            (other if late else one)()
            times[late] = max(perf_counter_ns() - start, 1)
        ratios.append(times[True] / times[False])
    return float(np.median(ratios))


def _turns(ends: float) -> Iterator[int]:
    for turn in range(ROUNDS):
        yield turn
        if perf_counter() > ends and turn >= 2:
            return
