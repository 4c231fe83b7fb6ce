"""Measure single kernels: run each step of an executable alone, on its real data.

The steps run in order; values in the arena are kept while a later step reads them. Each step is
called repeatedly in an executable of its own, alternating with the same call without any kernel:
the median of the differences is reported. Data that fits a cache stays there between two runs, as
it does in a program that uses it again. All steps and the complete call alternate in several
rounds, so that a busy moment of the machine affects all of them.

    times = measure(compiled.executable, arrays, {"n": 1000})
    times.steps[0].median_ns, times.call.median_ns
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from smelt.explain.data import TimeData
from smelt.python.dataclass import dataclass
from smelt.runtime.executable import CallStep, Executable, Step, Value

Array = np.ndarray[Any, Any]

MEASURE_ROUNDS = 3
MAX_RUNS = 33
MIN_RUNS = 2
BUDGET_NS = 20_000_000
"""Time of a step's runs in one round; a long kernel still runs `MIN_RUNS` times."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times of every step, in launch order, and of a complete call from Python."""

    steps: tuple[TimeData, ...]
    call: TimeData


def measure(executable: Executable, arrays: Sequence[Array], sizes: Mapping[str, int]) -> Times:
    """Run and time every step; `arrays` are the inputs.

    Exceptions of a call propagate.
    """
    numbers = tuple(sizes[name] for name in executable.size_names)
    overwritten = {
        v.overwrites for v in executable.values
    }  # a measurement leaves the caller's arrays alone
    inputs = [a.copy() if k in overwritten else a for k, a in enumerate(arrays)]
    steps = [step for group in executable.launches for step in group]
    last = {n: k for k, step in enumerate(steps) for n in _touched(step)}
    step_samples: list[list[int]] = [[] for _ in steps]
    call_samples: list[int] = []
    prelude_run = None if executable.prelude is None else executable.prelude.run_uncached(inputs)
    ready = [] if prelude_run is None else prelude_run.arrays
    results = executable.run(inputs, numbers, None, prelude_run)
    out = None if len(overwritten) > 1 else results
    for _ in range(MEASURE_ROUNDS):
        arrays_by_value: dict[int, Array] = {
            n: (inputs if v.place == "input" else ready)[v.number]
            for n, v in enumerate(executable.values)
            if v.place in ("input", "held")
        }
        for k, step in enumerate(steps):
            single = _SingleStep(executable, step, arrays_by_value, inputs)
            step_samples[k] += single.samples(numbers)
            arrays_by_value.update(single.results(numbers))
            for n in [n for n in arrays_by_value if last.get(n, len(steps)) <= k]:
                del arrays_by_value[n]  # free the memory of what no later step reads
        call_samples += _samples(
            lambda: executable.run(inputs, numbers, out, prelude_run), _no_call
        )
    return Times(tuple(_summary(s) for s in step_samples), _summary(call_samples))


def _summary(samples: Sequence[int]) -> TimeData:
    return TimeData(
        median_ns=float(median(samples)), least_ns=float(min(samples)), runs=len(samples)
    )


def _no_call() -> None: ...


def _touched(step: Step) -> tuple[int, ...]:
    """Return the numbers of the values that a step reads or writes."""
    if isinstance(step, CallStep):
        return (*step.inputs, *step.outputs)
    return tuple(dict.fromkeys(what for kind, what in step.words if kind == "value"))


class _SingleStep:
    """A single step as an executable whose inputs include the values of earlier steps."""

    def __init__(
        self, home: Executable, step: Step, available: Mapping[int, Array], inputs: Sequence[Array]
    ) -> None:
        self.home, self.step = home, step
        self.given = list(inputs)
        self.values: list[Value] = list(home.values)
        touched = _touched(step)
        self.written = [n for n in touched if n not in available]
        for n, value in enumerate(home.values):
            if value.place == "input":
                continue
            if n in touched and n in available:
                self.values[n] = value._replace(place="input", number=len(self.given))
                self.given.append(available[n])
            else:
                self.values[n] = value._replace(place="arena", number=-1, offset=0, overwrites=-1)

    def _executable(self, launches: Sequence[Sequence[Step]], *, all_out: bool) -> Executable:
        """Build an executable; with `all_out`, everything that the step writes is a result."""
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
            self.home.size_names, values, launches, (top,), outputs, made_for=self.home.code_target
        )

    def results(self, sizes: tuple[int, ...]) -> dict[int, Array]:
        """Return what the step writes, by value number."""
        arrays = self._executable([[self.step]], all_out=True).run(self.given, sizes)
        return dict(zip(self.written, arrays, strict=True))

    def samples(self, sizes: tuple[int, ...]) -> list[int]:
        """Return times of the step in ns, without the overhead of the call."""
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
    """Return differences of two alternating calls in ns.

    A negative difference is noise of a step too short to measure: it counts as zero.
    """
    full()
    empty()
    differences: list[int] = []
    start = perf_counter_ns()
    while len(differences) < MAX_RUNS:
        before = perf_counter_ns()
        full()
        between = perf_counter_ns()
        empty()
        after = perf_counter_ns()
        differences.append(max(0, 2 * between - before - after))
        if len(differences) >= MIN_RUNS and after - start > BUDGET_NS:
            break
    return differences
