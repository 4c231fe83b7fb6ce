"""`smelt run`, `explain` and `opt` verify what they read before anything runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from smelt.cli.main import smelt
from smelt.errors import SmeltError

KERNEL = "kernel k(x: f32[n,d]) -> y: f32[n,d]\n  grid n\n  y[n,d] = x[n + 1,d]\n"
GRAPH = "graph f(x: f32[n]) {\n v0 = slice(x) {starts=(1,), sizes=(n,), steps=(1,)}\n return v0\n}"


@pytest.mark.parametrize(("command", "text"), [("run", KERNEL), ("run", GRAPH), ("explain", GRAPH)])
def test_nothing_runs_unverified(tmp_path, command, text):
    path = tmp_path / "text.smelt"
    path.write_text(text)
    result = CliRunner().invoke(smelt, [command, str(path), "--size", "n=5"])
    assert isinstance(result.exception, SmeltError), result.output


def test_a_kernel_in_place_gets_a_copy(tmp_path):
    path = tmp_path / "text.smelt"
    path.write_text("kernel k(x: f32[n]) -> x\n  grid n/64\n  x[n] = x[n] * 2\n")
    result = CliRunner().invoke(smelt, ["run", str(path), "--size", "n=5", "--judge", "all"])
    assert result.exit_code == 0, result.output
    assert "native agrees" in result.output


SHORT = """
import resource
import numpy as np, smelt as sm
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + {room} * 2**20,) * 2)
try:
    sm.jit(lambda x: sm.sum(sm.exp(x) + x, axis=1))(np.ones((8, 64), np.float32))
except sm.errors.OutOfMemory:
    print("short")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS as on Linux")
@pytest.mark.parametrize("room", [16, 150])
def test_short_address_space_is_no_bug(room, tmp_path):
    environment = {**os.environ, "SMELT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SHORT.format(room=room)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "short\n", done.stderr
