"""First call of a model behind `torch.compile` in a fresh process, and other sizes.

    python -m bench.first smelt gpt2

prints the seconds of that call, minus those of a later one, and the same for calls with another
batch and length. The caller passes the process an empty cache directory, then the same one again: a
cold and a warm start. PyTorch's imports and one-time work so count for every compiler alike. `smelt
gpt2 save FILE` compiles ahead of the first call and saves the program, and `smelt gpt2 load FILE`
prints the time of a process that loads it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from math import nan
from pathlib import Path
from typing import Any

from bench.cases import CASES, inputs, model_and_inputs, runner
from bench.process import command, variables
from smelt.python.dataclass import dataclass

__all__ = ["SIZES", "FirstCall", "measure_first"]

SIZES = 3
"""Number of other sizes that a model is called with: PyTorch retraces for the first one or two."""

_LOG = logging.getLogger("bench")


@dataclass(frozen=True, slots=True)
class FirstCall:
    """Seconds of compiling; NaN where it failed."""

    cold: float = nan
    """With empty caches."""
    warm: float = nan
    """In a second process, with the caches of the first."""
    further: tuple[float, ...] = ()
    """For calls with other sizes, one after another, in the first process."""
    own: tuple[float, ...] = ()
    """Smelt's share of `further`, without PyTorch's tracing."""
    saved: float = nan
    """In a process that loads a saved program."""


def measure_first(peer: str, name: str, seconds: float = 600.0) -> FirstCall:
    """Measure a model's first call in two fresh processes that share a new cache."""
    outputs: list[list[dict[str, float]]] = []
    with tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder:
        line = command(["-m", "bench.first", peer, name], variables(1, Path(folder)))
        file = str(Path(folder) / "saved.pt")
        saved_runs = (["save", file], ["load", file]) if peer == "smelt" else ()
        for more in ([str(SIZES)], [], *saved_runs):
            lines, reason = _run_lines([*line, *more], seconds)
            if reason:
                _LOG.warning("no first calls of %s with %s: %s", name, peer, reason)
            outputs.append(lines)
            if reason and not lines:
                break  # the next ones would fail as well
    (cold, *later), warm = outputs[0] or [{}], outputs[1] if len(outputs) > 1 else []
    saved = outputs[3] if len(outputs) > 3 else []
    return FirstCall(
        cold.get("seconds", nan),
        warm[0]["seconds"] if warm else nan,
        tuple(reply["seconds"] for reply in later),
        tuple(reply["own"] for reply in later if "own" in reply),
        saved[0]["seconds"] if saved else nan,
    )


def _run_lines(line: list[str], seconds: float) -> tuple[list[dict[str, float]], str]:
    """Run a process; return its output lines, parsed, and the reason of a failure.

    Lines printed before a failure count.
    """
    reason, out = "", b""
    try:
        completed = subprocess.run(  # noqa: S603 - our own module
            line, capture_output=True, timeout=seconds, check=True
        )
        out = completed.stdout
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        out = error.stdout or b""
        last = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        reason = f"{error} {' '.join(last)}"
    return [json.loads(row) for row in out.splitlines()], reason


def first_calls(peer: str, name: str, sizes: int = 0) -> Iterator[dict[str, float]]:
    """Yield the seconds of this process's first call, then of calls with other sizes.

    Each is reduced by the best of three later calls; Smelt's share of the latter is included.
    """
    torch = import_module("torch")
    torch.set_num_threads(1)
    with torch.no_grad():
        case = CASES[name]
        model, arguments = model_and_inputs(torch, case)
        compiled = runner(torch, peer, model, arguments)
        yield {"seconds": _extra_seconds(lambda: compiled(**arguments))}
        # a model exported for ONNX Runtime is for one size
        for call in range(1, sizes + 1) if peer != "onnxruntime" else ():
            arguments = inputs(torch, case, call)
            with import_module("smelt.torch").record() as record:
                seconds = _extra_seconds(partial(compiled, **arguments))
            share = {"own": sum(g.seconds for g in record.graphs)} if peer == "smelt" else {}
            yield {"seconds": seconds, **share}


def ahead_of_time(name: str, do: str, file: str) -> Iterator[dict[str, float]]:
    """Save a model's program, or load it and yield its first call's extra seconds.

    The time of loading counts; that of the best of three later calls is subtracted.
    """
    torch = import_module("torch")
    torch.set_num_threads(1)
    torch._dynamo.config.enable_aot_compile = True
    with torch.no_grad():
        model, arguments = model_and_inputs(torch, CASES[name])
        if do == "save":
            compiled = torch.compile(
                _first_result,
                fullgraph=True,
                backend="smelt",
                options={
                    "guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe,
                },
            )
            compiled.aot_compile(((model, arguments), {})).save_compiled_function(file)
            return
        loaded: list[Any] = []

        def call() -> None:
            if not loaded:
                with Path(file).open("rb") as program:
                    loaded.append(torch.compiler.load_compiled_function(program))
            loaded[0](model, arguments)

        yield {"seconds": _extra_seconds(call)}


def _first_result(model: Any, arguments: dict[str, Any]) -> Any:
    """Call a model and return its first result.

    PyTorch cannot load programs whose results have certain classes.
    """
    result = model(**arguments)
    return result[0] if hasattr(result, "to_tuple") else result


def _extra_seconds(call: Callable[[], Any]) -> float:
    """Return by how many seconds a call exceeds the best of three later ones."""
    times: list[float] = []
    for _ in range(4):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[0] - min(times[1:])


def main(arguments: list[str]) -> None:
    """Print seconds as JSON, a line per call.

    Arguments are a peer, a model, and the number of other sizes, or what to do with a saved
    program.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer, name, *more = arguments
    do, *file = more or ["0"]
    rows = ahead_of_time(name, do, *file) if file else first_calls(peer, name, int(do))
    for reply in rows:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
