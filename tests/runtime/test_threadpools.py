"""`threadpoolctl` sees Smelt's pool and limits it, and nobody needs to have the package."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import knobs
from smelt.runtime import threads
from smelt.runtime.threads import pool

threadpoolctl = pytest.importorskip("threadpoolctl")


@pytest.fixture(autouse=True)
def compiled_once() -> None:
    """A function was compiled since the package was imported."""
    sm.jit(lambda x: x + 1)(np.ones(3, np.float32))


def ours() -> list[dict[str, Any]]:
    return [x for x in threadpoolctl.threadpool_info() if x["user_api"] == "smelt"]


def test_the_pool_is_listed_once() -> None:
    (actual,) = ours()
    assert actual["num_threads"] == threads.default_threads()
    assert actual["version"] == sm.__version__
    assert actual["prefix"] == "smelt"


def test_limits_hold_and_end() -> None:
    with knobs.config(threads=4):
        before = pool().threads
        with threadpoolctl.threadpool_limits(1):
            assert pool().threads == 1
            assert ours()[0]["num_threads"] == 1
        assert pool().threads == before == 4
        with threadpoolctl.threadpool_limits({"smelt": 3}):
            assert pool().threads == 3
        with threadpoolctl.threadpool_limits({"blas": 1}):
            assert pool().threads == 4


def test_a_limited_run_uses_one_thread() -> None:
    x = np.ones((512, 4096), np.float32)
    f = sm.jit(lambda x: sm.exp(x) * x)
    with knobs.config(threads=2):
        f(x)
        helped = pool().chunks_by_helper()
        with threadpoolctl.threadpool_limits(1):
            for _ in range(20):
                f(x)
        assert pool().chunks_by_helper() == helped


def test_the_package_is_never_imported() -> None:
    code = (
        "import sys, numpy, smelt\n"
        "smelt.jit(lambda x: x + 1)(numpy.ones(3))\n"
        "print('threadpoolctl' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
