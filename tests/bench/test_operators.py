"""The table of operators: equal results of all libraries, and its cells."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from bench.operators import (
    OPERATORS,
    SIZES,
    Operator,
    OperatorTimes,
    calls,
    measure,
    operands,
    page,
    table,
    to_json,
)


@pytest.mark.parametrize("row", OPERATORS, ids=lambda r: r.title)
def test_every_library_computes_the_same(row: Operator) -> None:
    peers = calls(row, 4 * 15 * 15)
    actual = {name: np.asarray(call()) for name, call in peers.items()}
    assert {"smelt", "numpy"} <= set(actual)
    want: Any = actual["numpy"].astype("f8")
    rough = 2**-10 if actual["numpy"].dtype == np.float16 else 1e-5
    for name, got in actual.items():
        np.testing.assert_allclose(got.astype("f8"), want, rtol=rough, atol=rough, err_msg=name)


def test_operands_have_the_size_that_the_row_says() -> None:
    for nbytes in SIZES.values():
        if nbytes <= 1 << 20:
            assert all(operands(r.kinds, nbytes)[0].nbytes <= nbytes for r in OPERATORS)
            assert operands("u u", nbytes)[1].nbytes == operands("d", nbytes)[0].nbytes == nbytes
    rows, picked = operands("X e", 1 << 16)
    assert picked.max() < len(rows)
    assert operands("F", 1 << 16)[0].flags.f_contiguous


def test_times_and_their_table() -> None:
    timed = measure(OPERATORS[0], "4 KiB", 1)
    assert timed.times["smelt"] > 0
    assert timed.times["numpy"] > 0
    actual = [
        OperatorTimes("a", "4 KiB", {"smelt": 100.0, "numpy": 250.0, "torch": 150.0}),
        OperatorTimes("a", "1 MiB", {"smelt": 100.0, "numpy": 50.0}),
        OperatorTimes("b", "4 KiB", {"smelt": 100.0, "numpy": 250.0, "torch": 600.0}),
    ]
    first, second, mean = table(actual).rows
    assert first == ("a", "100 ns", "2.50", "1.50", "1.50", "100 ns", "0.50", "–", "0.50")
    assert second[4:] == ("2.50", "–", "–", "–", "–")
    assert mean[:5] == ("geometric mean", "", "2.50", "3.00", "1.94")
    assert "| a | 100 ns |" in page(actual)
    assert [OperatorTimes(**row) for row in json.loads(to_json(actual))] == actual
