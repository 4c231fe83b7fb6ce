"""Modules that are imported late, and forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
SLOW = "import time\ntime.sleep(0.2)\nwhole = True\n"
FORKS = """
import os, signal, sys, threading, time
from smelt.python.imports import fork_safe_import
thread = threading.Thread(target=fork_safe_import, args=("slow",))
thread.start()
while "slow" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
signal.alarm(20)
assert fork_safe_import("slow").whole
if child == 0:
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
"""


IMPATIENT = """
import os, signal, threading, time
from smelt.python import imports
imports._PATIENCE = 0.01
thread = threading.Thread(target=imports.fork_safe_import, args=("slow",))
thread.start()
time.sleep(0.1)
child = os.fork()
signal.alarm(20)
if child == 0:
    imports.fork_safe_import("colorsys")
    os._exit(0)
thread.join()
assert imports._LOCK.acquire(blocking=False)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("program", [FORKS, IMPATIENT])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without forks")
def test_a_child_that_is_forked_during_an_import_has_all_modules(
    tmp_path: Path, program: str
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    paths = os.pathsep.join([str(SOURCE), str(tmp_path)])
    actual = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert actual.returncode == 0, actual.stderr


LATE_GUARD = """
import os, sys, threading, time
from smelt.python.imports import fork_safe_import
thread = threading.Thread(target=fork_safe_import, args=("slow",))
thread.start()
while "slow" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without forks")
def test_fork_guards_registered_while_a_fork_waits_are_held_in_pairs(tmp_path):
    guard = (
        "import threading\nfrom smelt.python.imports import guard_forks\nlock = threading.RLock()\n"
    )
    (tmp_path / "slow.py").write_text(
        f"import logging, concurrent.futures.thread\n{SLOW}{guard}"
        "guard_forks(lock.acquire, lock.release)\n"
    )
    paths = os.pathsep.join([str(SOURCE), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", LATE_GUARD],
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


LOGGER = """
import os, sys, threading, time
from smelt.python import imports
imports._PATIENCE = 30.0
imports.fork_safe_import("colorsys")
thread = threading.Thread(target=imports.fork_safe_import, args=("slow",))
thread.start()
while "slow" not in sys.modules:
    time.sleep(0.001)
began = time.monotonic()
child = os.fork()
if child == 0:
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
assert time.monotonic() - began < 15.0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without forks")
def test_a_fork_does_not_hold_the_lock_of_logging_while_it_waits(tmp_path):
    (tmp_path / "slow.py").write_text(f"{SLOW}import logging\nlogging.getLogger('slow')\n")
    done = subprocess.run(
        [sys.executable, "-c", LOGGER],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(tmp_path)])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
