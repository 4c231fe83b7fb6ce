"""Race plans with flipped decisions, and choose the fastest.

Runs of two plans alternate, since a machine's speed varies by more than the difference of interest;
the result is the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from time import perf_counter, perf_counter_ns
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

import numpy as np

from smelt import knobs
from smelt.errors import SmeltError
from smelt.fusion.plan import Plan
from smelt.fusion.text import text as plan_text
from smelt.graph.library_form import library_form
from smelt.journal.facts import Decision, Journal, LibraryProduct, Measured
from smelt.knobs.values import Pairs
from smelt.ops.library_product import provider
from smelt.ops.spec import dims_at
from smelt.python.dataclass import dataclass
from smelt.runtime.library_figures import library_wish
from smelt.runtime.prelude import Run
from smelt.tune.arrays import Array, agree, random_array
from smelt.tune.memory import LIBRARY, Program, Settings, recall, remember

_LOG = logging.getLogger("smelt.tune")

UNSURE_FRACTION = 0.1
"""Threshold on the relative difference of predicted times; the model does not decide below."""
CONTENDERS = 8
"""Maximum plans that race for one program."""
ROUNDS = 15
"""Maximum alternations of two plans."""
CLEAR_RATIO = 0.97
"""Threshold on the ratio of times; a plan counts as faster below."""
MAX_INPUT_BYTES = 1 << 30
"""Maximum bytes of inputs that are raced."""


class Contender(Protocol):
    """A compiled program in a race."""

    @property
    def plan(self) -> Plan: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def size_names(self) -> tuple[str, ...]: ...


class HostContender(Contender, Protocol):
    """A program compiled for this machine."""

    def run_prelude(self, arrays: Sequence[Array]) -> Run | None: ...
    def run(
        self,
        arrays: Sequence[Array],
        sizes: tuple[int, ...],
        out: Sequence[Array | None] | None = None,
        held: Run | None = None,
    ) -> list[Array]: ...


C = TypeVar("C", bound=Contender)


class Change(Protocol):
    """What one plan of a race does differently from another."""

    def apply_to(self, settings: Settings) -> Settings:
        """Return the settings with this change."""
        ...

    @property
    def title(self) -> str:
        """The change in words."""
        ...


@dataclass(frozen=True, slots=True)
class LibraryChange:
    """Other products that a library computes: a value of the setting `library_products`."""

    wish: str

    def apply_to(self, settings: Settings) -> Settings:
        return {**settings, LIBRARY: self.wish}

    @property
    def title(self) -> str:
        return f"products by {provider().title}: {self.wish}"


@dataclass(frozen=True, slots=True)
class Flip:
    """A flipped decision."""

    wish: Literal["must_fuse", "never_fuse"]
    pair: tuple[str, str]
    ns: float
    """The predicted time that is at stake."""

    def apply_to(self, settings: Settings) -> Settings:
        pairs = cast("Pairs", settings[self.wish])
        return {**settings, self.wish: (*pairs, self.pair)}

    @property
    def title(self) -> str:
        verb = "apart" if self.wish == "never_fuse" else "together"
        return f"{' and '.join(self.pair)} {verb}"


def choose(race: Race[Any], machine: str) -> Settings:
    """Return the settings to plan a program with, from this or an earlier race.

    The setting `tune` decides which; empty if the model's plan stands. `machine` is what races on
    the same machine have in common.
    """
    remembered = recall(race.program, machine)
    if remembered is not None or knobs.TUNE.get() != "race" or not knobs.FUSE.get():
        return remembered or {}
    user_settings: Settings = {
        "must_fuse": knobs.MUST_FUSE.get(),
        "never_fuse": knobs.NEVER_FUSE.get(),
    }
    winner = race.run(user_settings)
    if winner is None:
        return {}
    remember(race.program, machine, *winner)
    return winner[0]


def close_calls(decisions: Sequence[Decision]) -> list[Flip]:
    """Return the decisions that the model is unsure of, those about the most time first."""
    flips: dict[tuple[str, str], Flip] = {}
    for d in decisions:
        if d.fused_ns is None or d.split_ns is None or d.reason == "free-view":
            continue
        larger = max(d.fused_ns, d.split_ns)
        if larger <= 0 or abs(d.fused_ns - d.split_ns) > UNSURE_FRACTION * larger:
            continue
        wish = "never_fuse" if d.verdict == "fused" else "must_fuse"
        flips[d.a, d.b] = Flip(wish, (d.a, d.b), larger)
    return sorted(flips.values(), key=lambda f: -f.ns)[:CONTENDERS]


def library_changes(contender: HostContender) -> list[LibraryChange]:
    """Return the other values of `library_products` that are worth a race.

    The user's own value stands. Which products gain depends on what is fused around them, so whole
    programs race.
    """
    if knobs.LIBRARY_PRODUCTS.source != "default" or library_wish() == "never":
        return []
    nodes = contender.plan.graph.nodes()
    decided = contender.journal.of(LibraryProduct)
    if not decided and not any(library_form(n, provider()) for n in nodes):
        return []
    wishes = ["plain", "always"]
    if any(d.taken for d in decided):
        wishes.insert(0, "never")
    return [LibraryChange(wish) for wish in wishes]


class Race(ABC, Generic[C]):
    """Plans of one program racing each other."""

    def __init__(self, program: Program, build: Callable[[], C], journal: Journal) -> None:
        """Prepare a race; `build` compiles the program under the settings in force."""
        self.program, self.build, self.journal = program, build, journal
        self.seconds: float = knobs.TUNE_SECONDS.get()

    def changes(self, best: C) -> list[Change]:
        """Return what other plans than `best` do differently."""
        return [*close_calls(best.plan.decisions)]

    @abstractmethod
    def place(self, best: C, sizes: Mapping[str, int]) -> None:
        """Make inputs for the calls of all plans."""

    @abstractmethod
    def results(self, contender: C) -> Sequence[Array]:
        """Run a plan once and return what it computes."""

    @abstractmethod
    def ratio(self, one: C, other: C, ends: float) -> float:
        """Return how much of the time of a plan another one takes; stop at `ends`."""

    def run(self, initial: Settings) -> tuple[Settings, float] | None:
        """Return the fastest settings and their gain over `initial`; None if compiling fails."""
        best = self.build_contender(initial)
        if best is None:
            return None
        flips = self.changes(best)
        sizes = {n: max(self.program.sizes.get(n, 1), 0) for n in best.size_names}
        if not flips or self._nbytes(sizes) > MAX_INPUT_BYTES:
            return initial, 1.0
        self.place(best, sizes)
        expected = self.results(best)
        settings, gain = initial, 1.0
        seen = {plan_text(best.plan)}
        ends = perf_counter() + self.seconds
        for flip in flips:
            flipped = flip.apply_to(settings)
            contender = self.build_contender(flipped)
            if contender is None or plan_text(contender.plan) in seen:
                continue
            seen.add(plan_text(contender.plan))
            try:
                results = self.results(contender)
            except SmeltError as error:
                _LOG.warning("a plan fails and is left out: %s: %s", flip.title, error)
                continue
            if not all(map(agree, expected, results)):
                _LOG.warning("a plan gives other numbers and is left out: %s", flip.title)
                continue
            ratio = self.ratio(best, contender, ends)
            self._note(flip, ratio)
            if ratio < CLEAR_RATIO:
                best, settings, gain = contender, flipped, gain / ratio
            if perf_counter() > ends:
                break
        return settings, gain

    def build_contender(self, settings: Settings) -> C | None:
        """Compile the program under settings; None if that fails."""
        with knobs.config(dict(settings), tune="off"):
            try:
                return self.build()
            except SmeltError as error:
                _LOG.info("a plan is left out: %s", error)
                return None

    def _nbytes(self, sizes: Mapping[str, int]) -> int:
        inputs = self.program.graph.inputs
        return sum(prod(dims_at(x.type.shape, sizes)) * x.type.dtype.itemsize for x in inputs)

    def _note(self, change: Change, ratio: float) -> None:
        self.journal.record(Measured(change.title, ratio, "of the time"))


class HostRace(Race[HostContender]):
    """Plans racing on this machine, where calls alternate."""

    _call: tuple[list[Array], tuple[int, ...]]

    def changes(self, best: HostContender) -> list[Change]:
        """Return what other plans do differently, products of a library included."""
        return [*library_changes(best), *super().changes(best)]

    def place(self, best: HostContender, sizes: Mapping[str, int]) -> None:
        """Make random arrays."""
        inputs = self.program.graph.inputs
        arrays = [random_array(x.type, sizes, k) for k, x in enumerate(inputs)]
        self._call = arrays, tuple(sizes[n] for n in best.size_names)

    def results(self, contender: HostContender) -> Sequence[Array]:
        """Run a plan once."""
        return contender.run(*self._call)

    def ratio(self, one: HostContender, other: HostContender, ends: float) -> float:
        """Return the median ratio of the times of two plans."""
        return compare(self._prepared(one), self._prepared(other), ends)

    def _prepared(self, contender: HostContender) -> Callable[[], object]:
        """Return a call of a contender whose prelude has run."""
        arrays, sizes = self._call
        held = contender.run_prelude(arrays)
        return lambda: contender.run(arrays, sizes, None, held)


def compare(one: Callable[[], Any], other: Callable[[], Any], ends: float) -> float:
    """Return the median ratio of the times of `other` and `one`, until `ends`.

    >>> from time import sleep
    >>> compare(lambda: sleep(0.002), lambda: sleep(0.004), perf_counter() + 1) > 1.5
    True
    """
    one()
    other()
    ratios: list[float] = []
    for number in _alternations(ends):
        times = dict.fromkeys((False, True), 0)
        for is_other in (number % 2 == 0, number % 2 == 1):
            start = perf_counter_ns()
            (other if is_other else one)()
            times[is_other] = max(perf_counter_ns() - start, 1)
        ratios.append(times[True] / times[False])
    return float(np.median(ratios))


def _alternations(ends: float) -> Iterator[int]:
    for turn in range(ROUNDS):
        yield turn
        if perf_counter() > ends and turn >= 2:
            return
