"""Time before a library's first result: import, and first call in a fresh process.

    python -m bench.cold inductor softmax_4096 2 "own operators"

prints a JSON object with the first call and a typical later one, in nanoseconds. The caller passes
the process an empty cache directory, then the same one again: a cold and a warm start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.peers import configure_process, open_peer
from bench.process import command, variables
from bench.results import Cold
from bench.workloads import WORKLOADS

IMPORTS = {"smelt": "smelt", "torch": "torch", "jax": "jax"}
_IMPORT = """
import time, numpy
started = time.perf_counter_ns()
import {module}
print(time.perf_counter_ns() - started)
"""


def first_call(peer: str, row: str, threads: int, label: str, small: bool) -> tuple[int, float]:
    """Return the ns of this process's first call, and of the best of three more."""
    configure_process(peer)
    library = open_peer(peer, threads)
    work = WORKLOADS[row]
    arrays = work.arrays(small)
    variants = library.variants(work, arrays)
    variant = next((v for v in variants if v.label == label), variants[0])
    times: list[int] = []
    for _ in range(4):
        started = time.perf_counter_ns()
        variant.call()
        times.append(time.perf_counter_ns() - started)
    return times[0], float(min(times[1:]))


def measure_cold(
    peer: str, row: str, threads: int, label: str, small: bool = False, seconds: float = 300.0
) -> Cold:
    """Measure a row's compile time in two fresh processes that share a new cache directory."""
    compile_ns: list[float] = []
    with tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder:
        settings = variables(threads, Path(folder))
        # JAX's cache is off by default: enable it for everything, so that it has a warm start too.
        settings["JAX_COMPILATION_CACHE_DIR"] = f"{folder}/jax"
        settings["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        settings["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        size = "small" if small else "full"
        line = command(["-m", "bench.cold", peer, row, str(threads), label, size], settings)
        for _ in range(2):
            try:
                completed = subprocess.run(  # noqa: S603 - our own module
                    line, capture_output=True, timeout=seconds, check=True
                )
                first, later = json.loads(completed.stdout.splitlines()[-1])
            except subprocess.TimeoutExpired:
                return Cold(problem=f"no answer within {seconds:.0f} s")
            except subprocess.CalledProcessError as error:
                last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
                return Cold(problem=(last or [f"exit status {error.returncode}"])[0][:200])
            compile_ns.append(max(0.0, first - later))
    return Cold(empty_ns=compile_ns[0], warm_ns=compile_ns[1])


def import_ns(name: str, count: int = 5) -> float | None:
    """Return the best import time of a library in fresh processes, without NumPy's import."""
    code = _IMPORT.format(module=IMPORTS[name])
    times: list[int] = []
    for _ in range(count):
        line = command(["-c", code], {})
        completed = subprocess.run(line, capture_output=True, check=False)  # noqa: S603 - our own text
        if completed.returncode:
            return None
        times.append(int(completed.stdout.splitlines()[-1]))
    return float(min(times))


def main(arguments: list[str]) -> None:
    """Time one first call here and print it as JSON on the last line."""
    peer, row, threads, label, size = arguments
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    replies.write(json.dumps(first_call(peer, row, int(threads), label, size == "small")) + "\n")
    replies.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
