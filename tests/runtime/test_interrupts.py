"""Ctrl-C inside of one long task: kernels ask between strips of their loops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt as sm

ROOT = Path(__file__).parents[2]
KINDS = ("steps", "steps of rows", "updates", "one number", "steps in place")
PROGRAM = """
import json, os, signal, sys, threading, time
import numpy as np
import smelt as sm

signal.signal(signal.SIGINT, signal.default_int_handler)

def steps(n):
    return sm.jit(lambda x: sm.fori_loop(0, n, lambda i, c: c * 0.5 + x, x)), np.float32(1)

def rows(n):
    return sm.jit(lambda x: sm.fori_loop(0, n, lambda i, c: c * 0.5 + x, x)), np.ones(5000, "f")

def updates(n):
    return sm.jit(lambda x: sm.zeros(16).at[sm.arange(n) % 16].add(x)), np.float32(1)

def number(n):
    return sm.jit(lambda x: sm.sum(sm.sin(sm.arange(n) * x))), np.float64(0.001)

def in_place(n):
    f, x = rows(n)
    held = np.zeros(5000, "f")
    return (lambda x: f(x, out=held)), x

makers = dict(zip(json.loads(sys.argv[1]), (steps, rows, updates, number, in_place)))
answers = {}
for kind, make in makers.items():
    sent = [0.0]
    def interrupt():
        sent[0] = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)
    f, x = make(1 << 34)
    timer = threading.Timer(0.3, interrupt)
    try:
        np.asarray(make(1 << 10)[0](x))  # the machine, LLVM and the pool are ready
        timer.start()
        np.asarray(f(x))
        wait = 99.0
    except KeyboardInterrupt as error:
        wait = time.perf_counter() - sent[0]
        assert error.__traceback__.tb_lineno == 37, "the line of `f(x)`"
    timer.join()
    g, x = make(1000)
    answers[kind] = wait, np.asarray(g(x)).tolist()
print(json.dumps(answers))
"""


@cache
def interrupted(threads: int) -> dict[str, tuple[float, float | list[float]]]:
    """Seconds from an interrupt to its exception, and what a shorter program gives afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(KINDS)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "SMELT_THREADS": str(threads)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


def expected(kind: str) -> Any:
    if kind == "updates":
        return np.bincount(np.arange(1000) % 16, minlength=16)
    return np.sin(np.arange(1000) * 0.001).sum() if kind == "one number" else 2.0


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_long_task_and_the_next_call_is_right(threads: int) -> None:
    answers = interrupted(threads)
    assert set(answers) == set(KINDS)
    for kind, (wait, value) in answers.items():
        assert wait < 5, kind  # each would take a minute
        np.testing.assert_allclose(value, expected(kind), rtol=1e-5, err_msg=kind)


@pytest.mark.clock
def test_ctrl_c_ends_a_long_task_at_once() -> None:
    interrupted.cache_clear()
    assert max(wait for wait, _ in interrupted(2).values()) < 0.5


def test_only_loops_that_may_be_long_poll() -> None:
    """Many tasks are interrupted between tasks, short loops after they end."""

    def polls(f: Callable[..., Any], *arguments: Any) -> bool:
        kernels = sm.explain(sm.jit(f), *arguments).kernels
        return any("smelt_poll" in kernel.llvm for kernel in kernels)

    x, row = sm.spec("f32[n,m]"), sm.spec("f32[n]")
    assert not polls(lambda x: sm.nn.softmax(x * 2), x)
    assert not polls(lambda x: sm.exp(x) + 1, x)
    assert not polls(lambda x: x @ x.mT, x)
    assert not polls(lambda x: sm.fori_loop(0, 9, lambda i, c: c * 0.5 + x, x), sm.spec("f32[8]"))
    assert polls(lambda x: sm.fori_loop(0, x.shape[0], lambda i, c: c * 0.5 + x, x), row)
    assert polls(sm.sum, row)
    assert not polls(sm.nn.logsumexp, row)
