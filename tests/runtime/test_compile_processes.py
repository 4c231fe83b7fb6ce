"""Compilation beside signals: killed, interrupted, stopped; the next call is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.strategies.effort import NIGHT, NIGHTLY
from tests.trust import measured

pytestmark = NIGHT
ROOT = Path(__file__).parents[2]
KILLS = 600 if NIGHTLY else 10
INTERRUPTS = 300 if NIGHTLY else 20

PRELUDE = """
import gc, json, os, random, signal, sys, threading, time
import numpy as np
import smelt as sm
import smelt.packages.llvm
from smelt.runtime.cache import Cache

SEES_ALL_OBJECTS = True  # it counts those that are hidden

x = np.random.default_rng(0).normal(size=(12, 16)).astype(np.float32)

def program(number):
    \"\"\"A function that no other number has: two kernels, one of them with a product.\"\"\"
    def f(x):
        y = sm.exp(x * (1 + number / 1000)) / sm.sum(sm.abs(x), axis=1, keepdims=True)
        return y, sm.sum(sm.sin(x.T @ y + number), axis=1)
    return sm.jit(f)

def right(number, f=None):
    found = [np.asarray(r) for r in (f or program(number))(x)]
    w = x.astype(np.float64)
    y = np.exp(w * (1 + number / 1000)) / np.abs(w).sum(1, keepdims=True)
    wanted = y, np.sin(w.T @ y + number).sum(1)
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-3) for a, b in zip(found, wanted, strict=True))
"""


def result(code: str, cache: Path, timeout: float = 170) -> Any:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout * (20 if NIGHTLY else 1),
        env={**os.environ, "PYTHONPATH": paths, "SMELT_CACHE_DIR": str(cache)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_killed_compilation_leaves_a_cache_that_the_next_one_can_use(tmp_path: Path) -> None:
    """Children share a cache; each is killed at a moment drawn from its whole run."""
    place = tmp_path / "cache"
    killed, finished, entries = result(
        f"""
        dice = random.Random(17)

        def child(work):
            number = os.fork()
            if number == 0:
                code = 3
                try:
                    signal.alarm(60)
                    code = 0 if work() else 1
                finally:
                    os._exit(code)
            return number

        def status(number):
            return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])

        def checked(number):
            return right(number) and Cache.default().verify() == {{}}

        for number in (-1, -2):
            start = time.perf_counter()
            assert status(child(lambda: right(number))) == 0
            whole = time.perf_counter() - start
        killed = finished = 0
        for number in range({KILLS}):
            victim = child(lambda: right(number))
            time.sleep(dice.uniform(0, whole))
            os.kill(victim, signal.SIGKILL)
            code = status(victim)
            assert code in (0, -signal.SIGKILL), code
            killed, finished = killed + (code != 0), finished + (code == 0)
            assert Cache.default().info().damaged == 0
            assert status(child(lambda: checked(number))) == 0, number
        print(json.dumps([killed, finished, Cache.default().info().entries]))
        """,
        place,
    )
    measured("processes killed", killed)
    assert killed > KILLS // 2
    assert killed + finished == KILLS
    assert entries >= KILLS // 2
    # What the killed left behind goes when it is old, and nothing else does.
    for file in place.glob(".tmp-*"):
        os.utime(file, (1, 1))
    left = result(
        """
        Cache.default().sweep()
        print(json.dumps([Cache.default().info().entries, Cache.default().verify()]))
        """,
        place,
    )
    assert left == [entries, {}]
    assert not list(place.glob(".tmp-*"))


SIGNALS = {
    "interrupt": "signal.SIGINT, signal.default_int_handler, KeyboardInterrupt",
    "alarm": "signal.SIGALRM, raises, Stop",
    "terminate": "signal.SIGTERM, lambda *_: sys.exit(1), SystemExit",
}


def interrupted(kind: str, cache: Path) -> tuple[list[float], int]:
    """Return the seconds from a signal to the end of the compilation that it came in.

    And how many ended before.  Asserts that the same call and others are right afterwards.
    """
    return result(
        f"""
        class Stop(Exception):
            pass

        def raises(*_):
            raise Stop

        kind, handler, error = {SIGNALS[kind]}
        dice = random.Random(23)
        sent = 0.0
        usual = gc.get_threshold()

        def send(delay, over):
            global sent
            if not over.wait(delay):
                sent = time.perf_counter()
                os.kill(os.getpid(), kind)

        assert right(-1)
        start = time.perf_counter()
        assert right(-2)
        whole = time.perf_counter() - start
        waits, early = [], 0
        for number in range({INTERRUPTS}):
            f, over = program(number), threading.Event()
            thread = threading.Thread(target=send, args=(dice.uniform(0, whole), over))
            signal.signal(kind, handler)
            try:
                thread.start()
                assert right(number, f)
                over.set()
                thread.join()
                early += 1
            except error:
                waits.append(time.perf_counter() - sent)
            finally:
                signal.signal(kind, signal.SIG_IGN)
            over.set()
            thread.join()
            assert right(number, f), number
            assert right(-1) and gc.get_threshold() == usual and gc.get_freeze_count() == 0
        assert Cache.default().verify() == {{}}
        assert not [name for name in os.listdir(Cache.default().info().path) if "tmp" in name]
        print(json.dumps([waits, early]))
        """,
        cache,
    )


@pytest.mark.parametrize("kind", SIGNALS)
def test_a_signal_ends_a_compilation_and_the_next_call_is_right(kind: str, tmp_path: Path) -> None:
    waits, early = interrupted(kind, tmp_path / "cache")
    measured("compilations that a signal ended, of each kind", len(waits))
    measured("longest wait in ms", max(waits) * 1e3)
    assert len(waits) + early == INTERRUPTS
    assert len(waits) > INTERRUPTS // 3
    assert max(waits) < 10  # not at the end of anything long


@pytest.mark.clock
def test_control_c_ends_a_compilation_within_200_ms(tmp_path: Path) -> None:
    waits, _ = interrupted("interrupt", tmp_path / "cache")
    # Once in a while a busy machine takes its time to run anything at all.
    assert sorted(waits)[-3] < 0.2
