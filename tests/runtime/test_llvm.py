"""LLVM beside forks and the end of the interpreter: each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from llvmlite.binding import ffi

from smelt.codegen.build import build, build_all, object_code
from smelt.kernel.text import parse
from smelt.machine.target import Target
from smelt.packages.llvm import (
    _UnlockedCalls,  # pyright: ignore[reportPrivateUsage]
    worker_threads,
)

ROOT = Path(__file__).parents[2]
TABLE: Any = ffi.lib._fntab  # pyright: ignore[reportPrivateUsage]
"""llvmlite's functions by name."""
PRELUDE = """
import os, threading, time
from smelt.codegen.build import object_code
from smelt.machine.target import Target

TEXT = "\\n".join(
    f"define double @f{i}(double %x) {{ %y = fmul double %x, %x\\n ret double %y }}"
    for i in range(300)
)

def compile_for_ever(started):
    while True:
        object_code(TEXT, Target.host())
        started.set()

started = threading.Event()
for _ in range(2):
    threading.Thread(target=compile_for_ever, args=(started,), daemon=True).start()
started.wait()
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )


@pytest.mark.parametrize("wait", [0.0, 0.01, 0.03])
def test_a_thread_inside_llvm_does_not_crash_the_end_of_the_process(wait: float) -> None:
    done = python(f"time.sleep({wait})")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_a_thread_compiles_can_compile_too() -> None:
    done = python("""
        for _ in range(5):
            child = os.fork()
            if not child:
                os._exit(0 if object_code(TEXT, Target.host()) else 1)
            assert os.waitpid(child, 0)[1] == 0
        print("all")
    """)
    assert (done.returncode, done.stdout) == (0, "all\n")


def test_concurrent_calls_run_in_order_in_another_thread() -> None:
    seen: list[tuple[int, int]] = []
    with worker_threads() as call:
        waits = [call(lambda k: seen.append((k, threading.get_ident())), k) for k in range(4)]
        for wait in waits:
            wait()
    assert [k for k, _ in seen] == [0, 1, 2, 3]
    assert len({t for _, t in seen}) == 1 and seen[0][1] != threading.get_ident()


def test_what_a_call_beside_raises_reaches_who_waits_and_stops_nothing_else() -> None:
    with worker_threads() as call:
        bad, good = call(int, "x"), call(int, "7")
        with pytest.raises(ValueError, match="x"):
            bad()
        assert good() == 7


def test_threads_are_inside_llvm_at_once_and_write_what_one_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Target.host()
    texts = [f"define i64 @f(i64 %x) {{ %y = mul i64 %x, {k}\n ret i64 %y }}" for k in (3, 5)]
    alone = [object_code(text, target) for text in texts]
    met = threading.Barrier(2)
    call = _UnlockedCalls.call

    def meet(self: _UnlockedCalls, name: str, *args: object) -> object:
        function = getattr(ffi.lib, name)

        def bare(*args: object) -> object:
            met.wait(30)  # two must be inside
            return function._cfn(*args)

        monkeypatch.setitem(TABLE, "met", SimpleNamespace(_cfn=bare))
        return call(self, "met", *args)

    monkeypatch.setattr(_UnlockedCalls, "call", meet)
    with worker_threads(2) as each:
        waits = [each(object_code, text, target) for text in texts]
        assert [wait() for wait in waits] == alone


def test_a_lock_that_cannot_be_left_serves_one_thread_after_another() -> None:
    target = Target.host()
    text = "define i64 @f(i64 %x) { ret i64 %x }"
    usual = object_code(text, target)
    actual: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        name = "LLVMPY_RunNewModulePassManager"
        function = getattr(ffi.lib, name)
        patch.setitem(TABLE, name, lambda *args: actual.append(function(*args)))
        assert object_code(text, target) == usual
    assert len(actual) == 1


def test_kernels_compiled_together_are_those_compiled_alone() -> None:
    target = Target.host()
    kernels = [
        parse(f"kernel k(x: f32[n]) -> y: f32[n]\n  grid n\n  y[n] = x[n] * {k}.5")
        for k in range(5)
    ]
    together = build_all([(k, "") for k in kernels], target)
    assert [built for built, _ in together] == [build(k, target) for k in kernels]
    assert all(seconds > 0 for _, seconds in together)
    assert [built for built, _ in build_all([(kernels[0], "")], target)] == [together[0][0]]
    assert build_all([], target) == []


def test_several_kernels_compile_where_no_thread_can_start_any_more() -> None:
    done = python("""
        import atexit
        import numpy as np
        import smelt as sm

        def late():
            with sm.config(cache=False, fuse=False):
                f = sm.jit(lambda x: sm.exp(x) * sm.sum(sm.sin(x)))
                print(np.asarray(f(np.ones(5, np.float32))).shape)

        atexit.register(late)
    """)
    assert (done.returncode, done.stdout) == (0, "(5,)\n"), done.stderr
