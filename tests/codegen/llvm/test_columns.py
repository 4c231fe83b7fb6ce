"""Columns of tall arrays: one sweep over the rows, split over tasks, and the same bits always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import knobs
from smelt.codegen.llvm import width
from smelt.codegen.llvm.items import Item
from smelt.types.dtype import f32


def _statistics(x: Any) -> Any:
    return sm.mean(x, axis=0), sm.var(x, axis=0)


def _columns(rows: int, columns: int, offset: float = 0.0) -> Any:
    rng = np.random.default_rng(rows)
    return (rng.standard_normal((rows, columns)) + offset).astype(np.float32)


def test_a_variance_of_columns_is_one_sweep_split_over_the_rows() -> None:
    report = sm.explain(_statistics, np.ones((16384, 1024), np.float32))
    (kernel,) = report.kernels
    assert "split(" in kernel.text
    assert kernel.text.count("stream") == 1


@pytest.mark.parametrize("shape", [(4096, 96), (4099, 33), (65, 1500), (40000, 1)])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_parts_add_up(shape: tuple[int, int], offset: float) -> None:
    x = _columns(*shape, offset)
    mean, variance = sm.jit(_statistics)(x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(np.asarray(mean), wide.mean(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.asarray(variance), wide.var(0), rtol=1e-5, atol=1e-9)


def test_threads_do_not_change_a_bit() -> None:
    x = _columns(4096, 200, 3.0)
    found = sm.jit(_statistics)
    with knobs.config(threads=1):
        alone = [np.asarray(a).tobytes() for a in found(x)]
    with knobs.config(threads=2):
        assert alone == [np.asarray(a).tobytes() for a in found(x)]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_column(value: float) -> None:
    x = _columns(4096, 70)
    x[17, 3] = value
    mean, variance = (np.asarray(a) for a in sm.jit(_statistics)(x))
    assert not np.isfinite(mean[3])
    assert np.isnan(variance[3])
    assert np.isfinite(np.delete(mean, 3)).all()
    assert np.isfinite(np.delete(variance, 3)).all()


def _chain(length: int) -> list[Item]:
    items = [Item(0, "load", 0, (), frozenset("i"), f32)]
    for k in range(length):
        items.append(Item(k + 1, "apply", "exp", (items[-1],), frozenset("i"), f32))
    return items


def test_long_chains_alone_take_more_vectors_together() -> None:
    short, long = _chain(1), _chain(3)
    beside = [*long, *(Item(9 + k, "apply", "exp", (long[0],), frozenset("i"), f32)
                       for k in range(4))]  # fmt: skip
    only = width.only_chain
    assert only(short) <= width.LONG < only(long)
    assert only(beside) == 0.0
