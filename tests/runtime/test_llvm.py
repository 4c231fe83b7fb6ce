"""LLVM beside forks and the end of the interpreter: each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRELUDE = """
import os, threading, time
from smelt.codegen.llvm.optimize import object_code
from smelt.target import Target

TEXT = "\\n".join(
    f"define double @f{i}(double %x) {{ %y = fmul double %x, %x\\n ret double %y }}"
    for i in range(300)
)

def compile_for_ever(started):
    while True:
        object_code(TEXT, Target.host())
        started.set()

started = threading.Event()
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
