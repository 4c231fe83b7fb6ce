"""Systems without what Smelt is built on: one error that says so and what can be done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
WITHOUT_NAMES = """
def library(name, *arguments, **settings):
    if name is None:
        raise TypeError("argument of type 'NoneType' is not iterable")
    return real(name, *arguments, **settings)
"""
WITHOUT_FUNCTIONS = """
class library(real):
    def __getattr__(self, name):
        if name in ("madvise", "pthread_sigmask"):
            raise AttributeError(name)
        return super().__getattr__(name)
"""
# NumPy is imported before: it has builds of its own for such systems.
PROGRAM = """
import ctypes, mmap, os, signal, sys
import numpy
real = ctypes.CDLL
{library}
ctypes.CDLL = library
for module, names in {{
    os: ("fork", "register_at_fork", "sched_getaffinity", "getuid", "geteuid", "O_CLOEXEC"),
    mmap: ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_SHARED", "PROT_READ", "PROT_WRITE"),
    signal: ("alarm", "SIGALRM", "pthread_sigmask"),
}}.items():
    for name in names:
        delattr(module, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
try:
    import {module}
except ImportError as error:
    print(type(error).__name__, str(error).splitlines()[0], error.help, sep="\\n")
"""


@pytest.mark.parametrize("module", ["smelt", "smelt.numpy", "smelt.runtime.threads"])
@pytest.mark.parametrize(
    ("library", "missing"),
    [
        (WITHOUT_NAMES, "functions of the C library by name, `ctypes.CDLL(None)`"),
        (WITHOUT_FUNCTIONS, "madvise, pthread_sigmask in the C library"),
    ],
    ids=["names", "functions"],
)
def test_an_import_says_that_the_system_is_not_supported(library, missing, module):
    program = PROGRAM.format(library=library, module=module)
    settings = os.environ | {"PYTHONPATH": str(SOURCE)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=settings, capture_output=True, text=True, check=True
    )
    kind, message, help_text = run.stdout.splitlines()
    assert kind == "UnsupportedSystemError"
    assert message == f"E507 system not supported: the system {sys.platform} lacks {missing}"
    assert "WSL 2" in help_text
