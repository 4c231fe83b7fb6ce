"""Does the model order programs as the clock does?  Predicted and measured time on a corpus.

    python -m tests.fusion.ranks

Programs are the benchmark's workloads and a few more, at sizes where the work is most of the time,
each fused and with fusion off.  They run on one thread, timed by the processor's own time, so that
a busy machine matters little.  The numbers are Spearman's rank correlations of times, and of what
fusing saves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import process_time
from typing import Any

import numpy as np

import smelt as sm
from bench.namespaces import smelt_namespace
from bench.workloads import WORKLOADS
from smelt.compiler import driver
from smelt.explain.entries import predict

Array = np.ndarray[Any, Any]
Program = tuple[Callable[..., Any], Sequence[Array]]
MIN_SECONDS, ROUNDS = 2e-3, 5


@dataclass(frozen=True)
class Timed:
    """One program compiled one way: nanoseconds on one thread."""

    name: str
    predicted: float
    measured: float


def programs() -> dict[str, Program]:
    """The corpus: all of it runs in half a minute."""
    r = np.random.default_rng(0)

    def some(*shape: int) -> Array:
        return r.standard_normal(shape).astype(np.float32)

    results: dict[str, Program] = {
        name: (partial(row.call, smelt_namespace(sm)), row.arrays(small=False))
        for name, row in WORKLOADS.items()
    }
    results |= {
        "product": (lambda x, w: x @ w, (some(256, 256), some(256, 256))),
        "wide product": (lambda x, w: x @ w, (some(384, 512), some(512, 768))),
        "gelu of a product": (
            lambda x, w, b: sm.nn.gelu(x @ w + b),
            (some(200, 300), some(300, 640), some(640)),
        ),
        "rows": (lambda x: sm.sum(x * x, axis=1), (some(1500, 1000),)),
        "columns": (lambda x: sm.sum(sm.exp(x), axis=0), (some(700, 900),)),
        "dear": (lambda x: sm.tanh(sm.exp(sm.sin(x))), (some(500, 900),)),
        "turned": (lambda x, y: sm.permute_dims(x, (1, 0)) + y, (some(800, 900), some(900, 800))),
        "picked": (
            lambda x, i: sm.exp(sm.take(x, i, axis=0)),
            (some(3000, 128), r.integers(0, 3000, 4000)),
        ),
        "running": (lambda x: sm.cumulative_sum(x, axis=1), (some(600, 1000),)),
    }
    return results


def timed(name: str, program: Program, *, fuse: bool) -> Timed:
    """Compiles a program, asks the model, and looks at the clock."""
    function, arrays = program
    with sm.config(threads=1, fuse=fuse):
        jitted = sm.jit(function)
        built = sm.explain(jitted, *(sm.spec(a.shape, a.dtype) for a in arrays)).compiled
        target = replace(driver.host(), cores=1)
        hints = jitted.lower(*arrays).trace.hints
        costs, _ = predict(built.plan, target, hints)
        jitted(*arrays)
        repeat, best = 1, float("inf")
        for _ in range(ROUNDS):
            while True:
                start = process_time()
                for _ in range(repeat):
                    jitted(*arrays)
                spent = process_time() - start
                if spent >= MIN_SECONDS:
                    break
                repeat *= 4
            best = min(best, spent / repeat)
    return Timed(name, sum(c.total for c in costs), best * 1e9)


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation: 1 where both put everything in the same order."""
    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def correlations(actual: Sequence[tuple[Timed, Timed]]) -> tuple[float, float]:
    """Of times, and of what fusing saves: pairs of a program fused and not fused."""
    flat = [t for pair in actual for t in pair]
    times = spearman([t.predicted for t in flat], [t.measured for t in flat])
    gains = spearman(
        [off.predicted / on.predicted for on, off in actual],
        [off.measured / on.measured for on, off in actual],
    )
    return times, gains


def run() -> list[tuple[Timed, Timed]]:
    """Every program, fused and with fusion off."""
    return [
        (timed(name, p, fuse=True), timed(name, p, fuse=False)) for name, p in programs().items()
    ]


def main() -> None:
    result = run()
    for on, off in result:
        line = "".join(f"{t.predicted / 1e3:10.1f} {t.measured / 1e3:10.1f}" for t in (on, off))
        sys.stdout.write(f"{on.name:28}{line}\n")
    sys.stdout.write(
        "rank correlation of times {:.3f}, of gains {:.3f}\n".format(*correlations(result))
    )


if __name__ == "__main__":
    main()
