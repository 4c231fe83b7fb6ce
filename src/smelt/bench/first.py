"""The first call of a model behind `torch.compile` in a process of its own.

    python -m smelt.bench.first smelt gpt2

prints the seconds of that call, less those of a later one.  The caller gives the process an empty
cache directory, then the same one again: a cold and a warm start.  What PyTorch imports and does
once in a process so counts for every compiler alike.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from math import nan
from pathlib import Path

from smelt.bench.cases import CASES, given_model, runner
from smelt.bench.process import command, variables
from smelt.dataclass import dataclass

__all__ = ["FirstCall", "measure_first"]


_LOG = logging.getLogger("smelt.bench")


@dataclass(frozen=True, slots=True)
class FirstCall:
    """Seconds that compiling took; NaN where it failed."""

    cold: float = nan
    """with empty caches"""
    warm: float = nan
    """in a second process, which finds the caches of the first"""


def measure_first(peer: str, name: str, seconds: float = 600.0) -> FirstCall:
    """The first call of a model in two fresh processes, which share one new cache directory."""
    found: list[float] = []
    with tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder:
        line = command(["-m", "smelt.bench.first", peer, name], variables(1, Path(folder)))
        for _ in range(2):
            try:
                done = subprocess.run(  # noqa: S603 - our own module
                    line, capture_output=True, timeout=seconds, check=True
                )
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
                last = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
                _LOG.warning("no first call of %s with %s: %s %s", name, peer, error, *last or [""])
                return FirstCall()
            found.append(float(json.loads(done.stdout.splitlines()[-1])))
    return FirstCall(*found)


def first_call(peer: str, name: str) -> float:
    """Seconds of the first call in this process, less those of the best of three later ones."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    with torch.no_grad():
        model, given = given_model(torch, CASES[name])
        compiled = runner(torch, peer, model, given)
        times: list[float] = []
        for _ in range(4):
            start = time.perf_counter()
            compiled(**given)
            times.append(time.perf_counter() - start)
    return times[0] - min(times[1:])


def main(arguments: list[str]) -> None:
    """Print one first call as JSON on the last line."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    replies.write(json.dumps(first_call(*arguments)) + "\n")
    replies.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
