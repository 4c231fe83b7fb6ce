"""Race engines on the same batches, round-robin, each in a process of its own.

Separate processes separate the peaks of memory. The engines alternate (A B C, A B C) so that a
machine that slows down or warms up does so for all of them; an engine's speed is that of its best
turn. Idle engines wait for their next command and use no time.

>>> Result("numpy", "NumPy", absent="not here").speed(10) is None
True
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import smelt
from demo.engines import Engine
from demo.facts import Facts
from demo.tokenise import Batch, save_batches
from demo.worker import EMBEDDINGS
from smelt.python.dataclass import dataclass

AGREEMENT = 1.0 - 1e-4
"""Minimum cosine between an engine's embedding of a text and the reference's."""

Progress = Callable[[str, int], None]
"""Called with an engine's title and the number of texts embedded since the last call."""

# The child finds the parent's copies of the packages, wherever it is started.
_BOOT = """
import sys
name, work, *sys.path[:0] = sys.argv[1:]
from demo.worker import serve
serve(name, work)
"""


class EngineFailedError(RuntimeError):
    """An engine's process raised or ended; the message is its output."""


@dataclass
class Result:
    """Measurements of one engine."""

    name: str
    title: str
    absent: str | None = None
    """Why it did not run; then nothing else is set."""
    failed: str | None = None
    """What it raised; earlier measurements are kept."""
    first_seconds: float | None = None
    """The first batch, including compilation and the start of thread pools."""
    turns: list[float] = field(default_factory=list[float])
    """Seconds of each turn over all batches."""
    peak: int | None = None
    """Peak resident bytes after loading the parameters: interpreter, parameters and work."""
    resident: int | None = None
    """Resident bytes when the parameters were loaded and nothing had been embedded."""
    facts: Facts = field(default_factory=Facts)
    embeddings: NDArray[np.float32] | None = None
    agreement: float | None = None
    """Minimum cosine between its embeddings and the reference's."""

    def speed(self, texts: int) -> float | None:
        """Return texts per second in the best turn; None where there was none."""
        return texts / min(self.turns) if self.turns else None

    @property
    def agrees(self) -> bool:
        """Whether every embedding was close enough to the reference's."""
        return self.agreement is not None and self.agreement >= AGREEMENT


class Worker:
    """The parent's side of one engine's process, a context manager.

    Args:
        engine: the engine to run.
        batches: the texts to embed.

    Leaving the context ends the process, whatever it is doing.
    """

    def __init__(self, engine: Engine, batches: Sequence[Batch]) -> None:
        self._engine = engine
        self._batches = batches

    def __enter__(self) -> Self:
        self._temporary = tempfile.TemporaryDirectory(prefix="smelt-demo-")
        self._folder = Path(self._temporary.name)
        save_batches(self._batches, self._folder)
        self._errors = (self._folder / "stderr").open("w+b")
        folders = [str(Path(file).resolve().parents[1]) for file in (__file__, smelt.__file__)]
        command = [sys.executable, "-P", "-c", _BOOT, self._engine.name, str(self._folder)]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter on our own text
            [*command, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # a command that a dead engine did not read
                if pipe is not None:
                    pipe.close()
        self._process.wait()
        self._errors.close()
        self._temporary.cleanup()

    def command(self, what: str, progress: Progress | None = None) -> dict[str, Any]:
        """Send a command and return its measurements.

        Raises:
            EngineFailedError: the engine raised, or its process ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with suppress(BrokenPipeError):  # the process has ended; its last output is still readable
            stdin.write(json.dumps({"do": what}) + "\n")
            stdin.flush()
        for line in stdout:
            event = json.loads(line)
            if event["event"] == "done":
                return event
            if event["event"] == "failed":
                raise EngineFailedError(event["why"])
            if progress is not None:
                progress(self._engine.title, event["texts"])
        raise EngineFailedError(self._last_words())

    def embeddings(self) -> NDArray[np.float32]:
        """Return the last turn's embeddings in the order of the texts; after `finish`."""
        return np.load(self._folder / EMBEDDINGS)

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with status {code}" + (f": {lines[-1]}" if lines else "")


def run(
    engines: Sequence[Engine],
    batches: Sequence[Batch],
    *,
    turns: int = 2,
    describe: bool = True,
    progress: Progress | None = None,
) -> list[Result]:
    """Race the engines; the first is the reference that the others must agree with.

    Args:
        engines: the participants; unavailable ones get a result with the reason.
        batches: the texts that each embeds per turn.
        turns: how often each embeds all of them.
        describe: whether to ask for their compilers' facts, last and untimed.
        progress: called for each batch.

    An engine that fails drops out; the others go on.
    """
    results = [Result(engine.name, engine.title, engine.absent()) for engine in engines]
    with ExitStack() as stack:
        running = {
            result.name: (result, stack.enter_context(Worker(engine, batches)))
            for engine, result in zip(engines, results, strict=True)
            if result.absent is None
        }
        steps = ["start", *["turn"] * turns, "finish", *["describe"] * describe]
        for step in steps:
            for name, (result, worker) in list(running.items()):
                try:
                    _record(result, worker, step, progress)
                except EngineFailedError as error:
                    result.failed = str(error)
                    del running[name]
    reference = results[0].embeddings
    for result in results:
        if reference is not None and result.embeddings is not None:
            result.agreement = least_cosine(result.embeddings, reference)
    return results


def _record(result: Result, worker: Worker, step: str, progress: Progress | None) -> None:
    event = worker.command(step, progress)
    if step == "start":
        result.first_seconds = event["first_seconds"]
    elif step == "turn":
        result.turns.append(event["seconds"])
    elif step == "finish":
        result.peak, result.resident = event["peak"], event["resident"]
        result.embeddings = worker.embeddings()
    else:
        result.facts = Facts(**event["facts"])


def least_cosine(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """Return the minimum cosine between corresponding rows, in float64; NaN if any is NaN.

    >>> least_cosine(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32) * 3)
    1.0
    """
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.min(np.sum(a * b, axis=1) / lengths))
