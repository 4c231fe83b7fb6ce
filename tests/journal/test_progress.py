"""The line of progress: when it is shown, what it says, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from smelt import knobs
from smelt.journal import progress

pty = pytest.importorskip("pty")

SRC = Path(progress.__file__).parents[2]
SLOW = """
import time
from smelt.journal import progress
progress.DELAY_S = 0.05
with progress.compiling("step"):
    progress.stage("planning what to fuse")
    time.sleep({seconds})
    finished = progress.stage("generating code", 12)
    finished()
    time.sleep({seconds})
print("done")
"""


def run(code: str, *, terminal: bool = True, interrupt: bytes = b"", **settings: str) -> str:
    """What a process writes on its standard error, a terminal or a pipe.

    With `interrupt`, Ctrl-C is sent when that has been written; the process listens to it even if
    the tests run in the background, where it is ignored.
    """
    if interrupt:
        listen = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        code = listen + textwrap.dedent(code)
    reading, writing = pty.openpty() if terminal else os.pipe()
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("SMELT_", "NO_COLOR"))}
    variables |= {"PYTHONPATH": str(SRC), "TERM": "xterm", "COLUMNS": "100", **settings}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stderr=writing,
        stdout=subprocess.PIPE,
        env=variables,
    )
    os.close(writing)
    written = b""
    while True:
        try:
            part = os.read(reading, 1 << 16)
        except OSError:  # how a terminal ends
            break
        written += part
        if not part:
            break
        if interrupt and interrupt in written:
            process.send_signal(signal.SIGINT)
            interrupt = b""
    os.close(reading)
    assert process.wait(60) in (0, 1, -signal.SIGINT)
    assert process.stdout is not None
    process.stdout.close()
    return written.decode()


def screen(written: str) -> list[str]:
    """Lines of a terminal after this was written, as far as our line uses it."""
    rows, row, column = [""], 0, 0
    k = 0
    while k < len(written):
        if written.startswith("\x1b[", k):
            end = k + 2
            while not written[end].isalpha():
                end += 1
            number = written[k + 2 : end].lstrip("?") or "1"
            if written[end] == "A":
                row -= int(number)
            elif written[end] == "K":
                rows[row] = "" if number == "2" else rows[row][:column]
            else:
                assert written[end] in "hlm", written[k : end + 1]
            k = end + 1
            continue
        if written[k] == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif written[k] == "\r":
            column = 0
        else:
            rows[row] = rows[row][:column].ljust(column) + written[k] + rows[row][column + 1 :]
            column += 1
        k += 1
    return [r.rstrip() for r in rows if r.strip()]


def test_a_slow_compilation_shows_stage_and_count_and_leaves_nothing() -> None:
    written = run(SLOW.format(seconds=1.5))
    assert "compiling step: planning what to fuse, 0 s" in written
    assert "compiling step: generating code: 1 of 12 kernels, " in written
    assert screen(written) == []
    assert written.rfind("\x1b[?25h") >= written.rfind("\x1b[?25l"), "the cursor stays hidden"


@pytest.mark.parametrize(
    ("terminal", "settings"),
    [(False, {}), (True, {"SMELT_QUIET": "on"}), (True, {"TERM": "dumb"})],
    ids=["pipe", "quiet", "dumb"],
)
def test_nothing_is_written_elsewhere(terminal: bool, settings: dict[str, str]) -> None:
    assert run(SLOW.format(seconds=0.2), terminal=terminal, **settings) == ""


def test_a_fast_compilation_writes_nothing_and_imports_nothing() -> None:
    code = """
    import sys
    from smelt.journal import progress
    with progress.compiling("step"):
        progress.stage("planning what to fuse")
    assert not {"rich", "rich.live"} & set(sys.modules)
    """
    assert run(code) == ""


def test_a_replaced_standard_error_shows_nothing() -> None:
    code = "import io, sys\nsys.stderr = io.StringIO()\n" + SLOW.format(seconds=0.2)
    assert run(code) == ""


def test_an_interrupt_erases_the_line() -> None:
    code = """
    import time
    from smelt.journal import progress
    progress.DELAY_S = 0.05
    try:
        with progress.compiling("step"):
            progress.stage("planning what to fuse")
            time.sleep(30)
    except KeyboardInterrupt:
        assert progress._Shown.line is None
    """
    start = time.monotonic()
    assert screen(run(code, interrupt=b"planning")) == []
    assert time.monotonic() - start < 20


def test_a_compilation_within_another_one_continues_its_line() -> None:
    code = """
    import time
    from smelt.journal import progress
    progress.DELAY_S = 0.05
    with progress.compiling("outer"):
        with progress.compiling("inner"):
            progress.stage("planning what to fuse")
            time.sleep(1.5)
        assert progress._Shown.line is not None
    """
    written = run(code)
    assert "compiling outer: planning" in written
    assert "inner" not in written
    assert screen(written) == []


def test_a_forked_child_has_no_line_and_waits_for_none() -> None:
    code = """
    import os, time
    from smelt.journal import progress
    progress.DELAY_S = 0.05
    with progress.compiling("step"):
        progress.stage("planning what to fuse")
        time.sleep(1)
        child = os.fork()
        if not child:
            assert progress._Shown.line is None
            with progress.compiling("child"):
                pass
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    """
    assert screen(run(code)) == []


def test_real_compilations_pass_the_stages() -> None:
    code = """
    import numpy as np
    import smelt as sm
    from smelt.journal import progress
    progress.DELAY_S = 0
    progress._REFRESH_S = 0.001
    x = np.ones((64, 64), np.float32)
    f = sm.jit(lambda x: sm.sum(sm.exp(x), axis=0) @ sm.cumulative_sum(x @ x, axis=1))
    print(np.asarray(f(x)).shape)
    """
    written = run(code, SMELT_CACHE="off", SMELT_PROBE="off")
    assert "compiling " in written
    assert "kernels, 0 s" in written or "kernels, 1 s" in written
    assert screen(written) == []


def test_other_threads_do_not_touch_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_is_wanted", lambda: True)
    with progress.compiling("first"):
        finished = progress.stage("writing kernels", 3)
        finished()
        line = progress._Shown.line
        assert line is not None

        def work() -> None:
            with progress.compiling("second"):
                progress.stage("planning what to fuse")()
            finished()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert progress._Shown.line is line
        assert line.text() == "compiling first: writing kernels: 2 of 3 kernels, 0 s"
    assert progress._Shown.line is None


def test_without_a_terminal_no_thread_is_started() -> None:
    before = threading.active_count()
    with knobs.config(quiet=True), progress.compiling("step"):
        assert threading.active_count() == before
        progress.stage("planning what to fuse")()
