"""Start and end the process that compiles Triton programs.

    worker = Worker(timeout_seconds=120.0)
    answer = worker.request({"text": ..., "symbol": ..., "arch": "sm_90", ...})

Triton's compiler may crash or hang, so it never runs in the caller's process. A worker is used by
one thread at a time, and ends with its caller; `Workers` are as many as threads need at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from smelt.knobs import child_environment

__all__ = ["MAX_COMPILERS", "Worker", "WorkerFailure", "Workers"]

_SCRIPT: Final = Path(__file__).with_name("worker.py")
_VARIABLES: Final = {"TRITON_INTERPRET": None, "TRITON_DISABLE_LINE_INFO": "1"}
"""Variables of Triton: programs are compiled, without the names of temporary files."""
_MAX_ERROR_BYTES: Final = 4096
MAX_COMPILERS: Final = 8
"""Most processes at once: each has a copy of Triton, of some hundred megabytes."""


class WorkerFailure(Exception):
    """The worker gave no answer; the message says whether it ended, hung or refused."""


class Worker:
    """A process that compiles programs, started by the first request."""

    def __init__(self, timeout_seconds: float = 120.0, script: Path = _SCRIPT) -> None:
        self.timeout_seconds, self.script = timeout_seconds, script
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._errors: IO[bytes] | None = None

    def request(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; raise WorkerFailure without one.

        After a failure the next request starts a new process.
        """
        with self._lock:
            try:
                answer = self._answer(json.dumps(data).encode() + b"\n")
            except (OSError, ValueError, WorkerFailure) as failure:
                message = str(failure) if isinstance(failure, WorkerFailure) else "it ended"
                tail = self._tail()
                self._end()
                raise WorkerFailure(f"{message}{tail}") from failure
            except BaseException:
                self._end()
                raise
        if "error" in answer:
            raise WorkerFailure(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _answer(self, line: bytes) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        deadline = time.monotonic() + self.timeout_seconds
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise WorkerFailure(f"no answer within {self.timeout_seconds:g} s")
                chunk = os.read(process.stdout.fileno(), 1 << 20)
                if not chunk:
                    status = process.wait()
                    raise WorkerFailure(f"the compiler's process ended with status {status}")
                received += chunk
        return json.loads(received)

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the process of this one; a forked child does not use its parent's."""
        if self._process is not None and self._owner == os.getpid():
            if self._process.poll() is None:
                return self._process
            self._end()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = process = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, "-I", str(self.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            env=child_environment(_VARIABLES),
        )
        self._owner = os.getpid()
        assert process.stdin is not None
        path = [p for p in sys.path if p]
        process.stdin.write(json.dumps({"path": path}).encode() + b"\n")
        return process

    def _tail(self) -> str:
        """Return the end of what the process wrote about its failure."""
        if self._errors is None:
            return ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - _MAX_ERROR_BYTES, 0))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _end(self) -> None:
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        if errors is not None:
            errors.close()
        if process is None or self._owner != os.getpid():
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def __del__(self) -> None:
        self._end()


class Workers:
    """Processes that compile side by side, at most `limit`, started when they are needed."""

    def __init__(self, limit: int) -> None:
        self._free = threading.Semaphore(limit)
        self._idle: list[Worker] = []

    def request(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of a worker to a request; raise WorkerFailure without one."""
        with self._free:
            # the last one that was used has Triton loaded
            worker = self._idle.pop() if self._idle else Worker()
            try:
                return worker.request(data)
            finally:
                self._idle.append(worker)
