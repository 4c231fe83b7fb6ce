"""Drawn functions, planned for a GPU, compute what the graph's interpreter does.

Convolutions, loops with states, attention, products, long rows and scans are drawn
(`drawn_functions`): kinds that random graphs seldom have. Triton's own interpreter runs programs of
the catalogue and of these at night; `python -m tests.codegen.interpreted_programs` runs all.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tests.codegen.drawn_functions import FAMILIES, check_drawn
from tests.strategies.effort import NIGHTLY, start

from smelt.packages.installed import has_triton

CASES = 600 if NIGHTLY else 3
"""Functions of each family."""
TARGETS = ("h100", "mi300x")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_drawn_function_computes_the_same(family):
    seen: Counter[str] = Counter()

    @seed(start(len(family)))
    @settings(
        max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def check(data):
        seen[check_drawn(data.draw, family, data.draw(st.sampled_from(TARGETS)))] += 1

    check()
    assert seen["refused"] <= 0.02 * seen["judged"]


INTERPRETED = ("E4 one query", "row D1", "row B5", "row F2", "user Kalman filter", "packed causal")
"""Parts of names of programs of the catalogue."""


@pytest.mark.nightly
@pytest.mark.skipif(
    not has_triton() or importlib.util.find_spec("torch") is None,
    reason="Triton's interpreter needs Triton and torch",
)
@pytest.mark.parametrize("arguments", [INTERPRETED, ("--random", "10")], ids=["named", "random"])
def test_triton_s_interpreter_computes_the_same(arguments):
    command = [sys.executable, "-m", "tests.codegen.interpreted_programs", *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-2000:]
