"""The first call of a model behind `torch.compile` in a process of its own, and other sizes.

    python -m smelt.bench.first smelt gpt2

prints the seconds of that call, less those of a later one, and the same of calls with another batch
and length.  The caller gives the process an empty cache directory, then the same one again: a cold
and a warm start.  What PyTorch imports and does once in a process so counts for every compiler
alike.  `smelt gpt2 save FILE` compiles ahead of the first call and saves the program, and
`smelt gpt2 load FILE` prints what a process takes that loads it.
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

from smelt.bench.cases import CASES, given_model, inputs, runner
from smelt.bench.process import command, variables
from smelt.dataclass import dataclass

__all__ = ["SIZES", "FirstCall", "measure_first"]

SIZES = 3
"""Other sizes that a model is called with: PyTorch traces again for the first or the first two."""

_LOG = logging.getLogger("smelt.bench")


@dataclass(frozen=True, slots=True)
class FirstCall:
    """Seconds that compiling took; NaN where it failed."""

    cold: float = nan
    """with empty caches"""
    warm: float = nan
    """in a second process, which finds the caches of the first"""
    further: tuple[float, ...] = ()
    """of calls with other sizes, one after another, in the first process"""
    own: tuple[float, ...] = ()
    """what of it was Smelt's, not PyTorch's tracing"""
    saved: float = nan
    """in a process that loads the program which another one has saved"""


def measure_first(peer: str, name: str, seconds: float = 600.0) -> FirstCall:
    """The first call of a model in two fresh processes, which share one new cache directory."""
    found: list[list[dict[str, float]]] = []
    with tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder:
        line = command(["-m", "smelt.bench.first", peer, name], variables(1, Path(folder)))
        file = str(Path(folder) / "saved.pt")
        ahead = (["save", file], ["load", file]) if peer == "smelt" else ()
        for more in ([str(SIZES)], [], *ahead):
            said, failed = _said([*line, *more], seconds)
            if failed:
                _LOG.warning("no first calls of %s with %s: %s", name, peer, failed)
            found.append(said)
    (cold, *later), warm = found[0] or [{}], found[1]
    saved = found[-1] if ahead else []
    return FirstCall(
        cold.get("seconds", nan),
        warm[0]["seconds"] if warm else nan,
        tuple(reply["seconds"] for reply in later),
        tuple(reply["own"] for reply in later if "own" in reply),
        saved[0]["seconds"] if saved else nan,
    )


def _said(line: list[str], seconds: float) -> tuple[list[dict[str, float]], str]:
    """What a process printed, line by line, and why it did not get to its end, if so: what it had
    measured before counts."""
    failed, out = "", b""
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            line, capture_output=True, timeout=seconds, check=True
        )
        out = done.stdout
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        out = error.stdout or b""
        last = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        failed = f"{error} {' '.join(last)}"
    return [json.loads(row) for row in out.splitlines()], failed


def first_calls(peer: str, name: str, sizes: int = 0) -> Iterator[dict[str, float]]:
    """Seconds of the first call in this process, less those of the best of three later ones; then
    of calls with so many other sizes, and Smelt's share of these."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    with torch.no_grad():
        case = CASES[name]
        model, given = given_model(torch, case)
        compiled = runner(torch, peer, model, given)
        yield {"seconds": _longer(lambda: compiled(**given))}
        # what is exported for ONNX Runtime is for one size
        for call in range(1, sizes + 1) if peer != "onnxruntime" else ():
            given = inputs(torch, case, call)
            with import_module("smelt.torch").record() as record:
                seconds = _longer(partial(compiled, **given))
            own = {"own": sum(g.seconds for g in record.graphs)} if peer == "smelt" else {}
            yield {"seconds": seconds, **own}


def ahead_of_time(name: str, do: str, file: str) -> Iterator[dict[str, float]]:
    """Saves a model's program, or loads it: the seconds of that and of the first call, less those
    of the best of three later ones."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    torch._dynamo.config.enable_aot_compile = True
    with torch.no_grad():
        model, given = given_model(torch, CASES[name])
        if do == "save":
            usual = torch.compile(
                _called,
                fullgraph=True,
                backend="smelt",
                options={
                    "guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe,
                },
            )
            usual.aot_compile(((model, given), {})).save_compiled_function(file)
            return
        loaded: list[Any] = []

        def call() -> None:
            if not loaded:
                with Path(file).open("rb") as program:
                    loaded.append(torch.compiler.load_compiled_function(program))
            loaded[0](model, given)

        yield {"seconds": _longer(call)}


def _called(model: Any, given: dict[str, Any]) -> Any:
    """The first result: PyTorch does not load programs that make some classes of results."""
    found = model(**given)
    return found[0] if hasattr(found, "to_tuple") else found


def _longer(call: Callable[[], Any]) -> float:
    """Seconds that a call takes longer than the best of three later ones."""
    times: list[float] = []
    for _ in range(4):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[0] - min(times[1:])


def main(arguments: list[str]) -> None:
    """Print seconds as JSON, a line for each call: of a peer, a model, and so many other sizes; or
    of a program that is loaded."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer, name, *more = arguments
    do, *file = more or ["0"]
    found = ahead_of_time(name, do, *file) if file else first_calls(peer, name, int(do))
    for reply in found:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
