"""Measure what the first call of small programs costs: processor seconds by stage.

    python -m tools.first_calls [NAME ..]              every program (or some), three processes each
    python -m tools.first_calls --against SRC [NAME ..]  and the same with another source tree

Each run is a process of its own, with the cost model's default figures and a cache on disk that
holds what every program shares (native parts of the runtime, digests of sources) and no program:
the first call of something new, on a machine where Smelt ran before. Importing the compiler, which
a first call does, is a stage. With another source tree both alternate, and the last column is the
ratio. Processor time adds what all threads take, and so is repeatable on a busy machine; of several
runs the best counts.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
RUNS = 3
SIZE = 64
"""Rows of the programs that are compiled whole."""
STAGES = ("import", "record", "passes", "fusion", "lower", "codegen", "llvm", "link")

EAGER = (
    "game_of_life",
    "k_means",
    "n_body",
    "heat",
    "logistic_regression",
    "image_filters",
    "neural_network",
    "histograms",
    "distances",
    "interpolation",
)
"""Programs that call NumPy's names, from `tests/frontends/numpy/programs.py`."""
WHOLE = {
    "physics": ("lattice_boltzmann", "gray_scott", "lorenz_rk4", "lennard_jones"),
    "finance": ("greeks", "rolling_moments"),
    "learning": ("gru_like", "windowed_attention", "hmm_forward"),
    "images": ("sobel", "ssim"),
    "integers": ("xorshift_and_lcg",),
}
"""Programs compiled as one function, from `tests/programs`."""
PRIMER = "smallest"
"""Program that fills the cache with what all programs share."""
NAMES = (*EAGER, *(name for names in WHOLE.values() for name in names))

HOOKS = {
    "passes": (("smelt.passes", "run"),),
    "fusion": (("smelt.fusion", "plan"),),
    "lower": (("smelt.compiler.driver", "_lower_all"), ("smelt.compiler.driver", "_identify_all")),
    "codegen": (
        ("smelt.codegen.build", "_emit"),
        ("smelt.compiler.driver", "code_variants"),
        ("smelt.compiler.ahead", "panels"),
    ),
    "llvm": (("smelt.codegen.build", "object_code"), ("smelt.runtime.jit", "compile_ir")),
    "link": (("smelt.runtime.code", "load"), ("smelt.runtime.code", "load")),
}
"""Functions whose time is a stage's, by module and name."""


class Clock:
    """Attribute the time of threads to stages; a stage within another one counts alone."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._local = threading.local()

    @contextmanager
    def within(self, stage: str) -> Iterator[None]:
        """Count this thread's time as that of a stage."""
        stack: list[float] = self._local.__dict__.setdefault("inner", [])
        start = time.thread_time()
        stack.append(0.0)
        try:
            yield
        finally:
            whole, inner = time.thread_time() - start, stack.pop()
            self.seconds[stage] += whole - inner
            if stack:
                stack[-1] += whole

    def watch(self, stage: str, module: str, name: str) -> None:
        """Count the time of a function as that of a stage."""
        place: Any = importlib.import_module(module)
        function = getattr(place, name, None)
        if function is None:
            return

        def timed(*args: Any, **options: Any) -> Any:
            with self.within(stage):
                return function(*args, **options)

        setattr(place, name, timed)


def call_of(name: str) -> Callable[[], Any]:
    """Return the call of a program, which computes everything."""
    import smelt as sm

    if name in EAGER:
        numpy_like = importlib.import_module("smelt.numpy")
        programs = importlib.import_module("tests.frontends.numpy.programs")
        return lambda: _read(getattr(programs, name)(numpy_like))
    if name == PRIMER:
        return _smallest
    (family,) = (f for f, names in WHOLE.items() if name in names)
    importlib.import_module(f"tests.programs.{family}")
    program = importlib.import_module("tests.programs.rows").PROGRAMS[name]
    arrays = program.make(np.random.default_rng(0), SIZE, np.float32)
    compiled = sm.jit(lambda *args: program.run(sm, *args))
    return lambda: _read(compiled(*arrays))


