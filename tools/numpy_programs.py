"""Time ordinary NumPy programs with one line changed: first run, second run, steady, against NumPy.

    python -m tools.numpy_programs                        every program at its natural size
    python -m tools.numpy_programs kalman life            some
    python -m tools.numpy_programs --size large           sixteen times the elements or steps
    python -m tools.numpy_programs --check                fail if a program is below its floor
    python -m tools.numpy_programs --write-docs           store the figures for the pages
    python -m tools.numpy_programs --calls                single calls on ten elements
    python -m tools.numpy_programs --bounds               what fusion could gain at most, large

The programs are those of `tests/frontends/numpy/scripts.py` and `programs.py`.  Each run is the
process time of all threads, in a process that has imported its library and nothing else, with an
empty cache on disk and one thread for NumPy's linear algebra.  `first` is the first call of that
process, `second` the next one and `steady` the fastest of the rest.  Processes of NumPy and its
peers alternate; the least figure of several processes counts, as other work on the machine only
adds.  A ratio is NumPy's time over the peer's: above 1, NumPy is slower.  `new` counts the entries
that the second run adds to the cache.  Values are compared with NumPy's.  Peers are Smelt and,
where installed, JAX and Numba.
"""

from __future__ import annotations

import argparse
import atexit
import datetime as dt
import importlib.util
import json
import math
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tools import numpy_bounds
from tools.numpy_calls import calls_table

__all__ = ["FLOORS", "LARGE", "PARTS", "differences", "failures", "main", "measure"]

ROOT = Path(__file__).parent.parent
STORED = ROOT / "docs" / "numpy_programs.json"
LIMIT_S = 600

LARGE = {
    "image_filters": 1024,
    "k_means": 100_000,
    "n_body": 400,
    "heat": 1000,
    "logistic_regression": 100_000,
    "principal_components": 100_000,
    "rolling_means": 1_000_000,
    "monte_carlo": 2_000_000,
    "spectrum_filter": 1 << 18,
    "search": 50_000,
    "histograms": 500_000,
    "game_of_life": 1024,
    "quantiles": 100_000,
    "least_squares": 200_000,
    "mandelbrot": 600,
    "distances": 800,
    "neural_network": 20_000,
    "linear_systems": 300,
    "table_of_groups": 200_000,
    "interpolation": 100_000,
}
"""The larger size of each program of `programs.py` that has one; `scripts.py` lists its own."""

LINES = {
    "numpy": "import numpy as np",
    "smelt": "import smelt.numpy as np",
    "jax": "import jax.numpy as np",
    "numba": "import numpy as np",
}
"""Library -> the line in place of the program's `import numpy as np`."""

_PROFILED = "SMELT_PROGRAMS_PROFILED"
"""Variable that makes a child measure what could be fused."""
RUNS = ("first", "second", "steady")
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
"""NumPy's linear algebra waits for its threads by spinning, which would count as its time."""
FLOORS = {
    "natural": {"first": (0.8, 0.5), "second": (0.88, 0.65), "steady": (0.88, 0.65)},
    "large": {"steady": (0.98, 0.55)},
}
"""Size -> run -> the least geometric mean, and the least ratio of a program."""

UNMEASURED = "_No figures yet: `python -m tools.numpy_programs --write-docs` writes them._\n"
Row = dict[str, Any]


