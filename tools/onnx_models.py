"""Measure ONNX models that ship inside packages against ONNX Runtime: a table of `docs/onnx.md`.

    python -m tools.onnx_models [NAME ..]    print the rows of all models that are found, or of some
    python -m tools.onnx_models --write      and put the table into the page

The models are those of `tests/onnx/models.py`; what is not installed is left out. Each model has a
process of its own with one thread, and a cache on disk that holds what every program shares, and no
program. Both libraries run round-robin on the same inputs. Times are medians of processor time,
which is repeatable on a busy machine; a first call's time adds what all threads take.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools import measured

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "onnx.md"
ROUNDS, MAX_SECONDS = 31, 6.0
"""Maximum rounds of a size, and maximum seconds before the last one begins."""
HEADER = "| model | inputs | Smelt, ms | ONNX Runtime, ms | ratio | first call, s | idle, ms |"


def measure_here(name: str) -> list[dict[str, Any]]:
    """Return the rows of a model, measured in this process."""
    import onnxruntime
    from tests.onnx.models import MODELS, path_of

    import smelt as sm

    case = MODELS[name]
    path = path_of(case.file)
    if path is None:
        return []
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    peer = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    start = time.process_time()
    session = sm.onnx.load(path)
    rows: list[dict[str, Any]] = []
    with sm.config(threads=1):
        for size in case.sizes:
            feeds = case.make(*size)
            session.run(None, feeds)
            first = time.process_time() - start
            _wait_until_idle()
            calls = [lambda f=feeds: session.run(None, f), lambda f=feeds: peer.run(None, f)]
            ours, theirs = _medians(calls)
            idle = time.process_time()
            time.sleep(0.5)
            idle = time.process_time() - idle
            shapes = " ".join("×".join(map(str, x.shape)) or "1" for x in feeds.values())
            rows.append({"name": name, "shapes": shapes, "ours": ours, "theirs": theirs})
            rows[-1] |= {"first": first, "idle": idle}
            start = time.process_time()
    return rows


def _medians(calls: list[Callable[[], Any]]) -> list[float]:
    """Return the median processor seconds of each call, run round-robin."""
    samples: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + MAX_SECONDS
    for turn in range(ROUNDS):
        if turn > 2 and time.perf_counter() > end:
            break
        for call, times in zip(calls, samples, strict=True):
            start, count = time.process_time(), 0
            while count == 0 or time.process_time() - start < 2e-3:
                call()
                count += 1
            times.append((time.process_time() - start) / count)
    return [statistics.median(times) for times in samples]


def _wait_until_idle() -> None:
    """Wait until no other thread of this process works, at most five seconds."""
    for _ in range(25):
        start = time.process_time()
        time.sleep(0.2)
        if time.process_time() - start < 1e-3:
            return


def measure(name: str, primed: Path) -> list[dict[str, Any]]:
    """Measure a model in a process of its own, on a copy of a cache."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        shutil.copytree(primed, cache)
        run = _run(cache, "-m", "tools.onnx_models", "--here", name)
        return json.loads(run.splitlines()[-1])


def prime(cache: Path) -> None:
    """Fill a cache with what all programs share, and with compiled modules."""
    cache.mkdir(mode=0o700)
    _run(cache, "-m", "compileall", "-q", str(ROOT / "src" / "smelt"))
    program = "import numpy, smelt; print(smelt.jit(lambda x: x + 1)(numpy.ones(9)))"
    _run(cache, "-c", program)


def _run(cache: Path, *arguments: str) -> bytes:
    """Return what a process of Python with this cache prints."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    variables |= {"SMELT_CACHE_DIR": str(cache), "SMELT_PROBE": "off"}
    variables["PYTHONPYCACHEPREFIX"] = str(cache / "modules")
    variables["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=variables, cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    ours, theirs = row["ours"], row["theirs"]
    cells = [f"{1e3 * ours:.3g}", f"{1e3 * theirs:.3g}", f"{theirs / ours:.2f}"]
    cells += [f"{row['first']:.1f}", f"{1e3 * row['idle']:.0f}"]
    return f"| {row['name']} | {row['shapes']} | {' | '.join(cells)} |"


def main(arguments: list[str]) -> None:
    """Print the table, or one process's measurement."""
    from tests.onnx.models import MODELS

    if arguments[:1] == ["--here"]:
        print(json.dumps(measure_here(arguments[1])))
        return
    names = [a for a in arguments if a != "--write"] or list(MODELS)
    print(HEADER, f"|---|---|{'--:|' * 5}", sep="\n", flush=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        prime(Path(folder) / "primed")
        for name in names:
            for row in measure(name, Path(folder) / "primed"):
                rows.append(row)
                print(line(row), flush=True)
    ratios = [r["theirs"] / r["ours"] for r in rows]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    total = f"\nGeometric mean {mean:.2f}, least {min(ratios):.2f}, of {len(ratios)} rows."
    print(total)
    if "--write" in arguments:
        lines = [HEADER, f"|---|---|{'--:|' * 5}", *map(line, rows), total]
        measured.write(PAGE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
