"""The most memory a call holds: eager code by its storages, Smelt by its blocks."""

from __future__ import annotations

import numpy as np
import pytest

import smelt as sm
from bench.peak import eager_peak, smelt_peak
from smelt.runtime.memory import STOCK


def test_what_lives_at_once_counts_and_what_was_there_does_not():
    torch = pytest.importorskip("torch")
    x = torch.zeros(256, 256)

    def call():
        y = x + 1
        y = y * 2  # the sum and the product live together, the sum is freed here
        view = y.T
        return view.reshape(-1) + x.reshape(-1)  # a copy, and the result

    assert eager_peak(call) == 3 * x.nbytes


def test_results_and_arena_are_blocks():
    x = np.ones((512, 512), "f4")
    f = sm.jit(lambda x: sm.matmul(x, sm.sort(x, axis=0)))
    f(x)
    before = STOCK.usage().requested
    assert x.nbytes * 2 <= smelt_peak(lambda: f(x), before) < x.nbytes * 4
