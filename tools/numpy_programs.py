"""Time ordinary NumPy programs with `smelt.numpy` in NumPy's place, warm.

The programs are those of `tests/frontends/numpy/programs.py`.  Each runs at its test's size and at
a larger one.  Calls with NumPy and with Smelt alternate, so that both see the same machine; a
figure is the median over the calls.  `best` is the ratio of the fastest calls, which other
processes disturb least.

The programs draw their data from NumPy's generator in either case.  That is no part of what is
compared, and takes most of the time of some: the numbers are drawn once, before the calls that are
timed.  `--draw` draws them in every call instead.

    python -m tools.numpy_programs                          # all programs
    python -m tools.numpy_programs mandelbrot heat          # some
    python -m tools.numpy_programs --size large --runs 9    # one of the sizes
    python -m tools.numpy_programs --size large --draw      # with the time to draw data
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from tests.frontends.numpy import programs as module
from tests.frontends.numpy.programs import PROGRAMS

import smelt.numpy

__all__ = ["LARGE", "RepeatedGenerator", "main", "measure", "table"]

LARGE = {
    "image_filters": 1024,
    "k_means": 100_000,
    "n_body": 400,
    "heat": 1000,
    "logistic_regression": 100_000,
    "principal_components": 100_000,
    "rolling_means": 1_000_000,
    "monte_carlo": 2_000_000,
    "spectrum_filter": 1 << 18,
    "search": 50_000,
    "histograms": 500_000,
    "game_of_life": 1024,
    "quantiles": 100_000,
    "least_squares": 200_000,
    "mandelbrot": 600,
    "distances": 800,
    "neural_network": 20_000,
    "linear_systems": 300,
    "table_of_groups": 200_000,
    "interpolation": 100_000,
}
"""The larger size of each program that has one: arrays of megabytes, a call of at most a second."""

WARM_CALLS = 5
"""Calls of each side before the first that is timed."""

Program = Callable[..., Any]

_DRAWN: Final[dict[tuple[Any, ...], Any]] = {}
"""Results of a generator's methods by seed, number of the call, method and arguments."""


class RepeatedGenerator:
    """NumPy's random generator, which returns what an equal one has drawn before."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.calls = seed, 0
        self.generator = np.random.default_rng(seed)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def draw(*args: Any, **options: Any) -> Any:
            key = (self.seed, self.calls, name, args, *options.items())
            self.calls += 1
            if key not in _DRAWN:
                _DRAWN[key] = getattr(self.generator, name)(*args, **options)
                _DRAWN[key].flags.writeable = False
            return _DRAWN[key]

        return draw


def finish(result: Any) -> None:
    """Compute every array in a program's result."""
    if isinstance(result, tuple | list):
        for part in result:
            finish(part)
    else:
        np.asarray(result)


def seconds(program: Program, namespace: Any, sizes: tuple[int, ...]) -> float:
    """Return the seconds of one call, results included."""
    start = time.perf_counter()
    finish(program(namespace, *sizes))
    return time.perf_counter() - start


def measure(program: Program, sizes: tuple[int, ...], runs: int) -> tuple[list[float], list[float]]:
    """Return the seconds of NumPy's and Smelt's warm calls, which alternate."""
    _DRAWN.clear()
    for _ in range(WARM_CALLS):
        seconds(program, np, sizes)
        seconds(program, smelt.numpy, sizes)
    pairs = [
        (seconds(program, np, sizes), seconds(program, smelt.numpy, sizes)) for _ in range(runs)
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]


def table(programs: list[Program], sizes: tuple[str, ...], runs: int) -> Iterator[str]:
    """Yield the table's lines; a ratio is NumPy's time over Smelt's."""
    yield "| program | size | NumPy ms | Smelt ms | ratio | best |"
    yield "| --- | --- | --: | --: | --: | --: |"
    for size in sizes:
        ratios: list[tuple[float, float]] = []
        for program in programs:
            name = program.__name__
            if size == "large" and name not in LARGE:
                continue
            arguments = (LARGE[name],) if size == "large" else ()
            both = measure(program, arguments, runs)
            theirs, ours = map(statistics.median, both)
            ratios.append((theirs / ours, min(both[0]) / min(both[1])))
            shown = f"{theirs * 1e3:.2f} | {ours * 1e3:.2f}"
            yield f"| {name} | {size} | {shown} | {ratios[-1][0]:.2f} | {ratios[-1][1]:.2f} |"
        means = [math.exp(statistics.fmean(map(math.log, x))) for x in zip(*ratios, strict=True)]
        yield f"| geometric mean | {size} | | | {means[0]:.2f} | {means[1]:.2f} |"


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time NumPy programs with smelt.numpy")
    names = [p.__name__ for p in PROGRAMS]
    parser.add_argument("programs", nargs="*", metavar="program", help=", ".join(names))
    parser.add_argument("--size", choices=("test", "large"), help="one size; both by default")
    parser.add_argument("--runs", type=int, default=7, help="timed calls of each side")
    parser.add_argument("--draw", action="store_true", help="draw data in every call")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.programs) - set(names):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    if not chosen.draw:
        module._rng = RepeatedGenerator  # pyright: ignore[reportPrivateUsage]
    programs = [p for p in PROGRAMS if not chosen.programs or p.__name__ in chosen.programs]
    sizes = (chosen.size,) if chosen.size else ("test", "large")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in table(programs, sizes, chosen.runs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
