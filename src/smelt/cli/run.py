"""`smelt run`: run a graph or kernel in text form, or an ONNX model; compare judges.

    smelt run softmax.smelt --size r=300 --size c=1000
    smelt run softmax.smelt --input x=rows.npy --judge all --save results
    smelt run model.onnx --size batch=2 --input input_ids=ids.npy

A judge is a way to run the program (`smelt.cli.judges`): the interpreters check native code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TextIO

import click
import numpy as np

from smelt.cli.inputs import (
    SOURCE,
    Array,
    fill_missing_sizes,
    pairs_of_options,
    read_array,
    read_source,
    sizes_of_options,
)
from smelt.cli.judges import JUDGES, Program, compare, read
from smelt.cli.onnx_model import SUFFIX, run_model
from smelt.cli.terminal import console, print_json, table
from smelt.errors import SmeltError
from smelt.explain.units import show_time
from smelt.tune.arrays import random_array
from smelt.types.dtype import from_numpy
from smelt.types.expr import Expr, evaluate, sizes_of


@click.command("run")
@click.argument("source", type=SOURCE)
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="A size; repeatable.")
@click.option(
    "--input",
    "files",
    multiple=True,
    metavar="NAME=FILE.npy",
    help="An input from a file; the others are random.",
)
@click.option(
    "--judge",
    type=click.Choice([*JUDGES, "all"]),
    default="native",
    show_default=True,
    help="Who runs it: the graph's interpreter, the kernels' interpreter, native code, or all "
    "of them, compared.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs.")
@click.option("--rtol", type=float, help="Largest relative difference (default: by dtype).")
@click.option("--save", type=click.Path(path_type=Path), help="Write the outputs into a folder.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(
    source: TextIO,
    sizes: tuple[str, ...],
    files: tuple[str, ...],
    judge: str,
    seed: int,
    rtol: float | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Run a graph or a kernel in text form, or an ONNX model.

    SOURCE is a file with a graph or a kernel, - for stdin, or MODEL.onnx.  With --judge all, every
    judge runs it and their results are compared; exits with 1 if they differ by more than rounding
    explains.
    """
    if getattr(source, "name", "-").endswith(SUFFIX):
        named = sizes_of_options(sizes)
        run_model(Path(source.name), named, files, seed=seed, save=save, as_json=as_json)
        return
    program = read(read_source(source))
    arrays, run_sizes = _inputs(program, sizes_of_options(sizes), files, seed)
    judges = program.judges if judge == "all" else (judge,)
    if judge != "all" and judge not in program.judges:
        raise click.UsageError(f"{program.name} is a kernel: there is no graph to interpret")
    results: dict[str, list[Array]] = {}
    times: dict[str, float] = {}
    for name in judges:
        results[name], times[name] = _timed(program, name, arrays, run_sizes)
    rows = [_row(program, k, results, rtol) for k in range(len(program.outputs))]
    if save is not None:
        _save(save, program, results[judges[-1]])
    if as_json:
        shown = [{k: v for k, v in row.items() if k != "fine"} for row in rows]
        print_json({"program": program.name, "sizes": run_sizes, "ns": times, "outputs": shown})
    else:
        _show(program, run_sizes, times, rows)
    if not all(row["fine"] for row in rows):
        sys.exit(1)


