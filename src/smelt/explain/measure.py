"""Times of single kernels: each step of an executable launched alone, on the data it really gets.

The steps run in order; what they leave in the arena is kept while a later step reads it.  Each step
is called again and again in an executable of its own, in turn with the same call without any
kernel: the difference is the kernel, and the median of the differences is reported.  Data that fits
a cache stays there between two runs, as it does in a program that uses it again.  All steps and the
whole call take turns in several rounds, so that a busy moment of the machine meets all of them.

    times = measure(compiled.executable, arrays, {"n": 1000})
    times.steps[0].median_ns, times.call.median_ns
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from smelt.dataclass import dataclass
from smelt.explain.data import TimeData
from smelt.runtime.executable import CallStep, Executable, Step, Value

__all__ = ["Times", "measure"]

Array = np.ndarray[Any, Any]

ROUNDS = 3
MOST_RUNS = 33
LEAST_RUNS = 2
BUDGET_NS = 20_000_000
"""Runs of a step in one round; long kernels run `LEAST_RUNS` times beyond this time."""


@dataclass(frozen=True, slots=True)
class Times:
    """Of every step, in the order of the launches; and of a whole call from Python."""

    steps: tuple[TimeData, ...]
    call: TimeData


def measure(executable: Executable, arrays: Sequence[Array], sizes: Mapping[str, int]) -> Times:
    """Run and time everything.  `arrays` are the inputs; what a call raises goes through."""
    numbers = tuple(sizes[name] for name in executable.size_names)
    taken = {v.over for v in executable.values}  # a measurement leaves the caller's arrays alone
    inputs = [a.copy() if k in taken else a for k, a in enumerate(arrays)]
    steps = [step for group in executable.launches for step in group]
    last = {n: k for k, step in enumerate(steps) for n in _touched(step)}
    found: list[list[int]] = [[] for _ in steps]
    whole: list[int] = []
    held = None if executable.prelude is None else executable.prelude.once(inputs)
    ready = [] if held is None else held.arrays
    results = executable.run(inputs, numbers, None, held)
    out = None if len(taken) > 1 else results
    for _ in range(ROUNDS):
        known: dict[int, Array] = {
            n: (inputs if v.place == "input" else ready)[v.number]
            for n, v in enumerate(executable.values)
            if v.place in ("input", "held")
        }
        for k, step in enumerate(steps):
            alone = _Alone(executable, step, known, inputs)
            found[k] += alone.samples(numbers)
            known.update(alone.results(numbers))
            for n in [n for n in known if last.get(n, len(steps)) <= k]:
                del known[n]  # memory: what no later step reads is let go
        whole += _samples(lambda: executable.run(inputs, numbers, out, held), _nothing)
    return Times(tuple(_summary(s) for s in found), _summary(whole))


def _summary(samples: Sequence[int]) -> TimeData:
    return TimeData(
        median_ns=float(median(samples)), least_ns=float(min(samples)), runs=len(samples)
    )


def _nothing() -> None: ...


def _touched(step: Step) -> tuple[int, ...]:
    """Numbers of the values that a step reads or writes."""
    if isinstance(step, CallStep):
        return (*step.inputs, *step.outputs)
    return tuple(dict.fromkeys(what for kind, what in step.words if kind == "value"))


class _Alone:
    """One step as an executable: values of earlier steps come in as arrays."""

    def __init__(
        self, home: Executable, step: Step, known: Mapping[int, Array], inputs: Sequence[Array]
    ) -> None:
        self.home, self.step = home, step
        self.given = list(inputs)
        self.values: list[Value] = list(home.values)
        touched = _touched(step)
        self.written = [n for n in touched if n not in known]
        for n, value in enumerate(home.values):
            if value.place == "input":
                continue
            if n in touched and n in known:
                self.values[n] = value._replace(place="input", number=len(self.given))
                self.given.append(known[n])
            else:
                self.values[n] = value._replace(place="arena", number=-1, offset=0, over=-1)

    def _executable(self, launches: Sequence[Sequence[Step]], *, all_out: bool) -> Executable:
        """With `all_out`, whatever the step writes is a result."""
        values = list(self.values)
        outputs: list[int] = []
        top: Any = 0
        for n in self.written:
            value = self.home.values[n]
            if all_out or value.place == "output":
                values[n] = value._replace(place="output", number=len(outputs))
                outputs.append(n)
            else:
                values[n] = value._replace(place="arena", number=-1, offset=top)
                top = top + (_nbytes(value) + 63) // 64 * 64
        return Executable(
            self.home.size_names, values, launches, (top,), outputs, made_for=self.home.made_for
        )

    def results(self, sizes: tuple[int, ...]) -> dict[int, Array]:
        """What the step writes, by the number of the value."""
        found = self._executable([[self.step]], all_out=True).run(self.given, sizes)
        return dict(zip(self.written, found, strict=True))

    def samples(self, sizes: tuple[int, ...]) -> list[int]:
        """Times of the step in ns, everything around it subtracted."""
        full = self._executable([[self.step]], all_out=False)
        empty = self._executable([], all_out=False)
        out = full.run(self.given, sizes)
        return _samples(
            lambda: full.run(self.given, sizes, out), lambda: empty.run(self.given, sizes, out)
        )


def _nbytes(value: Value) -> Any:
    total: Any = value.dtype.itemsize
    for d in value.shape:
        total = total * d
    return total


def _samples(full: Callable[[], object], empty: Callable[[], object]) -> list[int]:
    """Differences of two calls in turn, in ns.

    A difference below zero is noise of a step too short to be seen: it counts as zero.
    """
    full()
    empty()
    found: list[int] = []
    start = perf_counter_ns()
    while len(found) < MOST_RUNS:
        before = perf_counter_ns()
        full()
        between = perf_counter_ns()
        empty()
        after = perf_counter_ns()
        found.append(max(0, 2 * between - before - after))
        if len(found) >= LEAST_RUNS and after - start > BUDGET_NS:
            break
    return found
