"""What a library costs before its first result: import, and first call in a fresh process.

    python -m smelt.bench.cold inductor softmax_4096 2 "own operators"

prints one JSON object with the first call and a typical later one, in nanoseconds. The caller
gives the process an empty cache directory, then the same one again: a cold and a warm start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from smelt.bench.peers import open_peer, own_process
from smelt.bench.process import command, variables
from smelt.bench.results import Cold
from smelt.bench.workloads import WORKLOADS

IMPORTS = {"smelt": "smelt", "torch": "torch", "jax": "jax"}
_IMPORT = """
import time, numpy
started = time.perf_counter_ns()
import {module}
print(time.perf_counter_ns() - started)
"""


def first_call(peer: str, row: str, threads: int, label: str, small: bool) -> tuple[int, float]:
    """Nanoseconds of the very first call in this process, and of the best of three later ones."""
    own_process(peer)
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
    """Compile time of one row in two fresh processes that share one new cache directory."""
    found: list[float] = []
    with tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder:
        settings = variables(threads, Path(folder))
        # JAX keeps nothing unless asked to; ask, and keep all, so that it has a warm start too.
        settings["JAX_COMPILATION_CACHE_DIR"] = f"{folder}/jax"
        settings["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        settings["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        size = "small" if small else "full"
        line = command(["-m", "smelt.bench.cold", peer, row, str(threads), label, size], settings)
        for _ in range(2):
            try:
                done = subprocess.run(  # noqa: S603 - our own module
                    line, capture_output=True, timeout=seconds, check=True
                )
                first, later = json.loads(done.stdout.splitlines()[-1])
            except subprocess.TimeoutExpired:
                return Cold(problem=f"no answer within {seconds:.0f} s")
            except subprocess.CalledProcessError as error:
                last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
                return Cold(problem=(last or [f"exit status {error.returncode}"])[0][:200])
            found.append(max(0.0, first - later))
    return Cold(empty_ns=found[0], warm_ns=found[1])


def import_ns(name: str, count: int = 5) -> float | None:
    """Best time of importing a library in a fresh process that has NumPy already."""
    code = _IMPORT.format(module=IMPORTS[name])
    times: list[int] = []
    for _ in range(count):
        line = command(["-c", code], {})
        done = subprocess.run(line, capture_output=True, check=False)  # noqa: S603 - our own text
        if done.returncode:
            return None
        times.append(int(done.stdout.splitlines()[-1]))
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
