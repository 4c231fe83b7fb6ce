"""ONNX models in `smelt run`, `smelt explain` and `smelt bench`: inputs, reports, a race.

smelt run model.onnx --size batch=2 --input input_ids=ids.npy
smelt explain model.onnx --size sequence=128
smelt bench model.onnx --threads 1
"""

# ONNX Runtime is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import click
import numpy as np

from smelt.cli.inputs import pairs_of_options
from smelt.cli.terminal import print_json
from smelt.explain.api import Report, report
from smelt.explain.units import show_time
from smelt.frontends.array.bind_args import as_arguments
from smelt.frontends.array.explain import explain
from smelt.knobs import config
from smelt.onnx import Session, load
from smelt.onnx.tensors import dtype_of
from smelt.types.dtype import from_numpy

__all__ = ["SUFFIX", "bench_model", "explain_model", "run_model"]

SUFFIX = ".onnx"
TYPICAL = {"batch": 2, "sequence": 128, "length": 128, "height": 320, "width": 320, "time": 64}
"""Typical sizes, by a part of the name of a size."""
OTHER_SIZE = 8
"""Default of other sizes, and of dimensions without a name."""


def feeds_of(
    session: Session, sizes: Mapping[str, int], files: tuple[str, ...], seed: int = 0
) -> dict[str, Any]:
    """Return inputs: from files, and random ones; floats are normal, integers 0 or 1.

    Raises click's UsageError for names that the model does not have.
    """
    paths = pairs_of_options(files, "--input", "NAME=FILE.npy")
    ports = {a.name: a for a in session.inputs}
    names = {d for a in session.inputs for d in a.shape or () if isinstance(d, str)}
    wrong = [n for n in paths if n not in ports] + [s for s in sizes if s not in names]
    if wrong:
        listed = ", ".join([*ports, *sorted(names)])
        raise click.UsageError(f"the model has no {wrong[0]!r}; it has {listed}")
    generator = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for name, (port, arg) in zip(ports, zip(session.ports, session.inputs, strict=True)):
        if name in paths:
            feeds[name] = np.load(Path(paths[name]), allow_pickle=False)
            continue
        shape = [_size(d, sizes) for d in arg.shape or ()]
        dtype = dtype_of(port.data_type)
        if dtype.kind == "f" or dtype.name == "bfloat16":
            feeds[name] = generator.standard_normal(shape).astype(dtype)
        else:
            feeds[name] = generator.integers(0, 2, shape).astype(dtype)
    return feeds


def _size(d: Any, sizes: Mapping[str, int]) -> int:
    if isinstance(d, int):
        return d
    if d in sizes:
        return sizes[d]
    return next((n for part, n in TYPICAL.items() if part in str(d).lower()), OTHER_SIZE)


def run_model(
    path: Path,
    sizes: Mapping[str, int],
    files: tuple[str, ...],
    *,
    seed: int,
    save: Path | None,
    as_json: bool,
) -> None:
    """Run a model once and print its outputs."""
    session = load(path)
    feeds = feeds_of(session, sizes, files, seed)
    start = perf_counter_ns()
    results = session.run(None, feeds)
    spent = perf_counter_ns() - start
    rows: list[dict[str, Any]] = []
    for arg, result in zip(session.outputs, results, strict=True):
        row: dict[str, Any] = {"name": arg.name, "type": type(result).__name__, "values": ""}
        if isinstance(result, np.ndarray):
            row["type"] = f"{_type_name(result)}{list(result.shape)}"
            if result.dtype.kind in "iuf" and result.size:
                ends = (float(v) for v in (result.min(), result.mean(), result.max()))
                row["values"] = "min {:.6g}  mean {:.6g}  max {:.6g}".format(*ends)
            if save is not None:
                save.mkdir(parents=True, exist_ok=True)
                np.save(save / f"{arg.name.replace('/', '_')}.npy", result, allow_pickle=False)
        rows.append(row)
    if as_json:
        facts = {"reasons": session.reasons, "fallback": session.fallback_calls}
        print_json({"model": path.name, "ns": spent, "outputs": rows, **facts})
        return
    click.echo(f"{path.name}: compiled and run once in {show_time(spent)}")
    for row in rows:
        click.echo(f"  {row['name']}  {row['type']}  {row['values']}")
    for line in _notes(session):
        click.echo(line)


def _type_name(a: np.ndarray[Any, Any]) -> str:
    try:
        return from_numpy(a.dtype).name
    except TypeError:
        return a.dtype.name


def _notes(session: Session) -> list[str]:
    """Return what ran outside of one compiled program."""
    lines = [f"  evaluated call by call: {reason}" for reason in session.reasons]
    for name, n in session.fallback_calls.items():
        lines.append(f"  {name}: {n} calls of onnx's reference evaluator")
    return lines


def explain_model(
    path: Path, sizes: Mapping[str, int], *, predict: bool, device: str | None
) -> Report:
    """Report how a model is compiled for random inputs of these sizes."""
    session = load(path)
    function, arguments = session.program(feeds_of(session, sizes, ()))
    if not predict:
        options = {} if device is None else {"target": device}
        return explain(function, *arguments, **options)
    bound = function.options.bind(tuple(arguments), {})
    trace, numbers = function.find_trace(bound, as_arguments(bound))
    names = trace.source_size_names()
    return report(trace.executable, numbers, target=device, size_names=names)


def bench_model(path: Path, threads: int | None, *, quick: bool) -> None:
    """Race a model against ONNX Runtime, if that is installed, in alternating rounds."""
    session = load(path)
    feeds = feeds_of(session, {}, ())
    runs: dict[str, Callable[[], Any]] = {"smelt": lambda: session.run(None, feeds)}
    peer = _peer(path, threads)
    if peer is not None:
        runs["onnxruntime"] = lambda: peer.run(None, feeds)
    first: dict[str, int] = {}
    times: dict[str, list[int]] = {name: [] for name in runs}
    with config(threads=threads) if threads else config():
        for name, call in runs.items():
            first[name] = _timed(call)
        for _ in range(5 if quick else 30):
            for name, call in runs.items():
                times[name].append(_timed(call))
    shapes = ", ".join(f"{n} {list(np.shape(x))}" for n, x in feeds.items())
    click.echo(f"{path.name}  {shapes}  {threads or 'all'} threads")
    for name in runs:
        middle = median(times[name])
        ratio = median(times["onnxruntime"]) / middle if peer is not None else 1.0
        click.echo(
            f"  {name:12} median {show_time(middle)}  first call {show_time(first[name])}"
            + (f"  {ratio:.2f} x ONNX Runtime" if peer is not None else "")
        )
    if peer is None:
        click.echo("  onnxruntime is not installed")
    for line in _notes(session):
        click.echo(line)


def _peer(path: Path, threads: int | None) -> Any:
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads or 0
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _timed(call: Callable[[], Any]) -> int:
    start = perf_counter_ns()
    call()
    return perf_counter_ns() - start