def _inputs(
    program: Program, sizes: dict[str, int], files: tuple[str, ...], seed: int
) -> tuple[list[Array], dict[str, int]]:
    """Return arrays from files, whose shapes determine sizes, and random arrays for the rest."""
    paths = pairs_of_options(files, "--input", "NAME=FILE.npy")
    wrong = [
        *(p for p in paths if p not in program.inputs),
        *(s for s in sizes if s not in program.sizes),
    ]
    if wrong:
        names = ", ".join([*program.inputs, *program.sizes])
        raise click.UsageError(f"{program.name} has no {wrong[0]!r}; it has {names}")
    loaded = {name: read_array(path, program.inputs[name]) for name, path in paths.items()}
    for name, array in loaded.items():
        for d, n in zip(program.inputs[name].shape, array.shape, strict=True):
            if isinstance(d, Expr) and str(d) in sizes_of(d):
                sizes.setdefault(str(d), n)
    sizes = {
        n: s for n, s in fill_missing_sizes(sizes, program.sizes).items() if n in program.sizes
    }
    program.verify(sizes)
    arrays = [
        loaded[name] if name in loaded else random_array(tensor, sizes, seed + k)
        for k, (name, tensor) in enumerate(program.inputs.items())
    ]
    for (name, tensor), array in zip(program.inputs.items(), arrays, strict=True):
        expected_shape = tuple(int(evaluate(d, sizes)) for d in tensor.shape)
        if array.shape != expected_shape:
            raise click.UsageError(
                f"{name} is {list(array.shape)}, not {list(expected_shape)} = {tensor}"
            )
    program.fill(arrays)
    return arrays, sizes


def _timed(
    program: Program, judge: str, arrays: Sequence[Array], sizes: dict[str, int]
) -> tuple[list[Array], float]:
    start = perf_counter_ns()
    try:
        outputs = program.run(judge, arrays, sizes)
    except SmeltError as error:
        raise click.ClickException(f"judge {judge}: {error}") from error
    return outputs, float(perf_counter_ns() - start)


def _row(
    program: Program, place: int, results: dict[str, list[Array]], rtol: float | None
) -> dict[str, Any]:
    """Return an output's type, a summary of its values, and its differences between judges."""
    first, *others = (outputs[place] for outputs in results.values())
    dtype = from_numpy(first.dtype)
    row: dict[str, Any] = {
        "name": program.outputs[place],
        "type": f"{dtype.name}{list(first.shape)}",
        "values": _summary(first),
        "fine": True,
    }
    for name, other in zip(list(results)[1:], others, strict=True):
        gap = compare(first, other, dtype, rtol)
        row[name] = {"difference": gap.largest, "relative": gap.relative, "same": gap.within_limit}
        row["fine"] = row["fine"] and gap.within_limit
    return row


def _summary(a: Array) -> str:
    if a.size == 0:
        return "empty"
    if a.size <= 4:
        return " ".join(f"{v:.6g}" for v in a.astype(np.float64).ravel())
    x = a.astype(np.float64).ravel()
    finite = x[np.isfinite(x)]
    strange = f"  ({x.size - finite.size} not finite)" if finite.size < x.size else ""
    if not finite.size:
        return f"nothing finite{strange}"
    return f"min {finite.min():.6g}  mean {finite.mean():.6g}  max {finite.max():.6g}{strange}"


def _save(folder: Path, program: Program, results: Sequence[Array]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(program.outputs, results, strict=True):
        path = folder / f"{name}.npy"
        np.save(path, array, allow_pickle=False)
        click.echo(f"wrote {path}", err=True)


def _show(
    program: Program, sizes: dict[str, int], times: dict[str, float], rows: list[dict[str, Any]]
) -> None:
    screen = console()
    sizes_text = " ".join(f"{n}={k}" for n, k in sizes.items())
    times_text = ", ".join(f"{judge} {show_time(ns)}" for judge, ns in times.items())
    screen.print(f"{program.name}  {sizes_text}".rstrip(), markup=False)
    screen.print(f"compiled and run once: {times_text}", markup=False)
    shown = table("output", "type", "values", "judges")
    first = next(iter(times))
    for row in rows:
        verdicts = [
            f"{name} {'agrees' if row[name]['same'] else 'DIFFERS'} ({row[name]['relative']:.2g})"
            for name in times
            if name in row
        ]
        shown.add_row(row["name"], row["type"], row["values"], ", ".join(verdicts) or first)
    screen.print(shown)
