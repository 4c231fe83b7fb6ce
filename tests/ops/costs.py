"""Compare the column `cost` of operators with measured times.

    python -m tests.ops.costs

Each row runs over numbers that stay in the first cache, several whole vectors at a time, as in the
loops of kernels.  The unit is measured alike: a cycle in which two multiply-adds of sixteen float32
lanes retire.  Rows and unit take turns and the best of many rounds counts, so that a busy machine
matters little.  What costs less than reading and writing its numbers shows as that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from time import perf_counter_ns
from typing import Any

import numpy as np
from tests.codegen.compile_scalar import LEVELS, Compiled, compile_body, compile_row

from smelt.ops.scalar import SCALARS
from smelt.ops.spec import ScalarOp
from smelt.types.dtype import DType, bool_, f32, i32, u64

LANES, COUNT, ROUNDS, TIMES = 64, 2048, 40, 20
ADDED = 32
"""Multiply-adds of the loop that tells the unit."""
LEAST = 2.0
"""Costs below this drown in reading and writing."""

Array = np.ndarray[Any, Any]


def operands(row: ScalarOp) -> tuple[DType, ...] | None:
    """Types that a row takes, floats if it can; None if it takes none of those tried."""
    for kinds in ((f32,), (f32, i32), (bool_, f32), (i32,), (u64,), (bool_,)):
        first, rest = kinds[0], kinds[-1]
        dtypes = (first, *[rest] * (row.arity - 1))
        try:
            row.result(*dtypes)
        except Exception:  # noqa: BLE001 - whatever a rule refuses, the next is tried
            continue
        return dtypes
    return None


def numbers(dtypes: tuple[DType, ...]) -> list[Array]:
    """Ordinary numbers: inside the domains of functions where those have ends."""
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 2 if d == bool_ else 20, COUNT).astype(d.numpy)
        if not d.is_float
        else rng.uniform(0.05, 0.95, COUNT).astype(d.numpy)
        for d in dtypes
    ]


class Loop:
    """A compiled loop with its numbers."""

    def __init__(self, code: Compiled, inputs: list[Array]) -> None:
        self.code, self.inputs = code, inputs
        self.out = np.empty(COUNT, code.out.numpy)
        self.addresses = [a.ctypes.data for a in (*inputs, self.out)]
        self.best = self.started = float("inf")

    def run(self) -> None:
        """One round; the best counts."""
        self.best = min(self.best, self._time(COUNT))
        self.started = min(self.started, self._time(0))

    def _time(self, count: int) -> float:
        native, addresses = self.code.native, self.addresses
        start = perf_counter_ns()
        for _ in range(TIMES):
            native(*addresses, count)
        return (perf_counter_ns() - start) / TIMES

    @property
    def nanoseconds(self) -> float:
        """What the numbers take, without what it takes to start."""
        return self.best - self.started


def unit() -> Loop:
    """The loop that tells the unit: ADDED multiply-adds of each number."""

    def body(m: Any, args: Any) -> Any:
        parts = [m.const(f32, 0.5 + k) for k in range(8)]
        for k in range(ADDED):
            parts[k % 8] = m.fma(parts[k % 8], args[0], parts[k % 8])
        total = parts[0]
        for p in parts[1:]:
            total = m.fma(p, p, total)
        return total

    return Loop(compile_body(body, (f32,), f32, 16), numbers((f32,)))


def measured(rows: Iterable[ScalarOp]) -> Iterator[tuple[ScalarOp, float]]:
    """Each row with what it costs here."""
    results: list[tuple[ScalarOp, Loop]] = []
    for row in rows:
        dtypes = operands(row)
        if dtypes is not None:
            results.append((row, Loop(compile_row(row, dtypes, LANES), numbers(dtypes))))
    one = unit()
    for _ in range(ROUNDS):
        one.run()
        for _, loop in results:
            loop.run()
    ns = one.nanoseconds / ((ADDED + 7) / 2)
    for row, loop in results:
        yield row, loop.nanoseconds / ns


def main() -> None:
    sys.stdout.write(f"{LEVELS[0]}, 16 lanes of float32\n")
    for row, cost in sorted(measured(SCALARS.values()), key=lambda pair: pair[0].name):
        far = cost > LEAST and not 1 / 1.5 < cost / max(row.cost, LEAST) < 1.5
        far |= row.cost > LEAST and not 1 / 1.5 < max(cost, LEAST) / row.cost < 1.5
        sys.stdout.write(f"{row.name:20}{row.cost:8.1f}{cost:8.1f}{'  <' if far else ''}\n")


if __name__ == "__main__":
    main()