def programs(library: str) -> dict[str, Callable[..., Any]]:
    """Return every program by name, with a library in NumPy's place."""
    from tests.frontends.numpy import programs as small

    path = ROOT / "tests" / "frontends" / "numpy" / "scripts.py"
    text = path.read_text(encoding="utf-8").replace(LINES["numpy"], LINES[library])
    module = types.ModuleType("scripts")
    exec(compile(text, str(path), "exec"), module.__dict__)  # noqa: S102 - our own file
    namespace = module.np

    def bind(program: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *size: program(namespace, *size)

    LARGE.update({f.__name__: size for f, size in module.SCRIPTS.items()})
    scripts = {f.__name__: f for f in module.SCRIPTS}
    if library == "numba":
        compiled = importlib.import_module("numba").njit
        return {name: compiled(f) for name, f in scripts.items()}
    return scripts | {f.__name__: bind(f) for f in small.PROGRAMS}


def leaves(result: Any) -> list[Any]:
    """Return the arrays and numbers of a result as NumPy's arrays."""
    if isinstance(result, tuple | list) and not hasattr(result, "dtype"):
        return [leaf for part in result for leaf in leaves(part)]
    return [np.asarray(result)]


def run_child(library: str, name: str, size: str, runs: int, target: str) -> None:
    """Run a program several times; write seconds, compilations and the first result to a file."""
    program = programs(library)[name]
    arguments = (LARGE[name],) if size == "large" else ()
    cache = Path(os.environ["SMELT_CACHE_DIR"])
    record: Row = {"seconds": [], "entries": [], "error": ""}
    try:
        if os.environ.get(_PROFILED):
            record["profile"] = numpy_bounds.profile(lambda: program(*arguments))
        for _ in range(runs if "profile" not in record else 0):
            start = time.process_time()
            result = leaves(program(*arguments))
            record["seconds"].append(time.process_time() - start)
            record["entries"].append(sum(1 for file in cache.rglob("*") if file.is_file()))
            record.setdefault("result", result)
    except Exception as error:  # noqa: BLE001 - any failure is a row of the table
        record["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    Path(target).write_bytes(pickle.dumps(record))


def run_process(library: str, name: str, size: str, runs: int, **settings: str) -> Row:
    """Return the record of a program in a process with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="smelt-programs-") as folder:
        target = Path(folder) / "record"
        cache = Path(folder) / "cache"
        cache.mkdir()
        environment = os.environ | _ONE_THREAD | settings | {"SMELT_CACHE_DIR": str(cache)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = _bytecode()
        child = ["--child", library, name, size, str(runs), str(target)]
        command = [sys.executable, "-W", "ignore", "-m", "tools.numpy_programs", *child]
        paths = [str(ROOT), str(ROOT / "src")]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            subprocess.run(command, env=environment, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return {"seconds": [], "entries": [], "error": f"no end in {LIMIT_S} s"}
        if not target.exists():
            return {"seconds": [], "entries": [], "error": "the process died"}
        return pickle.loads(target.read_bytes())  # noqa: S301 - our own child's file


@cache
def _bytecode() -> str:
    """Return a folder for byte code, which an installed package has too."""
    folder = tempfile.TemporaryDirectory(prefix="smelt-bytecode-")
    atexit.register(folder.cleanup)
    return folder.name


def differences(expected: Sequence[Any], actual: Sequence[Any]) -> str:
    """Return the first difference in number, shape, dtype or value; empty if there is none.

    >>> differences([np.ones(2)], [np.ones(2, np.float32)])
    'result 0: float32, NumPy float64'
    """
    if len(expected) != len(actual):
        return f"{len(actual)} results, NumPy {len(expected)}"
    for k, (a, b) in enumerate(zip(expected, actual, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            ours, theirs = (b.dtype, a.dtype) if a.shape == b.shape else (b.shape, a.shape)
            return f"result {k}: {ours}, NumPy {theirs}"
        if a.dtype.kind in "fc":
            scale = np.abs(a[np.isfinite(a)]).max(initial=1e-300)
            loose = float(np.finfo(a.dtype).eps) ** 0.6  # 4e-10 of the largest, float32 7e-5
            if not np.allclose(a / scale, b / scale, rtol=loose, atol=loose, equal_nan=True):
                return f"result {k}: off by {np.nanmax(np.abs(a - b)):.3g}"
        elif not np.array_equal(a, b):
            return f"result {k}: {int((a != b).sum())} of {a.size} differ"
    return ""


def measure(name: str, size: str, libraries: Sequence[str], runs: int, processes: int) -> Row:
    """Return a program's times in milliseconds by library and run, ratios and verdicts."""
    records: dict[str, list[Row]] = {library: [] for library in libraries}
    for _ in range(processes):
        for library, done in records.items():
            if not done or not done[0]["error"]:
                done.append(run_process(library, name, size, runs))
    row: Row = {"program": name, "size": size, "ms": {}, "note": {}, "new": {}}
    for library, done in records.items():
        row["note"][library] = done[0]["error"]
        if done[0]["error"]:
            continue
        seconds = [min(column) for column in zip(*(r["seconds"] for r in done), strict=True)]
        times = (seconds[0], seconds[1], min(seconds[2:]))
        row["ms"][library] = {run: t * 1e3 for run, t in zip(RUNS, times, strict=True)}
        row["new"][library] = done[0]["entries"][1] - done[0]["entries"][0]
        row["note"][library] = differences(records["numpy"][0]["result"], done[0]["result"])
    return row


def bound(name: str) -> Row:
    """Return how much faster fusion could make a program at its large size."""
    numpys = run_process("numpy", name, "large", 4)
    ours = run_process("smelt", name, "large", 0, SMELT_TIERS="numpy", **{_PROFILED: "1"})
    if error := numpys["error"] or ours["error"]:
        raise RuntimeError(f"{name}: {error}")
    return numpy_bounds.row(name, min(numpys["seconds"]), ours["profile"])


def ratio(row: Row, run: str, library: str = "smelt") -> float:
    """Return NumPy's time over a library's; 0 if it fails."""
    times = row["ms"].get(library)
    return row["ms"]["numpy"][run] / times[run] if times else 0.0


def mean(rows: Sequence[Row], run: str, library: str = "smelt") -> float:
    """Return the geometric mean of the ratios of programs that run."""
    ratios = [r for r in (ratio(row, run, library) for row in rows) if r]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else 0.0


def failures(rows: Sequence[Row]) -> list[str]:
    """Return what is below its floor, or has other values than NumPy."""
    wrong = [f"{r['program']}: {r['note']['smelt']}" for r in rows if r["note"]["smelt"]]
    for size, floors in FLOORS.items():
        of_size = [row for row in rows if row["size"] == size]
        for run, (least_mean, least) in floors.items() if of_size else ():
            wrong += [
                f"{row['program']}, {size}, {run}: {ratio(row, run):.2f} is below {least}"
                for row in of_size
                if ratio(row, run) < least
            ]
            if (overall := mean(of_size, run)) < least_mean:
                wrong.append(f"mean, {size}, {run}: {overall:.2f} is below {least_mean}")
        wrong += [
            f"{r['program']}: compiles in its second run"
            for r in of_size
            if size == "natural" and r["new"]["smelt"]
        ]
    return wrong


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table: NumPy's times, then each library's ratios."""
    libraries = [x for x in LINES if x != "numpy" and any(x in row["note"] for row in rows)]
    heads = [f"{library} {run}" for library in libraries for run in RUNS]
    yield "| " + " | ".join(["program", "size", "NumPy ms", *heads, "new", "values"]) + " |"
    yield "| --- | --- | --: |" + " --: |" * (len(heads) + 1) + " --- |"
    for row in rows:
        yield _line(row, libraries)
    for size in dict.fromkeys(row["size"] for row in rows):
        of_size = [row for row in rows if row["size"] == size]
        means = [f"{mean(of_size, run, x):.2f}" for x in libraries for run in RUNS]
        yield f"| geometric mean | {size} | | " + " | ".join(means) + " | | |"


def _line(row: Row, libraries: Sequence[str]) -> str:
    cells = [row["program"], row["size"], f"{row['ms']['numpy']['steady']:.2f}"]
    for library in libraries:
        cells += [f"{r:.2f}" if (r := ratio(row, run, library)) else "–" for run in RUNS]
    notes = [f"{x}: {row['note'][x]}" for x in libraries if row["note"].get(x)]
    cells += [str(row["new"].get("smelt", "–")), "; ".join(notes) or "NumPy's"]
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """Return the table of docs/numpy_programs.md."""
    if not STORED.exists():
        return UNMEASURED
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    head = f"{stored['date']}, {stored['cpu']}, {versions}."
    return "\n".join([head, "", *table(stored["rows"])]) + "\n"


def summary() -> str:
    """Return the three rows of README.md."""
    if not STORED.exists():
        return UNMEASURED
    rows = json.loads(STORED.read_text(encoding="utf-8"))["rows"]
    natural = [row for row in rows if row["size"] == "natural"]
    lines = [f"| {len(natural)} NumPy programs, NumPy's time / Smelt's | mean | lowest |"]
    lines.append("|---|--:|--:|")
    for run, title in zip(RUNS, ("first run", "second run", "later runs"), strict=True):
        least = min(ratio(row, run) for row in natural)
        lines.append(
            f"| [{title}](docs/numpy_programs.md) | {mean(natural, run):.2f} | {least:.2f} |"
        )
    return "\n".join(lines) + "\n"


PARTS: Mapping[str, Callable[[], str]] = {"table": page, "bounds": numpy_bounds.page}
SUMMARY: Mapping[str, Callable[[], str]] = {"programs": summary}


def store(rows: Sequence[Row], libraries: Sequence[str]) -> None:
    """Write the figures for the pages."""
    from smelt.machine.processor import cpu_model

    versions = {"Python": platform.python_version()}
    versions |= {x: importlib.import_module(x).__version__ for x in libraries}
    date = dt.datetime.now(dt.UTC).date().isoformat()
    record = {"date": date, "cpu": cpu_model(), "versions": versions, "rows": rows}
    STORED.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if `--check` finds something below its floor."""
    parser = argparse.ArgumentParser(description="Time NumPy programs with one line changed")
    parser.add_argument("programs", nargs="*", metavar="program")
    parser.add_argument("--size", choices=("natural", "large"), default="natural")
    parser.add_argument("--runs", type=int, help="calls in a process: 6, at the large size 10")
    parser.add_argument("--processes", type=int, default=2, help="processes of each library")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a floor is missed")
    parser.add_argument("--write-docs", action="store_true", help="store figures for the pages")
    parser.add_argument("--calls", action="store_true", help="time single calls on ten elements")
    parser.add_argument("--bounds", action="store_true", help="bound the gain at the large size")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        library, name, size, runs, target = chosen.child
        run_child(library, name, size, int(runs), target)
        return 0
    if chosen.calls:
        for line in calls_table():
            print(line, flush=True)
        return 0
    names = list(programs("numpy"))
    if unknown := set(chosen.programs) - set(names):
        parser.error(f"no such program: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    names = [n for n in names if n in (chosen.programs or names)]
    names = [n for n in names if chosen.size == "natural" or n in LARGE]
    if chosen.bounds:
        bounds = [bound(n) for n in names if n in LARGE]
        print(numpy_bounds.table(bounds))
        if chosen.write_docs:
            numpy_bounds.store(bounds)
        return 0
    optional = [x for x in ("jax", "numba") if importlib.util.find_spec(x)]
    libraries = ["numpy", "smelt", *optional]
    rows: list[Row] = []
    runs = chosen.runs or (6 if chosen.size == "natural" else 10)
    for name in names:
        rows.append(measure(name, chosen.size, libraries, max(runs, 3), chosen.processes))
        print(_line(rows[-1], libraries[1:]), flush=True)
    print("\n" + "\n".join(table(rows)))
    if chosen.write_docs:
        store(rows, libraries)
    wrong = failures(rows) if chosen.check else []
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
