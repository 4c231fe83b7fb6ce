"""Reductions of short rows take several rows per task, with unchanged numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import knobs
from smelt.codegen.llvm.access.prefetch import assign_row_shares
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.text import parse
from smelt.machine.target import Target
from smelt.types.expr import evaluate

Array = np.ndarray[Any, Any]
MACHINE = Target.host()
SOFTMAX = """kernel softmax(x: f32[r,c]) -> y: f32[r,c]
  grid r
  v = x[r,c]
  w = exp(v - max(v over c))
  y[r,c] = w / sum(w over c)
"""


def softmax(xp: Any, x: Any) -> Any:
    w = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return w / xp.sum(w, axis=-1, keepdims=True)


def standardised(xp: Any, x: Any) -> Any:
    d = x - xp.mean(x, axis=-1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + 1e-5)


def argmax_and_sum(xp: Any, x: Any) -> Any:
    return xp.argmax(x, axis=-1), xp.max(x, axis=-1) - xp.sum(x, axis=-1)


def grouped(xp: Any, x: Any) -> Any:
    rows, columns = x.shape
    return standardised(xp, xp.reshape(x, (rows, columns // 5, 5))) + x[:, :1, None]


def nests_of(text: str) -> Schedule:
    return schedule(program(parse(text)).phases[0], MACHINE)


@pytest.mark.parametrize("f", [softmax, standardised, argmax_and_sum, grouped])
@pytest.mark.parametrize("columns", [5, 15, 20, 65, 130, 700, 2050, 5000])
def test_numbers(f: Callable[..., Any], columns: int) -> None:
    for rows in (0, 1, 2, 17, 33):
        x = np.random.default_rng(columns).standard_normal((rows, columns)).astype("f4")
        for threads in (1, 2):
            with knobs.config(threads=threads):
                result = sm.jit(lambda a: f(sm, a))(x)
            want = f(np, x.astype("f8"))
            pairs = zip(result, want, strict=True) if isinstance(want, tuple) else [(result, want)]
            for a, b in pairs:
                np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=2e-5)


def test_short_rows_share_a_task_and_long_ones_do_not() -> None:
    s = nests_of(SOFTMAX)
    together = {c: int(evaluate(s.block["r"], {"r": 4096, "c": c})) for c in (8, 128, 4096)}
    assert together[8] > together[128] > together[4096] == 1


def test_what_only_rows_decide_is_no_reason_to_keep_their_elements() -> None:
    kept = nests_of("""kernel k(x: f32[r,c]) -> y: f32[r,c]
  grid r
  v = x[r,c]
  d = v - sum(v over c) / f32(size(c))
  y[r,c] = d / sqrt(sum(square(d) over c) / f32(size(c)))
""").materialised
    assert set(kept.values()) == {("r",)}


def test_every_nest_prefetches_the_rows_of_the_next_task() -> None:
    s = nests_of(SOFTMAX)
    assert [nest.order for nest in s.nests] == [("r", "c")] * 3
    assert sum(ask.share for asks in assign_row_shares(s).values() for ask in asks) == 1


KEPT = """kernel k(x: {0}[r,c], q: {0}[r,c], b: {0}[c]) -> y: {0}[r,c]
  grid r
  v = {1}
  w = sum(f32(v) * f32(v) over c)
  y[r,c] = {0}(f32(v) / w)
"""


@pytest.mark.parametrize(
    ("dtype", "value", "kept"),
    [
        ("f32", "x[r,c] + q[r,c]", False),
        ("f32", "x[r,c] + q[r,c] + b[c]", True),
        ("bf16", "x[r,c] + q[r,c]", False),
        ("bf16", "bf16(x[r,c] + q[r,c])", True),
    ],
)
def test_what_costs_more_than_a_store_and_a_load_is_kept_for_the_next_visit(
    dtype: str, value: str, kept: bool
) -> None:
    actual = nests_of(KEPT.format(dtype, value)).materialised
    assert any("c" in item.axes for item in actual) == kept
