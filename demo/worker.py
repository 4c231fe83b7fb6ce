r"""One engine in a process of its own, driven by commands.

`race.Worker` starts `serve` in a child with a folder that contains the batches. They exchange lines
of JSON: commands on standard input, events on standard output.

    in   {"do": "start"}    load the parameters, start the engine, embed the first batch
         {"do": "turn"}     embed all batches, timed
         {"do": "finish"}   write the embeddings, report the memory
         {"do": "describe"} report the compiler's facts about the program
    out  {"event": "batch", "texts": n}    progress within a turn
         {"event": "done", ...}            end of a command, with its measurements
         {"event": "failed", "why": text}  the engine raised; the process ends

>>> import io
>>> stream = io.StringIO()
>>> send_event(stream, "batch", texts=3)
>>> stream.getvalue()
'{"event": "batch", "texts": 3}\n'
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from demo import engines, memory, weights
from demo.tokenise import Batch, load_batches

EMBEDDINGS = "embeddings.npy"
"""File in the folder: the last turn's embeddings, in the order of the texts."""


def serve(name: str, folder: str) -> None:
    """Execute commands from standard input until its end."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # output of libraries must not mix with events
    try:
        turns = EngineSession(engines.by_name(name), Path(folder), events)
        for line in sys.stdin:
            command = json.loads(line)["do"]
            send_event(events, "done", **turns.handle(command))
    except Exception as error:
        send_event(events, "failed", why=f"{type(error).__name__}: {error}")
        raise


def send_event(stream: TextIO, event: str, **fields: object) -> None:
    """Send one event."""
    stream.write(json.dumps({"event": event, **fields}) + "\n")


class EngineSession:
    """Executes the commands.

    Args:
        engine: the engine that embeds.
        folder: location of the batches and the embeddings.
        events: stream for progress.
    """

    def __init__(self, engine: engines.Engine, folder: Path, events: TextIO) -> None:
        self._engine = engine
        self._folder = folder
        self._events = events
        self._batches: list[Batch] = load_batches(folder)
        self._texts = sum(len(batch.rows) for batch in self._batches)
        self._largest = max(self._batches, key=lambda batch: batch.ids.size)
        self._vectors: NDArray[np.float32] = np.empty((self._texts, 0), dtype=np.float32)

    def handle(self, command: str) -> dict[str, object]:
        """Execute a command and return the fields of its `done` event."""
        match command:
            case "start":
                return self._start()
            case "turn":
                return self._turn()
            case "finish":
                return self._finish()
            case "describe":
                return self._describe()
            case _:
                raise ValueError(f"no such command: {command!r}")

    def _start(self) -> dict[str, object]:
        """Load, then embed the largest batch once: compilers compile, pools start, memory grows."""
        self._running = self._engine.start(weights.load())
        gc.collect()
        memory.reset_peak()
        self._resident = memory.resident_bytes()
        started = time.perf_counter()
        self._running.encode(self._largest.ids, self._largest.mask)
        return {"first_seconds": time.perf_counter() - started}

    def _turn(self) -> dict[str, object]:
        """Embed every batch; only the engine's calls are timed."""
        seconds = 0.0
        for batch in self._batches:
            started = time.perf_counter()
            vectors = self._running.encode(batch.ids, batch.mask)
            seconds += time.perf_counter() - started
            if self._vectors.shape[1] != vectors.shape[1]:
                self._vectors = np.empty((self._texts, vectors.shape[1]), dtype=np.float32)
            self._vectors[list(batch.rows)] = vectors
            send_event(self._events, "batch", texts=len(batch.rows))
        return {"seconds": seconds}

    def _finish(self) -> dict[str, object]:
        """Report the peak, read before the embeddings are written, which takes memory too."""
        peak = memory.peak_bytes()
        np.save(self._folder / EMBEDDINGS, self._vectors)
        return {"peak": peak, "resident": self._resident}

    def _describe(self) -> dict[str, object]:
        described = self._running.describe(self._largest.ids, self._largest.mask)
        return {"facts": described._asdict()}
