"""Goldens run in Triton's own interpreter: the stand-in means what Triton means."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from tests.kernel.goldens import GOLDENS

from smelt.packages.installed import has_triton

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not has_triton() or importlib.util.find_spec("torch") is None,
        reason="Triton's interpreter needs Triton and torch",
    ),
]


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_in_the_interpreter_computes_what_the_kernel_interpreter_does(name):
    command = [sys.executable, "-m", "tests.codegen.triton_interpreter", name]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert completed.returncode == 0, completed.stderr[-2000:]
    assert completed.stdout == f"{name} is as the interpreter of kernels says\n"
