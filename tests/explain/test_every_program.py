"""Every program of the catalogue, of the corpus and of the examples is explained in all forms.

So are the gradients of the catalogue's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.catalogue.harness import MACHINE, matched, record
from tests.catalogue.rows import Row, draw, small, wanted
from tests.programs.rows import PROGRAMS

import smelt as sm
from smelt.compiler import driver
from smelt.explain.analysis import memory_analysis
from smelt.explain.data import ReportData
from smelt.explain.page import html
from smelt.explain.report import Report, report
from smelt.frontends.array.trace import Trace
from smelt.frontends.array.tree import flatten

SAMPLE, GRADIENTS = 4, 8
"""One program, and one gradient, in so many is explained by `make test`, all by `make nightly`."""
for family in ("images", "physics", "finance", "learning", "integers"):
    import_module(f"tests.programs.{family}")
CATALOGUE = {
    row.id: row
    for path in sorted((Path(__file__).parents[1] / "catalogue").glob("test_[a-h]_*.py"))
    for row in getattr(import_module(f"tests.catalogue.{path.stem}"), "ROWS", ())
}


def recorded_row(row: Row) -> tuple[Trace, dict[str, int]]:
    trace = record(row.code, draw(row, small(row, 3), "f32"))
    return trace, matched(trace, [n for x in row.inputs for n in wanted(x, "f32").dims(row.sizes)])


def recorded_gradient(row: Row) -> tuple[Trace, dict[str, int]]:
    """The sum of a row's results, differentiated by all its floats."""
    arrays = draw(row, small(row, 3), "f32")
    moving = [k for k, a in enumerate(arrays) if a.dtype == np.float32]

    def total(*xs: Any) -> Any:
        results = flatten(row.code(sm, *xs))[0]
        return sum(sm.sum(y) for y in results if y.dtype.kind == "float")

    trace = record(lambda _, *xs: sm.grad(total, argnums=tuple(moving))(*xs), arrays)
    return trace, matched(trace, [n for x in row.inputs for n in wanted(x, "f32").dims(row.sizes)])


def recorded_program(name: str) -> tuple[Trace, dict[str, int]]:
    program = PROGRAMS[name]
    arrays = program.make(np.random.default_rng(0), 64, np.float32)
    trace = sm.jit(lambda *xs: program.run(sm, *xs)).lower(*arrays).trace
    return trace, trace.hints


def recorded_example() -> tuple[Trace, dict[str, int]]:
    norm = import_module("examples.norm").norm
    x = sm.spec((4096, 768), np.float32)
    trace = sm.jit(norm).lower(x, x, sm.spec((768,), np.float32)).trace
    return trace, trace.hints


MAKERS: dict[str, Callable[[], tuple[Trace, dict[str, int]]]] = {
    **{f"row {k}": partial(recorded_row, row) for k, row in CATALOGUE.items()},
    **{f"program {k}": partial(recorded_program, k) for k in PROGRAMS},
    "example norm": recorded_example,
}


def sampled(names: Iterable[str], share: int) -> list[Any]:
    return [
        pytest.param(
            name,
            id=name.replace(" ", "_"),
            marks=() if zlib.crc32(name.encode()) % share == 0 else (pytest.mark.nightly,),
        )
        for name in names
    ]


def explained(trace: Trace, sizes: dict[str, int]) -> Report:
    """The report in all forms, its page too."""
    if not any(n.inputs for n in trace.graph.nodes()):
        pytest.skip("it computes nothing")
    compiled = driver.compile(trace.graph, hints=sizes, target=MACHINE)
    result = report(compiled, sizes)
    assert result.text(4) and memory_analysis(compiled, sizes).argument_size_in_bytes >= 0
    data = result.to_data(page=True)
    msgspec.convert(data, type=ReportData, strict=True)
    assert html(data)
    return result


@pytest.mark.parametrize("name", sampled(MAKERS, SAMPLE))
def test_it_is_explained_and_moves_no_more_than_its_operators(name: str) -> None:
    total = explained(*MAKERS[name]()).data.total
    assert total.bytes <= total.bytes_unfused, f"{total.bytes:,} of {total.bytes_unfused:,} bytes"


@pytest.mark.parametrize("name", sampled(CATALOGUE, GRADIENTS))
def test_its_gradient_is_explained(name: str) -> None:
    explained(*recorded_gradient(CATALOGUE[name]))


@pytest.mark.parametrize("name", sampled(MAKERS, SAMPLE))
def test_it_is_explained_for_a_gpu(name: str) -> None:
    """Each kernel has a program, or a reason why not, and a predicted time."""
    trace, sizes = MAKERS[name]()
    if not any(n.inputs for n in trace.graph.nodes()):
        pytest.skip("it computes nothing")
    compiled = driver.compile(trace.graph, hints=sizes, target=MACHINE)
    with sm.config(device_code=False):
        device_report = report(compiled, sizes, target="h100")
    assert "NVIDIA H100" in device_report.text(3)
    for k in device_report.data.kernels:
        assert k.device is not None and k.predicted_ns is not None
        assert (k.device.source is None) == (k.device.refused is not None)
        assert k.kind not in ("kernel", "check") or k.device.refused is None, k.device.refused


def test_there_are_programs() -> None:
    assert len(CATALOGUE) > 40 and len(PROGRAMS) > 20