def _smallest() -> None:
    """Call a function, and loop without one, until native code runs both."""
    import smelt as sm

    x = np.ones(SIZE, np.float32)
    function = sm.jit(lambda x: 3 * x + 1)
    for _ in range(5):
        _read(function(x))
        _read(sm.asarray(x) * 3 + 1)


def _read(result: Any) -> None:
    for x in result if isinstance(result, tuple | list) else [result]:
        np.asarray(x)


def measure_here(name: str) -> dict[str, float]:
    """Return the processor seconds of a program's first call in this process, by stage."""
    call, clock = call_of(name), Clock()
    start = time.process_time()
    with clock.within("import"):
        importlib.import_module("smelt.compiler.warm")._driver()
    for stage, places in HOOKS.items():
        for module, function in places:
            clock.watch(stage, module, function)
    call()
    total = time.process_time() - start
    clock.seconds["record"] = total - sum(clock.seconds.values())  # and all the rest
    return {"total": total, **clock.seconds}


class Tree:
    """A source tree with its compiled modules and the cache that its processes start with."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.primed = folder / "primed"
        self._run(self.primed, PRIMER)

    def measure(self, name: str) -> dict[str, float]:
        """Return the processor seconds of a program's first call in a process of its own."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            cache = Path(place) / "cache"
            shutil.copytree(self.primed, cache)
            return self._run(cache, name)

    def _run(self, cache: Path, name: str) -> dict[str, float]:
        cache.mkdir(mode=0o700, exist_ok=True)
        variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        variables |= {
            "PYTHONPATH": os.pathsep.join((str(self.source), str(ROOT))),
            "PYTHONPYCACHEPREFIX": str(self.folder / "modules"),
            "SMELT_CACHE_DIR": str(cache),
            "SMELT_PROBE": "off",
            "SMELT_QUIET": "on",
            "OPENBLAS_NUM_THREADS": "1",  # its threads spin after NumPy is imported
        }
        command = [sys.executable, "-m", "tools.first_calls", "--here", name]
        run = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, check=True)
        return json.loads(run.stdout.splitlines()[-1])


def table(names: tuple[str, ...], trees: tuple[Tree, ...], runs: int = RUNS) -> Iterator[str]:
    """Yield the lines of the table: the first tree's stages, its total, the other's, the ratio."""
    columns = (*STAGES, "total", *(("other", "ratio") if len(trees) > 1 else ()))
    yield "| program | " + " | ".join(columns) + " |"
    yield "| --- |" + " --: |" * len(columns)
    totals: list[list[float]] = []
    for name in names:
        rows = [[tree.measure(name) for tree in trees] for _ in range(runs)]
        best = [min((row[k] for row in rows), key=lambda r: r["total"]) for k in range(len(trees))]
        totals.append([r["total"] for r in best])
        cells = [best[0][stage] for stage in (*STAGES, "total")]
        if len(best) > 1:
            cells += [best[1]["total"], best[0]["total"] / best[1]["total"]]
        yield f"| {name} | " + " | ".join(f"{x:.3f}" for x in cells) + " |"
    means = [math.exp(sum(map(math.log, column)) / len(column)) for column in zip(*totals)]
    ratio = f"; ratio {means[0] / means[1]:.3f}" if len(means) > 1 else ""
    yield f"\nGeometric mean: {', '.join(f'{m:.3f} s' for m in means)}{ratio}."


def main(arguments: list[str]) -> None:
    """Print the table, or one process's measurement."""
    if arguments[:1] == ["--here"]:
        print(json.dumps(measure_here(arguments[1])))
        return
    sources = [ROOT / "src"]
    if arguments[:1] == ["--against"]:
        sources.append(Path(arguments[1]))
        arguments = arguments[2:]
    with tempfile.TemporaryDirectory(prefix="smelt-first-") as folder:
        places = [Path(folder) / str(k) for k in range(len(sources))]
        for place in places:
            place.mkdir()
        trees = tuple(Tree(s, p) for s, p in zip(sources, places, strict=True))
        for line in table(tuple(arguments) or NAMES, trees):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
