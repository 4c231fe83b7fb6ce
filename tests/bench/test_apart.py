"""The table of fused kernels against separate operators: equal results, and its cells."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import smelt as sm
from bench.apart import ALONE, KernelTimes, check, contests, recorded, table, to_json
from bench.parts import cuts
from smelt.graph.text import parse


def layer(x: Any, w: Any, b: Any) -> Any:
    h = sm.maximum(x @ w + b, 0)
    return h - sm.mean(h, axis=1, keepdims=True), sm.sum(h, axis=0)


def test_all_ways_give_the_same_and_are_timed() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((40, 24), (24, 33), (33,))]
    actual = list(contests("layer", *recorded(layer, arrays)))  # which compares the results
    assert actual
    assert all({ALONE} < set(c.ways) for c in actual)
    assert all(len(steps) == 2 for c in actual for name, steps in c.ways.items() if name != ALONE)
    timed = actual[0].measure(1)
    assert timed.fused > 0
    assert timed.ratio == min(timed.apart.values()) / timed.fused


def test_other_numbers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.apart.agree", lambda *_: False)
    with pytest.raises(AssertionError, match="other numbers"):
        list(contests("sums", *recorded(lambda x: sm.sum(sm.exp(x), axis=1), [np.ones((8, 8))])))


def test_sums_in_double_of_rounded_terms_agree_as_those_do() -> None:
    single, double = np.ones(2, np.float32), np.ones(2)
    check("a", [double], [double + 1e-6], [single, double])
    for near, inputs in ((1e-6, [double]), (1e-2, [single])):
        with pytest.raises(AssertionError, match="other numbers"):
            check("a", [double], [double + near], inputs)


def test_cuts_read_reductions_and_recompute_the_rest() -> None:
    graph = parse("""graph f(x: f32[n,m]) {
      v0 = exp(x)
      v1 = reduce.sum(v0) {axes=(1,)}
      v2 = reshape(v1) {shape=(n,1)}
      v3 = div(v0, v2)
      return v3, v1
    }""")
    one, again, both = cuts(graph)
    assert [n.op.name for n in one.graphs[0].outputs] == ["exp"]
    assert one.output_sources == ((1, 0), (1, 1))
    assert again.at == both.at == "reduce.sum"
    assert again.reads == ((True, 0), (False, 0))  # exp once more, from x
    assert both.reads == ((False, 0), (False, 1))
    assert again.output_sources == ((1, 0), (0, 0))


def test_sizes_that_no_input_implies_are_reported() -> None:
    def mean(x: Any) -> Any:
        return sm.sqrt(sm.sum(x * x, axis=1) / x.shape[1])

    (result,) = contests("mean", *recorded(mean, [np.ones((16, 12), np.float32)]))
    cut = next(steps for name, steps in result.ways.items() if "reduce" in name)
    assert np.array_equal(cut[1].results[0], np.ones(16, np.float32))


def test_table() -> None:
    actual = [
        KernelTimes("a", "mul add", 1000.0, {ALONE: 2000.0, "cut at mul 3": 900.0}),
        KernelTimes("b", "exp sum", 1000.0, {ALONE: 1600.0}),
    ]
    first, second, mean = table(actual).rows
    assert first == ("a", "2", "1.00 µs", "2.00", "0.90", "cut at mul")
    assert second == ("b", "2", "1.00 µs", "1.60", "1.60", ALONE)
    assert mean[3:5] == ("1.79", "1.20")
    assert [KernelTimes(**row) for row in json.loads(to_json(actual))] == actual
