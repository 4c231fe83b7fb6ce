"""Tracebacks end at the user's line; all frames are shown on request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import smelt as sm
from smelt import knobs
from smelt.errors import InternalError, ShapeError
from smelt.journal.tracebacks import hide_frames

PACKAGE = str(Path(sm.__file__).parent)
PROGRAM = """\
import smelt as sm, numpy as np
import threading
def model(x, w):
    h = x @ w
    return h + sm.ones(3)
def call():
    {call}
call()
"""
CALLS = {
    "recording": "sm.jit(model)(np.ones((4, 5)), np.ones((5, 7)))",
    "no recording": "model(sm.ones((4, 5)), sm.ones((5, 7)))",
    "gradient": "sm.grad(lambda x: sm.sum(model(x, x)))(np.ones((5, 5)))",
    "run": "sm.jit(lambda x, i: x[i])(np.ones(3), np.array([5]))",
    "name": "sm.nn.relux",
    "thread": "threading.Thread(target=model, args=(sm.ones((4, 5)), sm.ones((5, 7)))).start()",
}


def run(folder: Path, call: str, **environment: str) -> str:
    """Return what a program prints that ends with an error."""
    program = folder / "program.py"
    program.write_text(PROGRAM.format(call=call))
    result = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SMELT_CACHE": "off", **environment},
    )
    return result.stderr


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_traceback_has_no_frames_of_ours(call: str, tmp_path: Path) -> None:
    shown = run(tmp_path, call)
    assert "Traceback" in shown and "Error" in shown
    assert shown.count(f'File "{PACKAGE}') == 0
    assert "program.py" in shown


def test_all_frames_are_shown_on_request(tmp_path: Path) -> None:
    shown = run(tmp_path, CALLS["recording"], SMELT_TRACEBACK="full")
    assert shown.count(f'File "{PACKAGE}') > 5 and "ShapeError" in shown


def test_an_unknown_keyword_suggests_the_nearest(tmp_path: Path) -> None:
    for call in ("sm.sum(sm.ones(3), axs=0)", "sm.concat([sm.ones(3)], axs=0)"):
        shown = run(tmp_path, call)
        assert "'axis'?" in shown and shown.count(f'File "{PACKAGE}') == 0


def test_an_error_of_the_users_code_keeps_its_frames(tmp_path: Path) -> None:
    shown = run(tmp_path, "sm.jit(lambda x: x / (1 // 0))(np.ones(3))")
    assert shown.count(f'File "{PACKAGE}') == 0 and "ZeroDivisionError" in shown


def frames_of_ours(error: BaseException) -> int:
    traceback, count = error.__traceback__, 0
    while traceback is not None:
        count += traceback.tb_frame.f_code.co_filename.startswith(PACKAGE)
        traceback = traceback.tb_next
    return count


def test_a_caught_error_of_a_recording_has_few_frames() -> None:
    def model(x):
        return x + sm.ones(4)

    with pytest.raises(ShapeError) as caught:
        sm.jit(model)(np.ones(3))
    assert frames_of_ours(caught.value) <= 1
    assert caught.traceback[-1].name == "model"
    with knobs.config(traceback="full"), pytest.raises(ShapeError) as caught:
        sm.jit(model)(np.ones(3))
    assert frames_of_ours(caught.value) > 5


def test_our_own_errors_and_causes() -> None:
    def chain(kind: type[Exception], cause: Exception) -> Exception:
        try:
            raise kind("what happened") from cause
        except kind as error:
            return error

    def own_error() -> BaseException:
        with pytest.raises(ShapeError) as caught:
            sm.ones(3) + sm.ones(4)
        return caught.value

    cause = own_error()
    before = frames_of_ours(cause)
    hide_frames(chain(InternalError, cause))
    assert frames_of_ours(cause) == before > 0
    hide_frames(outer := chain(ShapeError, cause))
    assert frames_of_ours(cause) == 0 and outer.__cause__ is cause


def test_members_of_a_group_have_no_frames_of_ours() -> None:
    def members(*sizes: int):
        for size in sizes:
            with pytest.raises(ShapeError) as caught:
                sm.reshape(sm.ones(3), (size,))
            yield caught.value

    group = ExceptionGroup("several", [ExceptionGroup("inner", [*members(4, 5)]), *members(6)])
    inner, last = group.exceptions
    assert isinstance(inner, ExceptionGroup) and frames_of_ours(last) > 0
    try:
        raise group
    except ExceptionGroup as error:
        hide_frames(error)
    assert [frames_of_ours(e) for e in (*inner.exceptions, last)] == [0, 0, 0]
