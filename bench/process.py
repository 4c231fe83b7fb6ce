"""Worker processes: start with a clean environment, send orders, survive crashes.

>>> with Worker("numpy", threads=1, small=True) as worker:
...     worker.problem, worker.request({"do": "record"}, seconds=60)
('', {'ns': None})
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, Self, TypeVar, cast

START_SECONDS = 120.0
_TITLE = 120
"""Maximum characters of a line that counts as progress."""


class Titled(Protocol):
    """Something that is measured under a title."""

    @property
    def title(self) -> str: ...


def command(arguments: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return a command line that runs Python with `variables` added to the environment.

    The program `env` adds them, so that this process need not read its own environment to pass it
    on. Writing byte code is enabled, as for an installed package.
    """
    program = [sys.executable, *arguments]
    env = shutil.which("env")
    if env is None:
        return program
    return [
        env,
        "-u",
        "PYTHONDONTWRITEBYTECODE",
        *(f"{name}={value}" for name, value in variables.items()),
        *program,
    ]


def variables(threads: int, cache: Path | None, probe: str = "off") -> dict[str, str]:
    """Return the environment of measured processes: one thread count for all, own caches.

    The run measures the machine first, not while times are taken; a process that is bound to one
    core has a different machine model, and measures it when it starts (`probe` "now").
    """
    pools = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB", "SMELT")
    names = {f"{pool}_{'THREADS' if pool == 'SMELT' else 'NUM_THREADS'}" for pool in pools}
    settings = {name: str(threads) for name in sorted(names)}
    settings["JAX_PLATFORMS"] = "cpu"
    settings["SMELT_PROBE"] = probe
    if cache is not None:
        settings["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
        settings["SMELT_CACHE_DIR"] = str(smelt_cache(cache))
    return settings


def one_thread_variables() -> dict[str, str]:
    """Return the environment of measured processes with one thread, on one core."""
    return {**variables(1, None, "now"), "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


def smelt_cache(cache: Path) -> Path:
    """Return the folder for Smelt's objects and machine figures during a run."""
    return cache / "smelt"


T = TypeVar("T", bound=Titled)
Say = Callable[[str], object]


def ignore_progress(_: str) -> None:
    """Ignore progress."""


def announce(cases: Iterable[T]) -> Iterator[T]:
    """Yield the cases, printing each title before it is measured: for `run_and_report`."""
    for case in cases:
        print(case.title, flush=True)
        yield case


def run_and_report(line: Sequence[str], say: Say) -> str:
    """Run a process and return its last output line; report earlier lines as progress.

    Raises RuntimeError with the end of its error output if it fails.
    """
    last = ""
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(  # noqa: S603 - our own modules
            line, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            for printed in process.stdout:
                last = printed.rstrip("\n")
                if len(last) < _TITLE:
                    say(last)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(line)} failed:\n{errors.read()[-2000:]}")
    return last


@contextlib.contextmanager
def pin_to_cpus(threads: int) -> Generator[None, None, None]:
    """Bind this process, and those it starts meanwhile, to `threads` CPUs.

    It is the one limit that every library's pool obeys, JAX's included. It also makes processor
    time exact: the time of threads on other CPUs is accounted only at clock ticks.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class Worker:
    """The process of one library; `problem` says why it cannot be used."""

    def __init__(
        self, name: str, threads: int, small: bool = False, cache: Path | None = None
    ) -> None:
        self.name = name
        self.problem = ""
        self._buffer = b""
        size = "small" if small else "full"
        line = command(["-m", "bench.worker", name, str(threads), size], variables(threads, cache))
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        hello = self._reply(START_SECONDS)
        self.problem = self.problem or str(hello.get("failed", ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def request(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send one order and wait for its reply.

        The reply is `{"failed": reason}` if none comes within `seconds`.
        """
        if self.problem:
            return {"failed": self.problem}
        try:
            pipe = cast(IO[bytes], self._process.stdin)
            pipe.write(json.dumps(order).encode() + b"\n")
            pipe.flush()
        except OSError:
            return self._lost()
        return self._reply(seconds)

    def _reply(self, seconds: float) -> dict[str, Any]:
        pipe = cast(IO[bytes], self._process.stdout)
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            ready, _, _ = select.select([pipe], [], [], max(0.0, left))
            if not ready:
                self._kill()
                self.problem = f"no answer within {seconds:.0f} s"
                return {"failed": self.problem}
            piece = os.read(pipe.fileno(), 1 << 16)
            if not piece:
                return self._lost()
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return cast("dict[str, Any]", json.loads(line))

    def _lost(self) -> dict[str, Any]:
        code = self._process.wait()
        died = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self.problem = f"process ended: {died}"
        return {"failed": self.problem}

    def _kill(self) -> None:
        """Kill the worker and its children (compilers), which share its session."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Let the process end, and kill it if it does not."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._kill()
